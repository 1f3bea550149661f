"""Exercises of notebook 04, "Half the bits"."""

import math

import numpy as np
from ml_dtypes import float8_e4m3fn

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished


def in_float8(values, scale, history):
    held = np.clip(values / scale, -448, 448).astype(float8_e4m3fn)
    rounded = held.astype(np.float32) * scale
    largest = history.max()
    next_scale = largest / 448 if largest > 0 and np.isfinite(largest) else scale
    next_history = np.append(history[1:], np.abs(values).max())
    return rounded, next_scale, next_history


@exercise(
    in_float8,
    takes=("a float32 array; the scale; the largest numbers of earlier steps, float32 [steps], the oldest first"),
    returns="the rounded float32 array, the next scale, the next history",
    minutes=15,
    difficulty=4,
)
def _check_in_float8(answer):
    """Divide by the given scale, not by a new one. Clip values beyond ±448 before you round: e4m3 has no infinity, so
    they would become NaN. The next scale comes from the history as given: which scale maps its largest value to 448?
    Which histories give no usable scale?
    """
    scale, history = np.float32(1.0), np.zeros(3, np.float32)
    keras_scale, keras_history = tf.constant(1.0), tf.zeros(3)
    for number, values in enumerate(_tensors(), start=1):
        size = f"{np.abs(values).max():.3g}"
        what = f"tensor {number} of {len(_tensors())}, largest value {size}, scale {float(scale):.3g}"
        due = keras.quantizers.quantize_and_dequantize(values, keras_scale, "float8_e4m3fn", "float32").numpy()
        most = tf.reduce_max(keras_history)
        keras_scale = keras.quantizers.compute_float8_scale(most, keras_scale, tf.constant(448.0))
        keras_history = keras.quantizers.compute_float8_amax_history(values, keras_history)

        got = answer(values.copy(), scale, history.copy())
        if is_unfinished(got):
            raise NotAttempted
        if not isinstance(got, tuple) or len(got) != 3:
            raise Wrong(f"expected three results, the rounded values, the next scale and the next history, got {got!r}")
        rounded, next_scale, next_history = got
        expect(rounded, due, f"{what}: the rounded values", rel=1e-4)
        expect(next_scale, float(keras_scale), f"{what}: the next scale, from a history {history.tolist()}", rel=1e-4)
        kept = [*history[1:].tolist(), float(np.abs(values).max())]
        expect(np.asarray(next_history).tolist(), kept, f"{what}: the next history, the oldest first", rel=1e-4)
        scale, history = np.float32(next_scale), np.asarray(next_history, np.float32)


def _tensors():
    """Return a layer's tensors over the steps: large, then small, one with an infinity, and some all zero."""
    random = np.random.default_rng(3)
    sizes = (3.0, 2.0, 1e4, 1e-6, 1e-6, 1e-6, 0.0, 1e-6, 1e-6, 2e-6, 0.0, 0.0, 0.0, 0.0, 1.0)
    tensors = [np.float32(size) * random.normal(0, 1, 40).astype(np.float32) for size in sizes]
    tensors[8][-1] = -np.inf
    return tensors


@_check_in_float8.refuses("largest value 2.55e+04, scale 0.0223: the rounded values")
def _does_not_cut_off(values, scale, history):
    _, next_scale, next_history = in_float8(values, scale, history)
    return (values / scale).astype(float8_e4m3fn).astype(np.float32) * scale, next_scale, next_history


@_check_in_float8.refuses("the rounded values: expected")
def _by_its_own_largest(values, scale, history):
    largest = np.abs(values).max()
    own = largest / 448 if 0 < largest < np.inf else scale
    rounded, _, next_history = in_float8(values, own, history)
    return rounded, own, next_history


@_check_in_float8.refuses("the next scale, from a history [0.0, 0.0, 0.0]: expected about 1")
def _divides_by_nothing(values, scale, history):
    rounded, _, next_history = in_float8(values, scale, history)
    return rounded, history.max() / 448, next_history


@_check_in_float8.refuses("the next scale, from a history")
def _from_the_new_history(values, scale, history):
    rounded, _, next_history = in_float8(values, scale, history)
    largest = next_history.max()
    return rounded, largest / 448 if 0 < largest < np.inf else scale, next_history


@_check_in_float8.refuses("the rounded values: expected")
def _stays_divided(values, scale, history):
    rounded, next_scale, next_history = in_float8(values, scale, history)
    return rounded / scale + 1, next_scale, next_history


@_check_in_float8.refuses("the next history, the oldest first")
def _forgets_the_newest(values, scale, history):
    rounded, next_scale, next_history = in_float8(values, scale, history)
    return rounded, next_scale, np.append(next_history[-1], history[:-1])


@_check_in_float8.refuses("the next scale, from a history")
def _follows_infinity(values, scale, history):
    rounded, next_scale, next_history = in_float8(values, scale, history)
    largest = history.max()
    return rounded, largest / 448 if largest > 0 else scale, next_history


def smallest_batch(weights, activations):
    more_for_weights = 2 * weights
    less_an_example = 2 * activations
    return more_for_weights // less_an_example + 1


@exercise(smallest_batch, takes="weights; activations of an example", returns="an integer", minutes=8, difficulty=3)
def _check_smallest_batch(answer):
    """Write down the bytes for both policies: first per weight (itself, its gradient, two moments; what does the mixed
    policy add?), then per activation. The extra cost grows with the weights, the saving with the batch.
    """
    cases = ((1_000_000, 10_000, 101), (78_000, 200_000, 1), (1_300_000_000, 48_000_000, 28))
    for weights, activations, batch in cases:
        got = answer(weights, activations)
        what = f"the smallest batch for {weights:,} weights and {activations:,} activations per example"
        if batch == 101 and got in SLIPS:
            raise Wrong(f"{what}: expected 101, got {got}: {SLIPS[got]}")
        expect(got, batch, what)


SLIPS = {
    51: "an activation takes 2 bytes instead of 4, so it saves 2 bytes, not 4",
    100: "with 100 examples both need the same memory; with how many does the mixed policy need less?",
    201: "a second gradient, in 16 bits, is counted too; count the gradient of a weight once, in float32",
    901: "all bytes of a weight are counted as additional, but float32 needs 16 of them as well",
}
"""{wrong answer for 1,000,000 weights and 10,000 activations: the mistake behind it}"""


@_check_smallest_batch.refuses("got 100: with 100 examples both need the same")
def _as_much_is_not_less(weights, activations):
    return math.ceil(weights / activations)


@_check_smallest_batch.refuses("1,000,000 weights and 10,000 activations per example: expected 101, got 1")
def _always_less(weights, activations):
    return 1


@_check_smallest_batch.refuses("got 51: an activation takes 2 bytes")
def _activations_vanish(weights, activations):
    return 2 * weights // (4 * activations) + 1


@_check_smallest_batch.refuses("got 901: all bytes of a weight are counted")
def _all_copies_are_new(weights, activations):
    return 18 * weights // (2 * activations) + 1


@_check_smallest_batch.refuses("got 201: a second gradient, in 16 bits, is counted too")
def _counts_two_gradients(weights, activations):
    return 4 * weights // (2 * activations) + 1
