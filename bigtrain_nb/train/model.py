"""A `keras.Model` that trains the same way on one device, several, or several workers, in micro-batches if asked.

One idea cures most of what stock Keras 3 gets wrong here: a step's gradients are summed over micro-batches, reduced
over replicas **once**, and only then shown to anything that looks at them. So clipping, weight decay and the finite
check of loss scaling see the global batch's mean gradient, the same on every replica.
"""

from bigtrain_nb.common.batches import (
    count_examples,
    cut,
    dense,
    equal_parts,
    loss_reduction,
    refuse_sum_with_other_losses,
    weight_of,
)
from bigtrain_nb.common.keras_gaps import (
    Functional,
    after,
    already_reduced,
    logs_to_reduce,
    moving_statistics,
    refuse_what_needs_one_piece,
    synchronized_layers,
)
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import mean_over_replicas, sum_over_replicas
from bigtrain_nb.parallel.local_steps import overflow_together
from bigtrain_nb.parallel.sharded import is_sharded, shard, sum_own_slices
from bigtrain_nb.parallel.slices import finish_gradients, is_cut, is_slice, whole_batch
from bigtrain_nb.train import refuse
from bigtrain_nb.train.loss_scale import scale_of
from bigtrain_nb.train.micro_batches import sum_over_slices, sum_written_out
from bigtrain_nb.train.trainer import Trainer


