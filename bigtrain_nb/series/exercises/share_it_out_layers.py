"""Exercises of notebook 08, "Share it out": layers that are sharded across devices."""

import math

import numpy as np

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished


def whole_from(shard, shape, all_gather, reduce_scatter):
    size = int(np.prod(shape))

    @tf.custom_gradient
    def gather(shard):
        row = all_gather(shard)
        whole = tf.reshape(row[:size], shape)

        def backward(gradient):
            numbers = tf.reshape(gradient, [-1])
            zeros = row.shape[0] - size
            return reduce_scatter(tf.pad(numbers, [[0, zeros]]))

        return whole, backward

    return gather(shard)


class _Links:
    """Simulated collectives of device ``number``; the check knows the other devices' shards and gradients."""

    def __init__(self, number, shards, gradients, told):
        self.number, self.shards, self.gradients, self.told = number, shards, gradients, told
        self.gathered = self.scattered = 0

    def all_gather(self, shard):
        self.gathered += 1
        if not np.array_equal(shard, self.shards[self.number]):
            raise Wrong(
                f"{self.told}: all_gather takes this device's shard unchanged, got one of shape {np.shape(shard)}"
            )

        @tf.custom_gradient
        def gather(shard):
            return tf.concat(self.shards, axis=0), _no_gradient

        return gather(shard)

    def reduce_scatter(self, row):
        self.scattered += 1
        length = sum(len(shard) for shard in self.shards)
        if np.shape(row) != (length,):
            raise Wrong(
                f"{self.told}: reduce_scatter takes a row of {length} elements, as many as all shards together; got"
                f" the shape {np.shape(row)}"
            )
        rows = [np.pad(np.ravel(gradient), (0, length - gradient.size)) for gradient in self.gradients]
        rows[self.number] = np.asarray(row)
        return tf.constant(np.split(sum(rows), len(rows))[self.number])


def _no_gradient(upstream):
    raise Wrong(
        "TensorFlow has no gradient of all_gather: define it with tf.custom_gradient, so that the gradient of the full"
        " weight is reduce-scattered"
    )


