"""Seconds of operations that are timed alone on the cores here: convolutions, products, averages and the like.

FLOPs at the rate of large products, and bytes at that of plain copies, say little of them. On an AMD EPYC without
AVX-512 whose two cores reach 113 GFLOP/s in large products, a convolution of 3 channels reached 12, the gradients of
one of 16 channels 15 to 60, and products of a GRU of 128 units 36 to 75. The averages and repetitions in the group
norms of `bt.conv_net`, which by their bytes are done in 2 ms, took 115.
"""

import math
import resource
import time
from functools import cache, partial

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.plan.operations import convolved, flops, number_of_bytes

CONVOLUTIONS = set(
    "Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2 DepthwiseConv2dNative"
    " DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter".split()
)
"""But for Conv3DBackpropFilterV2: with few examples it took up to 5.5 times as long for each."""
PAIRS = set("AddV2 Maximum Minimum Mul RealDiv SquaredDifference Sub".split())
"""Take long where one input is repeated for the numbers of the other."""
SLOW = set(
    "AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad Max MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad Mean Min Prod Softmax"
    " Sum Tile".split()
)
"""Do more with each number than to read and write it."""
LEAST = 2**20
"""FLOPs of products and convolutions, bytes of the largest tensor of all else: with less, most of it is the start."""
LARGEST = 2**24
"""Bytes of each matrix of a MatMul that is timed."""
CUT = 2**22
"""Bytes of the largest tensor of all else that is timed: with as many examples as that holds."""
SECONDS, RUNS = 0.03, 3
"""Of a run, as clocks tick each hundredth of a second, and how many there are. The least of them tells, for what else
runs on the cores slows some."""

OTHER_NAMES = {"reduction_indices": "axis"}
"""What `tf.raw_ops` calls an input."""
SHAPES = ("input_sizes", "filter_sizes", "orig_input_shape")
"""Inputs that say which shape the result has."""
WEIGHTS = ("filter", "filter_sizes")
"""Inputs whose first axis is not that of the examples."""


def is_timed_alone(node):
    """Return whether `seconds_alone` times a node."""
    tensors = (*node.inputs, *node.outputs)
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return False
    if any(tensor.dtype.name != "float32" for tensor in tensors if tensor.dtype.is_floating):
        return False
    if node.type == "MatMul":
        return flops(node) >= LEAST and max(map(number_of_bytes, tensors)) <= LARGEST
    if node.type == "BatchMatMulV2":
        return flops(node) >= LEAST and _can_be_cut(node)
    if node.type in CONVOLUTIONS:
        return flops(node) >= LEAST and _runs_on_cores(node) and max(node.get_attr("dilations")) == _groups(node) == 1
    is_slow = node.type in SLOW or (node.type in PAIRS and node.inputs[0].shape != node.inputs[1].shape)
    return is_slow and number_of_bytes(_largest(node)) >= LEAST and _runs_on_cores(node) and _can_be_cut(node)


def _runs_on_cores(node):
    """Return whether TensorFlow has it for CPUs as it stands: channels last, no padding by hand."""
    attributes = [each.name for each in node.op_def.attr]
    if "data_format" in attributes and node.get_attr("data_format") not in (b"NHWC", b"NDHWC"):
        return False
    return "padding" not in attributes or node.get_attr("padding") != b"EXPLICIT"


def _groups(convolution):
    given, kernel, _ = convolved(convolution)
    return given[-1] // kernel[-2]


def _can_be_cut(node):
    """Return whether an input has the examples of the largest tensor, and all integers that it takes are known."""
    inputs = _inputs(node)
    if None in inputs.values():
        return False
    return any(_has_examples(name, numbers, _largest(node)) for name, numbers in inputs.items())


def seconds_alone(node):
    """Return the least processor seconds that a node takes, shared by all cores, without those of calling it.

    Each kind and shape is timed once in a process, in some tenth of a second, on ones. But for a MatMul, what is timed
    has as many examples as `CUT` bytes hold, and its time stands for that of all.
    """
    inputs, share = _inputs(node), 1.0
    if node.type != "MatMul":
        largest = _largest(node)
        examples = max(1, CUT * largest.shape[0] // number_of_bytes(largest))
        share = largest.shape[0] / examples
        for name, numbers in inputs.items():
            if _has_examples(name, numbers, largest):
                inputs[name] = type(numbers)([examples, *numbers[1:]])
    attributes = {each.name: node.get_attr(each.name) for each in node.op_def.attr if "type" not in each.type}
    for name, value in attributes.items():
        attributes[name] = tuple(value) if isinstance(value, list) else value
    single = {"a": tf.TensorShape([1, 1]), "b": tf.TensorShape([1, 1])}
    calling = _timed("MatMul", tuple(single.items()), ())
    return share * max(0.0, _timed(node.type, tuple(inputs.items()), tuple(attributes.items())) - calling)


def _inputs(node):
    """Return {name in `tf.raw_ops`: the shape of a tensor of floats, or a tuple of integers, None if not known}."""
    inputs = {}
    for argument, tensor in zip(node.op_def.input_arg, node.inputs, strict=True):
        name = OTHER_NAMES.get(argument.name, argument.name)
        if tensor.dtype.is_floating:
            inputs[name] = tensor.shape
        elif name in SHAPES:
            inputs[name] = tuple(node.outputs[0].shape)
        else:
            known = tf.get_static_value(tensor)
            inputs[name] = None if known is None else tuple(known.reshape(-1).tolist())
    return inputs


def _largest(node):
    """Return the largest tensor that may have examples on its first axis."""
    names = [argument.name for argument in node.op_def.input_arg]
    tensors = [tensor for name, tensor in zip(names, node.inputs, strict=True) if name not in WEIGHTS]
    if "filter_sizes" not in names:
        tensors += node.outputs
    return max(tensors, key=number_of_bytes)


def _has_examples(name, numbers, largest):
    """Return whether an input of `_inputs` has as many examples as the largest tensor, on its first axis."""
    is_shape = isinstance(numbers, tf.TensorShape) or name in SHAPES
    same_rank = name not in WEIGHTS and is_shape and len(numbers) == largest.shape.rank
    return same_rank and numbers[0] == largest.shape[0]


@cache
def _timed(kind, inputs, attributes):
    """Return the least seconds of calling an operation of `tf.raw_ops`, of all cores at once."""
    given = {
        name: tf.ones(value) if isinstance(value, tf.TensorShape) else tf.constant(value) for name, value in inputs
    }
    call = partial(getattr(tf.raw_ops, kind), **given, **dict(attributes))
    call()
    began = time.perf_counter()
    call()
    times = math.ceil(SECONDS / (time.perf_counter() - began))
    took = []
    for _ in range(RUNS):
        began = _user_seconds()
        for _ in range(times):
            call()
        took.append(_user_seconds() - began)
    return min(took) / times / cores()


def _user_seconds():
    """Return processor seconds of this process but for those in which the kernel gives memory: a step may have it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime
