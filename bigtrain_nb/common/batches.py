"""A batch as a training step sees it, inputs, targets and sample weights: what it counts, and how it is cut."""

from itertools import pairwise

from bigtrain_nb.common.quiet import keras, tf


def loss_reduction(loss):
    """Return the reduction that all losses of ``compile(loss=...)`` share: "mean", "mean_with_sample_weight", "sum"."""
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    kinds = {getattr(one, "reduction", "mean") for one in losses}
    if kinds <= {"mean", "sum_over_batch_size"}:
        return "mean"
    if kinds in ({"mean_with_sample_weight"}, {"sum"}):
        return kinds.pop()
    raise ValueError(
        f"losses with the reductions {', '.join(sorted(map(str, kinds)))} cannot be weighed together over micro-batches"
        ' and replicas: use one of "sum_over_batch_size", "mean_with_sample_weight", "sum" for all'
    )


def count_examples(data):
    """Return the number of examples in a batch, an int where it is known and else an int32 scalar."""
    for value in keras.tree.flatten(data):
        if value is not None and tf.TensorShape(value.shape).rank != 0:
            return value.shape[0] or tf.cast(tf.shape(value)[0], tf.int32)


def weight_of(data, reduction):
    """Return what a batch counts in the mean over several, a float32 scalar."""
    if reduction == "sum":
        return tf.constant(1.0)
    _, _, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if reduction == "mean" or sample_weight is None:
        return tf.cast(count_examples(data), tf.float32)
    if keras.tree.is_nested(sample_weight):
        raise ValueError('"mean_with_sample_weight" needs one sample_weight for all outputs, not one for each')
    return tf.reduce_sum(tf.cast(sample_weight, tf.float32))


def cut(data, start, length):
    """Return examples ``start`` to ``start + length`` of every tensor in a batch."""

    def rows(value):
        if value is None:
            return None
        rest = [-1 if size is None else size for size in value.shape[1:]]  # XLA wants to know them
        begin = [start] + [0] * len(rest)
        return tf.slice(value, begin, [length] + rest)

    return keras.tree.map_structure(rows, data)


def equal_parts(examples, count):
    """Return the start and the length of ``count`` parts of a batch, which differ by one example at most.

    In a step, InvalidArgumentError if there are fewer ``examples``.
    """
    too_few = (
        f"a batch has fewer examples than micro_batches={count}: take larger batches or fewer micro-batches, and drop a"
        " short last batch with batch(..., drop_remainder=True)"
    )
    with tf.control_dependencies([tf.debugging.assert_greater_equal(examples, count, too_few)]):
        examples = examples if isinstance(examples, int) else tf.identity(examples)
    ends = [examples * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in pairwise(ends)]


def dense(gradient, variable):
    """Return a gradient as a tensor of its variable's shape.

    That of an embedding comes as rows, one for each use: squared by Adam or measured for clipping before they are added
    up, they would count wrongly.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return gradient


def refuse_sum_with_other_losses(model, reduction):
    """Raise ValueError where micro-batches would count the losses of layers once each, for want of shares."""
    if reduction == "sum" and model.micro_batches > 1 and model.losses:
        raise ValueError(
            'with the reduction "sum", micro_batches would count regularisers and add_loss once for each slice: use'
            ' "sum_over_batch_size"'
        )
