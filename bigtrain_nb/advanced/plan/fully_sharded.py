"""Layers as `fully_shard` runs them on N replicas (parallel/fully_shard.py), traced on one device for a plan.

Communication is replaced by operations that read and write as many bytes.
"""

from contextlib import ExitStack, contextmanager
from functools import partial

from bigtrain_nb.advanced.parallel.fully_shard import call_of_shards, communicating
from bigtrain_nb.advanced.parallel.shards import IN_ONE_PIECE, gather_by, scatter_by
from bigtrain_nb.common.keras_compat import layers_within, own_weights_to_train, patched_method
from bigtrain_nb.common.quiet import tf


@contextmanager
def fully_sharded(layers, shards, devices, reduce_dtype):
    """Make layers compute with weights gathered from shards, in the forward pass and again in the backward pass.

    ``shards``: {id of a weight: variable of 1/N of its elements}; their gradients are reduce-scattered.
    """

    def own_row_of_sum(table):
        with tf.name_scope(IN_ONE_PIECE):
            received = tf.reverse(table, [0])
        return tf.reduce_sum(received, axis=0)

    gather = partial(gather_by, lambda row: tf.tile(row[None], [devices, 1]))
    scatter = partial(scatter_by, own_row_of_sum, replicas=devices)
    with communicating(reduce_dtype, gather, scatter, _together), ExitStack() as calls:
        for layer in layers:
            weights = {id(weight): weight for weight in weights_to_train(layer)}
            pairs = [(weight, shards[key]) for key, weight in weights.items()]
            calls.enter_context(patched_method(layer, "call", partial(call_of_shards, layer, layer.call, pairs)))
        yield


def _together(gradients):
    """Return a layer's gradients, all available at once: the planned order would delay some to the end of the step."""
    known = [gradient for gradient in gradients if gradient is not None]
    found = iter(tf.identity_n(known) if known else [])
    return [None if gradient is None else next(found) for gradient in gradients]


def weights_to_train(layer):
    """Return the weights of a layer and its inner layers that train, or would if not frozen."""
    return [weight for inner in layers_within(layer) for weight in own_weights_to_train(inner)]
