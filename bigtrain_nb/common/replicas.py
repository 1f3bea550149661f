"""Collective operations on the replicas of a strategy: run, gather, sum, mean, and full values of shards."""

from bigtrain_nb.common.quiet import tf

GATHERED_AS = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
"""Types that TensorFlow's all-gather does not support, and the smallest supported type that holds their values."""


def several_workers(strategy):
    """Return whether this strategy spans several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def on_cpus(strategy):
    return "CPU" in strategy.extended.worker_devices[0]


def own_copy(share):
    """Return a copy of a replica's shard of a batch; on GPUs it is a copy already.

    It may be a view of an array from a user's generator, and TensorFlow may compute in place in that memory.
    """
    if not on_cpus(tf.distribute.get_strategy()):
        return share

    def copy(tensor):
        return None if tensor is None else tf.raw_ops.DeepCopy(x=tensor)

    return tf.nest.map_structure(copy, share, expand_composites=True)


def on_each_replica(strategy, function):
    """Return a function of tensors that runs ``function``, as a graph, on each replica.

    It returns the results of this process's replicas. With several workers, all must call it.
    """

    @tf.function(autograph=False)
    def on_each(*tensors):
        return strategy.run(function, tensors)

    def run(*tensors):
        graph = on_each.get_concrete_function(*tensors)  # a direct call may warn of retracing
        return strategy.experimental_local_results(graph(*tensors))

    return run


def all_gather(strategy, value, seconds=None):
    """Return a function of tensors that returns ``value`` of them on each replica: a NumPy array [replicas, ...].

    With ``seconds``, a worker that waits longer for the others raises `tf.errors.DeadlineExceededError`.
    """
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds)

    def share(*tensors):
        own = tf.convert_to_tensor(value(*tensors))
        return gather_over_replicas(own[None], axis=0, options=options)

    run = on_each_replica(strategy, share)
    return lambda *tensors: run(*tensors)[0].numpy()


def sum_over_replicas(tensors):
    """Return the sums of a structure of tensors over the replicas: one all-reduce for each dtype.

    On GPUs bfloat16 uses TensorFlow's ring, because its NCCL does not support it; on CPUs all types use the ring.
    """
    context = tf.distribute.get_replica_context()

    def all_reduce(of_type):
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        by_ring = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        options = by_ring if of_type[0].dtype == tf.bfloat16 else None
        return context.all_reduce(tf.distribute.ReduceOp.SUM, of_type, options)

    return tf.nest.pack_sequence_as(tensors, by_type(tf.nest.flatten(tensors), all_reduce))


def gather_over_replicas(tensor, axis, options=None):
    """Return the replicas' tensors, concatenated along an axis on which their sizes may differ."""
    sent = tf.cast(tensor, GATHERED_AS.get(tensor.dtype, tensor.dtype))
    return tf.cast(tf.distribute.get_replica_context().all_gather(sent, axis, options), tensor.dtype)


def by_type(tensors, function):
    """Apply a function of a list to the tensors of each dtype; return all results in the order of ``tensors``."""
    results = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        for place, result in zip(places, function([tensors[place] for place in places]), strict=True):
            results[place] = result
    return results


def mean_over_replicas(values, weight, gradient_dtype="float32", sum_gradients=sum_over_replicas):
    """Return the mean of a structure of tensors over the replicas, weighted by ``weight``, and the sum of the weights.

    It is one all-reduce, in 32 bits, and another one for 64-bit values. ``values["gradients"]`` are reduced separately
    with a 16-bit ``gradient_dtype`` or a custom ``sum_gradients``. A replica of weight 0 has no effect, even if its
    values are not finite.
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


# Sharded variables, for code that knows no details. Each has its unsharded ``whole``, with a name, a path, a dtype and
# a shape; `numpy()` returns the full value and `assign(value)` sets it. All workers must call these.


def is_shard(variable):
    return hasattr(variable, "whole")


def full_variable(variable):
    """Return a variable; for a shard, its ``whole``, which shows the shards of all replicas as one variable."""
    return getattr(variable, "whole", variable)


def full_weights(layer):
    """Return the unsharded weights of a layer as NumPy arrays."""
    return [full_variable(variable).numpy() for variable in layer.weights]


def set_full_weights(layer, weights):
    """Set the ``layer.weights`` to full values; each replica takes its shard of the sharded ones."""
    wholes = [full_variable(variable) for variable in layer.weights]
    shapes = [tuple(whole.shape) for whole in wholes]
    if [tuple(value.shape) for value in weights] != shapes:
        raise ValueError(f"set_weights of {layer.name} takes arrays of these shapes: {shapes}")
    for whole, value in zip(wholes, weights, strict=True):
        whole.assign(value)
