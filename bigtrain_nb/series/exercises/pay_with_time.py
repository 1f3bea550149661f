"""Exercises of notebook 07, "Pay with time": what is computed twice, so that it need not be kept."""

import math
from unittest import mock

import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


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
    """A block with dropout that counts how often it is run, and how often a seed is drawn."""

    def __init__(self):
        self.runs, self.draws = 0, 0

    def function(self, x, w, seed):
        self.runs += 1
        return tf.nn.experimental.stateless_dropout(tf.tanh(x @ w), 0.5, seed)

    def draw(self):
        self.draws += 1
        return tf.constant([7, self.draws])


@exercise(recomputed, minutes=20, difficulty=4)
def _check_recomputed(answer):
    """`tf.custom_gradient` decorates a function that returns its result and a function `backward(dy)`; nothing that
    runs inside it is recorded. In `backward`, run the block again under a tape of your own. What must be the same in
    both runs, and when is it drawn?
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
    expect(watched.runs, 2, "runs of the block, forward and backward together (one run means: all was kept)")
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
        raise Wrong("a second call drops the same places: each call must draw a seed of its own")
    if ready_made.called:
        raise Wrong("it is right, but tf.recompute_grad does the work: write it with tf.custom_gradient")


@_check_recomputed.refuses("runs of the block, forward and backward together (one run means: all was kept)")
def _keeps_everything(function, draw):
    return lambda x, w: function(x, w, draw())


@_check_recomputed.refuses("seeds drawn for one call, forward and backward together: expected 1, got 2")
def _draws_again(function, draw):
    def run(x, w):
        return function(x, w, draw())

    return tf.recompute_grad(run)


@_check_recomputed.refuses("a second call drops the same places")
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


@exercise(segment, minutes=8, difficulty=3)
def _check_segment(answer):
    """Write the peak for segments of a given size first: how many inputs are kept, and how much is inside the one
    segment that is being computed again? Then try all sizes.
    """
    for layers, edge, inside in [(36, 4, 4), (12, 2, 60), (64, 1, 4), (30, 9, 1), (48, 6, 2), (6, 50, 1), (7, 1, 3)]:
        got = answer(layers, edge, inside)
        told = f"{layers} layers, edge={edge} MiB, inside={inside} MiB"
        if not isinstance(got, int | np.integer) or not 1 <= got <= layers:
            raise Wrong(f"{told}: expected a number of layers from 1 to {layers}, got {got!r}")
        least = segment(layers, edge, inside)
        expect(_peak(got, layers, edge, inside), _peak(least, layers, edge, inside), f"the peak in MiB with {told}")


def _peak(size, layers, edge, inside):
    return math.ceil(layers / size) * edge + size * inside


@_check_segment.refuses("the peak in MiB with 12 layers, edge=2 MiB, inside=60 MiB: expected 84")
def _always_the_root(layers, edge, inside):
    return round(math.sqrt(layers))


@_check_segment.refuses("the peak in MiB with 36 layers, edge=4 MiB, inside=4 MiB: expected 48, got 148")
def _one_large_segment(layers, edge, inside):
    return layers


@_check_segment.refuses("the peak in MiB with 36 layers, edge=4 MiB, inside=4 MiB: expected 48, got 148")
def _each_layer(layers, edge, inside):
    return 1


def highest(wrapped, edge, inside):
    """Return the highest memory of a step, block by block: forward, then backward."""
    held = 0
    most = 0
    for block, is_wrapped in enumerate(wrapped):
        held += edge[block] if is_wrapped else inside[block]
        most = max(most, held)
    for block in reversed(range(len(wrapped))):
        if wrapped[block]:
            most = max(most, held + inside[block])
        held -= edge[block] if wrapped[block] else inside[block]
    return most


def fewest(edge, inside, memory):
    blocks = len(edge)
    for first_kept in range(blocks + 1):
        at_the_end_of_forward = sum(edge[:first_kept]) + sum(inside[first_kept:])
        in_backward = [sum(edge[: block + 1]) + inside[block] for block in range(first_kept)]
        if max([at_the_end_of_forward, *in_backward]) <= memory:
            return [block < first_kept for block in range(blocks)]
    return None


@exercise(fewest, minutes=20, difficulty=4)
def _check_fewest(answer):
    """Simulate a step for a given choice: add up block by block in the forward pass, then go backward, where a wrapped
    block needs its inside for a moment and each block gives back what it held. Is it better to wrap early or late
    blocks? The late ones are given back before the early ones are computed again.
    """
    random = np.random.default_rng(1)
    for memory_share in (1.0, 0.8, 0.55, 0.4, 0.3):
        blocks = int(random.integers(8, 14))
        _expect_fewest(answer, blocks, 2, 20, int(memory_share * 20 * blocks))
    for memory in (95, 84, 75):
        _expect_fewest(answer, 8, 9, 12, memory)
    told = "8 blocks of 12 MiB with inputs of 9 MiB, and 73 MiB: nothing fits"
    told += ", for all wrapped need 84 in the backward pass"
    expect(answer([9] * 8, [12] * 8, 73), None, told)
    expect(answer([2] * 4, [20] * 4, 21), None, "4 blocks of 20 MiB with inputs of 2 MiB, and 21 MiB: nothing fits")


def _expect_fewest(answer, blocks, each_edge, each_inside, memory):
    edge, inside = [each_edge] * blocks, [each_inside] * blocks
    got = answer(list(edge), list(inside), memory)
    told = f"{blocks} blocks of {each_inside} MiB with inputs of {each_edge} MiB, and {memory} MiB"
    if not isinstance(got, list | tuple) or len(got) != blocks:
        raise Wrong(f"{told}: expected a list of {blocks} times True or False, got {got!r}")
    needed = highest(got, edge, inside)
    if needed > memory:
        raise Wrong(f"{told}: your choice wraps {sum(got)} blocks and needs {needed} MiB")
    expect(sum(got), sum(fewest(edge, inside, memory)), f"{told}: blocks that are computed twice")


@_check_fewest.refuses("nothing fits")
def _always_an_answer(edge, inside, memory):
    return fewest(edge, inside, memory) or [True] * len(edge)


@_check_fewest.refuses("blocks that are computed twice: expected 0, got")
def _wraps_all(edge, inside, memory):
    return [True] * len(edge)


@_check_fewest.refuses("blocks that are computed twice: expected")
def _wraps_the_last(edge, inside, memory):
    for wrapped_blocks in range(len(edge) + 1):
        wrapped = [False] * (len(edge) - wrapped_blocks) + [True] * wrapped_blocks
        if highest(wrapped, edge, inside) <= memory:
            return wrapped
    return None


@_check_fewest.refuses("nothing fits, for all wrapped need 84 in the backward pass: expected None")
def _forgets_the_second_run(edge, inside, memory):
    for first_kept in range(len(edge) + 1):
        wrapped = [block < first_kept for block in range(len(edge))]
        if sum(edge[:first_kept]) + sum(inside[first_kept:]) <= memory:
            return wrapped
    return None
