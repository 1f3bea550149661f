"""A `keras.Model` that trains the same way on one device, several, or several workers, in micro-batches if asked.

One idea cures four faults of stock Keras 3: a step's gradients are summed over micro-batches, reduced over replicas
**once**, and only then shown to anything that looks at them. So clipping, weight decay and the finite check of loss
scaling see the global batch's mean gradient, the same on every replica.
"""

from contextlib import contextmanager

from bigtrain_nb.batches import add_gradient, count_examples, cut, loss_reduction, weight_of
from bigtrain_nb.quiet import keras, tf
from bigtrain_nb.settings import whole_number

# isort: split
from keras.src.models.functional import Functional  # what keras.Model(inputs, outputs) returns; Keras exports no name

_serializable = keras.saving.register_keras_serializable("bigtrain_nb")


@_serializable
class Model(keras.Model):
    """A `keras.Model`, functional or subclassed, whose training step is cut into ``micro_batches`` slices.

    The dataset's batch stays the batch: one step takes it (under a strategy, each replica its share), cuts it into at
    most ``micro_batches`` slices of ceil(share / micro_batches) examples, sums their gradients, reduces the sums once
    over the replicas and applies them once. A share of fewer examples gives slices of one. Peak memory falls with
    ``micro_batches``; the result does not change, except through layers with batch statistics or random numbers, which
    see slices.

    The applied gradient is the mean over the global batch, however unevenly it splits, also for losses with the
    reduction "mean_with_sample_weight" (then slices count by their sample weights). Losses with a mask are averaged
    over the valid places of each slice: pass the mask as ``sample_weight`` to average over the whole batch. Moving
    statistics of `BatchNormalization` are averaged over the replicas in the same reduction.

    It works in `fit`, `evaluate`, `predict`, `train_on_batch` without a strategy and under MirroredStrategy and
    MultiWorkerMirroredStrategy.

    `keras.models.clone_model` gives a functional model of one micro-batch: set ``micro_batches`` on the clone.

    Raises ValueError for ``micro_batches`` that is not a whole number of at least 1; in training, for an optimizer that
    accumulates by itself, for losses whose reductions cannot be weighed together and for inputs that cannot be cut.
    """

    def __new__(cls, *args, **kwargs):
        return super().__new__(FunctionalModel if cls is Model and _is_functional(args, kwargs) else cls)

    def __init__(self, *args, micro_batches=1, **kwargs):
        if _is_functional(args, kwargs) and not isinstance(self, FunctionalModel):
            _make_functional(type(self))
        super().__init__(*args, **kwargs)
        self.micro_batches = micro_batches

    @classmethod
    def of(cls, model, micro_batches=1):
        """Take an existing Keras model as it is: the same layers and weights, in a model of this class.

        Compile the result; what ``model`` was compiled with is not taken over, nor a `train_step` of its own.
        """
        if isinstance(model, keras.Sequential) and not model.built:
            raise ValueError(f"{model.name} has no weights yet: start it with keras.Input(shape), or call it once")
        if isinstance(model, keras.Sequential):
            return cls(model.inputs[0], model.outputs[0], name=model.name, micro_batches=micro_batches)
        if isinstance(model, Functional):
            return cls(model.input, model.output, name=model.name, micro_batches=micro_batches)
        return WrappedModel(model, micro_batches=micro_batches)

    @property
    def micro_batches(self):
        """Number of slices that a step is cut into; a new value holds from the next `fit` on."""
        return self._micro_batches

    @micro_batches.setter
    def micro_batches(self, value):
        self._micro_batches = whole_number("micro_batches", value, 1)
        self.train_function = None

    @property
    def loss_scale(self):
        """The factor on the loss under "mixed_float16", as a float; None without loss scaling."""
        optimizer = getattr(self, "optimizer", None)
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        return float(optimizer.dynamic_scale.numpy() if optimizer.built else optimizer.initial_scale)

    def get_config(self):
        return {**super().get_config(), "micro_batches": self.micro_batches}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        micro_batches = config.pop("micro_batches", 1)
        model = super().from_config(config, custom_objects)
        model.micro_batches = micro_batches
        return model

    def train_step(self, data):
        """Train on one replica's share of the global batch; return the metrics."""
        if self._stock_step_is_right():
            return super().train_step(data)
        if getattr(_innermost(self.optimizer), "gradient_accumulation_steps", None):
            raise ValueError(
                "gradient_accumulation_steps works on one device and without micro_batches only: leave it out of the"
                " optimizer and give micro_batches to the model"
            )
        if self._distribute_strategy is None:
            self._symbolic_build(data_batch=data)  # sums start as zeros, so the variables must exist
        gradients, loss, weight, examples = self._accumulate(data)
        replicas = self.distribute_strategy.num_replicas_in_sync
        self._loss_tracker.update_state(loss * replicas, sample_weight=examples)  # Keras has divided it by the replicas
        if replicas > 1:
            gradients = self._reduce(gradients, weight)
        if self.trainable_variables:
            with _already_reduced(self.optimizer):
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._for_reduction(self.get_metrics_result())

    def test_step(self, data):
        """Evaluate one replica's share of the global batch; return the metrics."""
        return self._for_reduction(super().test_step(data))

    def _stock_step_is_right(self):
        """One slice, one device, no norm to clip: Keras counts repeated rows of an embedding's gradient apart in it."""
        optimizer = _innermost(self.optimizer)
        clips = getattr(optimizer, "clipnorm", None) or getattr(optimizer, "global_clipnorm", None)
        return self.micro_batches == 1 and self.distribute_strategy.num_replicas_in_sync == 1 and not clips

    def _accumulate(self, data):
        """Return gradients of the mean loss over ``data``, that loss, its weight in the global mean, its examples."""
        variables, weigh = self.trainable_variables, weight_of(loss_reduction(self.loss))
        examples, weight = count_examples(data), weigh(data)
        size = -(-examples // self.micro_batches)
        without_gradient = set()

        def add_slice(start, length, loss, sums):
            part = data if self.micro_batches == 1 else cut(data, start, length)
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(part)
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                share = tf.math.divide_no_nan(weigh(part), weight)
                with _each_counts(self, count_examples(part)):
                    part_loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
                part_loss *= tf.cast(share, part_loss.dtype)
                scaled = self.optimizer.scale_loss(part_loss)
            gradients = tape.gradient(scaled, variables)
            without_gradient.update(i for i, gradient in enumerate(gradients) if gradient is None)
            self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
            sums = [add_gradient(*row) for row in zip(sums, gradients, variables, strict=True)]
            return loss + tf.cast(part_loss, tf.float32), sums

        nothing = tf.constant(0.0), [tf.zeros(v.shape, v.dtype) for v in variables]
        if self.jit_compile and self.micro_batches > 1:  # XLA wants slices of one size, the rest apart
            loss, sums = _each(examples // size, size, lambda _: size, add_slice, nothing)
            done = examples // size * size
            rest = lambda: add_slice(done, examples - done, loss, sums)  # noqa: E731
            loss, sums = tf.cond(done < examples, rest, lambda: (loss, sums))
        else:
            slices = -(-examples // tf.maximum(size, 1))
            loss, sums = _each(slices, size, lambda start: tf.minimum(size, examples - start), add_slice, nothing)
        return [None if i in without_gradient else s for i, s in enumerate(sums)], loss, weight, examples

    def _reduce(self, gradients, weight):
        """Return the global batch's gradients: every replica's share weighed, summed in one all-reduce, divided."""
        statistics = _moving_statistics(self)
        replicas = self.distribute_strategy.num_replicas_in_sync
        present = [g * tf.cast(weight * replicas, g.dtype) for g in gradients if g is not None]
        moved = [tf.cast(v.value, tf.float32) * weight for v in statistics]
        context = tf.distribute.get_replica_context()
        *sums, total = context.all_reduce(tf.distribute.ReduceOp.SUM, [*present, *moved, weight])
        means = iter([tf.math.divide_no_nan(s, tf.cast(total, s.dtype)) for s in sums])
        reduced = [None if gradient is None else next(means) for gradient in gradients]
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(tf.cast(mean, variable.dtype))
        return reduced

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Build from a *local* replica's batch; Keras' own turns the batches of all into one tensor, which raises
        under MultiWorkerMirroredStrategy (keras issue 20585).
        """
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)
        local = self.distribute_strategy.experimental_local_results
        super()._maybe_symbolic_build(data_batch=keras.tree.map_structure(lambda value: local(value)[0], data_batch))

    def _for_reduction(self, logs):
        """Give logs the axis over which Keras reduces them with several workers; scalars raise (keras issue 20585)."""
        strategy = self.distribute_strategy
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return logs
        if strategy.num_replicas_in_sync == len(strategy.extended.worker_devices):
            return logs
        return keras.tree.map_structure(lambda value: tf.expand_dims(value, 0), logs)


@_serializable
class FunctionalModel(Model, Functional):
    """What ``Model(inputs, outputs)`` returns."""


@_serializable
class WrappedModel(Model):
    """Another model's forward pass in a `Model`."""

    def __init__(self, model, **kwargs):
        super().__init__(**kwargs)
        self.model = model

    def call(self, inputs, training=None):
        return self.model(inputs, training=training)

    def get_config(self):
        return {**super().get_config(), "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = {**config, "model": keras.saving.deserialize_keras_object(config["model"], custom_objects)}
        return super().from_config(config, custom_objects)


def _is_functional(args, kwargs):
    return len(args) == 2 or "outputs" in kwargs


def _make_functional(cls):
    """Give a subclass that calls ``super().__init__(inputs, outputs)`` the base for it, as Keras does for its own."""
    for base in cls.__bases__:
        if base is not Model and issubclass(base, Model):
            _make_functional(base)
    cls.__bases__ = tuple(FunctionalModel if base is Model else base for base in cls.__bases__)


def _innermost(optimizer):
    return getattr(optimizer, "inner_optimizer", optimizer)


@contextmanager
def _already_reduced(optimizer):
    """Keep a Keras optimizer from reducing gradients again; there is no public way to say that they are reduced."""
    inner = _innermost(optimizer)
    inner._all_reduce_sum_gradients = list
    try:
        yield
    finally:
        vars(inner).pop("_all_reduce_sum_gradients", None)  # replicas are threads: another may have been here before


@contextmanager
def _each_counts(model, examples):
    """Let the tracked loss of each output count a slice by its examples; Keras counts all batches alike."""
    trackers = model._compile_loss.metrics if model._compile_loss else []
    for tracker in trackers:
        update = type(tracker).update_state
        tracker.update_state = lambda value, sample_weight=None, t=tracker, u=update: u(t, value, examples)
    try:
        yield
    finally:
        for tracker in trackers:
            del tracker.update_state


def _each(count, size, length, add_slice, nothing):
    """Add ``count`` slices, the i-th starting at ``i * size``, one after the other."""
    body = lambda i, loss, sums: (i + 1, *add_slice(i * size, length(i * size), loss, sums))  # noqa: E731
    return tf.while_loop(lambda i, *_: i < count, body, (0, *nothing), parallel_iterations=1)[1:]


def _moving_statistics(model):
    """Variables that training changes on each replica by itself: unreduced, replicas would drift apart unseen."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [v for layer in layers if layer.trainable for v in (layer.moving_mean, layer.moving_variance)]
