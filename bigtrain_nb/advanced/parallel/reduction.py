"""What replicas do with their gradients: a model has one reduction, chosen in `compile` and when it is built.

`Mean` is that of an ordinary model. The others derive from it, each in a file of its own: `ShardedMean` and
`FullyShardedMean`. A step is handed to `reduce` as one replica has computed it: {"loss": scalar, "gradients": {index of
a trainable variable: gradient}, "logs": {name: scalar}}, and "left", of `share_left`, where a mask leaves out places;
with it comes the replica's `ReplicaBatch`. What comes back is applied by the optimizer. A variable that the loss does
not depend on is not in it.
"""

from contextlib import nullcontext

from bigtrain_nb.common.batches import share_of
from bigtrain_nb.common.keras_compat import moving_statistics
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import mean_over_replicas, own_copy, sum_over_replicas


class Mean:
    """The mean over the replicas, each by the weight of its share of the batch.

    It is made when it is chosen, in `compile` or when the model is built: one of both may be missing then.
    """

    optimizer_class = None
    """The class that the optimizer is given in place; None for one that stays what it is."""

    communicates_in_forward = False
    """Whether replicas talk to each other within a layer: then all must run the same micro-batches, not in a loop."""

    sum_gradients = staticmethod(sum_over_replicas)
    """How gradients are summed over the replicas: a function of {index: gradient}, which returns their sums, or this
    replica's shards of them. They have been multiplied by the weight of the share, and cast to ``reduce_dtype``."""

    at_work = staticmethod(nullcontext)
    """The context in which a replica computes."""

    def __init__(self, model):
        self.model = model
        self.replicas = model.distribute_strategy.num_replicas_in_sync

    @classmethod
    def asked_for(cls, model):
        """Return the setting or layers for which a model needs this reduction, in words for an error; else None."""

    def batch(self, data):
        """Return the data that a replica computes on."""
        return data if self.replicas == 1 else own_copy(data)

    def share(self, data, training):
        """Return what a replica computes on as its `ReplicaBatch` of the global batch."""
        return share_of(self.batch(data), self, self.model.micro_batches if training else 1)

    def reduce(self, step, share):
        """Return the step of the global batch. Moving statistics become their mean in the same all-reduce."""
        if self.replicas == 1:
            return over_valid_places(step)
        statistics = moving_statistics(self.model)
        mine = {**step, "statistics": [variable.value for variable in statistics]}
        means, total = mean_over_replicas(mine, share.weight, self.model.reduce_dtype, self.sum_gradients)
        assign_means(statistics, means.pop("statistics"), total)
        return over_valid_places(means)

    def are_shards(self, gradients):
        """Return of each gradient that `reduce` has returned, {index: gradient}, whether it is a replica's shard."""
        return [False] * len(gradients)

    def finish(self, gradients):
        """Return the gradients that the optimizer gets, which clips by the norms of what it is given."""
        return gradients


def assign_means(statistics, means, total):
    """Give moving statistics their means over the replicas, unless these have no examples, in ``total`` 0."""
    for variable, mean in zip(statistics, means, strict=True):
        kept = tf.cast(variable.value, mean.dtype)
        variable.assign(tf.cast(tf.where(total > 0, mean, kept), variable.dtype))


def over_valid_places(step):
    """Return a step divided by the share of the batch's weight that masks have left; as it is without one."""
    if "left" not in step:
        return step

    def divided(value):
        return tf.math.divide_no_nan(value, tf.cast(step["left"], value.dtype))

    return {**step, **tf.nest.map_structure(divided, {name: step[name] for name in ("loss", "gradients")})}
