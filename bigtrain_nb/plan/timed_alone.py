"""Seconds of convolutions and of products of matrices that are not large, each timed alone on the cores here.

The rate of large products says little of them. Where that is 113 GFLOP/s (AMD EPYC without AVX-512, two cores) a
convolution of 3 channels reaches 12, the gradients of one of 16 channels 15 to 60, the products of a GRU of 128 units
36 to 75.
"""

import math
import time
from functools import cache, partial

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.plan.operations import convolved, flops, number_of_bytes

LARGEST = 2**24
"""Bytes of each matrix of a product that is timed."""
IMAGES = 2**22
"""Bytes of a convolution's input or result, whichever is larger: it is timed with as many examples as that holds."""
FEWEST_FLOPS = 2**20
"""Of what is timed: less takes some ten microseconds, most of which is its start."""
SECONDS, RUNS = 0.01, 6
"""Of a run, and how many there are; the least of them tells, for what else runs on the cores slows some."""

CONVOLUTIONS = set(
    "Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2 Conv3DBackpropFilterV2"
    " DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter".split()
)
"""Operations of `tf.raw_ops`; all of them run on cores with channels last, in one group and without dilation."""


def is_timed_alone(node):
    """Return whether `seconds_alone` times a node."""
    if flops(node) < FEWEST_FLOPS or node.outputs[0].dtype.name != "float32":
        return False
    if node.type == "MatMul":
        return max(number_of_bytes(tensor) for tensor in (*node.inputs, *node.outputs)) <= LARGEST
    if node.type not in CONVOLUTIONS:
        return False
    given, kernel, _ = convolved(node)
    return (
        given[-1] == kernel[-2]
        and node.get_attr("data_format") in (b"NHWC", b"NDHWC")
        and node.get_attr("padding") != b"EXPLICIT"
        and max(node.get_attr("dilations")) == 1
    )


def seconds_alone(node):
    """Return the least processor seconds that a node takes, shared by all cores, without those of calling it.

    Each kind and shape is timed once in a process, in some tenth of a second.
    """
    if node.type == "MatMul":
        share = 1.0
        shapes = {"a": tuple(node.inputs[0].shape), "b": tuple(node.inputs[1].shape)}
        names = ("transpose_a", "transpose_b")
    else:
        share, shapes = _with_few_examples(node)
        names = ("strides", "padding", "data_format")
    values = [node.get_attr(name) for name in names]
    attributes = tuple(tuple(value) if isinstance(value, list) else value for value in values)
    single = {name: (1,) * len(shape) for name, shape in shapes.items()}
    whole, calling = (_timed(node.type, tuple(each.items()), names, attributes) for each in (shapes, single))
    return share * max(0.0, whole - calling)


def _with_few_examples(node):
    """Return how many times a convolution does what is timed in its place, and {argument: its shape} of that."""
    given, kernel, result = (tuple(shape) for shape in convolved(node))
    examples = max(1, IMAGES // (4 * max(math.prod(given[1:]), math.prod(result[1:]))))
    images, results = (examples, *given[1:]), (examples, *result[1:])
    shapes = {"input": images, "filter": kernel, "out_backprop": results, "input_sizes": images, "filter_sizes": kernel}
    return given[0] / examples, {argument.name: shapes[argument.name] for argument in node.op_def.input_arg}


@cache
def _timed(kind, shapes, names, attributes):
    """Return the least processor seconds of calling an operation of `tf.raw_ops`, on all cores at once.

    Its tensors are ones; of what it calls "sizes" it is given the shape.
    """
    given = {name: list(shape) if name.endswith("sizes") else tf.ones(shape) for name, shape in shapes}
    call = partial(getattr(tf.raw_ops, kind), **given, **dict(zip(names, attributes, strict=True)))
    call()
    began = time.perf_counter()
    call()
    times = math.ceil(SECONDS / (time.perf_counter() - began))
    took = []
    for _ in range(RUNS):
        began = time.process_time()
        for _ in range(times):
            call()
        took.append(time.process_time() - began)
    return min(took) / times / cores()
