"""XLA custom calls as operations, also where nothing around them is compiled."""

from functools import cache

from bigtrain_nb.common.keras_compat import custom_call, traced_for_each_shape


@cache  # otherwise each eager call compiles again
def compiled_custom_call(target, results, config):
    """Return a function of tensors that is one custom call, compiled by XLA."""
    return traced_for_each_shape(lambda *operands: custom_call(target, operands, results, config))
