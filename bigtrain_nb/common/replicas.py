"""What the replicas of a strategy do together: the same function each, the values, sums and means of all, wholes."""

import math
from functools import partial
from itertools import count
from weakref import WeakKeyDictionary

from bigtrain_nb.common.keras_compat import all_gather_rows, launcher_here
from bigtrain_nb.common.quiet import tf

OWN_GROUPS = 1_000_000_000
"""Keys of collective groups start here, far above those that TensorFlow gives its own."""
TYPES = 256
"""More than TensorFlow has types of numbers."""

_exchanges_of = WeakKeyDictionary()
"""Exchanges between workers are counted in each graph. All workers make the same graphs, so they count alike."""

_GATHERED_AS = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
"""Types that TensorFlow's collective gather does not take, and the smallest it takes that holds all their values."""


def several_workers(strategy):
    """Return whether other processes take part in this strategy."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def on_cpus(strategy):
    return "CPU" in strategy.extended.worker_devices[0]


def on_replicas():
    """Return whether this runs on a replica, and there are others."""
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def own_copy(share):
    """Return a replica's share of a batch in memory of its own; on GPUs it is there already.

    It may be a slice of an array that somebody's generator has given, and TensorFlow computes in place in such a slice.
    """
    if not on_cpus(tf.distribute.get_strategy()):
        return share

    def copy(tensor):
        return None if tensor is None else tf.raw_ops.DeepCopy(x=tensor)

    return tf.nest.map_structure(copy, share, expand_composites=True)


def on_each_replica(strategy, function):
    """Return a function of tensors that runs ``function``, as a graph, on each replica.

    It returns what those of this process have returned. With several workers, all must call it.
    """

    @tf.function(autograph=False)
    def on_each(*tensors):
        return strategy.run(function, tensors)

    def run(*tensors):
        graph = on_each.get_concrete_function(*tensors)  # TensorFlow warns of many graphs that are made in being called
        return strategy.experimental_local_results(graph(*tensors))

    return run


def all_gather(strategy, value, seconds=None):
    """Return a function of tensors that gives what ``value`` of them is on each replica: NumPy, [replicas, ...].

    With ``seconds`` a worker that waits longer for the others raises `tf.errors.DeadlineExceededError`.
    """
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)

    def share(*tensors):
        own = tf.convert_to_tensor(value(*tensors))
        return gather_over_replicas(own[None], axis=0, options=options)

    run = on_each_replica(strategy, share)

    def gather(*tensors):
        return run(*tensors)[0].numpy()

    return gather


def sum_over_replicas(tensors):
    """Return the sums of a structure of tensors over the replicas: one all-reduce for each type in it.

    On GPUs bfloat16 goes by a ring of TensorFlow's own, for its NCCL does not take it; on CPUs everything does.
    """
    context = tf.distribute.get_replica_context()

    def all_reduce(of_type):
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        by_ring = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        options = by_ring if of_type[0].dtype == tf.bfloat16 else None
        return context.all_reduce(tf.distribute.ReduceOp.SUM, of_type, options)

    return tf.nest.pack_sequence_as(tensors, by_type(tf.nest.flatten(tensors), all_reduce))


def value_of_first(strategy, value):
    """Return the first replica's value of a tensor, on all workers."""

    def only_of_first(own):
        is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)  # a tensor, of a worker
        return sum_over_replicas(tf.where(is_first, own, tf.zeros_like(own)))

    return on_each_replica(strategy, only_of_first)(value)[0]


def gather_over_replicas(tensor, axis, options=None):
    """Return the replicas' tensors, joined along an axis, on which their sizes may differ."""
    sent = tf.cast(tensor, _GATHERED_AS.get(tensor.dtype, tensor.dtype))
    return tf.cast(tf.distribute.get_replica_context().all_gather(sent, axis, options), tensor.dtype)


def sum_into_shards(tensors):
    """Return this replica's shards of the sums of some tensors over the replicas: reduce-scatter.

    A shard is one row of 1/N of a tensor's numbers, rounded up; the last one ends in zeros. Workers on CPUs send each
    row to its replica, which adds them up: half of what an all-reduce sends. GPUs all-reduce, for TensorFlow has no
    public reduce-scatter.
    """
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync

    def in_one_table(of_type):
        tables = [in_rows(tensor, replicas) for tensor in of_type]
        own = _own_row_of_sum(tf.concat(tables, axis=1))
        return tf.split(own, [table.shape[1] for table in tables])

    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if several_workers(context.strategy) or not on_cpus(context.strategy):
        return by_type(tensors, in_one_table)
    sums = _once_for_all(tf.add_n, tensors)
    return [in_rows(total, replicas)[context.replica_id_in_sync_group] for total in sums]


def in_rows(tensor, count):
    """Return the numbers of a tensor, and zeros where they do not suffice, as a table [count, numbers in a row]."""
    numbers = tf.reshape(tensor, [-1])
    missing = -numbers.shape[0] % count
    return tf.reshape(tf.pad(numbers, [[0, missing]]) if missing else numbers, [count, -1])


