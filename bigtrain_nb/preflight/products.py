"""Do the products of matrices compute in the 16 bits of the policy? Those that do not take longer on a GPU."""

from collections import Counter
from math import prod

from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number
from bigtrain_nb.preflight.report import look, ok

PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
SIXTEEN_BITS = ("bfloat16", "float16")
WORTH_A_WORD = 0.05
"""Of the FLOPs: a last layer in float32 for few classes is on purpose, and small."""


def products(training):
    """Are the products of the forward pass in the policy's 16 bits? Read from the graph; nothing is computed."""
    model = training.model
    kinds = {layer.compute_dtype for layer in layers_within(model)}
    sixteen = [kind for kind in SIXTEEN_BITS if kind in kinds]
    if not sixteen:
        return None
    x, _, _ = keras.utils.unpack_x_y_sample_weight(training.first)
    forward = tf.function(lambda x: model(x, training=True), autograph=False)
    flops = flops_by_place(forward.get_concrete_function(x).graph)
    total = sum(flops.values())
    in_32_bits = Counter()
    for (place, dtype), count in flops.items():
        if dtype not in SIXTEEN_BITS:
            in_32_bits[place] += count
    share = sum(in_32_bits.values()) / total if total else 0
    if share < WORTH_A_WORD:
        return ok(f"Products compute in {sixteen[0]}, {number(100 * (1 - share))}% of their FLOPs.", "07")
    named = ", ".join(f"{place} {number(100 * count / total)}%" for place, count in in_32_bits.most_common(3))
    return look(
        f"{number(100 * share)}% of the FLOPs of products are not in {sixteen[0]} as other layers are: {named}.",
        "On a GPU they take several times as long. Of an embedding that also makes the logits set"
        f' reverse_dtype="{sixteen[0]}"; of a last Dense with many classes leave out dtype="float32".',
        "07",
    )


def flops_by_place(graph):
    """Return a Counter of the FLOPs of products whose shapes are known: {(where in the model, dtype): FLOPs}."""
    found = Counter()
    for node in graph.get_operations():
        if node.type in PRODUCTS and (count := _flops(node)):
            found[node.name.rpartition("/")[0] or node.name, node.outputs[0].dtype.name] += count
    return found


def _flops(node):
    """Return 2 for each number of the result and each number that is summed over; 0 where shapes are not known."""
    left, right, result = node.inputs[0].shape, node.inputs[1].shape, node.outputs[0].shape
    if not all(shape.is_fully_defined() for shape in (left, right, result)):
        return 0
    if node.type == "Einsum":
        factors, _ = node.get_attr("equation").decode().split("->")
        lengths = {}
        for axes, shape in zip(factors.split(","), (left, right), strict=True):
            lengths.update(zip(axes, shape, strict=False))
        return 2 * prod(lengths.values())
    is_turned = node.get_attr("transpose_a" if node.type == "MatMul" else "adj_x")
    return 2 * prod(result) * left[-2 if is_turned else -1]


CHECKS = {"products": products}