@exercise(
    whole_from,
    takes=(
        "a shard [ceil(size / devices)]; the weight's shape; all_gather(shard) -> [devices x ceil(size /"
        " devices)]; reduce_scatter(such a row) -> the shard of the sum"
    ),
    returns="the weight, whose gradient goes to the shard",
    minutes=20,
    difficulty=4,
)
def _check_whole_from(answer):
    """Forward: all-gather the vector, drop the zeros at its end, reshape it to the weight's shape. Backward is the
    reverse: flatten the gradient, pad it with zeros to the length of the gathered vector, reduce-scatter it. A function
    under `tf.custom_gradient` returns its result and a function that computes the gradient of its input.
    """
    random = np.random.default_rng(4)
    for devices, shape in [(2, (4, 3)), (4, (3, 2)), (3, (2, 5)), (2, (5,))]:
        weight = random.normal(size=shape).astype("float32")
        size = -(-weight.size // devices)
        padded = np.pad(weight.ravel(), (0, size * devices - weight.size))
        shards = [tf.constant(part) for part in np.split(padded, devices)]
        inputs = [random.normal(size=shape).astype("float32") for _ in range(devices)]
        gradients = [2 * weight * each**2 for each in inputs]  # of the sum of (weight * input) squared
        total = np.pad(sum(gradients).ravel(), (0, size * devices - weight.size))
        for number, shard in enumerate(shards):
            told = f"a weight {list(shape)} on device {number} of {devices}"
            links = _Links(number, shards, gradients, told)
            with tf.GradientTape() as tape:
                tape.watch(shard)
                whole = answer(shard, shape, links.all_gather, links.reduce_scatter)
                if is_unfinished(whole):
                    raise NotAttempted
                expect(np.asarray(whole), weight, f"{told}: the full weight", 1e-6)
                value = tf.reduce_sum((whole * inputs[number]) ** 2)
            gradient = tape.gradient(value, shard)
            if gradient is None:
                raise Wrong(f"{told}: the loss does not depend on the shard; compute the weight from all_gather(shard)")
            own = np.split(total, devices)[number]
            expect(np.asarray(gradient), own, f"{told}: the shard of the gradient, summed over all devices", 1e-4)
            if (links.gathered, links.scattered) != (1, 1):
                raise Wrong(
                    f"{told}: expected one all_gather forward and one reduce_scatter backward, got {links.gathered} and"
                    f" {links.scattered}"
                )


@_check_whole_from.refuses("TensorFlow has no gradient of all_gather")
def _without_a_gradient(shard, shape, all_gather, reduce_scatter):
    return tf.reshape(all_gather(shard)[: math.prod(shape)], shape)


@_check_whole_from.refuses("reduce_scatter takes a row of 8 elements")
def _without_zeros(shard, shape, all_gather, reduce_scatter):
    @tf.custom_gradient
    def gather(shard):
        whole = tf.reshape(all_gather(shard)[: math.prod(shape)], shape)
        return whole, lambda gradient: reduce_scatter(tf.reshape(gradient, [-1]))

    return gather(shard)


@_check_whole_from.refuses("the shard of the gradient, summed over all devices")
def _keeps_its_own_part(shard, shape, all_gather, reduce_scatter):
    @tf.custom_gradient
    def gather(shard):
        row = all_gather(shard)

        def backward(gradient):
            numbers = tf.pad(tf.reshape(gradient, [-1]), [[0, row.shape[0] - math.prod(shape)]])
            return numbers[: shard.shape[0]]

        return tf.reshape(row[: math.prod(shape)], shape), backward

    return gather(shard)


def mended(shards, moments, gradients, examples, limit, rate, wire):
    weighted = [count * gradient for count, gradient in zip(examples, gradients, strict=True)]
    means = [total / sum(examples) for total in wire.reduce_scatter(weighted)]
    square = wire.all_reduce([np.sum(mean**2) for mean in means])
    if not np.isfinite(square):
        return shards, moments
    shrink = min(1.0, limit / np.sqrt(square))
    new_moments = [0.9 * moment + shrink * mean for moment, mean in zip(moments, means, strict=True)]
    return [shard - rate * moment for shard, moment in zip(shards, new_moments, strict=True)], new_moments


class Wire:
    """Collectives between devices that count their calls and the values sent per device."""

    def __init__(self, devices):
        self.devices, self.sent = devices, 0.0
        self.scattered, self.reduced = 0, 0

    def reduce_scatter(self, arrays):
        self.scattered += 1
        total = np.sum(arrays, axis=0)
        self.sent += total.size * (self.devices - 1) / self.devices
        return np.split(total, self.devices)

    def all_reduce(self, values):
        self.reduced += 1
        total = np.sum(values, axis=0)
        self.sent += 2 * np.size(total) * (self.devices - 1) / self.devices
        return total


@exercise(
    mended,
    takes=(
        "a shard [n / devices] of each device; a moment of each; a gradient [n] of each; examples of each;"
        " the largest norm; the rate; a wire with reduce_scatter(arrays) and all_reduce(values)"
    ),
    returns="a tuple (list of shards, list of moments)",
    minutes=25,
    difficulty=4,
)
def _check_mended(answer):
    """For each line, ask: what does this device know, and what do only all of them together know? The mean is over all
    examples, so a device with more of them counts more. The norm is that of the full gradient: first sum the squares of
    all shards, one scalar from each device. And a non-finite value in one shard must stop all devices.
    """
    cases = (
        ("equal batches, no clipping", [4, 4], 1e9, None),
        ("batches of 7 and 1 examples", [7, 1], 1e9, None),
        ("clipped by the norm of the full gradient", [4, 4], 0.5, None),
        ("three devices, batches of 5, 2 and 1, clipped by the norm of the full gradient", [5, 2, 1], 0.5, None),
        ("a device without examples", [4, 0], 0.5, None),
        ("NaN in one gradient element of step 2", [4, 4], 0.5, float("nan")),
        ("infinity in one gradient element of step 2", [2, 6], 1e9, float("inf")),
    )
    wires = [_compare_with_one_device(answer, *case) for case in cases]
    scattered = max(wires, key=lambda wire: abs(wire.scattered - 1)).scattered
    if scattered != 1:
        raise Wrong(
            f"the weights are right, but a step has {scattered} reduce-scatters instead of one. Before it, a"
            " device knows only its own gradient"
        )
    if not all(wire.reduced for wire in wires):
        raise Wrong(
            "the weights are right, but a step has no all-reduce for the norm. After the reduce-scatter, a device"
            " knows only the mean of its own shard"
        )


def _compare_with_one_device(answer, told, examples, limit, planted):
    """Raise `Wrong` unless three steps match those of one device; return the wire of the last."""
    random = np.random.default_rng(6)
    devices, size = len(examples), 4
    whole = random.normal(size=size * devices)
    whole_moment = np.zeros_like(whole)
    shards, moments = np.split(whole, devices), [np.zeros(size) for _ in examples]
    for step in (1, 2, 3):
        gradients = [random.normal(size=whole.size) for _ in examples]
        for gradient, count in zip(gradients, examples, strict=True):
            gradient *= count > 0  # no examples, no gradient
        if planted and step == 2:
            gradients[0][1] = planted
        whole, whole_moment = _on_one_device(whole, whole_moment, gradients, examples, limit)
        wire = Wire(devices)
        given = [gradient.copy() for gradient in gradients]
        with np.errstate(invalid="ignore"):
            answered = answer(list(shards), list(moments), given, list(examples), limit, 0.1, wire)
        if is_unfinished(answered):
            raise NotAttempted
        if not isinstance(answered, tuple | list) or len(answered) != 2:
            raise Wrong(f"mended must return the new shards and the new moments, got {answered!r}")
        shards, moments = answered
        what = f"{told}: the weights after step {step}"
        expect(np.concatenate([np.atleast_1d(shard) for shard in shards]), whole, what, 1e-6)
        expect(np.concatenate(moments), whole_moment, f"{told}: the moments after step {step}", 1e-6)
        allowed = (whole.size + 8) * (devices - 1) / devices
        if wire.sent > allowed:
            raise Wrong(
                f"{told}: each device sent {wire.sent:.0f} values; a reduce-scatter and one value for the norm are"
                f" at most {allowed:.0f}"
            )
    return wire


def _on_one_device(whole, moment, gradients, examples, limit):
    """Return the weights and the moment after a step of one device with all examples."""
    mean = np.average(gradients, axis=0, weights=examples)
    if not np.isfinite(mean).all():
        return whole, moment
    norm = np.linalg.norm(mean)
    moment = 0.9 * moment + mean * min(1.0, limit / norm)
    return whole - 0.1 * moment, moment


def faulty(shards, moments, gradients, examples, limit, rate, wire):
    """One momentum step on several devices, wrong in three ways."""
    new_shards, new_moments = [], []
    for shard, moment, total in zip(shards, moments, wire.reduce_scatter(gradients), strict=True):
        mean = total / len(gradients)
        norm = np.linalg.norm(mean)
        if np.isfinite(norm):
            moment = 0.9 * moment + mean * min(1.0, limit / norm)
            shard = shard - rate * moment
        new_shards.append(shard)
        new_moments.append(moment)
    return new_shards, new_moments


@_check_mended.refuses("batches of 7 and 1 examples: the weights after step 1")
def _as_it_was(shards, moments, gradients, examples, limit, rate, wire):
    return faulty(shards, moments, gradients, examples, limit, rate, wire)


@_check_mended.refuses("clipped by the norm of the full gradient: the weights after step 1")
def _clips_by_the_norm_of_a_shard(shards, moments, gradients, examples, limit, rate, wire):
    weighted = [len(examples) * count / sum(examples) * each for count, each in zip(examples, gradients, strict=True)]
    return faulty(shards, moments, weighted, examples, limit, rate, wire)


@_check_mended.refuses("NaN in one gradient element of step 2: the weights after step 2")
def _skips_alone(shards, moments, gradients, examples, limit, rate, wire):
    weighted = [count * gradient for count, gradient in zip(examples, gradients, strict=True)]
    means = [total / sum(examples) for total in wire.reduce_scatter(weighted)]
    finite = [np.where(np.isfinite(mean).all(), mean, 0) for mean in means]
    square = wire.all_reduce([np.sum(mean**2) for mean in finite])
    shrink = min(1.0, limit / np.sqrt(square))
    new_shards, new_moments = [], []
    for shard, moment, mean in zip(shards, moments, means, strict=True):
        if np.isfinite(mean).all():
            moment = 0.9 * moment + shrink * mean
            shard = shard - rate * moment
        new_shards.append(shard)
        new_moments.append(moment)
    return new_shards, new_moments


@_check_mended.refuses("a step has 0 reduce-scatters instead of one")
def _knows_all_gradients(shards, moments, gradients, examples, limit, rate, wire):
    class NoWire:
        def reduce_scatter(self, arrays):
            return np.split(np.sum(arrays, axis=0), len(arrays))

        def all_reduce(self, values):
            return np.sum(values, axis=0)

    return mended(shards, moments, gradients, examples, limit, rate, NoWire())


@_check_mended.refuses("a step has no all-reduce for the norm")
def _adds_up_the_squares_of_all_shards_here(shards, moments, gradients, examples, limit, rate, wire):
    class OnlyScatters:
        reduce_scatter = wire.reduce_scatter

        def all_reduce(self, values):
            return np.sum(values, axis=0)

    return mended(shards, moments, gradients, examples, limit, rate, OnlyScatters())


@_check_mended.refuses("a reduce-scatter and one value for the norm are at most")
def _sends_whole_gradients(shards, moments, gradients, examples, limit, rate, wire):
    weighted = [count * gradient for count, gradient in zip(examples, gradients, strict=True)]
    wire.all_reduce(weighted)
    return mended(shards, moments, gradients, examples, limit, rate, wire)


def prefetch(gathering, computing, room):
    starts, done = [], []
    link_is_free = 0
    for number, seconds in enumerate(gathering):
        has_room = done[number - room] if number >= room else 0
        starts.append(max(link_is_free, has_room))
        link_is_free = starts[-1] + seconds
        before = done[-1] if done else 0
        done.append(max(link_is_free, before) + computing[number])
    return starts


@exercise(
    prefetch,
    takes="seconds of gathering each layer, a list; seconds of computing each; layers whole at a time",
    returns="when each gathering starts, a list",
    minutes=15,
    difficulty=3,
)
def _check_prefetch(answer):
    """Go through the layers in order. For each one, record when its all-gather starts, and when it has been computed.
    An all-gather waits for the link and for memory: layer i fits once layer i - `room` has been computed. A layer
    is computed once it has been gathered and the previous layer is done.
    """
    for gathering, computing, room, starts in (
        ([2, 2, 2], [3, 3, 3], 1, [0, 5, 10]),
        ([2, 2, 2], [3, 3, 3], 2, [0, 2, 5]),
        ([4, 4, 4, 4], [1, 1, 1, 1], 2, [0, 4, 8, 12]),
        ([4, 4, 4, 4], [1, 1, 1, 1], 1, [0, 5, 10, 15]),
        ([1, 6, 1, 1, 2], [2, 1, 8, 1, 1], 2, [0, 1, 7, 8, 16]),
        ([1] * 7, [5] * 7, 3, [0, 1, 2, 6, 11, 16, 21]),
        ([0.5, 0.5, 0.5], [0.25, 4, 1], 1, [0, 0.75, 5.25]),
        ([1, 1, 1], [9, 9, 9], 5, [0, 1, 2]),
        ([3, 1, 5, 2, 2, 4], [2, 7, 1, 1, 6, 3], 2, [0, 3, 5, 12, 14, 16]),
    ):
        told = f"gathering={gathering}, computing={computing}, room={room}"
        got = answer(list(gathering), list(computing), room)
        expect(got, starts, f"{told}: the start times of the all-gathers")


@_check_prefetch.refuses("room=2: the start times of the all-gathers")
def _one_at_a_time(gathering, computing, room):
    return prefetch(gathering, computing, 1)


@_check_prefetch.refuses("room=1: the start times of the all-gathers")
def _with_no_bound(gathering, computing, room):
    return prefetch(gathering, computing, len(gathering))


@_check_prefetch.refuses("the start times of the all-gathers")
def _forgets_that_layers_wait_for_each_other(gathering, computing, room):
    starts, done = [], []
    for number, seconds in enumerate(gathering):
        begin = starts[-1] + gathering[number - 1] if starts else 0
        starts.append(max(begin, done[number - room] if number >= room else 0))
        done.append(starts[-1] + seconds + computing[number])
    return starts
