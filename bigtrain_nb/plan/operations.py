"""What is known of TensorFlow's operations: FLOPs, bytes, and which share memory with an input.

Works on the nodes of a `tf.Graph` by name and shape and imports nothing of TensorFlow.
"""

import math

LOOPS = {"While", "StatelessWhile"}
ALIASES = {"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
"""Outputs are inputs under another name or shape."""
LISTS = {f"TensorList{what}" for what in ("FromTensor", "PushBack", "SetItem", "PopBack", "GetItem")}
"""Take tensors into lists and out of them as they are."""
MOVE_NOTHING = {*LOOPS, *ALIASES, *LISTS, "ReadVariableOp", "Placeholder", "Const"}

COMPUTE_IN_PLACE = set(
    "Abs Add AddN AddV2 BiasAdd Ceil Cos Div DivNoNan Elu EluGrad Erf Exp Expm1 FloorDiv LeakyRelu LeakyReluGrad Log"
    " Log1p LogSoftmax Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Rsqrt"
    " RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus Sqrt SqrtGrad Square SquaredDifference Sub"
    " Tanh TanhGrad Xdivy Xlogy".split()
)
LOSSES = {"SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"}
IN_PLACE = COMPUTE_IN_PLACE | LOSSES | {"LogicalAnd", "LogicalNot", "LogicalOr"}
"""Write a result over an input of its size and type that nothing else needs (forward_input in C++)."""
REDUCTIONS = {"Sum", "Mean", "Max", "Min", "Prod", "BiasAddGrad", "L2Loss", "EuclideanNorm", "UnsortedSegmentSum"}

MATRICES = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
CONVOLUTIONS = {
    "Conv2D": ("input 1", "output"),
    "Conv3D": ("input 1", "output"),
    "DepthwiseConv2dNative": ("input 1", "output"),
    "Conv2DBackpropInput": ("input 1", "input 2"),
    "Conv3DBackpropInputV2": ("input 1", "input 2"),
    "DepthwiseConv2dNativeBackpropInput": ("input 1", "input 2"),
    "Conv2DBackpropFilter": ("output", "input 2"),
    "Conv3DBackpropFilterV2": ("output", "input 2"),
    "DepthwiseConv2dNativeBackpropFilter": ("output", "input 2"),
}
"""Where their kernel [..., in, out] stands, and the result of the forward convolution or its gradient."""
CONTRACTIONS = {*MATRICES, *CONVOLUTIONS, "Einsum"}
"""What takes its time by its FLOPs, not by the bytes that it moves."""

FLOPS_OF_AN_INPUT = {
    "AvgPool": 1,
    "AvgPoolGrad": 1,
    "MaxPool": 1,
    "MaxPoolGrad": 1,
    "FusedBatchNormV3": 4,
    "FusedBatchNormGradV3": 8,
    "SparseSoftmaxCrossEntropyWithLogits": 4,
    "SoftmaxCrossEntropyWithLogits": 4,
}
"""FLOPs for each number of the first input."""


def number_of_bytes(tensor):
    """Return the bytes of a tensor, 0 for handles and for shapes that are not known."""
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    return tensor.dtype.size * _elements(tensor)


def bytes_moved(node):
    """Return the bytes that a node reads and writes."""
    if node.type in MOVE_NOTHING:
        return 0
    moved = sum(number_of_bytes(tensor) for tensor in (*node.inputs, *node.outputs))
    if node.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        moved *= 3  # the variable, which is no input, is read and written
    return moved


def flops(node):
    """Return the FLOPs of a node: 2 for each multiply-add of a contraction, else 1 for each number written or added up.

    A contraction makes each number of its result out of n products: 2 n FLOPs. Moving numbers counts 0.
    """
    if node.type in CONTRACTIONS:
        known = all(tensor.shape.is_fully_defined() for tensor in (*node.inputs, *node.outputs))
        return 2 * _products(node) if known else 0
    if node.type in FLOPS_OF_AN_INPUT:
        return FLOPS_OF_AN_INPUT[node.type] * _elements(node.inputs[0])
    if node.type in REDUCTIONS:
        return _elements(node.inputs[0])
    return _elements(node.outputs[0]) if node.type in COMPUTE_IN_PLACE else 0


def _products(node):
    """Return how many products a contraction adds up."""
    if node.type in MATRICES:
        *_, rows, columns = node.inputs[0].shape
        turned = any(name in node.node_def.attr and node.get_attr(name) for name in ("transpose_a", "adj_x"))
        return _elements(node.outputs[0]) * (rows if turned else columns)
    if node.type == "Einsum":
        sizes = {}
        terms, _ = node.get_attr("equation").decode().split("->")  # "abc,cd->abd": a letter for each axis
        for term, tensor in zip(terms.split(","), node.inputs, strict=True):
            sizes.update(zip(term, tensor.shape, strict=False))
        return math.prod(sizes.values())
    tensors = {"input 1": node.inputs[1], "input 2": node.inputs[-1], "output": node.outputs[0]}
    kernel, result = (tensors[place] for place in CONVOLUTIONS[node.type])
    *window, channels, _ = kernel.shape
    if node.type.startswith("Depthwise"):
        channels = 1
    return _elements(result) * math.prod(window) * channels


def _elements(tensor):
    return tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0
