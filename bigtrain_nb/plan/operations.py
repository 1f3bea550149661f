"""What is known of TensorFlow's operations: FLOPs, bytes, and which share memory with an input.

Works on the nodes of a `tf.Graph` by name and shape and imports nothing of TensorFlow.
"""

import math

LOOPS = {"While", "StatelessWhile"}
ALIASES = set("Identity IdentityN Reshape ExpandDims Squeeze StopGradient PreventGradient TensorListFromTensor".split())
"""Outputs are inputs under another name or shape, or a list of their parts."""
LISTS = set("TensorListPushBack TensorListSetItem TensorListPopBack TensorListGetItem".split())
"""Take tensors into lists and out of them as they are."""
MOVE_NOTHING = {*LOOPS, *ALIASES, *LISTS, "ReadVariableOp", "Placeholder", "Const"}
IN_PLACE = set(
    "Abs Add AddN AddV2 BiasAdd Ceil Cos Div DivNoNan Elu EluGrad Erf Exp Expm1 FloorDiv LeakyRelu LeakyReluGrad Log"
    " Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu"
    " Relu6 Relu6Grad ReluGrad Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softmax"
    " SoftmaxCrossEntropyWithLogits Softplus SparseSoftmaxCrossEntropyWithLogits Sqrt SqrtGrad Square"
    " SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy".split()
)
"""Write a result over an input of its size and type that nothing else needs (forward_input in C++)."""
MATRICES = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}


def number_of_bytes(tensor):
    """Return the bytes of a tensor, 0 for handles and for shapes that are not known."""
    if tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    return tensor.dtype.size * (tensor.shape.num_elements() or 0)


def bytes_moved(node):
    """Return the bytes that a node reads and writes."""
    if node.type in MOVE_NOTHING:
        return 0
    moved = sum(number_of_bytes(tensor) for tensor in (*node.inputs, *node.outputs))
    if node.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        moved *= 3  # the variable, which is no input, is read and written
    return moved


def is_sized(node):
    """Return whether the sizes of all numbers are known that a node reads and writes."""
    if node.type in MOVE_NOTHING:
        return True
    numbers = [tensor for tensor in (*node.inputs, *node.outputs) if tensor.dtype.is_floating]  # integers may be axes
    return all(tensor.shape.is_fully_defined() for tensor in numbers)


def flops(node):
    """Return the FLOPs of a contraction, 2 for each multiply-add; 0 for all else, which takes its time by its bytes.

    Contractions: products of matrices, Einsum, convolutions and their gradients. 0 also where a shape is not known.
    """
    if not all(tensor.shape.is_fully_defined() for tensor in (*node.inputs, *node.outputs)):
        return 0
    if node.type in MATRICES:
        added_up = math.prod(node.inputs[0].shape[-2:]) // node.outputs[0].shape[-2]
        return 2 * added_up * node.outputs[0].shape.num_elements()
    if node.type == "Einsum":
        sizes = {}
        terms = node.get_attr("equation").decode().split("->")[0]  # "abc,cd->abd": a letter for each axis
        for term, tensor in zip(terms.split(","), node.inputs, strict=True):
            sizes.update(zip(term, tensor.shape, strict=False))
        return 2 * math.prod(sizes.values())
    if "Conv2" in node.type or "Conv3" in node.type:
        return _flops_of_a_convolution(node)
    return 0


def _flops_of_a_convolution(node):
    """A number of the forward result adds up the kernel [window, channels in, channels out] without its last axis.

    A depthwise one, whose kernel is [window, channels in, multiplier], adds up the window. Gradients take as many.
    """
    kernel = node.outputs[0] if "BackpropFilter" in node.type else node.inputs[1]
    result = node.inputs[2] if "Backprop" in node.type else node.outputs[0]
    summed = kernel.shape[:-2] if "Depthwise" in node.type else kernel.shape[:-1]
    return 2 * math.prod(summed) * result.shape.num_elements()
