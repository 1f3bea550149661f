"""What the replicas of a strategy do together: the same function each, the values, sums and means of all, wholes."""

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

    def all_reduce(of_type):
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        by_ring = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        options = by_ring if of_type[0].dtype == tf.bfloat16 else None
        return context.all_reduce(tf.distribute.ReduceOp.SUM, of_type, options)

    return tf.nest.pack_sequence_as(tensors, by_type(tf.nest.flatten(tensors), all_reduce))


def gather_over_replicas(tensor, axis, options=None):
    """Return the replicas' tensors, joined along an axis, on which their sizes may differ."""
    sent = tf.cast(tensor, GATHERED_AS.get(tensor.dtype, tensor.dtype))
    return tf.cast(tf.distribute.get_replica_context().all_gather(sent, axis, options), tensor.dtype)


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
