"""A `keras.Model` that trains the same way on one device, several, or several workers, in micro-batches if asked.

One idea cures most of what stock Keras 3 gets wrong here: a step's gradients are summed over micro-batches, reduced
over replicas **once**, and only then shown to anything that looks at them. So clipping, weight decay and the finite
check of loss scaling see the global batch's mean gradient, the same on every replica.
"""

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train import micro_batches as batches
from bigtrain_nb.train import refuse
from bigtrain_nb.train.keras_gaps import (
    Functional,
    after,
    already_reduced,
    count_by_examples,
    logs_to_reduce,
    moving_statistics,
    refuse_what_needs_one_piece,
)


def _serializable(cls):
    keras.saving.get_custom_objects()[cls.__name__] = cls  # the legacy HDF5 format knows classes by their bare names
    return keras.saving.register_keras_serializable("bigtrain_nb")(cls)


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

    Raises TypeError for an argument that is not known, ValueError for ``micro_batches`` that is not a whole number of
    at least 1; in training, ValueError for an optimizer that accumulates by itself, for losses whose reductions cannot
    be weighed together, for synchronized `BatchNormalization` on several replicas and for logs of `compute_metrics`
    that are no metrics.
    """

    def __new__(cls, *args, **kwargs):
        if cls is Model and _is_functional(args, kwargs):
            cls = FunctionalModel
        return super().__new__(cls)

    def __init__(self, *args, micro_batches=1, **kwargs):
        if _is_functional(args, kwargs):
            refuse.unknown_arguments(kwargs)
            _give_functional_base(type(self))
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
            taken = cls(model.inputs[0], model.outputs[0], name=model.name)
        elif isinstance(model, Functional) and type(model).call is Functional.call:
            taken = cls(model.input, model.output, name=model.name)
        else:
            taken = WrappedModel(model)
        taken.micro_batches = micro_batches
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
        in_one_piece = self.micro_batches == 1 and self.distribute_strategy.num_replicas_in_sync == 1
        self._build_before_tracing(data, always=not in_one_piece)

        # Forward, gradients and reduce
        if in_one_piece:
            step = self._forward_and_gradients(data)
        else:
            refuse_what_needs_one_piece(self)
            share = self._sum_over_slices(data)
            step = self._reduce(share)

        # Update
        self._update(step["gradients"], data)
        self._loss_tracker.update_state(step["loss"], sample_weight=batches.count_examples(data))
        return logs_to_reduce(self.get_metrics_result(), self.distribute_strategy)

    def test_step(self, data):
        """Evaluate one replica's share of the global batch; return the metrics."""
        self._build_before_tracing(data, always=False)
        return logs_to_reduce(super().test_step(data), self.distribute_strategy)

    # The parts of a step hand on {"loss": scalar, "gradients": {index of a trainable variable: gradient}}. A variable
    # that the loss does not depend on is not in it.

    def _forward_and_gradients(self, data, share=1.0):
        """Return ``share`` of the loss, and its gradients; update the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        # Forward
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            loss *= tf.cast(share, loss.dtype)
            scaled_loss = self.optimizer.scale_loss(loss)

        # Gradients
        gradients = tape.gradient(scaled_loss, self.trainable_variables)
        found = {index: gradient for index, gradient in enumerate(gradients) if gradient is not None}

        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        refuse.logs_without_metric(self, logs)
        return {"loss": loss, "gradients": found}

    def _sum_over_slices(self, data):
        """Return loss and gradients of one replica's share, and ``weight``: what the share counts in the global mean.

        The loss of each slice is scaled before its gradients are taken, so that their sum is the share's mean.
        """
        reduction = batches.loss_reduction(self.loss)
        examples = batches.count_examples(data)
        weight = batches.weight(data, reduction)

        def one_slice(start, length):
            part = data if self.micro_batches == 1 else batches.cut(data, start, length)
            share = tf.math.divide_no_nan(batches.weight(part, reduction), weight)
            result = self._forward_and_gradients(part, share)
            refuse.sum_with_other_losses(self, reduction)
            return result

        size = -(-examples // self.micro_batches)
        of_one_size = self.jit_compile and self.micro_batches > 1
        sums = batches.sum_over_slices(one_slice, self.trainable_variables, examples, size, of_one_size)
        return {**sums, "weight": weight}

    def _reduce(self, share):
        """Return loss and gradients of the global batch: the mean over the replicas, by weight, in one all-reduce.

        The moving statistics of the model become their mean in it.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas == 1:
            return share
        weight = share["weight"]
        statistics = moving_statistics(self)
        values = {
            # Times replicas, for inside a strategy Keras has divided the loss by their number
            "loss": batches.scaled(share["loss"], weight * replicas),
            "gradients": batches.scaled(share["gradients"], weight * replicas),
            "statistics": batches.scaled([tf.cast(v.value, tf.float32) for v in statistics], weight),
            "weight": weight,
        }
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
        total = sums["weight"]
        means = batches.scaled(sums, tf.math.reciprocal_no_nan(total))
        for variable, mean in zip(statistics, means["statistics"], strict=True):
            kept = tf.cast(variable.value, tf.float32)
            variable.assign(tf.cast(tf.where(total > 0, mean, kept), variable.dtype))
        return means

    def _update(self, gradients, data):
        """Apply the global batch's gradients, the same on every replica."""
        variables = self.trainable_variables
        if not variables:
            return
        if not self.optimizer.built:
            self.optimizer.build(variables)
        pairs = []
        for index, variable in enumerate(variables):
            gradient = batches.distinct_rows(gradients.get(index), self.jit_compile)
            pairs.append((gradient, variable))
        with already_reduced(self.optimizer), after(data):
            self.optimizer.apply_gradients(pairs)

    def _build_before_tracing(self, data, always):
        """Make the variables that sums start from and the losses to track; with a strategy, Keras did so already."""
        _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        if self._distribute_strategy is None and (always or keras.tree.is_nested(y)):
            self._symbolic_build(data_batch=data)

    def _compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        with count_by_examples(self, x):
            return super()._compute_loss(x, y, y_pred, sample_weight=sample_weight, training=training)

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


def _give_functional_base(cls):
    # Only `__init__` can tell that a subclass is functional, when its object is there already. So its class gets the
    # base now, which is what Keras does with subclasses of its own Model.
    for each in cls.__mro__:
        if Model in each.__bases__ and each is not FunctionalModel:
            each.__bases__ = tuple(FunctionalModel if base is Model else base for base in each.__bases__)
