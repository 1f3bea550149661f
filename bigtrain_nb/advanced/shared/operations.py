"""Properties of TensorFlow's operations: FLOPs, bytes, and which share memory with an input.

Works on the nodes of a `tf.Graph` by name and shape, without importing TensorFlow.
"""

import math

LOOPS = {"While", "StatelessWhile"}
ALIASES = set("Identity IdentityN Reshape ExpandDims Squeeze StopGradient PreventGradient TensorListFromTensor".split())
"""Their outputs are inputs under another name or shape, or a list of their parts."""
LISTS = set("TensorListPushBack TensorListSetItem TensorListPopBack TensorListGetItem".split())
"""Move tensors into and out of lists unchanged."""
MOVE_NOTHING = {*LOOPS, *ALIASES, *LISTS, "ReadVariableOp", "Placeholder", "Const"}
IN_PLACE = set(
    "Abs Add AddN AddV2 BiasAdd Ceil Cos Div DivNoNan Elu EluGrad Erf Exp Expm1 FloorDiv LeakyRelu LeakyReluGrad Log"
    " Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu"
    " Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax"
    " SoftmaxCrossEntropyWithLogits Softplus SparseSoftmaxCrossEntropyWithLogits Sqrt SqrtGrad Square"
    " SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy".split()
)
"""Can overwrite an input of the same size and type that nothing else needs (forward_input in C++)."""
ADDING = {"AssignAddVariableOp", "AssignSubVariableOp"}
WRITES = {"AssignVariableOp", *ADDING}
MATRICES = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}


def number_of_bytes(tensor):
    """Return the bytes of a tensor, 0 for handles, strings and unknown shapes."""
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    return tensor.dtype.size * (tensor.shape.num_elements() or 0)


def is_sized(node):
    """Return whether the sizes of all floating-point tensors that a node reads and writes are known."""
    if node.type in MOVE_NOTHING:
        return True
    numbers = [tensor for tensor in (*node.inputs, *node.outputs) if tensor.dtype.is_floating]  # integers may be axes
    return all(tensor.shape.is_fully_defined() for tensor in numbers)


def flops(node):
    """Return the FLOPs of a contraction, 2 per multiply-add; 0 for all else.

    Contractions: matmuls, Einsum, convolutions and their gradients. Also 0 if a shape is unknown.
    """
    if not all(tensor.shape.is_fully_defined() for tensor in (*node.inputs, *node.outputs)):
        return 0
    if node.type in MATRICES:
        added_up = math.prod(node.inputs[0].shape[-2:]) // node.outputs[0].shape[-2]
        return 2 * added_up * node.outputs[0].shape.num_elements()
    if node.type == "Einsum":
        return 2 * math.prod(_sizes_of_axes(node).values())
    if "Conv2" in node.type or "Conv3" in node.type:
        return _flops_of_a_convolution(node)
    return 0


def _sizes_of_axes(node):
    """Return {axis: size} of an Einsum: axes by their letters, those of "..." by their index from the right."""
    sizes = {}
    terms = node.get_attr("equation").decode().split("->")[0]  # "abc,cd->abd": a letter for each axis
    for term, tensor in zip(terms.split(","), node.inputs, strict=True):
        left, dots, right = term.partition("...")
        unnamed = range(len(left + right) - len(tensor.shape), 0) if dots else ()
        for axis, size in zip([*left, *unnamed, *right], tensor.shape, strict=True):
            sizes[axis] = max(size, sizes.get(axis, 1))  # those of "..." may be broadcast
    return sizes


def _flops_of_a_convolution(node):
    """Each element of the forward result sums over the kernel [window, channels in, channels out] but its last axis.

    With a depthwise kernel, [window, channels in, multiplier], it sums over the window. Gradients take as many FLOPs.
    """
    _, kernel, result = convolved(node)
    summed = kernel[:-2] if "Depthwise" in node.type else kernel[:-1]
    return 2 * math.prod(summed) * result.num_elements()


def convolved(node):
    """Return the shapes of a convolution's input, kernel and result, also if the node computes their gradients."""
    given, kernel, result = (tensor.shape for tensor in (*node.inputs, *node.outputs)[:3])
    if "BackpropInput" in node.type:
        given, result = node.outputs[0].shape, node.inputs[2].shape
    elif "BackpropFilter" in node.type:
        kernel, result = node.outputs[0].shape, node.inputs[2].shape
    return given, kernel, result
