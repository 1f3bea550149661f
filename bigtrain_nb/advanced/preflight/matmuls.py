"""Are matmuls computed in the 16 bits of the policy? Others are slower on a GPU."""

from bigtrain_nb.advanced.preflight.report import ok, warning
from bigtrain_nb.advanced.shared.matmul_precision import said_of, shares_in_32_bits, sixteen_bits_of
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.common.words import number


def products(training):
    """Are the forward pass's matmuls in the policy's 16 bits? Read from the graph, without running it."""
    sixteen = sixteen_bits_of(training.model)
    if sixteen is None:
        return None
    x, _, _ = keras.utils.unpack_x_y_sample_weight(training.first)
    shares = shares_in_32_bits(training.model, x)
    found, advice = said_of(shares, sixteen)
    if not found:
        return ok(f"Matmuls compute in {sixteen}, {number(100 * (1 - shares.total()))}% of their FLOPs.", "07")
    return warning(found, advice, "07")


CHECKS = {"matmul precision": products}
