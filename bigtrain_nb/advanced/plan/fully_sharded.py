"""Layers as `fully_shard` runs them on N replicas (parallel/fully_shard.py), traced on one device for a plan.

Communication is replaced by operations that read and write as many bytes.
"""

import math
from contextlib import ExitStack, contextmanager

from bigtrain_nb.advanced.parallel.layers import call_as_function, layers_chosen, refuse_nested
from bigtrain_nb.advanced.parallel.shards import in_rows
from bigtrain_nb.common.keras_compat import layers_within, own_weights_to_train, patched_method
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import at_least_32_bits, by_type

IN_ONE_PIECE = "in_one_piece"
"""In the names of the operations that gather a layer's weights, and that reduce-scatter their gradients."""


def layers_to_shard(model, fully_shard):
    """Return the layers that the setting chooses. Raises ValueError for nested ones, as `bt.Model` does."""
    chosen = layers_chosen(model, fully_shard, "fully_shard")
    refuse_nested(chosen, "fully_shard")
    return chosen


@contextmanager
def fully_sharded(layers, shards, devices, reduce_dtype):
    """Make layers compute with weights gathered from shards, in the forward pass and again in the backward pass.

    ``shards``: {id of a weight: variable of 1/N of its elements}; their gradients are reduce-scattered.
    """
    with ExitStack() as calls:
        for layer in layers:
            calls.enter_context(patched_method(layer, "call", _call_of_shards(layer, shards, devices, reduce_dtype)))
            calls.enter_context(patched_method(layer, "_known_updates", ()))  # set by `call_as_function`
        yield


def _call_of_shards(layer, shards, devices, reduce_dtype):
    own_call = layer.call
    weights = list({id(weight): weight for weight in weights_to_train(layer)}.values())

    def recomputed(run):
        gather = _gathering(weights, devices, reduce_dtype)

        def whole(*inputs):
            values = gather(*inputs[: len(weights)]) if weights else []
            with tf.name_scope(layer.name):
                return run(*inputs[len(weights) :], values=list(zip(weights, values, strict=True)))

        again = tf.recompute_grad(whole)
        return lambda *tensors: again(*[tf.identity(shards[id(weight)].value) for weight in weights], *tensors)

    return lambda *args, **kwargs: call_as_function(layer, own_call, args, kwargs, recomputed)


def _gathering(weights, devices, reduce_dtype):
    """Return a function from shards of weights to full weights; their gradients are reduce-scattered."""
    shapes = [weight.shape for weight in weights]
    trains = [weight.trainable for weight in weights]

    @tf.custom_gradient
    def gather(*parts):
        def backward(*gradients):
            shaped = zip(gradients, shapes, trains, strict=True)  # the tape may not know the shapes
            trained = [tf.reshape(gradient, shape) for gradient, shape, does in shaped if does]
            own = iter(_reduce_scattered(trained, devices, reduce_dtype))
            return [next(own) if does else tf.zeros_like(part) for part, does in zip(parts, trains, strict=True)]

        with tf.name_scope(IN_ONE_PIECE):
            return _gathered(parts, shapes), backward

    return gather


def _gathered(parts, shapes):
    """Return full tensors: shards received in 32 bits are concatenated per dtype, then split."""
    received = []
    for part, shape in zip(parts, shapes, strict=True):
        numbers = tf.cast(part, at_least_32_bits(part.dtype))
        received.append(tf.pad(numbers, [[0, math.prod(shape) - part.shape[0]]]))

    def joined_and_split(of_type):
        return tf.split(tf.concat(of_type, axis=0), [numbers.shape[0] for numbers in of_type])

    wholes = zip(by_type(received, joined_and_split), parts, shapes, strict=True)
    return [tf.reshape(tf.cast(numbers, part.dtype), shape) for numbers, part, shape in wholes]


def _reduce_scattered(gradients, devices, reduce_dtype):
    """Return 1/N of each gradient: all are concatenated per dtype; the received parts are summed, then split."""
    tables = []  # [devices, elements of a shard]
    for gradient in gradients:
        on_the_way = tf.bfloat16 if reduce_dtype == "bfloat16" else at_least_32_bits(gradient.dtype)
        tables.append(in_rows(tf.cast(gradient, on_the_way), devices))

    def received_and_split(of_type):
        with tf.name_scope(IN_ONE_PIECE):
            received = tf.reverse(tf.concat(of_type, axis=1), [0])
        return tf.split(tf.reduce_sum(received, axis=0), [table.shape[1] for table in of_type])

    own = zip(by_type(tables, received_and_split), gradients, strict=True)
    return [tf.cast(one, gradient.dtype) for one, gradient in own]


def weights_to_train(layer):
    """Return the weights of a layer and its inner layers that train, or would if not frozen."""
    return [weight for inner in layers_within(layer) for weight in own_weights_to_train(inner)]
