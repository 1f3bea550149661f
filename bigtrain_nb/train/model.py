"""A `keras.Model` that trains the same way on one device, several, or several workers, in micro-batches if asked.

One idea cures most of what stock Keras 3 gets wrong here: a step's gradients are summed over micro-batches, reduced
over replicas **once**, and only then shown to anything that looks at them. So clipping, weight decay and the finite
check of loss scaling see the global batch's mean gradient, the same on every replica.
"""

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train import micro_batches as batches
from bigtrain_nb.train.keras_gaps import (
    Functional,
    after,
    already_reduced,
    count_by_examples,
    innermost,
    logs_to_reduce,
    moving_statistics,
)

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

    Already with one device and one slice, two results differ from stock Keras, where its own are wrong: a row of an
    embedding that a batch uses often has one gradient, of which Adam takes the square and clipping the norm; and the
    end of a dataset of unknown size is no step, in which weights would decay and a schedule would move on.

    It works in `fit`, `evaluate`, `predict`, `train_on_batch` without a strategy and under MirroredStrategy and
    MultiWorkerMirroredStrategy.

    `keras.models.clone_model` gives a functional model of one micro-batch: set ``micro_batches`` on the clone.

    Raises ValueError for ``micro_batches`` that is not a whole number of at least 1; in training, for an optimizer that
    accumulates by itself, for losses whose reductions cannot be weighed together, for inputs that cannot be cut, for
    synchronized `BatchNormalization` on several replicas and for logs of `compute_metrics` that are no metrics.
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

        Raises TypeError for what is no Keras model, ValueError for a Sequential without weights.
        """
        if not isinstance(model, keras.Model):
            raise TypeError(f"Model.of takes a Keras model, not {model!r}: call a function that builds one first")
        if isinstance(model, keras.Sequential) and not model.built:
            raise ValueError(f"{model.name} has no weights yet: start it with keras.Input(shape), or call it once")
        if isinstance(model, keras.Sequential):
            taken = cls(model.inputs[0], model.outputs[0], name=model.name, micro_batches=micro_batches)
        elif isinstance(model, Functional) and type(model).call is Functional.call:
            taken = cls(model.input, model.output, name=model.name, micro_batches=micro_batches)
        else:
            taken = WrappedModel(model, micro_batches=micro_batches)
        taken.dtype_policy = model.dtype_policy  # by which `compile` decides on loss scaling
        return taken

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

    def make_train_function(self, force=False):
        """Make the function that `fit` calls, ``train_function``.

        The optimizer's variables are made before it is traced: TensorFlow traces a function that makes variables again
        and keeps both, which makes the first step of two replicas take more than twice as long.
        """
        optimizer, variables = self.optimizer, self.trainable_variables
        if isinstance(self, Functional) and variables and optimizer is not None and not optimizer.built:
            with self.distribute_strategy.scope():
                optimizer.build(variables)
        return super().make_train_function(force)

    def train_step(self, data):
        """Train on one replica's share of the global batch; return the metrics."""
        uncut = self.micro_batches == 1 and self.distribute_strategy.num_replicas_in_sync == 1
        if getattr(innermost(self.optimizer), "gradient_accumulation_steps", None) and not uncut:
            raise ValueError(
                "gradient_accumulation_steps works on one device and without micro_batches only: leave it out of the"
                " optimizer and give micro_batches to the model"
            )
        data = batches.as_tensors(data)
        self._build_before_tracing(data, sums=not uncut)
        *gradients, loss = self._gradients(data) if uncut else self._reduced(data)
        gradients = [batches.distinct_rows(gradient, self.jit_compile) for gradient in gradients]
        self._loss_tracker.update_state(loss, sample_weight=batches.count_examples(data))
        if self.trainable_variables:
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)
            with already_reduced(self.optimizer), after(data):
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return logs_to_reduce(self.get_metrics_result(), self.distribute_strategy)

    def test_step(self, data):
        """Evaluate one replica's share of the global batch; return the metrics."""
        self._build_before_tracing(data)
        return logs_to_reduce(super().test_step(data), self.distribute_strategy)

    def _build_before_tracing(self, data, sums=False):
        """Make the variables that sums start from and the losses to track; with a strategy, Keras did so already."""
        _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        if self._distribute_strategy is None and (sums or keras.tree.is_nested(y)):
            self._symbolic_build(data_batch=data)

    def _compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        with count_by_examples(self, x):
            return super()._compute_loss(x, y, y_pred, sample_weight=sample_weight, training=training)

    def _gradients(self, data, share=1.0):
        """Return the gradients of ``share`` of the loss, and that as last; update the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            loss *= tf.cast(share, loss.dtype)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        unknown = set(logs) - set(self.get_metrics_result())
        if unknown:
            raise ValueError(
                f"compute_metrics returns {', '.join(sorted(unknown))}, which would show one slice only: make each a"
                " keras.metrics.Metric and an attribute of the model"
            )
        return [*gradients, loss]

    def _accumulate(self, data):
        """Return gradients and loss of all slices of ``data``, and its weight in the global mean."""
        reduction, variables, without_gradient = batches.loss_reduction(self.loss), self.trainable_variables, set()
        weigh = batches.weight_of(reduction)
        examples, weight = batches.count_examples(data), weigh(data)

        def add_slice(start, length, *sums):
            part = data if self.micro_batches == 1 else batches.cut(data, start, length)
            values = self._gradients(part, tf.math.divide_no_nan(weigh(part), weight))
            if self.micro_batches > 1 and reduction == "sum" and self.losses:
                raise ValueError(
                    'with the reduction "sum", micro_batches would count regularisers and add_loss once for each'
                    ' slice: use "sum_over_batch_size"'
                )
            without_gradient.update(i for i, value in enumerate(values) if value is None)
            return [batches.add_gradient(*row) for row in zip(sums, values, [*variables, None], strict=True)]

        size, even = -(-examples // self.micro_batches), self.jit_compile and self.micro_batches > 1
        nothing = [*(tf.zeros(v.shape, batches.wide(v.dtype)) for v in variables), tf.constant(0.0)]
        sums = batches.add_slices(add_slice, nothing, examples, size, even)
        return [None if i in without_gradient else s for i, s in enumerate(sums)], weight

    def _reduced(self, data):
        """Return the global batch's gradients and loss: each replica's weighed, summed in one all-reduce, divided."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas == 1:
            return self._accumulate(data)[0]
        statistics = moving_statistics(self)
        values, weight = self._accumulate(data)
        present = [value * tf.cast(weight * replicas, value.dtype) for value in values if value is not None]
        moved = [tf.cast(v.value, tf.float32) * weight for v in statistics]
        context = tf.distribute.get_replica_context()
        *sums, total = context.all_reduce(tf.distribute.ReduceOp.SUM, [*present, *moved, weight])
        means = iter([tf.math.divide_no_nan(s, tf.cast(total, s.dtype)) for s in sums])
        reduced = [None if value is None else next(means) for value in values]
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(tf.cast(tf.where(total > 0, mean, tf.cast(variable.value, mean.dtype)), variable.dtype))
        return reduced

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Build from a *local* replica's batch; Keras' own turns the batches of all into one tensor, which raises
        under MultiWorkerMirroredStrategy (keras issue 20585).
        """
        if self._distribute_strategy is None:
            return
        if iterator is not None:
            _, _, epoch = next(iter(iterator))
            data_batch = next(epoch, None)
            if data_batch is None:
                return  # nothing to train on, as at the end of an epoch that is resumed: Keras warns
        local = self.distribute_strategy.experimental_local_results
        super()._maybe_symbolic_build(data_batch=keras.tree.map_structure(lambda value: local(value)[0], data_batch))


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
