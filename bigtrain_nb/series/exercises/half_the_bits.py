"""Exercises of notebook 04, "Half the bits"."""

import math

import numpy as np

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

DRAWS = 20_000


def largest_scale(gradient):
    return 2.0 ** np.floor(np.log2(65504 / gradient))


@exercise(largest_scale, minutes=3, difficulty=2)
def _check_largest_scale(answer):
    """65504 / gradient is the largest scale of all. Which power of two is the next one below it? A loop that starts at
    1 has to be able to go down as well.
    """
    expect(answer(0.02), 2.0**21, "the scale for a largest gradient of 0.02 (0.02 x 2097152 = 41943)")
    expect(answer(1.0), 2.0**15, "the scale for a largest gradient of 1 (the next power of two gives 65536)")
    expect(answer(300.0), 128.0, "the scale for a largest gradient of 300 (300 x 128 = 38400)")
    expect(answer(65_504.0), 1.0, "the scale for a largest gradient of 65504, which is the largest number itself")
    expect(answer(65_505.0), 0.5, "the scale for a largest gradient of 65505, one more than the largest number")
    expect(answer(1e5), 0.5, "the scale for a largest gradient of 100000 (1 would give 100000, which is infinite)")


@_check_largest_scale.refuses("expected about 2.09715e+06, got 3.2752e+06")
def _not_a_power_of_two(gradient):
    return 65504 / gradient


@_check_largest_scale.refuses("expected about 2.09715e+06, got 4.1943e+06")
def _rounds_to_the_nearest_power(gradient):
    return 2.0 ** round(math.log2(65504 / gradient))


@_check_largest_scale.refuses("expected about 0.5, got 1")
def _only_upwards(gradient):
    scale = 1.0
    while 2 * scale * gradient <= 65504:
        scale *= 2
    return scale


def round_by_chance(values, random):
    bits = values.view(np.uint32)
    below = bits & 0xFFFF0000
    rest = bits & 0x0000FFFF
    is_next = random.integers(0, 2**16, values.shape) < rest
    rounded = below + 2**16 * is_next
    return rounded.astype(np.uint32).view(np.float32)


@exercise(round_by_chance, minutes=10, difficulty=3)
def _check_round_by_chance(answer):
    """`values.view(np.uint32)` shows the 32 bits of each value as a whole number; `.astype(np.uint32).view(np.float32)`
    goes back. Which number do you have when the lower 16 bits are zero? And what do these 16 bits say about the place
    of the value between this number and the next one?
    """
    random = np.random.default_rng(0)
    held = np.array([0.0, 1.0, -2.0, 0.5, 258.0], np.float32)
    expect(np.asarray(answer(held, random)).tolist(), held.tolist(), "numbers that bfloat16 can hold")
    for value, near, far in ((1.002, 1.0, 1.0078125), (-1.007, -1.0, -1.0078125), (257.5, 256.0, 258.0)):
        values = np.full(DRAWS, value, np.float32)
        rounded = np.asarray(answer(values, random), np.float64)
        if not set(np.unique(rounded)) <= {near, far}:
            raise Wrong(f"{value} rounded: expected {near} or {far}, its neighbours, got {np.unique(rounded)[:3]} ...")
        share = float(np.mean(rounded == far))
        due = (value - near) / (far - near)
        if abs(share - due) > 5 * math.sqrt(due * (1 - due) / DRAWS):
            what = f"{value} rounded {DRAWS} times, so that the mean is {value}"
            raise Wrong(f"{what}: expected {100 * due:.1f} % of the results at {far}, got {100 * share:.1f} %")
    weights = np.ones(100, np.float32)
    for _ in range(1000):
        weights = answer(weights + np.float32(0.001), random)
    expect(float(np.mean(weights)), 2.0, "the mean of 100 weights of 1 after 1000 updates of 0.001", rel=0.03)


@_check_round_by_chance.refuses("expected 25.6 % of the results at 1.0078125")
def _to_the_nearest(values, random):
    return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()


@_check_round_by_chance.refuses("expected 25.6 % of the results at 1.0078125, got 0.0 %")
def _cuts_off(values, random):
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)


@_check_round_by_chance.refuses("expected 25.6 % of the results at 1.0078125")
def _tosses_a_coin(values, random):
    bits = values.view(np.uint32)
    up = (bits & 0xFFFF > 0) & (random.random(values.shape) < 0.5)
    return ((bits & 0xFFFF0000) + 2**16 * up).astype(np.uint32).view(np.float32)


@_check_round_by_chance.refuses("expected 1.0 or 1.0078125, its neighbours")
def _adds_noise_only(values, random):
    return np.where(values == 1.002, values + random.normal(0, 0.001, values.shape), values)


def smallest_batch(weights, activations):
    more_for_weights = 2 * weights
    less_an_example = 2 * activations
    return more_for_weights // less_an_example + 1


@exercise(smallest_batch, minutes=8, difficulty=3)
def _check_smallest_batch(answer):
    """Write down the bytes of both: first for a weight (itself, its gradient, two moments; and what does the mixed
    policy add?), then for an activation. One grows with the weights, the other saves with the batch.
    """
    cases = ((1_000_000, 10_000, 101), (78_000, 200_000, 1), (1_300_000_000, 48_000_000, 28))
    for weights, activations, batch in cases:
        got = answer(weights, activations)
        what = f"the smallest batch for {weights:,} weights and {activations:,} activations an example"
        if batch == 101 and got in SLIPS:
            raise Wrong(f"{what}: expected 101, got {got}: {SLIPS[got]}")
        expect(got, batch, what)


SLIPS = {
    51: "an activation takes 2 bytes instead of 4, so it saves 2 bytes, not 4",
    100: "with 100 examples both need the same; with how many is it less?",
    201: "a second gradient, in half, is counted too; count the gradient of a weight once, in float32",
    901: "all bytes of a weight are counted as if they were new; 16 of them are there in float32 as well",
}
"""What slips give for 1,000,000 weights and 10,000 activations, and what is wrong with it."""


@_check_smallest_batch.refuses("got 100: with 100 examples both need the same")
def _as_much_is_not_less(weights, activations):
    return math.ceil(weights / activations)


@_check_smallest_batch.refuses("1,000,000 weights and 10,000 activations an example: expected 101, got 1")
def _always_less(weights, activations):
    return 1


@_check_smallest_batch.refuses("got 51: an activation takes 2 bytes")
def _activations_vanish(weights, activations):
    return 2 * weights // (4 * activations) + 1


@_check_smallest_batch.refuses("got 901: all bytes of a weight are counted")
def _all_copies_are_new(weights, activations):
    return 18 * weights // (2 * activations) + 1


@_check_smallest_batch.refuses("got 201: a second gradient, in half, is counted too")
def _counts_two_gradients(weights, activations):
    return 4 * weights // (2 * activations) + 1
