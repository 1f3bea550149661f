"""Layers of which each replica has a shard: tensor parallelism, as in Megatron-LM (Shoeybi et al. 2019).

The columns of one matrix and the rows of the next one are shared out, so that a replica computes with its shard of what
lies between them, and never needs the rest. Of attention these are the heads: query, key and value have their columns,
the output has their rows. Two operators tie the replicas together: `copy_to_replicas` does nothing forward and sums
gradients over the replicas backward, `sum_over_replicas` sums forward and does nothing backward. All replicas compute
on the same examples.

The layers are Keras' own, sharded in place. On a replica the weight of such a layer shows the replica's shard of it, so
that Keras' code computes with fewer columns; elsewhere, and in files, it is whole.
"""

import threading
from collections import Counter
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from bigtrain_nb.common.in_place import made_class, own_class
from bigtrain_nb.common.keras_gaps import graph_of, layers_within
from bigtrain_nb.common.layers import layers_chosen
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import gather_over_replicas, on_each_replica, on_replicas
from bigtrain_nb.common.replicas import sum_over_replicas as all_reduce
from bigtrain_nb.parallel.reduction import Mean
from bigtrain_nb.parallel.shards import (
    OptimizerOfShards,
    finish_gradients,
    is_shard,
    refuse_to_shard,
    shard_weights,
    show_whole_weights,
)

_HUB_ATTENTION = ("LlamaAttention", "CachedMistralAttention", "QwenAttention", "Phi3Attention")
"""Layers of KerasHub that are no `MultiHeadAttention` and whose call looks at no number of heads, as we have read."""

_BETWEEN = ("Activation", "ReLU", "LeakyReLU", "ELU", "Dropout", "Identity", "Multiply")
"""Layers of Keras that treat each feature by itself, and so may stand between columns and rows."""

_WHAT_CAN_BE = (
    "Dense layers of a functional or sequential model that follow each other with only elementwise layers between;"
    " MultiHeadAttention and GroupQueryAttention; of KerasHub the transformer layers of GPT-2's and Llama's kind"
)

_here = threading.local()  # replicas of one process are threads


# Sharding


class Pair(NamedTuple):
    """Layers that are sharded together: the features that ``columns`` make are all that ``row`` reads."""

    columns: list
    row: keras.layers.Layer
    dropouts: list  # between the two
    attention: keras.layers.Layer | None = None  # whose heads the features are


def shard_pairs(model, layers, unmade=None):
    """Give each of N replicas 1/N of the columns, rows and heads in some built layers of a model.

    `layers_chosen` says in which. What is sharded already stays so. Their values are those that they have, or those of
    ``unmade`` variables. Raises ValueError for layers that cannot be sharded, and for matrices in them that would stay
    whole.
    """
    chosen = layers_chosen(model, layers, "tensor_parallel")
    pairs = _pairs_in(model, chosen)
    _refuse_what_stays_whole(chosen, pairs)
    pairs = [pair for pair in pairs if not isinstance(pair.row, RowSharded)]
    for pair in pairs:
        _refuse(pair, model.distribute_strategy.num_replicas_in_sync)
    with model.distribute_strategy.scope():
        for pair in pairs:
            for layer in pair.columns:
                axes = [(layer.kernel, 1)] if layer.bias is None else [(layer.kernel, 1), (layer.bias, 0)]
                _shard(layer, ColumnSharded, axes, unmade)
            _shard(pair.row, RowSharded, [(pair.row.kernel, 0)], unmade)
            pair.row.input_spec = None  # it counts the features, of which a replica has some
            if pair.attention is not None:
                _change_class(pair.attention, HeadsSharded)
            _draw_apart(pair.dropouts)
    for layer in layers_within(model)[1:]:
        show_whole_weights(layer)


def _shard(layer, kind, axes, unmade):
    shard_weights(layer, axes, _own_shard, unmade)
    _change_class(layer, kind)


def _change_class(layer, kind):
    layer.__class__ = made_class((kind, type(layer)), own=type(layer))


def _own_shard(_, shard):
    return shard.value


def _draw_apart(dropouts):
    """Let dropout layers draw other numbers on each replica: their features are others."""
    dropouts = [dropout for dropout in dropouts if dropout.rate > 0]

    def move_seeds():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for dropout in dropouts:
            state = dropout.seed_generator.state
            state.assign_add(tf.cast([replica, 0], state.dtype))

    if dropouts:
        on_each_replica(tf.distribute.get_strategy(), move_seeds)()


# What can be sharded


def _pairs_in(model, chosen):
    """Return the pairs of which all layers are chosen, or inside of a chosen one."""
    inside = {id(inner): inner for layer in chosen for inner in layers_within(layer)}
    pairs = [pair for layer in inside.values() for pair in (_of_attention(layer), _of_feedforward(layer)) if pair]
    graphs = [graph_of(layer) for layer in layers_within(model)]
    calls = Counter(id(operation) for graph in graphs for operation, _ in graph)
    free = {key for key, layer in inside.items() if isinstance(layer, keras.layers.Dense) and calls[key] == 1}
    for graph in graphs:
        for operation, _ in graph:
            pair = _of_dense_layers(graph, operation, free) if id(operation) in free else None
            if pair:
                pairs.append(pair)
                free -= {id(layer) for layer in (*pair.columns, pair.row)}
    return pairs


