"""Exercises of notebook 07, "Pay with time": recompute activations instead of storing them."""

import math
import tracemalloc
from unittest import mock

import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished


def recomputed(function, draw):
    def call(x, w):
        seed = draw()

        @tf.custom_gradient
        def keep_the_inputs(x, w):
            def backward(dy):
                with tf.GradientTape() as tape:
                    tape.watch([x, w])
                    again = function(x, w, seed)
                return tape.gradient(again, [x, w], output_gradients=dy)

            return function(x, w, seed), backward

        return keep_the_inputs(x, w)

    return call


class _Watched:
    """A block with dropout that counts its runs and the seeds drawn."""

    def __init__(self):
        self.runs, self.draws = 0, 0

    def function(self, x, w, seed):
        self.runs += 1
        return tf.nn.experimental.stateless_dropout(tf.tanh(x @ w), 0.5, seed)

    def draw(self):
        self.draws += 1
        return tf.constant([7, self.draws])


@exercise(
    recomputed,
    takes="function(x, w, seed) -> y; draw() -> seed",
    returns="a function of x and w with the same result and gradients",
    minutes=20,
    difficulty=4,
)
def _check_recomputed(answer):
    """`tf.custom_gradient` decorates a function that returns its result and a function `backward(dy)`; nothing that
    runs inside it is recorded. In `backward`, run the block again under a new tape. What must be the same in both
    runs, and when is it drawn?
    """
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(6, 8)), tf.float32)
    w = tf.constant(random.normal(size=(8, 8)), tf.float32)
    upstream = tf.constant(random.normal(size=(6, 8)), tf.float32)
    watched = _Watched()
    with mock.patch.object(tf, "recompute_grad", wraps=tf.recompute_grad) as ready_made:
        call = answer(watched.function, watched.draw)
        if not callable(call):
            raise Wrong(f"recomputed(function, draw) must return a function of x and w, got {call!r}")
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = call(x, w)
    expect(watched.runs, 1, "runs of the block in the forward pass")
    got = tape.gradient(y, [x, w], output_gradients=upstream)
    expect(watched.runs, 2, "runs of the block, forward and backward together (one run means: everything was stored)")
    expect(watched.draws, 1, "seeds drawn for one call, forward and backward together")

    with tf.GradientTape() as tape:
        tape.watch([x, w])
        plain = _Watched().function(x, w, tf.constant([7, 1]))
    expect(y.numpy(), plain.numpy(), "the block's output", 1e-5)
    expected = tape.gradient(plain, [x, w], output_gradients=upstream)
    for name, mine, right in zip(("x", "w"), got, expected, strict=True):
        if mine is None:
            raise Wrong(f"the gradient of {name} is None: backward must return one for x and one for w")
        if not np.allclose(mine, right, atol=1e-4):
            raise Wrong(f"the gradient of {name} is off by {np.abs(mine - right).max():.2g}: does backward(dy) use dy?")
    if np.allclose(call(x, w), y):
        raise Wrong("a second call drops the same elements: each call must draw its own seed")
    if ready_made.called:
        raise Wrong("the result is right, but tf.recompute_grad does the work: write it with tf.custom_gradient")


@_check_recomputed.refuses("runs of the block, forward and backward together (one run means: everything was stored)")
def _keeps_everything(function, draw):
    return lambda x, w: function(x, w, draw())


@_check_recomputed.refuses("seeds drawn for one call, forward and backward together: expected 1, got 2")
def _draws_again(function, draw):
    def run(x, w):
        return function(x, w, draw())

    return tf.recompute_grad(run)


@_check_recomputed.refuses("a second call drops the same elements")
def _draws_once_for_ever(function, draw):
    seed = draw()
    return tf.recompute_grad(lambda x, w: function(x, w, seed))


@_check_recomputed.refuses("tf.recompute_grad does the work")
def _takes_the_ready_made_one(function, draw):
    def call(x, w):
        seed = draw()
        return tf.recompute_grad(lambda x, w: function(x, w, seed))(x, w)

    return call


@_check_recomputed.refuses("does backward(dy) use dy?")
def _forgets_what_comes_from_above(function, draw):
    def call(x, w):
        seed = draw()

        @tf.custom_gradient
        def keep_the_inputs(x, w):
            def backward(dy):
                with tf.GradientTape() as tape:
                    tape.watch([x, w])
                    again = function(x, w, seed)
                return tape.gradient(again, [x, w])

            return function(x, w, seed), backward

        return keep_the_inputs(x, w)

    return call


def segment(layers, edge, inside):
    def peak(size):
        segments = -(-layers // size)  # rounded up
        return segments * edge + size * inside

    return min(range(1, layers + 1), key=peak)


@exercise(
    segment,
    takes="layers; MiB of a layer's input; MiB inside a layer",
    returns="layers of a segment",
    minutes=8,
    difficulty=3,
)
def _check_segment(answer):
    """First write the peak for a given segment size: how many inputs are kept, and how much is inside the one segment
    that is being recomputed? Then try all sizes.
    """
    for layers, edge, inside in [(36, 4, 4), (12, 2, 60), (64, 1, 4), (30, 9, 1), (48, 6, 2), (6, 50, 1), (7, 1, 3)]:
        got = answer(layers, edge, inside)
        told = f"{layers} layers, edge={edge} MiB, inside={inside} MiB"
        if not isinstance(got, int | np.integer) or not 1 <= got <= layers:
            raise Wrong(f"{told}: expected a number of layers from 1 to {layers}, got {got!r}")
        least = segment(layers, edge, inside)
        sums = f": {_sum(got, layers, edge, inside)}, but {_sum(least, layers, edge, inside)}"
        peaks = _peak(got, layers, edge, inside), _peak(least, layers, edge, inside)
        expect(*peaks, f"the peak in MiB with {told}", why=sums)


def _peak(size, layers, edge, inside):
    return math.ceil(layers / size) * edge + size * inside


def _sum(size, layers, edge, inside):
    """Return the peak as a sum, such as "segments of 6: 5 x 9 + 6 x 1 = 51"."""
    peak = _peak(size, layers, edge, inside)
    return f"segments of {size}: {math.ceil(layers / size)} x {edge} + {size} x {inside} = {peak}"


@_check_segment.refuses("the peak in MiB with 12 layers, edge=2 MiB, inside=60 MiB: expected 84")
def _always_the_root(layers, edge, inside):
    return round(math.sqrt(layers))


@_check_segment.refuses("the peak in MiB with 36 layers, edge=4 MiB, inside=4 MiB: expected 48, got 148")
def _one_large_segment(layers, edge, inside):
    return layers


@_check_segment.refuses("the peak in MiB with 36 layers, edge=4 MiB, inside=4 MiB: expected 48, got 148")
def _each_layer(layers, edge, inside):
    return 1


def attended(queries, read, size):
    length, width = queries.shape
    outputs = np.empty_like(queries)
    for start in range(0, length, size):
        rows = queries[start : start + size]
        end = start + len(rows)
        highest = np.full((len(rows), 1), -np.inf)
        weights = np.zeros((len(rows), 1))
        summed = np.zeros((len(rows), width))
        for first in range(0, end, size):
            last = min(first + size, end)
            keys, values = read(first, last)
            scores = rows @ keys.T / np.sqrt(width)
            is_later = np.arange(first, last) > np.arange(start, end)[:, None]
            scores[is_later] = -np.inf
            higher = np.maximum(highest, scores.max(axis=1, keepdims=True))
            shares = np.exp(scores - higher)
            shrink = np.exp(highest - higher)
            weights = shrink * weights + shares.sum(axis=1, keepdims=True)
            summed = shrink * summed + shares @ values
            highest = higher
        outputs[start:end] = summed / weights
    return outputs


class _Text:
    """Keys and values of a sequence, read a few positions at a time, and counted."""

    def __init__(self, keys, values, size):
        self._keys, self._values, self._size = keys, values, size
        self.places_read = 0

    def read(self, start, stop):
        length = len(self._keys)
        if not 0 <= start < stop <= length:
            raise Wrong(f"read({start}, {stop}): expected 0 <= start < stop <= {length}")
        if stop - start > self._size:
            raise Wrong(f"read({start}, {stop}) is {stop - start} positions: at most {self._size} are allowed")
        self.places_read += stop - start
        return self._keys[start:stop].copy(), self._values[start:stop].copy()


def _attended_at_once(queries, keys, values):
    scores = queries @ keys.T / np.sqrt(queries.shape[1])
    scores[np.triu_indices(len(queries), 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True) @ values


TILES = 12
"""Matrices [size, size] that an answer may hold at a time, including its outputs: three times the need."""


@exercise(
    attended,
    takes=(
        "queries [length, width]; read(start, stop) -> keys and values of these places, [stop - start,"
        " width] each; rows, and places, at a time"
    ),
    returns="outputs [length, width]",
    minutes=25,
    difficulty=4,
)
def _check_attended(answer):
    """Take `size` query rows, and iterate over the keys. For each row keep three things: the maximum score so far, the
    sum of exp(score - maximum), and the sum of exp(score - maximum) x value. When a tile raises the maximum, the sums
    so far are too large: by which factor? What is the maximum before the first tile? And which is the last tile that
    these rows may see?
    """
    random = np.random.default_rng(3)
    for told, length, size, middle, sign_of_odd_rows in [
        ("24 positions in tiles of 8", 24, 8, 0.0, 1),
        ("21 positions in tiles of 8", 21, 8, 0.0, 1),
        ("scores near 1,000", 24, 8, 1000.0, 1),
        ("scores near -1,000", 24, 8, -1000.0, 1),
        ("rows near 1,000 and rows near -1,000", 24, 8, 1000.0, -1),
    ]:
        queries, keys, values = random.normal(size=(3, length, 5))
        queries[:, 0] = np.sqrt(5)
        queries[1::2, 0] *= sign_of_odd_rows
        keys[:, 0] = middle + random.permutation(np.linspace(-3, 3, length))
        text = _Text(keys, values, size)
        with np.errstate(all="ignore"):
            got = answer(queries.copy(), text.read, size)
        if is_unfinished(got):
            raise NotAttempted
        if np.shape(got) == queries.shape and np.isnan(np.asarray(got, float)).any():
            raise Wrong(f"{told}: the outputs contain NaN: do you subtract the highest score so far?")
        expect(got, _attended_at_once(queries, keys, values), f"the outputs, {told}", 1e-6)
        needed = sum(min(start + size, length) for start in range(0, length, size))
        if text.places_read != needed:
            raise Wrong(
                f"{told}: you read {text.places_read} keys, expected {needed}: those visible to each tile of `size`"
                " rows, once per tile"
            )
    _expect_little_memory(answer, random)


def _expect_little_memory(answer, random, length=1536, size=96):
    queries, keys, values = random.normal(size=(3, length, 4))
    table = size * size * queries.itemsize
    was_on = tracemalloc.is_tracing()
    if not was_on:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        answer(queries, _Text(keys, values, size).read, size)
        tables = (tracemalloc.get_traced_memory()[1] - before) / table
    finally:
        if not was_on:
            tracemalloc.stop()
    if tables > TILES:
        raise Wrong(
            f"{length:,} positions in tiles of {size}: the outputs are right, but peak memory is that of {tables:.0f}"
            f" score matrices [{size}, {size}], and {TILES} are allowed. Finish one before the next"
        )


@_check_attended.refuses("the outputs are right, but peak memory is that of")
def _joins_the_tiles(queries, read, size):
    outputs = []
    for start in range(0, len(queries), size):
        rows = queries[start : start + size]
        end = start + len(rows)
        pieces = [read(first, min(first + size, end)) for first in range(0, end, size)]
        keys = np.concatenate([piece[0] for piece in pieces])
        values = np.concatenate([piece[1] for piece in pieces])
        scores = rows @ keys.T / np.sqrt(queries.shape[1])
        scores[np.arange(end) > np.arange(start, end)[:, None]] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(shares / shares.sum(axis=1, keepdims=True) @ values)
    return np.concatenate(outputs)


def _with(queries, read, size, highest=-np.inf, shrinks=True, sees_all=False, is_masked=True, takes_off=True):
    """The solution with one of its ideas omitted."""
    length, width = queries.shape
    outputs = np.empty_like(queries)
    for start in range(0, length, size):
        rows = queries[start : start + size]
        end = start + len(rows)
        most = np.full((len(rows), 1), highest)
        weights, summed = np.zeros((len(rows), 1)), np.zeros((len(rows), width))
        for first in range(0, length if sees_all else end, size):
            last = min(first + size, length if sees_all else end)
            keys, values = read(first, last)
            scores = rows @ keys.T / np.sqrt(width)
            if is_masked:
                scores[np.arange(first, last) > np.arange(start, end)[:, None]] = -np.inf
            higher = np.maximum(most, scores.max(axis=1, keepdims=True))
            shares = np.exp(scores - higher if takes_off else scores)
            shrink = np.exp(most - higher) if shrinks and takes_off else 1.0
            weights = shrink * weights + shares.sum(axis=1, keepdims=True)
            summed = shrink * summed + shares @ values
            most = higher
        outputs[start:end] = summed / weights
    return outputs


@_check_attended.refuses("scores near 1,000: the outputs contain NaN")
def _takes_nothing_off(queries, read, size):
    return _with(queries, read, size, takes_off=False)


@_check_attended.refuses("scores near -1,000: the outputs contain NaN")
def _begins_at_zero(queries, read, size):
    return _with(queries, read, size, highest=0.0)


@_check_attended.refuses("the outputs, 24 positions in tiles of 8")
def _never_shrinks(queries, read, size):
    return _with(queries, read, size, shrinks=False)


@_check_attended.refuses("you read 72 keys, expected 48")
def _reads_what_is_hidden(queries, read, size):
    return _with(queries, read, size, sees_all=True)


@_check_attended.refuses("the outputs, 24 positions in tiles of 8")
def _looks_ahead_in_its_tile(queries, read, size):
    return _with(queries, read, size, is_masked=False)


@_check_attended.refuses("the outputs, 24 positions in tiles of 8")
def _mean_of_softmaxes(queries, read, size):
    length, width = queries.shape
    outputs = np.zeros_like(queries)
    for start in range(0, length, size):
        rows = queries[start : start + size]
        end = start + len(rows)
        starts = range(0, end, size)
        for first in starts:
            last = min(first + size, end)
            keys, values = read(first, last)
            scores = rows @ keys.T / np.sqrt(width)
            scores[np.arange(first, last) > np.arange(start, end)[:, None]] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs[start:end] += shares / shares.sum(axis=1, keepdims=True) @ values / len(starts)
    return outputs
