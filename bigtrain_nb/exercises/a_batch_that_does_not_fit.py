"""Exercises of notebook 05, "A batch that does not fit"."""

import math

import numpy as np

from bigtrain_nb.exercises import Exercise, expect


def mean_gradient(parts, sizes):
    return sum(size * part for part, size in zip(parts, sizes, strict=True)) / sum(sizes)


def _check_mean_gradient(answer):
    parts = [np.array([1.0, 4.0]), np.array([5.0, 0.0])]
    expect(answer(parts, [2, 2]), np.array([3.0, 2.0]), "the mean of [1, 4] and [5, 0] over two examples each")
    expect(answer(parts, [3, 1]), np.array([2.0, 3.0]), "the mean of [1, 4] over 3 examples and [5, 0] over 1")
    expect(answer([*parts, parts[0]], [1, 1, 2]), np.array([2.0, 3.0]), "the mean over slices of 1, 1 and 2 examples")


def _one_vote_each(parts, sizes):
    return sum(parts) / len(parts)


def _adds_up(parts, sizes):
    return sum(parts)


def _forgets_to_divide(parts, sizes):
    return sum(size * part for part, size in zip(parts, sizes, strict=True))


def updates(examples, micro_batch, micro_batches):
    return -(-examples // (micro_batch * micro_batches))


def _check_updates(answer):
    expect(answer(640, 16, 4), 10, "updates over 640 examples, 4 slices of 16 an update")
    expect(answer(240, 16, 4), 4, "updates over 240 examples, 4 slices of 16 an update, the leftover too")
    expect(answer(10, 16, 4), 1, "updates over 10 examples, which are all leftover")


def _forgets_the_leftover(examples, micro_batch, micro_batches):
    return examples // (micro_batch * micro_batches)


def _counts_slices(examples, micro_batch, micro_batches):
    return math.ceil(examples / micro_batch)


def _always_one_more(examples, micro_batch, micro_batches):
    return examples // (micro_batch * micro_batches) + 1


def clipped(parts, limit):
    mean = sum(parts) / len(parts)
    return mean * min(1.0, limit / np.linalg.norm(mean))


def _check_clipped(answer):
    opposed = [np.array([9.0, 4.0]), np.array([-3.0, 4.0])]
    expect(answer(opposed, 10.0), np.array([3.0, 4.0]), "slices [9, 4] and [-3, 4], limit 10: nothing to clip")
    expect(answer(opposed, 2.5), np.array([1.5, 2.0]), "slices [9, 4] and [-3, 4], limit 2.5")


def _clips_every_slice(parts, limit):
    return sum(part * min(1.0, limit / np.linalg.norm(part)) for part in parts) / len(parts)


def _clips_the_sum(parts, limit):
    return clipped([sum(parts)], limit) / len(parts)


def _scales_up_too(parts, limit):
    mean = sum(parts) / len(parts)
    return mean * limit / np.linalg.norm(mean)


def peak(at_1, at_4, micro_batches):
    activations = (at_1 - at_4) / (1 - 1 / 4)
    return at_1 - activations + activations / micro_batches


def _check_peak(answer):
    expect(answer(500.0, 200.0, 1), 500.0, "MiB at K = 1, where 500 MiB were measured")
    expect(answer(500.0, 200.0, 4), 200.0, "MiB at K = 4, where 200 MiB were measured")
    expect(answer(500.0, 200.0, 16), 125.0, "MiB at K = 16, with 500 MiB at K = 1 and 200 at K = 4")


def _no_constant(at_1, at_4, micro_batches):
    return at_1 / micro_batches


def _straight_line(at_1, at_4, micro_batches):
    return at_1 + (at_4 - at_1) / 3 * (micro_batches - 1)


def _all_that_falls_is_activations(at_1, at_4, micro_batches):
    activations = at_1 - at_4
    return at_4 + activations / micro_batches


EXERCISES = [
    Exercise(
        "a_batch_that_does_not_fit.mean_gradient",
        mean_gradient,
        _check_mean_gradient,
        "Every example has one vote: a slice of n examples counts n times, and the votes are divided by all examples.",
        (
            (_one_vote_each, "over 1: expected array([2., 3.]), got array([3., 2.])"),
            (_adds_up, "over two examples each: expected array([3., 2.]), got array([6., 4.])"),
            (_forgets_to_divide, "over two examples each: expected array([3., 2.]), got array([12.,  8.])"),
        ),
        minutes=4,
        difficulty=2,
    ),
    Exercise(
        "a_batch_that_does_not_fit.updates",
        updates,
        _check_updates,
        "An update takes micro_batch * micro_batches examples; what is left at the end gets an update of its own.",
        (
            (_forgets_the_leftover, "the leftover too: expected 4, got 3"),
            (_counts_slices, "expected 10, got 40"),
            (_always_one_more, "expected 10, got 11"),
        ),
        minutes=3,
        difficulty=1,
    ),
    Exercise(
        "a_batch_that_does_not_fit.clipped",
        clipped,
        _check_clipped,
        "First the mean of the slices, then its norm, np.linalg.norm(mean); shrink it only where the norm is above"
        " the limit.",
        (
            (_clips_every_slice, "limit 2.5: expected array([1.5, 2. ])"),
            (_clips_the_sum, "limit 2.5: expected array([1.5, 2. ]), got array([0.75, 1.  ])"),
            (_scales_up_too, "nothing to clip: expected array([3., 4.]), got array([6., 8.])"),
        ),
        minutes=5,
        difficulty=2,
    ),
    Exercise(
        "a_batch_that_does_not_fit.peak",
        peak,
        _check_peak,
        "peak(K) = constant + activations / K. Two measurements give two equations: their difference is 3/4 of the"
        " activations.",
        (
            (_no_constant, "at K = 4, where 200 MiB were measured: expected about 200, got 125"),
            (_straight_line, "at K = 16, with 500 MiB at K = 1 and 200 at K = 4: expected about 125, got -1000"),
            (_all_that_falls_is_activations, "at K = 4, where 200 MiB were measured: expected about 200, got 275"),
        ),
        minutes=6,
        difficulty=3,
    ),
]
