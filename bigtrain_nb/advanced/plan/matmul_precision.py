"""Finds matmuls that do not use the 16 bits of a model's policy, in the graph of its forward pass."""

from collections import Counter

from bigtrain_nb.advanced.plan.graph import UNSEEN, Graph
from bigtrain_nb.advanced.shared.operations import MATRICES, flops
from bigtrain_nb.common.keras_compat import layers_within, operations_within
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import number

PRODUCTS = {*MATRICES, "Einsum"}
SIXTEEN_BITS = ("bfloat16", "float16")
WORTH_A_WORD = 0.05
"""Least share of the FLOPs to report: a last layer in float32 for few classes is intentional, and small."""


def sixteen_bits_of(model):
    """Return the 16-bit dtype in which layers of a model compute; None if there is none."""
    kinds = {layer.compute_dtype for layer in layers_within(model)}
    return next((kind for kind in SIXTEEN_BITS if kind in kinds), None)


def shares_in_32_bits(model, x):
    """Return a Counter {place in the model: share of all matmul FLOPs} of the matmuls that are not in 16 bits.

    The forward pass is traced, not run. None if it has no matmuls with known shapes.
    """
    forward = tf.function(lambda x: model(x, training=True), autograph=False)
    by_place = flops_by_place(forward.get_concrete_function(x).graph)
    total = sum(by_place.values())
    found = Counter()
    for (place, dtype), count in by_place.items():
        if dtype not in SIXTEEN_BITS:
            found[place] += count / total
    return found if total else None


def flops_by_place(graph):
    """Return a Counter {(place in the model, dtype): FLOPs} of the matmuls with known shapes.

    A loop's body counts once if its rounds are unknown; of `tf.cond`, both branches do.
    """
    found = Counter()
    for op in Graph(graph, graph.outputs).operations:
        for node in operations_within([op.node]) if op.kind in UNSEEN else [op.node]:
            if node.type in PRODUCTS and (count := flops(node)):
                found[node.name.rpartition("/")[0] or node.name, node.outputs[0].dtype.name] += op.times * count
    return found


def said_of(shares, sixteen):
    """Return a sentence about the result of `shares_in_32_bits`, "" if it is negligible, and another on what to do."""
    share = shares.total() if shares else 0
    if share < WORTH_A_WORD:
        return "", ""
    named = ", ".join(f"{place} {number(100 * of_place)}%" for place, of_place in shares.most_common(3))
    return (
        f"{number(100 * share)}% of the matmul FLOPs are not in {sixteen}, unlike other layers: {named}.",
        "On a GPU they take several times as long. For an embedding that also makes the logits, set"
        f' reverse_dtype="{sixteen}"; for a last Dense with many classes, leave out dtype="float32".',
    )