class Model(Trainer):
    """A `keras.Model`, functional or subclassed, whose training step is cut into ``micro_batches`` slices.

    The dataset's batch stays the batch: one step takes it (under a strategy, each replica its share), cuts it into at
    most ``micro_batches`` slices of ceil(share / micro_batches) examples, sums their gradients, reduces the sums once
    over the replicas and applies them once. A share of fewer examples gives slices of one. Peak memory falls with
    ``micro_batches``; the result does not change, except through layers with batch statistics or random numbers, which
    see slices.

    The applied gradient is the mean over the global batch, however unevenly it splits, also for losses with the
    reduction "mean_with_sample_weight" (then slices count by their sample weights). Losses with a mask are averaged
    over the valid places of each slice: pass the mask as ``sample_weight`` to average over the whole batch.

    The moving statistics of `BatchNormalization` are averaged over the replicas in the same reduction. With
    ``synchronized=True`` its statistics are those of the global batch; that works with one micro-batch, and is exact
    where all shares are equal.

    Already with one device and one slice, two results differ from stock Keras, where its own are wrong. A row of an
    embedding that a batch uses often has one gradient, of which Adam takes the square and clipping the norm; so the
    gradient of an embedding is as large as the embedding. And the end of a dataset of unknown size is no step, in which
    weights would decay and a schedule would move on.

    With `ColumnDense`, `RowDense` or `SplitAttention` the model is cut over the replicas. Then each of them computes on
    the whole global batch, gathered from the shares in each step: the dataset is that for one device. Weights that are
    asked for, given, saved or loaded are whole; with several workers, all must do so.

    It works in `fit`, `evaluate`, `predict`, `train_on_batch` without a strategy and under MirroredStrategy and
    MultiWorkerMirroredStrategy.

    ``shard_optimizer=True`` (ZeRO stage 1) cuts the state of the optimizer into a part for each replica. A replica
    updates its part of each weight, then the parts are gathered; the result does not change. Of each slot of the
    optimizer, as of Adam's two moments, a replica keeps 1/N, and beside them its 1/N of the weights once more. Workers
    on CPUs send as many bytes as without it, replicas elsewhere one and a half times as many. `save` and `Resume` write
    the whole state, with which any number of replicas goes on (not `tf.train.Checkpoint`, which keeps one part); with
    several workers, all must call `save`. It works with Keras' SGD, RMSprop, Adam, AdamW, Adamax, Nadam, Adagrad,
    Adadelta, Ftrl and Lion.

    ``reduce_dtype="bfloat16"`` sends the gradients between replicas in half the bytes: those of each replica are
    summed over its slices in 32 bits, rounded to 8 significant bits, and so is their sum. Loss and statistics stay in
    32 bits. float16 is not taken: sums of gradients leave its range of 6e-8 to 65504 without an error.

    ``sync_every=H`` lets each replica take H steps by itself, on its share of each batch, before all meet
    (`LocalSteps`, which is DiLoCo): 1/H of the bytes, other weights. Replicas also meet at the end of each epoch. The
    state of the optimizer stays each replica's own; a saved model has that of the first. With several workers the
    metrics of a step are not shown, only those of an epoch, and steps send nothing at all if the dataset has no end
    (``repeat()`` with ``steps_per_epoch``). It needs twice the bytes of the weights more. For `fit` only.

    `keras.models.clone_model` gives a functional model without these arguments: set them on the clone.

    Raises TypeError for an argument that is not known; ValueError for ``micro_batches`` or ``sync_every`` that is not a
    whole number of at least 1, for ``shard_optimizer`` that is no bool, or True with one replica, and for another
    ``reduce_dtype`` than "float32" and "bfloat16"; in `compile`, ValueError for an optimizer that cannot be sharded; in
    training, ValueError for an optimizer that accumulates by itself, for losses whose reductions cannot be weighed
    together, for synchronized `BatchNormalization` in slices on several replicas, for two of ``shard_optimizer``,
    ``sync_every`` and a model that is cut, for ``sync_every`` in `train_on_batch` or with ``use_ema``, and in a model
    that is cut for optimizers that cannot be sharded either.
    """

    def __new__(cls, *args, **kwargs):
        if cls is Model and _is_functional(args, kwargs):
            cls = FunctionalModel
        return super().__new__(cls)

    def __init__(
        self, *args, micro_batches=1, shard_optimizer=False, reduce_dtype="float32", sync_every=None, **kwargs
    ):
        if _is_functional(args, kwargs):
            refuse.unknown_arguments(kwargs)
            _give_functional_base(type(self))
        super().__init__(*args, **kwargs)
        self.micro_batches = micro_batches
        self.shard_optimizer = shard_optimizer
        self.reduce_dtype = reduce_dtype
        self.sync_every = sync_every

    @classmethod
    def of(cls, model, **settings):
        """Take an existing Keras model as it is: the same layers and weights, in a model of this class.

        ``settings`` are the four arguments ``micro_batches``, ``shard_optimizer``, ``reduce_dtype`` and ``sync_every``.
        Compile the result; what ``model`` was compiled with is not taken over, nor a `train_step` of its own.

        Raises TypeError for what is no Keras model, ValueError for a Sequential without weights.
        """
        if not isinstance(model, keras.Model):
            raise TypeError(f"Model.of takes a Keras model, not {model!r}: call a function that builds one first")
        if isinstance(model, keras.Sequential) and not model.built:
            raise ValueError(f"{model.name} has no weights yet: start it with keras.Input(shape), or call it once")
        if isinstance(model, keras.Sequential):
            taken = cls(model.inputs[0], model.outputs[0], name=model.name, **settings)
        elif isinstance(model, Functional) and type(model).call is Functional.call:
            taken = cls(model.input, model.output, name=model.name, **settings)
        else:
            taken = WrappedModel(model, **settings)
        taken.dtype_policy = model.dtype_policy  # by which `compile` decides on loss scaling
        return taken

    @property
    def loss_scale(self):
        """The factor on the loss under "mixed_float16", as a float; None without loss scaling."""
        optimizer = getattr(self, "optimizer", None)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return scale_of(optimizer)
        return None

    def compile(self, optimizer="rmsprop", *others, **settings):
        if self.shard_optimizer:
            optimizer = shard(keras.optimizers.get(optimizer))
        super().compile(optimizer, *others, **settings)

    def compile_from_config(self, config):
        """Compile a model that is loaded. Keras does so where nobody has overridden `compile`."""
        if type(self).compile is not Model.compile:
            super().compile_from_config(config)  # which warns that it does not
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def train_step(self, data):
        """Train on one replica's share of the global batch; return the metrics."""
        replicas = self.distribute_strategy.num_replicas_in_sync
        self._build_before_tracing(data, always=self.micro_batches > 1)
        if self.micro_batches > 1 or replicas > 1:
            refuse_what_needs_one_piece(self)
        refuse.what_does_not_go_together(self)

        # Forward and gradients
        cut_over_replicas = is_cut(self)
        if cut_over_replicas:
            data = whole_batch(data)
        if self.micro_batches == 1 and (replicas == 1 or synchronized_layers(self) or cut_over_replicas):
            step = self._forward_and_gradients(data)
        else:
            step = self._sum_over_slices(data)

        # Reduce
        if self.local_steps:
            step["gradients"] = overflow_together(step["gradients"], self.optimizer)
        elif cut_over_replicas:
            are_cut = [is_slice(self.trainable_variables[index]) for index in step["gradients"]]
            step["gradients"] = finish_gradients(step["gradients"], are_cut, self.optimizer)
        elif replicas > 1:
            step = self._reduce(step, data)
            if is_sharded(self.optimizer):
                are_cut = [True] * len(step["gradients"])
                step["gradients"] = finish_gradients(step["gradients"], are_cut, self.optimizer)

        # Update
        self._update(step["gradients"], data)
        self._loss_tracker.update_state(step["loss"], sample_weight=count_examples(data))
        return logs_to_reduce(self.get_metrics_result(), self.distribute_strategy)

    # The parts of a step hand on {"loss": scalar, "gradients": {index of a trainable variable: gradient}}. A variable
    # that the loss does not depend on is not in it.

    def _forward_and_gradients(self, data, share=1.0):
        """Return ``share`` of the loss, and its gradients; update the metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

        # Forward
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
            replicas = self.distribute_strategy.num_replicas_in_sync
            loss *= tf.cast(share * replicas, loss.dtype)  # inside a strategy Keras has divided it by their number
            scaled_loss = self.optimizer.scale_loss(loss)

        # Gradients
        variables = self.trainable_variables
        found = {}
        for index, gradient in enumerate(tape.gradient(scaled_loss, variables)):
            if gradient is not None:
                found[index] = dense(gradient, variables[index])

        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return {"loss": loss, "gradients": found}

    def _sum_over_slices(self, data):
        """Return loss and gradients of one replica's share.

        The loss of each slice is scaled before its gradients are taken, so that their sum is the share's mean.
        """
        reduction = loss_reduction(self.loss)
        weight = weight_of(data, reduction)

        def one_slice(start, length):
            part = data if self.micro_batches == 1 else cut(data, start, length)
            share = tf.math.divide_no_nan(weight_of(part, reduction), weight)
            result = self._forward_and_gradients(part, share)
            refuse_sum_with_other_losses(self, reduction)
            return result

        examples = count_examples(data)
        if tf.executing_eagerly():
            return sum_written_out(one_slice, equal_parts(examples, min(self.micro_batches, examples)))
        if is_cut(self):
            return sum_written_out(one_slice, equal_parts(examples, self.micro_batches))
        size = -(-examples // self.micro_batches)  # rounded up
        of_one_size = self.jit_compile and self.micro_batches > 1
        return sum_over_slices(one_slice, self.trainable_variables, examples, size, of_one_size)

    def _reduce(self, share, data):
        """Return loss and gradients of the global batch; in the same all-reduce moving statistics become their mean."""
        weight = weight_of(data, loss_reduction(self.loss))
        variables = moving_statistics(self)
        statistics = [variable.value for variable in variables]
        sum_gradients = sum_own_slices if is_sharded(self.optimizer) else sum_over_replicas
        apart = {**share, "statistics": statistics}
        means, total = mean_over_replicas(apart, weight, self.reduce_dtype, sum_gradients)
        for variable, mean in zip(variables, means["statistics"], strict=True):
            kept = tf.cast(variable.value, mean.dtype)
            variable.assign(tf.cast(tf.where(total > 0, mean, kept), variable.dtype))
        return means

    def _update(self, gradients, data):
        """Apply the global batch's gradients, the same on every replica."""
        variables = self.trainable_variables
        if not variables:
            return
        pairs = [(gradients.get(index), variable) for index, variable in enumerate(variables)]
        with already_reduced(self.optimizer), after(data):
            self.optimizer.apply_gradients(pairs)


@keras.saving.register_keras_serializable("bigtrain_nb")
class FunctionalModel(Model, Functional):
    """What ``Model(inputs, outputs)`` returns."""


@keras.saving.register_keras_serializable("bigtrain_nb")
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
