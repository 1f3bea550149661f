"""Reduce gradients over replicas: a model has one reduction, chosen in `compile` and when it is built.

`Mean` is for ordinary models. The others derive from it, and `train/settings.py` maps settings to them. `reduce` gets
the replica's `ReplicaBatch` and its step, without variables on which the loss does not depend:
{"loss": scalar, "gradients": {index of a trainable variable: gradient}, "logs": {name: scalar}}, and "left", of
`unmasked_share`, if a mask excludes positions. The optimizer applies the result.
"""

from contextlib import nullcontext
from importlib import import_module

from bigtrain_nb.common.files import replace_atomically
from bigtrain_nb.common.keras_compat import innermost, moving_statistics, optimizer_like
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import is_shard, mean_over_replicas, own_copy, sum_over_replicas
from bigtrain_nb.train.batches import share_of
from bigtrain_nb.train.in_place import added_classes, become, own_class
from bigtrain_nb.train.settings import REDUCTIONS, SETTINGS


def reduction_for(model):
    """Return the class of reduction that a model's settings need, `Mean` by default; raise ValueError for two."""
    given = [name for name in REDUCTIONS if getattr(model, name) != SETTINGS[name]]
    if "fully_shard" not in given and any(map(is_shard, model.weights)):  # in a part that was a separate model
        given.append("fully_shard")
    words = {kind: kind.asked_for(model) for kind in map(reduction_class, given)}
    asked = [kind for kind in words if words[kind]]
    if len(asked) > 1:
        raise ValueError(
            f"{words[asked[0]]} and {words[asked[1]]} cannot be combined; each defines its own gradient reduction:"
            " leave out one of them"
        )
    return asked[0] if asked else Mean


def reduction_class(name):
    """Return the class of the reduction that a setting needs."""
    module, kind = REDUCTIONS[name]
    return getattr(import_module(module), kind)


class Mean:
    """The mean over replicas, each weighted by its share of the batch.

    It is created in `compile` or when the model is built: the other may not have happened yet.
    """

    optimizer_class = None
    """Our class to which the optimizer is converted in place; None to leave it unchanged."""

    refuse_optimizer = staticmethod(lambda optimizer: None)
    """A function that raises ValueError for an optimizer that cannot be converted to that class."""

    communicates_in_forward = False
    """Whether replicas communicate within layers: then all run the same micro-batches, without a loop."""

    sum_gradients = staticmethod(sum_over_replicas)
    """A function of {index: gradient} that returns their sums over replicas, or this replica's shards of the sums.

    The gradients have been multiplied by the share's weight, and cast to ``reduce_dtype``."""

    step_context = staticmethod(nullcontext)
    """The context in which a replica computes."""

    def __init__(self, model):
        self.model = model
        self.replicas = model.distribute_strategy.num_replicas_in_sync

    @classmethod
    def asked_for(cls, model):
        """Return the setting for which a model needs this reduction, in words for an error; None if it does not."""

    # Before a step

    @staticmethod
    def prepare(model):
        """Convert a model's layers as the setting requires; called again whenever `fit` begins."""

    def convert_optimizer(self):
        """Convert the model's optimizer to `optimizer_class`, or back from that of another reduction."""
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:  # a custom `compile` may have none
            return
        self.refuse_optimizer(innermost(optimizer))
        with self.model.distribute_strategy.scope():
            self.model.optimizer = _of_class(optimizer, self.optimizer_class, self.model.trainable_variables)

    def refuse_callbacks(self, callbacks):
        """Raise ValueError for a callback that does not work with this reduction."""

    # In a step

    def batch(self, data):
        """Return the data for a replica's computation."""
        return data if self.replicas == 1 else own_copy(data)

    def share(self, data, training):
        """Return a replica's `ReplicaBatch` of the global batch."""
        return share_of(self.batch(data), self, self.model.micro_batches if training else 1)

    def reduce(self, step, share):
        """Return the step of the global batch. The same all-reduce averages moving statistics."""
        if self.replicas == 1:
            return over_valid_places(step)
        statistics = moving_statistics(self.model)
        mine = {**step, "statistics": [variable.value for variable in statistics]}
        means, total = mean_over_replicas(mine, share.weight, self.model.reduce_dtype, self.sum_gradients)
        assign_means(statistics, means.pop("statistics"), total)
        return over_valid_places(means)

    def are_shards(self, gradients):
        """Return whether each gradient from `reduce`, {index: gradient}, is a replica's shard."""
        return [False] * len(gradients)

    def finish(self, gradients):
        """Return the gradients for the optimizer, which clips by their norms."""
        return gradients

    # After it

    def save(self, path, save):
        """Call ``save`` so that a complete file replaces the old one; of several workers, the last one's remains."""
        replace_atomically(path, save)


def _of_class(optimizer, wanted, weights):
    """Return an optimizer converted to our class ``wanted``, or to a stock one for None.

    A stock optimizer without state is changed in place; any other is copied, with its state for ``weights``.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = _of_class(optimizer.inner_optimizer, wanted, weights)
        return optimizer
    before = added_classes(optimizer)
    if before == ([wanted] if wanted else []):
        return optimizer
    if not before and not optimizer.built:
        return become(optimizer, wanted)

    copied = optimizer_like(optimizer, own_class(optimizer))
    if wanted is not None:
        become(copied, wanted)
    if optimizer.built:
        copied.build(weights)
        for variable, with_value in zip(copied.variables, optimizer.variables, strict=True):
            variable.assign(with_value.numpy())
    return copied


def assign_means(statistics, means, total):
    """Assign moving statistics their means over replicas, unless there are no examples (``total`` is 0)."""
    for variable, mean in zip(statistics, means, strict=True):
        kept = tf.cast(variable.value, mean.dtype)
        variable.assign(tf.cast(tf.where(total > 0, mean, kept), variable.dtype))


def over_valid_places(step):
    """Return a step divided by the share of the batch's weight that masks have left; unchanged without a mask."""
    if "left" not in step:
        return step

    def divided(value):
        return tf.math.divide_no_nan(value, tf.cast(step["left"], value.dtype))

    return {**step, **tf.nest.map_structure(divided, {name: step[name] for name in ("loss", "gradients")})}