def _of_attention(layer):
    """Return the pair in an attention layer that is known to ask for no number of heads; None for other layers."""
    known = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
    if not isinstance(layer, known) and type(layer).__name__ not in _HUB_ATTENTION:
        return None
    columns = [_attribute(layer, f"{name}_dense") for name in ("gate", "query", "key", "value")]
    columns = [one for one in columns if one is not None]
    output = _attribute(layer, "output_dense")
    if len(columns) < 3 or not all(isinstance(one, keras.layers.EinsumDense) for one in (*columns, output)):
        return None  # not built
    within = layers_within(layer)
    if any(inner._trainable_variables and not any(inner is one for one in (*columns, output)) for inner in within):
        return None  # weights between the two, as of the normalization of queries
    return Pair(columns, output, [inner for inner in within if isinstance(inner, keras.layers.Dropout)], layer)


def _of_feedforward(layer):
    """Return the pair in a transformer layer whose Dense layers have KerasHub's names for them, else None."""
    first, gate, last = (_attribute(layer, f"feedforward_{name}_dense") for name in ("intermediate", "gate", "output"))
    columns = [one for one in (first, gate) if one is not None]
    if last is None or not all(isinstance(one, keras.layers.Dense) and one.built for one in (*columns, last)):
        return None
    return Pair(columns, last, dropouts=[])


def _attribute(layer, name):
    return getattr(layer, f"_{name}", getattr(layer, name, None))


def _of_dense_layers(graph, row, free):
    """Return the pair whose row a Dense layer is: with the free ones before it and all that lies between; else None."""
    before = {id(operation): inputs for operation, inputs in graph}
    columns, between = [], []
    to_visit = list(before[id(row)])
    while to_visit:
        operation = to_visit.pop()
        if any(operation is one for one in (*columns, *between)):
            continue
        if id(operation) in free:
            columns.append(operation)
        elif _is_elementwise_layer(operation):
            between.append(operation)
            to_visit += before[id(operation)]
        else:
            return None
    ours = [id(layer) for layer in (*columns, *between)]
    readers = [id(operation) for operation, inputs in graph if any(id(one) in ours for one in inputs)]
    if any(reader not in [*ours, id(row)] for reader in readers):
        return None  # somebody else needs the whole of it
    return Pair(columns, row, [layer for layer in between if isinstance(layer, keras.layers.Dropout)])


def _is_elementwise_layer(operation):
    if own_class(operation) not in [getattr(keras.layers, name) for name in _BETWEEN]:
        return False
    if isinstance(operation, keras.layers.Activation):
        return _is_elementwise(operation.activation)
    return getattr(operation, "noise_shape", None) is None


def _is_elementwise(function):
    """Return whether a function gives for halves of the features the halves of what it gives for all."""
    if isinstance(function, keras.layers.Layer):
        return _is_elementwise_layer(function)
    features = np.array([[-1.5, -0.5, 0.5, 2.0]], "float32")
    whole = np.asarray(function(features))
    halves = [np.asarray(function(half)) for half in np.split(features, 2, axis=1)]
    return whole.shape == features.shape and np.allclose(whole, np.concatenate(halves, axis=1))


# What is refused


def _refuse_what_stays_whole(chosen, pairs):
    """Raise ValueError for a chosen layer without a pair, or with a matrix that is in none."""
    paired = {id(layer) for pair in pairs for layer in (*pair.columns, pair.row)}
    for layer in chosen:
        if not layer.built:
            raise ValueError(f"{layer.name} has no weights yet to shard: call the model once, or build it, first")
        within = layers_within(layer)
        others = [weight for inner in within if id(inner) not in paired for weight in inner._trainable_variables]
        whole = [weight.path for weight in others if len(weight.shape) > 1]
        if whole or not any(id(inner) in paired for inner in within):
            found = f"no way to shard {whole[0]}" if whole else "nothing to shard"
            raise ValueError(
                f"tensor_parallel chooses {layer.name} ({type(layer).__name__}), in which there is {found}. What can be"
                f" sharded: {_WHAT_CAN_BE}. Choose only those"
            )


