"""A batch as a training step sees it, inputs, targets and sample weights: how much it counts, and how to cut it."""

import numpy as np

from bigtrain_nb.common.quiet import keras, tf


def loss_reduction(loss):
    """Return the reduction that all losses of ``compile(loss=...)`` share: "mean", "mean_with_sample_weight", "sum"."""
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    named = {getattr(one, "reduction", "mean") for one in losses}
    kinds = {"mean" if name == "sum_over_batch_size" else name for name in named} or {"mean"}
    if len(kinds) > 1 or not kinds <= {"mean", "mean_with_sample_weight", "sum"}:
        raise ValueError(
            f"losses with the reductions {', '.join(sorted(map(str, named)))} cannot be weighed together over"
            ' micro-batches and replicas: use one of "sum_over_batch_size", "mean_with_sample_weight", "sum" for all'
        )
    return kinds.pop()


def weight_of(reduction):
    """Return the function from a batch to its weight in the mean, a float32 scalar."""

    def weigh(data):
        *_, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if reduction == "sum":
            return tf.constant(1.0)
        if reduction == "mean" or sample_weight is None:
            return tf.cast(count_examples(data), tf.float32)
        if keras.tree.is_nested(sample_weight):
            raise ValueError('"mean_with_sample_weight" needs one sample_weight for all outputs, not one for each')
        return tf.reduce_sum(tf.cast(sample_weight, tf.float32))

    return weigh


def as_tensors(data):
    """Return a batch with its NumPy arrays, which eager steps are given, as tensors."""
    convert = lambda value: tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value  # noqa: E731
    return keras.tree.map_structure(convert, data)


def count_examples(data):
    """Return the number of examples in a batch, an int where it is known and else an int32 scalar."""
    values = (value for value in keras.tree.flatten(data) if value is not None)
    first = next(value for value in values if tf.TensorShape(value.shape).rank != 0)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return first.shape[0] or tf.shape(first)[0]


def cut(data, start, length):
    """Return examples ``start`` to ``start + length`` of every tensor in a batch.

    Raises ValueError for what has no examples to cut: a scalar, a ragged or sparse tensor, tensors of unlike lengths.
    """
    values = [value for value in keras.tree.flatten(data) if value is not None]
    for value in values:
        if not isinstance(value, tf.Tensor) or value.shape.rank == 0:
            kind = "scalar" if isinstance(value, tf.Tensor) else type(value).__name__
            raise ValueError(f"micro_batches cannot cut a {kind}: every input must be a tensor [examples, ...]")
    lengths = {value.shape[0] for value in values}
    if len(lengths) > 1:
        shapes = ", ".join(str(tuple(value.shape)) for value in values)
        raise ValueError(f"micro_batches cannot cut a batch whose tensors have unlike first dimensions: {shapes}")

    def rows(value):
        rest = [-1 if size is None else size for size in value.shape[1:]]
        return tf.slice(value, [start, *[0] * len(rest)], [length, *rest])

    return keras.tree.map_structure(lambda value: None if value is None else rows(value), data)


def add_slices(add_slice, sums, examples, size, even=False):
    """Return ``sums`` after ``sums = add_slice(start, length, *sums)`` for slices of ``size`` examples, in turn.

    The last slice is shorter where ``examples`` does not divide. With ``even``, which XLA wants, the others are of one
    size known beforehand, and the last stands apart: the function is traced twice.
    """
    if not even:
        slices = -(-examples // tf.maximum(size, 1))
        return _each(slices, size, lambda start: tf.minimum(size, examples - start), add_slice, sums)
    sums = _each(examples // size, size, lambda _: size, add_slice, sums)
    done = examples // size * size
    if isinstance(examples, int):
        return add_slice(done, examples - done, *sums) if done < examples else sums
    return tf.cond(done < examples, lambda: add_slice(done, examples - done, *sums), lambda: sums)


def _each(count, size, length, add_slice, sums):
    body = lambda i, *sums: (i + 1, *add_slice(i * size, length(i * size), *sums))  # noqa: E731
    return list(tf.while_loop(lambda i, *_: i < count, body, (0, *sums), parallel_iterations=1)[1:])


def wide(dtype):
    """Return the type in which gradients of variables of type ``dtype`` are summed: at least 32 bits."""
    dtype = tf.as_dtype(dtype)
    return tf.float32 if dtype.size < 4 else dtype


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


def add_gradient(total, gradient, variable):
    """Return ``total`` plus a gradient, which may be None or the rows of an embedding that a batch used."""
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, None], tf.cast(gradient.values, total.dtype))
    gradient = tf.cast(gradient, total.dtype)
    if getattr(variable, "overwrite_with_gradient", False):  # float8: a new scale, of which the largest covers all
        return tf.maximum(total, gradient)
    return total + gradient
