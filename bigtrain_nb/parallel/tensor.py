"""Layers of which each replica has a shard: tensor parallelism, as in Megatron-LM (Shoeybi et al. 2019).

The columns of one matrix and the rows of the next one are shared out, so that a replica computes with its shard of what
lies between them, and never needs the rest. Two operators tie the replicas together: `copy_to_replicas` does nothing
forward and sums gradients over the replicas backward, `sum_over_replicas` sums forward and does nothing backward. All
replicas compute on the same examples. The weights have the shape of a shard: see shards.py.
"""

import threading
from contextlib import contextmanager
from functools import wraps

from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.common.keras_gaps import layers_within, mask_of, with_mask
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import gather_over_replicas, on_each_replica
from bigtrain_nb.common.replicas import sum_over_replicas as all_reduce
from bigtrain_nb.parallel.reduction import Mean
from bigtrain_nb.parallel.shards import (
    OptimizerOfShards,
    finish_gradients,
    is_shard,
    mark_shard,
    save_unsharded,
    unsharded,
)

_NEED_THE_WHOLE = (
    "kernel_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "bias_constraint",
    "lora_rank",
    "use_gate",
)

_here = threading.local()  # replicas of one process are threads


@keras.saving.register_keras_serializable("bigtrain_nb")
class ColumnDense(keras.layers.Dense):
    """A `keras.layers.Dense` of which each of N replicas has ``units / N`` columns: [..., n] -> [..., units / N].

    Each replica gives the features of its own columns; a `RowDense` after it makes them whole again. ``activation``
    must treat each number by itself, as "gelu" does and "softmax" does not. A `Dropout` between the two leaves out the
    same places in every shard.

    It starts from the weights that a `Dense` with the same initializer has. Files hold the whole weights: loaded in the
    scope of another number of replicas it is sharded anew, and without a strategy it is an ordinary `Dense`.

    Raises ValueError for ``units`` that are not a multiple of the number of replicas, and for regularizers, constraints
    and LoRA, which would see a shard where they need the whole; in a call on several replicas, for a model that is no
    `bigtrain_nb.Model`: all replicas must compute on the same examples, and only that sees to it.
    """

    def __init__(self, units, **settings):
        units = whole_number("units", units, 1)
        self.replicas = _replicas_for(self, "units", units, settings)
        super().__init__(units // self.replicas, **settings)

    def build(self, input_shape):
        super().build(input_shape)
        _shard(self, self.replicas, kernel=1, bias=0)

    def call(self, inputs, training=None):
        return super().call(copy_to_replicas(inputs, self.replicas), training=training)

    def get_config(self):
        return {**super().get_config(), "units": self.units * self.replicas}


@keras.saving.register_keras_serializable("bigtrain_nb")
class RowDense(keras.layers.Dense):
    """A `keras.layers.Dense` of which each of N replicas has n / N of the n rows: [..., n / N] -> [..., units].

    The input is each replica's own part of the features, from a `ColumnDense`; the output is the same on all replicas.
    The bias is added once, after the sum. For weights, files and errors see `ColumnDense`.
    """

    def __init__(self, units, **settings):
        units = whole_number("units", units, 1)
        self.replicas = _replicas_for(self, "units", 0, settings)
        super().__init__(units, **settings)

    def build(self, input_shape):
        super().build(input_shape)
        _shard(self, self.replicas, kernel=0)

    def get_build_config(self):
        return None  # the shape of its input depends on the number of replicas, which may be another when it is loaded

    def call(self, inputs):
        outputs = sum_over_replicas(keras.ops.matmul(inputs, self.kernel), self.replicas)
        if self.bias is not None:
            outputs = outputs + self.bias
        return self.activation(outputs)


@keras.saving.register_keras_serializable("bigtrain_nb")
class TensorParallelAttention(keras.layers.MultiHeadAttention):
    """A `keras.layers.MultiHeadAttention` of which each of N replicas has ``num_heads / N`` heads.

    Inputs and output are those of all heads, the same on all replicas: [batch, length, width]. Dropout in it differs
    from head to head, on all replicas. It returns no attention scores. For weights, files and errors see `ColumnDense`.
    """

    def __init__(self, num_heads, key_dim, **settings):
        num_heads = whole_number("num_heads", num_heads, 1)
        self.replicas = _replicas_for(self, "num_heads", num_heads, settings)
        super().__init__(num_heads // self.replicas, key_dim, **settings)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        for projection in (self.query_dense, self.key_dense, self.value_dense):
            _count_inputs(projection, axes=[0], outputs=[1, 2])
            _shard(projection, self.replicas, kernel=1, bias=0)
        _count_inputs(self.output_dense, axes=[0, 1], outputs=[2])
        _shard(self.output_dense, self.replicas, kernel=0)
        _draw_apart(self)

    @wraps(keras.layers.MultiHeadAttention.call)
    def call(self, query, value, key=None, **settings):
        # One copy of each tensor, so that its gradient is summed once; the layer reads the query's mask from it
        copied = {}
        for tensor in (query, value, key):
            if tensor is not None and id(tensor) not in copied:
                copied[id(tensor)] = with_mask(copy_to_replicas(tensor, self.replicas), mask_of(tensor))
        outputs = super().call(copied[id(query)], copied[id(value)], copied.get(id(key)), **settings)
        bias = self.output_dense.bias
        if bias is None:
            return sum_over_replicas(outputs, self.replicas)
        return sum_over_replicas(outputs - bias, self.replicas) + bias  # once, and not by each replica

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads * self.replicas}


def copy_to_replicas(x, replicas):
    """Return ``x``, the same on all replicas, for each to compute on; the backward pass sums their gradients."""

    @tf.custom_gradient
    def copy(x):
        return tf.identity(x), lambda gradient: _all_reduce(gradient, replicas)

    return copy(x)


def sum_over_replicas(x, replicas):
    """Return the sum of each replica's ``x``; the backward pass hands on the gradient, the same on all replicas."""

    @tf.custom_gradient
    def add(x):
        return _all_reduce(x, replicas), tf.identity

    return add(x)


def _all_reduce(x, replicas):
    context = tf.distribute.get_replica_context()
    infers_shapes = context is None and not tf.executing_eagerly()
    if replicas == 1 or infers_shapes:
        return tf.identity(x)
    if context is None or context.num_replicas_in_sync != replicas:
        raise ValueError(
            f"this model is sharded over {replicas} replicas, and one alone has but a shard of it: use fit, evaluate or"
            " predict. To call or export it, save it, and load the file without a strategy"
        )
    if not getattr(_here, "all_see_the_same", False):
        raise ValueError(
            f"layers of this model are sharded over {replicas} replicas, which must all compute on the same examples,"
            " and a keras.Model gives each of them others: build it as bt.Model(inputs, outputs), take it with"
            " bt.Model.of(model), or load it with bt.load_model(path), and use its fit, evaluate and predict"
        )
    return all_reduce(tf.identity(x))


def _replicas_for(layer, name, size, settings):
    """Return the number of replicas in this scope; raise ValueError for what cannot be shared out over them."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    kind = type(layer).__name__
    if size % replicas:
        raise ValueError(
            f"{kind}: {name}={size} does not divide by the {replicas} replicas of the strategy: take a multiple of it"
        )
    for setting in _NEED_THE_WHOLE:
        if settings.get(setting):
            raise ValueError(
                f"{kind} has no {setting}, which would see a shard where it needs the whole: leave it out, or use the"
                " layer of Keras (the optimizer's weight_decay works)"
            )
    return replicas


def _shard(layer, replicas, **axes):
    """Make weights of a built layer shards, along these axes, of what it would start from as a whole."""
    if replicas == 1:
        return
    for name, axis in axes.items():
        variable = getattr(layer, name)
        if variable is not None:
            shape = list(variable.shape)
            shape[axis] *= replicas
            mark_shard(variable, axis, shape)
            initialize = getattr(layer, f"{name}_initializer")
            unsharded(variable).assign(initialize(shape, dtype=variable.dtype))
    save_unsharded(layer, [weight for weight in (layer.kernel, layer.bias) if weight is not None])


def _count_inputs(projection, axes, outputs):
    """Tell an initializer that scales by the number of inputs which axes of the kernel they are, as Keras does."""
    initializer = projection.kernel_initializer
    if isinstance(initializer, keras.initializers.VarianceScaling):
        config = {**initializer.get_config(), "input_axes": axes, "output_axes": outputs, "seed": initializer.seed}
        projection.kernel_initializer = type(initializer).from_config(config)


def _draw_apart(layer):
    """Let dropout within a layer draw other numbers on each replica: their shards are of different heads."""
    dropouts = [inner for inner in layers_within(layer) if isinstance(inner, keras.layers.Dropout) and inner.rate > 0]

    def move_seeds():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for dropout in dropouts:
            state = dropout.seed_generator.state
            state.assign_add(tf.cast([replica, 0], state.dtype))

    if dropouts and layer.replicas > 1:
        on_each_replica(tf.distribute.get_strategy(), move_seeds)()


class TensorParallel(Mean):
    """Replicas have shards of some weights: each computes on the global batch, and keeps its shards' gradients."""

    optimizer_class = OptimizerOfShards
    talks_in_forward = True

    @classmethod
    def asked_for(cls, model):
        return "tensor-parallel layers" if any(is_shard(variable) for variable in model.weights) else None

    def batch(self, data):
        """Return the global batch, from the replicas' shares of it: tensors joined along the first axis."""

        def gather(value):
            if value is None:
                return None
            if value.dtype == tf.string:
                raise TypeError(
                    f"the batch has a tensor of texts, {value.shape}, and replicas can only send each other numbers:"
                    " turn texts into tokens in the dataset, as with dataset.map, or leave out tensor-parallel layers"
                )
            return gather_over_replicas(tf.identity(value), axis=0)

        return keras.tree.map_structure(gather, data)

    @contextmanager
    def at_work(self):
        _here.all_see_the_same = True
        try:
            yield
        finally:
            _here.all_see_the_same = False

    def reduce(self, step, data):
        weights = self.model.trainable_variables
        are_shards = [is_shard(weights[index]) for index in step["gradients"]]
        return {**step, "gradients": finish_gradients(step["gradients"], are_shards, self.model.optimizer)}

    def own_outputs(self, outputs, data):
        context = tf.distribute.get_replica_context()
        rows = tf.shape(tf.nest.flatten(data)[0])[:1]
        rows_of_each = gather_over_replicas(rows, axis=0)
        start = tf.reduce_sum(rows_of_each[: context.replica_id_in_sync_group])
        end = start + rows[0]
        return tf.nest.map_structure(lambda output: output[start:end], outputs)