def _own_row_of_sum(table):
    """Return this replica's row of the sum of the replicas' tables [replicas, numbers]."""
    context = tf.distribute.get_replica_context()
    if on_cpus(context.strategy):
        return tf.reduce_sum(_all_to_all(table), axis=0)
    return sum_over_replicas(table)[context.replica_id_in_sync_group]


def _all_to_all(table):
    """Return the rows, one for this worker from each, of the workers' tables [workers, numbers]."""
    number = next(_exchanges_of.setdefault(tf.compat.v1.get_default_graph(), count()))
    return tf.raw_ops.CollectiveAllToAllV2(
        input=table,
        group_size=table.shape[0],
        group_key=OWN_GROUPS + TYPES * number + table.dtype.as_datatype_enum,
        instance_key=table.shape[1],  # the same keys need the same shape and type
        ordering_token=[],
    )


def join_shards(shards, shapes):
    """Return the whole tensors of which each replica has a shard: all-gather, between workers one for each type."""
    strategy = tf.distribute.get_strategy()

    def gather(of_type):
        rows = _gather_rows(tf.concat(of_type, axis=0))
        return tf.split(rows, [shard.shape[0] for shard in of_type], axis=1)

    shards = [tf.convert_to_tensor(shard) for shard in shards]
    if several_workers(strategy) or not on_cpus(strategy):
        joined = by_type(shards, gather)
    else:
        joined = _once_for_all(partial(tf.concat, axis=0), shards)
    wholes = []
    for numbers, shape in zip(joined, shapes, strict=True):
        numbers, size = tf.reshape(numbers, [-1]), math.prod(shape)
        wholes.append(tf.reshape(numbers if numbers.shape[0] == size else numbers[:size], shape))
    return wholes


def _gather_rows(row):
    """Return the replicas' rows, all of one length, as a table [replicas, numbers]."""
    launcher = launcher_here()
    if launcher is None:
        return gather_over_replicas(row[None], axis=0)
    sent = tf.cast(row, _GATHERED_AS.get(row.dtype, row.dtype))
    return tf.cast(all_gather_rows(launcher, sent), row.dtype)


def _once_for_all(function, tensors):
    """Return for each tensor a function of its values on all replicas of a process on CPUs, which share the result.

    TensorFlow's own reductions give each replica a copy, and a gather has a hundred operations, at 20 KiB each.
    """

    def of_all(strategy, tensors):
        return [function(strategy.experimental_local_results(tensor)) for tensor in tensors]

    return tf.distribute.get_replica_context().merge_call(of_all, args=(tensors,))


def by_type(tensors, function):
    """Return what a function of a list gives for tensors of the same type, in the order of all ``tensors``."""
    results = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        for place, result in zip(places, function([tensors[place] for place in places]), strict=True):
            results[place] = result
    return results


def mean_over_replicas(values, weight, gradient_dtype="float32", sum_gradients=sum_over_replicas):
    """Return the mean of a structure of tensors over the replicas, each by its ``weight``, and the sum of the weights.

    It is one all-reduce, in 32 bits, and another one if there are values in 64. ``values["gradients"]`` travel by
    themselves with a ``gradient_dtype`` of 16 bits, and with another function to sum them. A replica of weight 0 counts
    nothing, even where its values are not finite.
    """

    def weighted(value):
        value = tf.cast(value, at_least_32_bits(value.dtype))
        return tf.math.multiply_no_nan(value, tf.cast(weight, value.dtype))

    def divided(total_value, mine):
        return tf.math.divide_no_nan(tf.cast(total_value, mine.dtype), tf.cast(total, mine.dtype))

    mine = tf.nest.map_structure(weighted, values)
    if gradient_dtype == "float32" and sum_gradients is sum_over_replicas:
        sums, total = sum_over_replicas((mine, weight))
    else:
        short = mine["gradients"]
        if gradient_dtype != "float32":
            short = tf.nest.map_structure(lambda gradient: tf.cast(gradient, gradient_dtype), short)
        others = {name: value for name, value in mine.items() if name != "gradients"}
        sums, total = sum_over_replicas((others, weight))
        sums["gradients"] = sum_gradients(short)
    return tf.nest.map_structure(divided, sums, mine), total


def at_least_32_bits(dtype):
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype


# Variables of which each replica has a shard, for those who know no more. Each carries its ``whole``, with a name, a
# path, a dtype and a shape; `numpy()` gives all numbers and `assign(value)` takes them. All workers must ask.


def is_shard(variable):
    return hasattr(variable, "whole")


def whole_of(variable):
    """Return a variable; in place of a shard, what shows the shards of all replicas as one variable."""
    return getattr(variable, "whole", variable)


def whole_weights(layer):
    """Return the weights of a layer as NumPy arrays, whole."""
    return [whole_of(variable).numpy() for variable in layer.weights]


def give_whole_weights(layer, weights):
    """Give each of the ``layer.weights`` a value; each replica takes its shard of those that are sharded."""
    wholes = [whole_of(variable) for variable in layer.weights]
    shapes = [tuple(whole.shape) for whole in wholes]
    if [tuple(value.shape) for value in weights] != shapes:
        raise ValueError(f"set_weights of {layer.name} takes arrays of these shapes: {shapes}")
    for whole, value in zip(wholes, weights, strict=True):
        whole.assign(value)
