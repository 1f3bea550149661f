"""float32 products as on a GPU with tensor cores: factors are rounded to the ten bits of TF32.

TensorFlow calls the functions below for all multiplications, in gradients too. They are replaced when their module is
imported, so that TensorFlow need not be loaded first. As on a GPU,
`tf.config.experimental.enable_tensor_float_32_execution(False)` disables it for code traced afterwards.
"""

import functools
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

OPS = "tensorflow.python.ops."
CONV2D = ["conv2d", "conv2d_backprop_input", "conv2d_backprop_filter"]
CONV3D = ["conv3d", "conv3d_backprop_input_v2", "conv3d_backprop_filter_v2"]
DEPTHWISE = [f"depthwise_conv2d_native{which}" for which in ("", "_backprop_input", "_backprop_filter")]
PRODUCTS = {
    f"{OPS}gen_math_ops": ["mat_mul", "batch_mat_mul", "batch_mat_mul_v2", "batch_mat_mul_v3"],
    f"{OPS}gen_linalg_ops": ["einsum"],
    f"{OPS}gen_nn_ops": ["conv", *CONV2D, *CONV3D, *DEPTHWISE],
}
LEFT_OUT = 23 - 10  # of a float32's mantissa bits


def install():
    """Round the factors of all products that TensorFlow computes in this process from now on."""
    if any(name in sys.modules for name in PRODUCTS):
        raise RuntimeError("TensorFlow is loaded already: its own modules may hold the functions that do not round")
    sys.meta_path.insert(0, Finder())


class Finder(MetaPathFinder):
    """Finds the modules as Python does, and makes their loader replace the functions."""

    def find_spec(self, name, path=None, target=None):
        if name not in PRODUCTS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def load_and_replace(module):
            load(module)
            for product in PRODUCTS[name]:
                setattr(module, product, rounding(getattr(module, product)))

        spec.loader.exec_module = load_and_replace
        return spec


def rounding(product):
    """Return a function that rounds its float32 arguments, also within lists, before calling ``product``."""

    @functools.wraps(product)
    def rounded_product(*arguments, **named):
        import tensorflow as tf

        if not tf.config.experimental.tensor_float_32_execution_enabled():
            return product(*arguments, **named)
        named = {name: rounded(argument) for name, argument in named.items()}
        return product(*map(rounded, arguments), **named)

    return rounded_product


def rounded(argument):
    """Return a float32 tensor rounded to TF32, ties to even; anything else unchanged.

    Its gradient is that of the unrounded tensor.
    """
    import tensorflow as tf

    if isinstance(argument, list | tuple):
        return [rounded(each) for each in argument]
    if getattr(argument, "dtype", None) != tf.float32:
        return argument
    number = tf.convert_to_tensor(argument)
    bits = tf.bitcast(tf.stop_gradient(number), tf.int32)
    half = (1 << (LEFT_OUT - 1)) - 1 + tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, LEFT_OUT), 1)
    near = tf.bitcast(tf.bitwise.bitwise_and(bits + half, -(1 << LEFT_OUT)), tf.float32)
    change = tf.where(tf.math.is_finite(near), near - number, 0.0)
    return number + tf.stop_gradient(change)
