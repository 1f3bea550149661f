"""What the replicas of a strategy do together: the same function each, the values of all, their mean."""

from bigtrain_nb.common.quiet import tf


def several_workers(strategy):
    """Return whether other processes take part in this strategy."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


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


def all_gather(strategy, value):
    """Return a function of tensors that gives what ``value`` of them is on each replica: NumPy, [replicas, ...]."""

    def share(*tensors):
        own = tf.convert_to_tensor(value(*tensors))
        return tf.distribute.get_replica_context().all_gather(own[None], axis=0)

    run = on_each_replica(strategy, share)

    def gather(*tensors):
        return run(*tensors)[0].numpy()

    return gather


def mean_over_replicas(values, weight, gradient_dtype="float32"):
    """Return the mean of a structure of tensors over the replicas, each by its ``weight``, and the sum of the weights.

    It is one all-reduce, in 32 bits. With a ``gradient_dtype`` of 16 bits ``values["gradients"]`` travel in that, in a
    second one: an all-reduce has one type. A replica of weight 0 counts nothing, even where its values are not finite.
    """

    def weighted(value):
        value = tf.cast(value, at_least_32_bits(value.dtype))
        return tf.math.multiply_no_nan(value, tf.cast(weight, value.dtype))

    def sum_over_replicas(tensors):
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def divided(total_value, mine):
        return tf.math.divide_no_nan(tf.cast(total_value, mine.dtype), tf.cast(total, mine.dtype))

    mine = tf.nest.map_structure(weighted, values)
    if gradient_dtype == "float32":
        sums, total = sum_over_replicas((mine, weight))
    else:
        short = tf.nest.map_structure(lambda gradient: tf.cast(gradient, gradient_dtype), mine["gradients"])
        others = {name: value for name, value in mine.items() if name != "gradients"}
        sums, total = sum_over_replicas((others, weight))
        sums["gradients"] = sum_over_replicas(short)
    return tf.nest.map_structure(divided, sums, mine), total


def at_least_32_bits(dtype):
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype
