"""Squared norms of gradients, also of shards."""

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import sum_over_replicas


def square_norms(gradients, are_shards=None):
    """Return the squared norms of gradients, {index: float32 scalar}; those of shards are summed over replicas.

    ``are_shards`` has for each gradient whether it is a replica's shard; None for this replica's norms only.
    """
    if not gradients:  # every layer is frozen
        return {}
    own = tf.stack([tf.reduce_sum(tf.square(tf.cast(gradient, tf.float32))) for gradient in gradients.values()])
    squares = tf.where(are_shards, sum_over_replicas(own), own) if are_shards and any(are_shards) else own
    return dict(zip(gradients, tf.unstack(squares, len(gradients)), strict=True))
