"""The peak memory of small graphs, against bytes counted by hand."""

import pytest

from bigtrain_nb.advanced.plan.graph import Graph
from bigtrain_nb.advanced.plan.peak import peak_of
from bigtrain_nb.common.quiet import tf

KIB = 1024  # float32 [256]
NUMBER = 4  # float32 or int32


def peak(function):
    """Return the peak bytes of a function of a float32 [256], without its argument."""
    traced = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([256]))
    return peak_of(Graph(traced.graph, traced.outputs)).total


def repeated(scalar, times):
    return tf.tile(tf.reshape(scalar, [1]), [times])


def test_another_shape_of_a_tensor_takes_no_memory():
    def function(x):
        return tf.reshape(tf.exp(x), [16, 16])

    assert peak(function) == KIB + 2 * NUMBER  # plus the shape


def test_each_output_of_identity_n_is_the_input_at_its_place():
    def function(x):
        small, large = tf.identity_n([tf.exp(x), tf.exp(tf.tile(x, [2]))])
        return tf.tile(large * tf.reduce_sum(small), [2])

    in_place_of_large, tiled = 2 * KIB, 4 * KIB  # small is freed
    assert peak(function) == in_place_of_large + tiled + NUMBER  # plus the number of repeats


def pushed(x):
    empty = tf.raw_ops.EmptyTensorList(element_shape=[256], max_num_elements=-1, element_dtype=tf.float32)
    return tf.raw_ops.TensorListPushBack(input_handle=empty, tensor=tf.exp(x))


def popped(held):
    return tf.raw_ops.TensorListPopBack(input_handle=held, element_shape=[256], element_dtype=tf.float32)[1]


def test_what_is_in_a_list_lives_until_it_is_taken_out():
    def function(x):
        held = pushed(x)
        length = tf.cast(tf.raw_ops.TensorListLength(input_handle=held), tf.float32)
        total = tf.reduce_sum(repeated(length, 512))
        with tf.control_dependencies([total]):
            return popped(held) * total

    assert peak(function) == pytest.approx(KIB + 2 * KIB, abs=4 * NUMBER)  # the length, and the number of repeats


def test_what_is_taken_out_of_a_list_goes_after_its_last_use():
    def function(x):
        return repeated(tf.reduce_sum(popped(pushed(x))), 512)

    assert peak(function) == 2 * KIB + 2 * NUMBER  # the sum, and the number of repeats


def test_what_a_function_is_called_with_goes_after_the_last_use():
    @tf.function(autograph=False)
    def total(x):
        return tf.reduce_sum(x)

    def function(x):
        return repeated(total(tf.exp(x)), 512)

    assert peak(function) == 2 * KIB + 2 * NUMBER  # the sum, and the number of repeats
