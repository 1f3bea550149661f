"""What the replicas of a strategy do together: the same function each, the values of all, their sum and mean."""

from bigtrain_nb.common.quiet import tf

OWN_GROUPS = 1_000_000_000
"""Keys of collective groups start here, far above those that TensorFlow gives its own."""

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
    flat = tf.nest.flatten(tensors)
    sums = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in flat):
        places = [place for place, tensor in enumerate(flat) if tensor.dtype == dtype]
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring) if dtype == tf.bfloat16 else None
        of_type = context.all_reduce(tf.distribute.ReduceOp.SUM, [flat[place] for place in places], options)
        sums.update(zip(places, of_type, strict=True))
    return tf.nest.pack_sequence_as(tensors, [sums[place] for place in range(len(flat))])


def gather_over_replicas(tensor, axis, options=None):
    """Return the replicas' tensors of numbers, joined along an axis, on which their sizes may differ."""
    sent = tf.cast(tensor, _GATHERED_AS.get(tensor.dtype, tensor.dtype))
    return tf.cast(tf.distribute.get_replica_context().all_gather(sent, axis, options), tensor.dtype)


def sum_own_row(table):
    """Return row i of the sum of the replicas' tables [replicas, numbers], on replica i: reduce-scatter.

    TensorFlow has that for GPUs only. Workers on CPUs send each row to its replica, which adds them up: half of what an
    all-reduce sends. In one process replicas may take turns, so there only the strategy's own all-reduce is safe.
    """
    context = tf.distribute.get_replica_context()
    if not several_workers(context.strategy) or not on_cpus(context.strategy):
        return sum_over_replicas(table)[context.replica_id_in_sync_group]
    rows = tf.raw_ops.CollectiveAllToAllV2(
        input=table,
        group_size=context.num_replicas_in_sync,
        group_key=OWN_GROUPS + table.dtype.as_datatype_enum,
        instance_key=table.shape[1],  # workers know it without counting; the same keys need the same shape and type
        ordering_token=[],
    )
    return tf.reduce_sum(rows, axis=0)


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
        short = tf.nest.map_structure(lambda gradient: tf.cast(gradient, gradient_dtype), mine["gradients"])
        others = {name: value for name, value in mine.items() if name != "gradients"}
        sums, total = sum_over_replicas((others, weight))
        sums["gradients"] = sum_gradients(short)
    return tf.nest.map_structure(divided, sums, mine), total


def at_least_32_bits(dtype):
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype
