"""Exercises of notebook 07, "Pay with time"."""

import math

import numpy as np

from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect


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
    call = answer(watched.function, watched.draw)
    if call is ...:
        raise NotAttempted
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
            raise Wrong(f"the gradient of {name} is off by {np.abs(mine - right).max():.2g}: is dy in it?")
    if np.allclose(call(x, w), y):
        raise Wrong("a second call drops the same places: each call must draw a seed of its own")


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


@_check_recomputed.refuses("is dy in it?")
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
    for layers, edge, inside in [(36, 4, 4), (12, 2, 60), (64, 1, 4), (30, 9, 1), (48, 6, 2)]:
        got = answer(layers, edge, inside)
        if got is ...:
            raise NotAttempted
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
        edge, inside = [2] * blocks, [20] * blocks
        memory = int(memory_share * sum(inside))
        got = answer(edge, inside, memory)
        told = f"{blocks} blocks of 20 MiB with inputs of 2 MiB, and {memory} MiB"
        if got is ...:
            raise NotAttempted
        if not isinstance(got, list | tuple) or len(got) != blocks:
            raise Wrong(f"{told}: expected a list of {blocks} times True or False, got {got!r}")
        needed = highest(got, edge, inside)
        if needed > memory:
            raise Wrong(f"{told}: your choice wraps {sum(got)} blocks and needs {needed} MiB")
        expect(sum(got), sum(fewest(edge, inside, memory)), f"{told}: blocks that are computed twice")
    expect(answer([2] * 4, [20] * 4, 21), None, "4 blocks of 20 MiB with inputs of 2 MiB, and 21 MiB: nothing fits")


@_check_fewest.refuses("nothing fits: expected None")
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


@_check_fewest.refuses("and 21 MiB: nothing fits: expected None")
def _forgets_the_second_run(edge, inside, memory):
    for first_kept in range(len(edge) + 1):
        wrapped = [block < first_kept for block in range(len(edge))]
        if sum(edge[:first_kept]) + sum(inside[first_kept:]) <= memory:
            return wrapped
    return None


def sharded_step(weights, gradients, moments, rate, wire):
    devices = len(gradients)
    size = -(-len(weights) // devices)
    zeros = size * devices - len(weights)
    padded = [np.pad(gradient, (0, zeros)) for gradient in gradients]
    row = np.pad(weights, (0, zeros))

    new_moments, parts = [], []
    for device, total in enumerate(wire.reduce_scatter(padded)):
        moment = 0.9 * moments[device] + total / devices
        part = row[device * size : (device + 1) * size] - rate * moment
        new_moments.append(moment)
        parts.append(part)
    return wire.all_gather(parts)[: len(weights)], new_moments


class _Wire:
    """What sends numbers between devices, and counts how many each of them sends."""

    def __init__(self, devices):
        self.devices, self.sent = devices, 0.0

    def reduce_scatter(self, arrays):
        total = np.sum(arrays, axis=0)
        if len(total) % self.devices:
            raise ValueError(f"{len(total)} numbers cannot be cut into {self.devices} equal parts: fill up with zeros")
        self.sent += len(total) * (self.devices - 1) / self.devices
        return np.split(total, self.devices)

    def all_gather(self, parts):
        whole = np.concatenate(parts)
        self.sent += len(whole) * (self.devices - 1) / self.devices
        return whole

    def all_reduce(self, arrays):
        total = np.sum(arrays, axis=0)
        self.sent += 2 * len(total) * (self.devices - 1) / self.devices
        return total


@exercise(sharded_step, minutes=20, difficulty=4)
def _check_sharded_step(answer):
    """The order is: fill up with zeros, reduce-scatter the gradients, let each device update its own part of the
    weights with its own moment, all-gather the parts, cut the zeros off. `reduce_scatter` gives sums.
    """
    random = np.random.default_rng(2)
    for devices, count in [(2, 10), (4, 10), (3, 7)]:
        size = -(-count // devices)
        weights = random.normal(size=count)
        plain, plain_moment = weights.copy(), np.zeros(count)
        moments = [np.zeros(size) for _ in range(devices)]
        wire = _Wire(devices)
        told = f"{devices} devices, {count} weights"
        for step in range(3):
            gradients = [random.normal(size=count) for _ in range(devices)]
            plain_moment = 0.9 * plain_moment + np.mean(gradients, axis=0)
            plain = plain - 0.1 * plain_moment
            answered = answer(weights, gradients, moments, 0.1, wire)
            if answered is ...:
                raise NotAttempted
            weights, moments = answered
            held = [len(moment) for moment in moments]
            if held != [size] * devices:
                raise Wrong(f"{told}: each device should hold {size} numbers of the moment, they hold {held}")
            expect(np.asarray(weights), plain, f"{told}: the weights after step {step + 1}", 1e-6)
        allowed = 3 * 2 * size * devices * (devices - 1) / devices
        if wire.sent > allowed + 1e-6:
            sent = f"each device sent {wire.sent:.0f} numbers in 3 steps"
            raise Wrong(f"{told}: {sent}, an all-reduce sends {allowed:.0f}")


@_check_sharded_step.refuses("2 devices, 10 weights: the weights after step 1")
def _takes_the_sum(weights, gradients, moments, rate, wire):
    devices = len(gradients)
    return sharded_step(weights, [devices * gradient for gradient in gradients], moments, rate, wire)


@_check_sharded_step.refuses("numbers in 3 steps, an all-reduce sends")
def _reduces_all(weights, gradients, moments, rate, wire):
    total = wire.all_reduce(gradients)
    everywhere = [total / len(gradients)] * len(gradients)
    return sharded_step(weights, everywhere, moments, rate, wire)


@_check_sharded_step.refuses("each device should hold 5 numbers of the moment, they hold [10, 10]")
def _keeps_the_whole_moment(weights, gradients, moments, rate, wire):
    mean = wire.all_reduce(gradients) / len(gradients)
    whole = [np.zeros(len(weights)) + mean for _ in gradients]
    return weights - rate * mean, whole


def send(gradient, left, in_16_bits):
    wanted = gradient + left
    message = in_16_bits(wanted)
    return message, wanted - message


def _bfloat16(array):
    return tf.cast(tf.cast(tf.constant(array, tf.float32), tf.bfloat16), tf.float32).numpy()


@exercise(send, minutes=8, difficulty=3)
def _check_send(answer):
    """What rounding took away from this message must be in the next one. So add first what was left over, then round,
    then see what is left over now.
    """
    gradient = np.array([1.001, -0.3333, 3e-4, 100.3], np.float32)
    left = np.zeros(4, np.float32)
    total = np.zeros(4)
    for step in range(400):
        answered = answer(gradient, left, _bfloat16)
        if answered is ...:
            raise NotAttempted
        message, left = answered
        if not np.array_equal(_bfloat16(message), np.asarray(message, np.float32)):
            raise Wrong(f"step {step + 1}: the message {message} has more than 16 bits: send in_16_bits(...)")
        total += message
    expect(total / 400, gradient.astype(float), "the mean of 400 messages with the same gradient", 1e-4)


@_check_send.refuses("the mean of 400 messages with the same gradient: expected")
def _forgets_what_is_left(gradient, left, in_16_bits):
    return in_16_bits(gradient), left


@_check_send.refuses("has more than 16 bits: send in_16_bits(...)")
def _adds_after_rounding(gradient, left, in_16_bits):
    message = in_16_bits(gradient)
    return message + left, gradient - message


@_check_send.refuses("the mean of 400 messages with the same gradient: expected")
def _compares_with_the_gradient_alone(gradient, left, in_16_bits):
    message = in_16_bits(gradient + left)
    return message, gradient - message
