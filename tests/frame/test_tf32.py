"""``pytest --tf32`` rounds TensorFlow's multiplications, in gradients and other processes too."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.more("three processes that load TensorFlow, for an option of pytest")
CODE = """
import numpy as np
import tensorflow as tf

one = tf.constant([[1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-10, float("inf")]])
ones = tf.ones([4, 1])
expected = np.array([[1.0, 1 + 2**-9, 1 + 2**-10, np.inf]], np.float32)  # in the middle: to the even one
for product in (
    tf.linalg.diag_part(tf.matmul(ones, one)[:, :]),
    tf.matmul(ones, one)[0],
    tf.einsum("ij,jk->ik", ones, one)[0],
    tf.function(tf.matmul)(ones, one)[0],
    tf.nn.conv2d(tf.reshape(one, [1, 2, 2, 1]), tf.ones([1, 1, 1, 1]), 1, "VALID"),
    tf.function(tf.matmul, jit_compile=True)(ones, one)[0],
):
    assert np.array_equal(np.ravel(product), expected[0]), product

other = tf.Variable([[1 + 2**-12]])
with tf.GradientTape() as tape:
    squared = tf.matmul(other, other)
assert tape.gradient(squared, other).numpy() == 2.0 and squared.numpy() == 1.0

tf.config.experimental.enable_tensor_float_32_execution(False)
assert np.array_equal(tf.matmul(ones, one)[0], one[0])
"""


def test_products_are_rounded_and_where_tf32_is_off_they_are_not():
    environment = {"PYTHONPATH": str(TESTS / "tf32"), "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run([sys.executable, "-c", CODE], env=environment, check=True)


def test_the_option_reaches_this_process_and_those_that_it_starts(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    pytester.makepyfile(
        """
        import subprocess, sys
        CODE = "import tensorflow as tf; assert tf.matmul([[1 + 2**-12]], [[1.0]]).numpy() == 1.0"

        def test_here():
            exec(CODE)

        def test_elsewhere():
            subprocess.run([sys.executable, "-c", CODE], check=True)
        """
    )
    pytester.runpytest_subprocess("--tf32", "-p", "tf32_option").assert_outcomes(passed=2)
