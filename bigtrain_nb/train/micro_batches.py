"""A batch as a training step sees it, inputs, targets and sample weights: what it counts, how it is cut and summed."""

from bigtrain_nb.common.quiet import keras, tf


def loss_reduction(loss):
    """Return the reduction that all losses of ``compile(loss=...)`` share: "mean", "mean_with_sample_weight", "sum"."""
    kinds = set()
    for one in keras.tree.flatten(loss):
        if one is not None:
            reduction = getattr(one, "reduction", "mean")
            kinds.add("mean" if reduction == "sum_over_batch_size" else reduction)
    for kind in ("mean", "mean_with_sample_weight", "sum"):
        if kinds <= {kind}:
            return kind
    raise ValueError(
        f"losses with the reductions {', '.join(sorted(map(str, kinds)))} cannot be weighed together over micro-batches"
        ' and replicas: use one of "sum_over_batch_size", "mean_with_sample_weight", "sum" for all'
    )


def weight(data, reduction):
    """Return what a batch counts in the mean over several, a float32 scalar."""
    if reduction == "sum":
        return tf.constant(1.0)
    _, _, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if reduction == "mean" or sample_weight is None:
        return tf.cast(count_examples(data), tf.float32)
    if keras.tree.is_nested(sample_weight):
        raise ValueError('"mean_with_sample_weight" needs one sample_weight for all outputs, not one for each')
    return tf.reduce_sum(tf.cast(sample_weight, tf.float32))


def count_examples(data):
    """Return the number of examples in a batch, an int where it is known and else an int32 scalar."""
    for value in keras.tree.flatten(data):
        if value is not None and tf.TensorShape(value.shape).rank != 0:
            return value.shape[0] or tf.cast(tf.shape(value)[0], tf.int32)


def cut(data, start, length):
    """Return examples ``start`` to ``start + length`` of every tensor in a batch."""

    def rows(value):
        if value is None:
            return None
        rest = [-1 if size is None else size for size in value.shape[1:]]
        return tf.slice(value, [start] + [0] * len(rest), [length] + rest)

    return keras.tree.map_structure(rows, data)


def sum_over_slices(one_slice, variables, examples, size, of_one_size=False):
    """Return the sums of what ``one_slice(start, length)`` gives for slices of ``size`` examples, the last shorter.

    That is {"loss": scalar, "gradients": {index in ``variables``: gradient}}. XLA wants slices ``of_one_size``, known
    beforehand: then a shorter last one stands apart.
    """
    if tf.executing_eagerly():
        return _sum_eagerly(one_slice, variables, examples, size)

    # Traced once, here, and called by the loop: so it is known beforehand which variables have a gradient
    scalar = tf.TensorSpec([], tf.int32)
    one_slice = tf.function(one_slice, autograph=False).get_concrete_function(scalar, scalar)
    sums = _zeros(variables, one_slice.structured_outputs["gradients"])
    end = examples // size * size if of_one_size else examples

    def not_at_the_end(start, sums):
        return start < end

    def add_slice(start, sums):
        length = size if of_one_size else tf.minimum(size, examples - start)
        return start + size, _add(sums, one_slice(start, length))

    _, sums = tf.while_loop(not_at_the_end, add_slice, (0, sums), parallel_iterations=1)
    if not of_one_size:
        return sums

    def add_the_rest():
        return _add(sums, one_slice(end, examples - end))

    def nothing_to_add():
        return sums

    return tf.cond(tf.less(end, examples), add_the_rest, nothing_to_add)


def _sum_eagerly(one_slice, variables, examples, size):
    sums, start = None, 0
    while start < examples:
        result = one_slice(start, min(size, examples - start))
        sums = _add(sums or _zeros(variables, result["gradients"]), result)
        start += size
    return sums or _zeros(variables, range(len(variables)))


def _zeros(variables, indices):
    gradients = {index: tf.zeros(variables[index].shape, _wide(variables[index].dtype)) for index in indices}
    return {"loss": tf.constant(0.0), "gradients": gradients}


def _add(sums, result):
    return tf.nest.map_structure(_add_one, sums, result)


def _add_one(total, value):
    """Return ``total`` plus a tensor or the rows of an embedding that a slice used."""
    if isinstance(value, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(total, value.indices[:, None], tf.cast(value.values, total.dtype))
    return total + tf.cast(value, total.dtype)


def _wide(dtype):
    """Return the type in which gradients of variables of type ``dtype`` are summed: at least 32 bits."""
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype


def scaled(values, factor):
    """Return a structure of tensors, each times ``factor``."""
    return tf.nest.map_structure(lambda value: value * tf.cast(factor, value.dtype), values)


def distinct_rows(gradient, xla=False):
    """Return a gradient whose rows, if it is the rows of an embedding that a batch used, come once each.

    They come once for each use: squared by Adam or measured for clipping before they are added up, they would count
    wrongly. XLA, which cannot count the distinct ones, gets a dense gradient.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if xla:
        return tf.convert_to_tensor(gradient)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
