"""Variables sharded across replicas: shown and saved in full, summed and joined, updated by optimizers.

A variable created under a strategy is the same on all replicas only because its gradient is averaged over them. The
gradient of a shard is not, so each replica keeps a separate value. A shard is a Keras variable with one axis, a flat
part of the full variable's elements, and has its ``unsharded_shape``. If the number of replicas does not divide the
elements, the last shard is padded with zeros.
"""

import math
import os
import secrets
import tempfile
import zlib
from functools import partial
from itertools import count
from weakref import WeakKeyDictionary

from bigtrain_nb.common.files import replace_atomically
from bigtrain_nb.common.keras_compat import innermost
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import (
    GATHERED_AS,
    all_gather,
    by_type,
    full_variable,
    gather_over_replicas,
    is_shard,
    on_cpus,
    on_each_replica,
    several_workers,
    sum_over_replicas,
)
from bigtrain_nb.train.in_place import own_class
from bigtrain_nb.train.reduction import Mean

ELEMENTWISE = ("SGD", "RMSprop", "Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Ftrl", "Lion")
"""Keras optimizers that update each element of a weight independently, so that any part can be updated alone."""

SECONDS_TO_GATHER = 120
"""How long a worker that reads or saves a variable waits for the others to do so, too."""

OWN_GROUPS = 1_000_000_000
"""Keys of our collective groups start here, far above TensorFlow's own."""

TYPES = 256
"""More than TensorFlow has dtypes."""

IN_ONE_PIECE = "in_one_piece"
"""In the names of the operations that make full weights from shards, and tables of gradients to sum."""

_exchanges_of = WeakKeyDictionary()
"""Counters of exchanges between workers, one per graph. All workers build the same graphs, so their counts agree."""


class Shard(keras.Variable):
    """A variable of which each replica has a part."""

    @property
    def whole(self):
        return Unsharded(self)


def new_shard(weight, **settings):
    """Return a variable for a replica's elements of a weight: 1/N of them, in one row."""
    size = -(-math.prod(weight.shape) // tf.distribute.get_strategy().num_replicas_in_sync)  # rounded up
    shard = keras.Variable("zeros", shape=[size], dtype=weight.dtype, **settings)
    mark_shard(shard, weight.shape)
    return shard


def mark_shard(variable, unsharded_shape):
    variable.__class__ = Shard
    variable.unsharded_shape = tuple(unsharded_shape)


def own_shard(tensor):
    """Return this replica's shard of a tensor as large as the full variable."""
    context = tf.distribute.get_replica_context()
    return in_rows(tensor, context.num_replicas_in_sync)[context.replica_id_in_sync_group]


class Unsharded:
    """The shards of all replicas as one full variable, for showing, saving and loading.

    ``value``: each replica's shard. With several workers, all of them must read the full variable: one that waits for
    the others in vain raises RuntimeError.
    """

    def __init__(self, variable):
        self.name = variable.name
        self.path = variable.path
        self.dtype = variable.dtype
        self.shape = variable.unsharded_shape
        self.value = variable.value
        self._variable = variable
        self._strategy = variable.value.distribute_strategy

    def numpy(self):
        try:
            joined = on_each_replica(self._strategy, self._gather)()[0].numpy()
        except tf.errors.DeadlineExceededError:
            raise RuntimeError(
                f"only some workers read or saved {self.path} within {SECONDS_TO_GATHER} s, but each has a shard of"
                " it: every worker must do so, such as by calling model.save with the same path"
            ) from None
        return joined.ravel()[: math.prod(self.shape)].reshape(self.shape)

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or self.dtype)  # for the legacy HDF5 format

    def assign(self, value):
        on_each_replica(self._strategy, self._assign)(tf.convert_to_tensor(value, self.dtype))

    def _gather(self):
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=SECONDS_TO_GATHER)
        own = tf.identity(self._variable.value)
        return gather_over_replicas(own, 0, options)

    def _assign(self, value):
        self._variable.assign(own_shard(tf.ensure_shape(value, self.shape)))


def save_together(strategy, path, save):
    """Call ``save(path)`` on all workers, because each must read the shards; the first with this path keeps the file.

    It is written next to ``path`` and then renamed. The others write a temporary file, and wait.

    Raises RuntimeError if only some workers call this, and if another could not save; OSError if this one could not.
    """
    path = os.path.abspath(path)
    mine = [zlib.crc32(path.encode()), secrets.randbits(62)]
    try:
        of_all = all_gather(strategy, tf.identity, SECONDS_TO_GATHER)(tf.constant(mine, tf.int64)).tolist()
    except tf.errors.DeadlineExceededError:
        raise RuntimeError(
            f"only some workers called save for {path} within {SECONDS_TO_GATHER} s, but each has shards of the model:"
            " every worker must call save with the same path"
        ) from None
    first_of_this_path = next(one for one in of_all if one[0] == mine[0])
    problem = None
    try:
        if first_of_this_path == mine:
            replace_atomically(path, save)
        else:
            with tempfile.TemporaryDirectory() as folder:
                save(os.path.join(folder, os.path.basename(path)))
    except OSError as error:
        problem = error
    saved = all_gather(strategy, tf.identity)(tf.constant(problem is None, tf.int32))
    if problem:
        raise problem
    if not saved.all():
        raise RuntimeError(f"another worker could not save {path}; its own error says why")


# Reduce-scatter and all-gather


def on_replicas():
    """Return whether this runs on one of several replicas."""
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def value_of_first(strategy, value):
    """Return the first replica's value of a tensor, on all workers."""

    def only_of_first(own):
        is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)  # a tensor, of a worker
        return sum_over_replicas(tf.where(is_first, own, tf.zeros_like(own)))

    return on_each_replica(strategy, only_of_first)(value)[0]


def sum_into_shards(tensors):
    """Return this replica's shards of tensors summed over the replicas: reduce-scatter.

    A shard is one row of 1/N of a tensor's elements, rounded up; the last one is padded with zeros. Workers on CPUs
    send each row to its replica, which sums them: half the volume of an all-reduce. GPUs all-reduce, because TensorFlow
    has no public reduce-scatter.
    """
    context = tf.distribute.get_replica_context()
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if several_workers(context.strategy) or not on_cpus(context.strategy):
        return scatter_by(_own_row_of_sum, tensors, context.num_replicas_in_sync)
    return [own_shard(total) for total in _once_for_all(tf.add_n, tensors)]


def scatter_by(own_row_of_sum, tensors, replicas):
    """Return `sum_into_shards` by ``own_row_of_sum``, a function of a table [replicas, elements], one per dtype."""

    def in_one_table(of_type):
        tables = [in_rows(tensor, replicas) for tensor in of_type]
        with tf.name_scope(IN_ONE_PIECE):
            table = tf.concat(tables, axis=1)
        return tf.split(own_row_of_sum(table), [table.shape[1] for table in tables])

    return by_type(tensors, in_one_table)


def in_rows(tensor, count):
    """Return the elements of a tensor, padded with zeros, as a table [count, elements per row]."""
    numbers = tf.reshape(tensor, [-1])
    missing = -numbers.shape[0] % count
    return tf.reshape(tf.pad(numbers, [[0, missing]]) if missing else numbers, [count, -1])


def _own_row_of_sum(table):
    """Return this replica's row of the sum of the replicas' tables [replicas, elements]."""
    context = tf.distribute.get_replica_context()
    if on_cpus(context.strategy):
        return tf.reduce_sum(_all_to_all(table), axis=0)
    return sum_over_replicas(table)[context.replica_id_in_sync_group]


def _all_to_all(table):
    """Return the rows for this worker, one from each worker's table [workers, elements]."""
    number = next(_exchanges_of.setdefault(tf.compat.v1.get_default_graph(), count()))
    return tf.raw_ops.CollectiveAllToAllV2(
        input=table,
        group_size=table.shape[0],
        group_key=OWN_GROUPS + TYPES * number + table.dtype.as_datatype_enum,
        instance_key=table.shape[1],  # the same keys need the same shape and type
        ordering_token=[],
    )


def join_shards(shards, shapes):
    """Return the full tensors of which each replica has a shard: all-gather, between workers one per dtype."""
    strategy = tf.distribute.get_strategy()
    shards = [tf.convert_to_tensor(shard) for shard in shards]
    if several_workers(strategy) or not on_cpus(strategy):
        return gather_by(_gather_rows, shards, shapes)
    return _without_padding(_once_for_all(partial(tf.concat, axis=0), shards), shapes)


def gather_by(gather_rows, shards, shapes):
    """Return `join_shards` by ``gather_rows``, a function from a row to the table of all rows, one per dtype."""

    def in_one_row(of_type):
        rows = gather_rows(tf.concat(of_type, axis=0))
        return tf.split(rows, [shard.shape[0] for shard in of_type], axis=1)

    with tf.name_scope(IN_ONE_PIECE):
        return _without_padding(by_type(shards, in_one_row), shapes)


def _without_padding(tensors, shapes):
    wholes = []
    for numbers, shape in zip(tensors, shapes, strict=True):
        numbers, size = tf.reshape(numbers, [-1]), math.prod(shape)
        wholes.append(tf.reshape(numbers if numbers.shape[0] == size else numbers[:size], shape))
    return wholes


