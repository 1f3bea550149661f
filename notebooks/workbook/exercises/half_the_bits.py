"""Exercises of notebook 04, "Half the bits"."""

import math

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def dtype_of(policy, tensor):
    if tensor in ("activation", "cast weight"):
        return policy.removeprefix("mixed_")
    return "float32"


@exercise(dtype_of, minutes=3, difficulty=1)
def _check_dtype_of(answer):
    """What layers compute with is half: what goes in, what comes out, the weights' copies. What is kept from step to
    step, and the loss, is float32. 'mixed_float16'.removeprefix('mixed_') is 'float16'.
    """
    tensors = ["weight", "cast weight", "activation", "loss", "gradient of a weight", "optimizer state"]
    for policy in ("mixed_float16", "mixed_bfloat16", "float32"):
        for tensor in tensors:
            expected = dtype_of(policy, tensor)
            expect(answer(policy, tensor), expected, f"the dtype of a model's {tensor} under {policy}")


@_check_dtype_of.refuses("the dtype of a model's weight under mixed_float16: expected 'float32', got 'float16'")
def _all_in_half(policy, tensor):
    return policy.removeprefix("mixed_")


@_check_dtype_of.refuses("gradient of a weight under mixed_float16: expected 'float32', got 'float16'")
def _gradients_in_half(policy, tensor):
    if tensor == "gradient of a weight":
        return dtype_of(policy, "activation")
    return dtype_of(policy, tensor)


@_check_dtype_of.refuses("cast weight under mixed_bfloat16: expected 'bfloat16', got 'float16'")
def _one_half_format(policy, tensor):
    if dtype_of(policy, tensor) == "float32":
        return "float32"
    return "float16"


def largest_scale(gradient):
    scale = 1.0
    while 2 * scale * gradient <= 65504:
        scale *= 2
    return scale


@exercise(largest_scale, minutes=4, difficulty=2)
def _check_largest_scale(answer):
    """Start at 1 and double while twice the scale, times the gradient, still is at most 65504."""
    expect(answer(0.02), 2.0**21, "the scale for a largest gradient of 0.02 (0.02 x 2097152 = 41943)")
    expect(answer(1.0), 2.0**15, "the scale for a largest gradient of 1 (the next power of two gives 65536)")
    expect(answer(300.0), 128.0, "the scale for a largest gradient of 300 (300 x 128 = 38400)")


@_check_largest_scale.refuses("expected about 2.09715e+06, got 3.2752e+06")
def _not_a_power_of_two(gradient):
    return 65504 / gradient


@_check_largest_scale.refuses("expected about 2.09715e+06, got 4.1943e+06")
def _rounds_to_the_nearest_power(gradient):
    return 2.0 ** round(math.log2(65504 / gradient))


@_check_largest_scale.refuses("expected about 2.09715e+06, got 1.04858e+06")
def _one_step_early(gradient):
    return largest_scale(gradient) / 2


def update(scaled, scale, good, growth_steps):
    if not np.isfinite(scaled).all():
        return None, scale / 2, 0
    gradients = [gradient / scale for gradient in scaled]
    if good + 1 == growth_steps:
        return gradients, scale * 2, 0
    return gradients, scale, good + 1


@exercise(update, minutes=6, difficulty=3)
def _check_update(answer):
    """First the finite check over all gradients. If it fails: None, half the scale, 0. Otherwise divide by the scale
    that the loss had, and only then see whether the scale doubles.
    """
    _check_step(answer, [1024.0, -512.0], 0, ([1.0, -0.5], 1024.0, 1))
    _check_step(answer, [2048.0, 0.0], 2, ([2.0, 0.0], 2048.0, 0))
    _check_step(answer, [1024.0, math.inf], 2, (None, 512.0, 0))
    _check_step(answer, [math.nan, 1024.0], 1, (None, 512.0, 0))


def _check_step(answer, scaled, good, expected):
    got = answer(list(scaled), 1024.0, good, 3)
    if not isinstance(got, tuple) or len(got) != 3:
        raise Wrong(f"expected three things (gradients or None, scale, good steps), got {got!r}")
    when = f"after the scaled gradients {scaled} at scale 1024 with {good} good steps behind and growth after 3 steps"
    if expected[0] is None and got[0] is not None:
        raise Wrong(f"the gradients to apply {when}: expected None, as the step is skipped, got {got[0]!r}")
    expect(got[0], expected[0], f"the gradients to apply {when}")
    expect(got[1], expected[1], f"the scale {when}")
    expect(got[2], expected[2], f"the number of good steps {when}")


@_check_update.refuses("expected [1.0, -0.5], got [1024.0, -512.0]")
def _forgets_to_unscale(scaled, scale, good, growth_steps):
    gradients, new_scale, new_good = update(scaled, scale, good, growth_steps)
    if gradients is None:
        return None, new_scale, new_good
    return scaled, new_scale, new_good


@_check_update.refuses("expected None, as the step is skipped")
def _looks_at_the_first_only(scaled, scale, good, growth_steps):
    if np.isfinite(scaled[0]):
        return update(np.nan_to_num(scaled), scale, good, growth_steps)
    return None, scale / 2, 0


@_check_update.refuses("expected 0, got 2")
def _goes_on_counting(scaled, scale, good, growth_steps):
    gradients, new_scale, new_good = update(scaled, scale, good, growth_steps)
    if gradients is None:
        return None, new_scale, good
    return gradients, new_scale, new_good


@_check_update.refuses("expected [2.0, 0.0], got [1.0, 0.0]")
def _unscales_with_the_new_scale(scaled, scale, good, growth_steps):
    gradients, new_scale, new_good = update(scaled, scale, good, growth_steps)
    if gradients is None:
        return None, new_scale, new_good
    return [gradient / new_scale for gradient in scaled], new_scale, new_good


def adamw_bytes(weights, policy):
    in_float32 = 4 + 4 + 2 * 4  # the weight, its gradient, two moments
    cast = 2 if policy.startswith("mixed") else 0
    return weights * (in_float32 + cast)


@exercise(adamw_bytes, minutes=3, difficulty=2)
def _check_adamw_bytes(answer):
    """Four things in float32: the weight, its gradient and AdamW's two moments. What does a mixed policy add?"""
    expect(answer(1_000_000, "float32"), 16_000_000, "bytes for a million weights under float32")
    for policy in ("mixed_float16", "mixed_bfloat16"):
        expect(answer(1000, policy), 18_000, f"bytes for a thousand weights under {policy}")


@_check_adamw_bytes.refuses("a thousand weights under mixed_float16: expected 18000, got 8000")
def _everything_halves(weights, policy):
    return weights * (8 if policy.startswith("mixed") else 16)


@_check_adamw_bytes.refuses("a million weights under float32: expected 16000000, got 12000000")
def _one_moment(weights, policy):
    return adamw_bytes(weights, policy) - 4 * weights


@_check_adamw_bytes.refuses("a thousand weights under mixed_float16: expected 18000, got 16000")
def _forgets_the_cast(weights, policy):
    return 16 * weights
