"""What is known of TensorFlow's operations: FLOPs, bytes, which share memory with an input and which need more.

Works on the nodes of a `tf.Graph` by name and shape and imports nothing of TensorFlow.
"""

import math

ALIASES = {"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
"""Outputs are inputs under another name or shape."""

LOOPS = {"While", "StatelessWhile"}

IN_PLACE = {
    *("Abs Add AddN AddV2 BiasAdd Ceil Cos Div DivNoNan Elu EluGrad Erf Exp Expm1 FloorDiv LeakyRelu Log".split()),
    *("Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu".split()),
    *("Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax Softplus".split()),
    *("Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad LogSoftmax Xdivy Xlogy LeakyReluGrad SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits".split()),
}
"""Write their result over an input of its size and type that nothing else needs (Tensor::forward_input in C++)."""


def number_of_bytes(tensor):
    """Return the bytes of a tensor, 0 for handles and for shapes that are not known."""
    if tensor.dtype.size in (None, 0) or tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    shape = tensor.shape
    return tensor.dtype.size * shape.num_elements() if shape.is_fully_defined() else 0


CHANGES = {"AssignAddVariableOp", "AssignSubVariableOp"}
MOVES_NOTHING = {"ReadVariableOp", "Placeholder", "Const", "TensorListPushBack", "TensorListPopBack", "TensorListGetItem", "TensorListSetItem", "TensorListFromTensor", *LOOPS, *ALIASES}

def moved(node):
    """Return the bytes that a node reads and writes."""
    if node.type in MOVES_NOTHING:
        return 0
    total = sum(number_of_bytes(tensor) for tensor in (*node.inputs, *node.outputs))
    return 3 * total if node.type in CHANGES else total  # the variable, which is no input, is read and written


def flops(node):
    """Return the FLOPs of a node: 2 for each multiply-add of a contraction, else 1 for each number written or added up.

    A contraction makes each number of its result out of n products: 2 n FLOPs. Moving numbers counts 0.
    """
    rule = CONTRACTIONS.get(node.type)
    if rule:
        return rule(node) if all(t.shape.is_fully_defined() for t in (*node.inputs, *node.outputs)) else 0
    if node.type in _WEIGHTED:
        return _WEIGHTED[node.type] * _elements(node.inputs[0])
    if node.type in _REDUCTIONS:
        return _elements(node.inputs[0])
    return _elements(node.outputs[0]) if node.type in _COMPUTING else 0


def _elements(tensor):
    return tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0


def _matmul(node):
    rows = node.inputs[0].shape.as_list()
    turned = any(name in node.node_def.attr and node.get_attr(name) for name in ("transpose_a", "adj_x"))
    return 2 * _elements(node.outputs[0]) * (rows[-2] if turned else rows[-1])


def _einsum(node):
    terms, result = _einsum_terms(node)
    sizes = {}
    for term, tensor in zip(terms, node.inputs, strict=True):
        sizes.update(_named_sizes(term, tensor.shape.as_list()))
    summed = math.prod(sizes[name] for name in set("".join(terms)) - set(result) - {"."})
    return (2 if len(terms) > 1 else 1) * _elements(node.outputs[0]) * summed


def _einsum_terms(node):
    equation = node.get_attr("equation")
    equation = equation.decode() if isinstance(equation, bytes) else equation
    inputs, result = equation.replace(" ", "").split("->")
    return inputs.split(","), result


def _named_sizes(term, shape):
    """Return {letter: size}; letters before an ellipsis count from the left, those behind it from the right."""
    head, _, tail = term.partition("...")
    return {**dict(zip(head, shape, strict=False)), **dict(zip(reversed(tail), reversed(shape), strict=False))}


def scratch(node):
    """Return the bytes that a node needs while it runs, beyond its inputs and outputs; those of einsum are known.

    A copy of each operand whose axes are not in the order [batch, free, contracted] or [batch, contracted, free], and
    one of the result if its axes are not [batch, free of the first, free of the second]: the kernel multiplies batches
    of matrices and transposes before and after (tensorflow/core/kernels/linalg/einsum_op_impl.h).
    """
    if node.type != "Einsum":
        return 0
    terms, result = _einsum_terms(node)
    if len(terms) != 2 or "." in "".join(terms):
        return 0
    shared = set(terms[0]) & set(terms[1])
    batch, summed = shared & set(result), shared - set(result)
    size = 0
    for term, tensor in zip(terms, node.inputs, strict=True):
        order = ["b" if name in batch else "s" if name in summed else "f" for name in term]
        if order not in (sorted(order, key="bfs".index), sorted(order, key="bsf".index)):
            size += number_of_bytes(tensor)
    made = [n for n in terms[0] if n in batch] + [n for term in terms for n in term if n in result and n not in batch]
    return size + (number_of_bytes(node.outputs[0]) if made != list(result) else 0)


def _convolution(kernel, result):
    """FLOPs from the kernel's shape [..., in, out] and the result's elements; a depthwise one sums over no channels.

    ``kernel``, ``result``: which input is it? None for the output.
    """

    def count(node):
        shapes, made = ((node.outputs[0] if place is None else node.inputs[place]) for place in (kernel, result))
        depthwise = node.type.startswith("Depthwise")
        products = math.prod(shapes.shape.as_list()[: -2 if depthwise else -1])
        return 2 * _elements(made) * products

    return count


CONTRACTIONS = {
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
    "Conv2D": _convolution(1, None),
    "Conv3D": _convolution(1, None),
    "DepthwiseConv2dNative": _convolution(1, None),
    "Conv2DBackpropInput": _convolution(1, 2),
    "Conv3DBackpropInputV2": _convolution(1, 2),
    "DepthwiseConv2dNativeBackpropInput": _convolution(1, 2),
    "Conv2DBackpropFilter": _convolution(None, 2),
    "Conv3DBackpropFilterV2": _convolution(None, 2),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(None, 2),
}
"""What takes its time by its FLOPs, not by the bytes that it moves."""
_COMPUTING = IN_PLACE - {"LogicalAnd", "LogicalNot", "LogicalOr"}
_REDUCTIONS = {"Sum", "Mean", "Max", "Min", "Prod", "BiasAddGrad", "L2Loss", "EuclideanNorm", "UnsortedSegmentSum"}
_WEIGHTED = {
    "AvgPool": 1,
    "AvgPoolGrad": 1,
    "MaxPool": 1,
    "MaxPoolGrad": 1,
    "FusedBatchNormV3": 4,
    "FusedBatchNormGradV3": 8,
    "SparseSoftmaxCrossEntropyWithLogits": 4,
    "SoftmaxCrossEntropyWithLogits": 4,
}
