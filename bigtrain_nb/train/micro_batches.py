"""Sums over the slices of a batch."""

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import at_least_32_bits


def sum_over_slices(one_slice, variables, examples, size, of_one_size):
    """Return the sums of what ``one_slice(start, length)`` gives for slices of ``size`` examples, the last shorter.

    That is {"loss": scalar, "gradients": {index in ``variables``: gradient}}. XLA wants slices ``of_one_size``, known
    beforehand: then a shorter last one stands apart.
    """
    # Traced once, here, and called by the loop: so it is known beforehand which variables have a gradient
    number = tf.TensorSpec([], tf.int32)
    one_slice = tf.function(one_slice, autograph=False).get_concrete_function(number, number)
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

    return tf.cond(tf.less(end, examples), add_the_rest, lambda: sums)


def sum_written_out(one_slice, parts):
    """Return the sums of what ``one_slice`` gives for ``parts``, one written after the other in place of a loop.

    Under MirroredStrategy replicas cannot talk to each other within a loop. Each slice waits for the one before.
    """
    sums = None
    for start, length in parts:
        with tf.control_dependencies(tf.nest.flatten(sums or [])):
            result = one_slice(start, length)
            sums = result if sums is None else _add(sums, result)
    return sums


def _zeros(variables, indices):
    gradients = {}
    for index in indices:
        variable = variables[index]
        gradients[index] = tf.zeros(variable.shape, at_least_32_bits(variable.dtype))
    return {"loss": tf.constant(0.0), "gradients": gradients}


def _add(sums, result):
    def add(total, value):
        return total + tf.cast(value, total.dtype)

    return tf.nest.map_structure(add, sums, result)
