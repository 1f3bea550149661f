"""Which products of matrices are not in the 16 bits of a model's policy? Read from the graph of its forward pass."""

from collections import Counter

from bigtrain_nb.common.keras_compat import layers_within
from bigtrain_nb.common.operations import MATRICES, flops
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import number

PRODUCTS = {*MATRICES, "Einsum"}
SIXTEEN_BITS = ("bfloat16", "float16")
WORTH_A_WORD = 0.05
"""Of the FLOPs: a last layer in float32 for few classes is on purpose, and small."""


def sixteen_bits_of(model):
    """Return the type of 16 bits in which layers of a model compute; None where none does."""
    kinds = {layer.compute_dtype for layer in layers_within(model)}
    return next((kind for kind in SIXTEEN_BITS if kind in kinds), None)


def shares_in_32_bits(model, x):
    """Return a Counter {place in the model: share of the FLOPs of all products}, of those that are not in 16 bits.

    The forward pass is traced, and nothing is computed.
    """
    forward = tf.function(lambda x: model(x, training=True), autograph=False)
    by_place = flops_by_place(forward.get_concrete_function(x).graph)
    total = sum(by_place.values())
    found = Counter()
    for (place, dtype), count in by_place.items():
        if dtype not in SIXTEEN_BITS:
            found[place] += count / total
    return found


def flops_by_place(graph):
    """Return a Counter of the FLOPs of products whose shapes are known: {(where in the model, dtype): FLOPs}."""
    found = Counter()
    for node in graph.get_operations():
        if node.type in PRODUCTS and (count := flops(node)):
            found[node.name.rpartition("/")[0] or node.name, node.outputs[0].dtype.name] += count
    return found


def said_of(shares, sixteen):
    """Return what `shares_in_32_bits` found in a sentence, "" where it is not worth one, and a second on what to do."""
    share = shares.total()
    if share < WORTH_A_WORD:
        return "", ""
    named = ", ".join(f"{place} {number(100 * of_place)}%" for place, of_place in shares.most_common(3))
    return (
        f"{number(100 * share)}% of the FLOPs of matmuls are not in {sixteen} as other layers are: {named}.",
        "On a GPU they take several times as long. Of an embedding that also makes the logits, set"
        f' reverse_dtype="{sixteen}"; of a last Dense with many classes leave out dtype="float32".',
    )