def _refuse(pair, replicas):
    """Raise ValueError for a pair that has a shape or settings with which it cannot be sharded."""
    for layer in (*pair.columns, pair.row):
        refuse_to_shard(layer._trainable_variables, "leave this layer out of tensor_parallel")
        if layer.lora_enabled or layer.quantization_mode:
            raise ValueError(
                f"{layer.path} has LoRA or is quantized, and only a kernel and a bias can be sharded: leave it out of"
                " tensor_parallel"
            )
    for layer in pair.columns:
        shared_out = layer.kernel.shape[1]
        if shared_out % replicas:
            what = "heads" if pair.attention is not None else "columns"
            raise ValueError(
                f"{layer.kernel.path} has {shared_out} {what}, which do not divide by the {replicas} replicas of the"
                f" strategy: take a multiple of {replicas}, or leave this layer out of tensor_parallel"
            )
        if layer.activity_regularizer is not None:
            raise ValueError(
                f"{layer.path} has an activity_regularizer, which would see the features of one replica: leave it out"
            )
        if not _is_elementwise(layer.activation):
            activation = getattr(layer.activation, "__name__", layer.activation)
            raise ValueError(
                f"{layer.path} has the activation {activation}, which needs all features at once, and a replica has"
                " some of them: leave this layer out of tensor_parallel"
            )


# Computing


class ColumnSharded:
    """What a `Dense` or `EinsumDense` becomes of which a replica has some columns: [..., n] -> [..., units / N]."""

    def call(self, inputs, *args, **kwargs):
        if on_replicas():
            inputs = _copied(inputs)
        return super().call(inputs, *args, **kwargs)


class RowSharded:
    """What one becomes of which a replica has some rows: [..., n / N] -> [..., units], the same on all replicas.

    The bias is added once, after the sum.
    """

    def call(self, inputs, *args, **kwargs):
        if not on_replicas():
            return super().call(inputs, *args, **kwargs)
        if isinstance(self, keras.layers.EinsumDense):
            own = keras.ops.einsum(self.equation, inputs, self.kernel)
        else:
            own = keras.ops.matmul(inputs, self.kernel)
        outputs = sum_over_replicas(own)
        if self.bias is not None:
            outputs = keras.ops.add(outputs, self.bias)
        return self.activation(outputs)


class HeadsSharded:
    """What an attention layer becomes of which a replica has some of the heads."""

    def call(self, *args, **kwargs):
        outputs = super().call(*args, **kwargs)
        if on_replicas() and isinstance(outputs, tuple):
            raise ValueError(
                f"{self.name} is to return more than its outputs, and a replica has the attention scores of its own"
                " heads only: leave out return_attention_scores, or leave this layer out of tensor_parallel"
            )
        return outputs


def _copied(x):
    """Return `copy_to_replicas` of ``x``; one copy for layers that read it in turn, so that one gradient is summed."""
    last, copy = getattr(_here, "last_copied", (None, None))
    if last is not x:
        copy = copy_to_replicas(x)
        _here.last_copied = (x, copy)
    return copy


def copy_to_replicas(x):
    """Return ``x``, the same on all replicas, for each to compute on; the backward pass sums their gradients."""

    @tf.custom_gradient
    def copy(x):
        return tf.identity(x), _all_reduce

    return copy(x)


def sum_over_replicas(x):
    """Return the sum of each replica's ``x``; the backward pass hands on the gradient, the same on all replicas."""

    @tf.custom_gradient
    def add(x):
        return _all_reduce(x), tf.identity

    return add(x)


def _all_reduce(x):
    if not getattr(_here, "all_see_the_same", False):
        raise ValueError(
            "layers of this model are sharded over the replicas, which must all compute on the same examples, and a"
            " keras.Model gives each of them others: use fit, evaluate and predict of bt.Model.of(model)"
        )
    return all_reduce(tf.identity(x))


# Reducing


class TensorParallel(Mean):
    """Replicas have shards of some weights: each computes on the global batch, and keeps its shards' gradients."""

    optimizer_class = OptimizerOfShards
    talks_in_forward = True
    all_see_the_same = True

    @classmethod
    def asked_for(cls, model):
        sharded = any(isinstance(layer, RowSharded) for layer in layers_within(model))
        return f"tensor_parallel={model.tensor_parallel!r}" if sharded else None

    def batch(self, data):
        """Return the global batch, from the replicas' shares of it: tensors joined along the first axis."""

        def gather(value):
            return None if value is None else gather_over_replicas(tf.identity(value), axis=0)

        return keras.tree.map_structure(gather, data)

    @contextmanager
    def at_work(self):
        _here.all_see_the_same = True
        try:
            yield
        finally:
            _here.all_see_the_same = False
            _here.last_copied = (None, None)

    def reduce(self, step, data):
        return step

    def are_shards(self, gradients):
        return [is_shard(self.model.trainable_variables[index]) for index in gradients]

    def finish(self, gradients):
        return finish_gradients(gradients, self.are_shards(gradients), self.model.optimizer)

    def own_outputs(self, outputs, data):
        context = tf.distribute.get_replica_context()
        rows = tf.shape(tf.nest.flatten(data)[0])[:1]
        rows_of_each = gather_over_replicas(rows, axis=0)
        start = tf.reduce_sum(rows_of_each[: context.replica_id_in_sync_group])
        end = start + rows[0]
        return tf.nest.map_structure(lambda output: output[start:end], outputs)