def _gather_rows(row):  # private: Keras
    """Return the replicas' rows, all of one length, as a table [replicas, elements].

    The public all-gather first exchanges the lengths, and builds the table with a hundred operations. The launcher of
    TensorFlow's collectives knows the group, numbers the exchanges, and keeps their order on each device, without which
    NCCL would deadlock. In eager mode the replicas run one after the other, and the first would wait.
    """
    context = tf.distribute.get_replica_context()
    launchers = getattr(context.strategy.extended._cross_device_ops, "_launchers", None)
    if launchers is None or tf.executing_eagerly():
        return gather_over_replicas(row[None], axis=0)
    launcher = launchers[context._replica_id]
    rows = launcher._all_gather(tf.cast(row, GATHERED_AS.get(row.dtype, row.dtype))[None], options=None)
    return tf.cast(tf.reshape(rows, [launcher._group_size, *row.shape]), row.dtype)


def _once_for_all(function, tensors):
    """Apply a function to each tensor's values on all replicas of a process on CPUs, which share the result.

    TensorFlow's own reductions give each replica a copy, and a gather has a hundred operations of 20 KiB each.
    """

    def of_all(strategy, tensors):
        return [function(strategy.experimental_local_results(tensor)) for tensor in tensors]

    return tf.distribute.get_replica_context().merge_call(of_all, args=(tensors,))


# Optimizer state of shards


class OptimizerOfShards:
    """Mixin for an optimizer whose weights may be shards: its state is shown, saved and loaded in full."""

    def build(self, variables):  # private: Keras
        keys = getattr(self, "_exclude_from_weight_decay", ())
        leave_undecayed(self, [one for one in variables if getattr(one, "key_of_weight", None) in keys])
        super().build(variables)

    def add_variable_from_reference(self, reference_variable, *args, **kwargs):
        slot = super().add_variable_from_reference(reference_variable, *args, **kwargs)
        if is_shard(reference_variable):
            mark_shard(slot, reference_variable.unsharded_shape)
        return slot

    @property
    def variables(self):
        return [full_variable(variable) for variable in super().variables]


def leave_undecayed(optimizer, variables):  # private: Keras
    """Also exclude these variables from weight decay, before the optimizer is built or asked about them."""
    known = getattr(optimizer, "_exclude_from_weight_decay", set())
    optimizer._exclude_from_weight_decay = known | {optimizer._var_key(variable) for variable in variables}


def refuse_unless_elementwise(optimizer):
    stock = own_class(optimizer)
    if stock not in [getattr(keras.optimizers, name) for name in ELEMENTWISE]:
        raise ValueError(
            f"{stock.__name__} is not known to update each element of a weight independently, so it cannot update a"
            f" shard of one, as shard_optimizer=True and fully_shard require: use one of {', '.join(ELEMENTWISE)}"
        )


def square_norms(gradients, are_shards=None):
    """Return the squared norms of gradients, {index: float32 scalar}; those of shards are summed over replicas.

    ``are_shards`` has for each gradient whether it is a replica's shard; None for this replica's norms only.
    """
    if not gradients:  # every layer is frozen
        return {}
    own = tf.stack([tf.reduce_sum(tf.square(tf.cast(gradient, tf.float32))) for gradient in gradients.values()])
    squares = tf.where(are_shards, sum_over_replicas(own), own) if are_shards and any(are_shards) else own
    return dict(zip(gradients, tf.unstack(squares, len(gradients)), strict=True))


def finish_gradients(gradients, are_shards, optimizer):
    """Return gradients, some of which may be shards, clipped by the norms of the full gradients.

    They are {index: gradient}; ``are_shards``: whether each is a shard. A non-finite value on one replica makes the
    gradients non-finite on all, so that all skip the same step of loss scaling. Keras clips again, by the norms of the
    shards, which are no larger.
    """
    if not gradients:  # every layer is frozen
        return gradients
    squares = tf.stack(list(square_norms(gradients, are_shards).values()))
    factors = tf.where(tf.math.is_finite(tf.reduce_sum(squares)), tf.ones_like(squares), float("nan"))

    limit, norms = innermost(optimizer).clipnorm, tf.sqrt(squares)
    if not limit:
        limit, norms = innermost(optimizer).global_clipnorm, tf.sqrt(tf.reduce_sum(squares))
    if limit:
        limit = optimizer.scale_loss(tf.constant(limit, tf.float32))  # as the gradients are scaled
        factors *= tf.minimum(1.0, tf.math.divide_no_nan(limit, norms))
    pairs = zip(gradients.items(), tf.unstack(factors), strict=True)
    return {index: gradient * tf.cast(factor, gradient.dtype) for (index, gradient), factor in pairs}


class MeanOfShards(Mean):
    """The mean over the replicas, with sharded optimizer state and possibly sharded weights."""

    optimizer_class = OptimizerOfShards
    refuse_optimizer = staticmethod(refuse_unless_elementwise)

    def finish(self, gradients):
        return finish_gradients(gradients, self.are_shards(gradients), self.model.optimizer)

    def save(self, path, save):
        if several_workers(self.model.distribute_strategy):
            save_together(self.model.distribute_strategy, path, save)
        else:
            super().save(path, save)
