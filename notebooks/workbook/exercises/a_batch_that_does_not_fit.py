"""Exercises of notebook 05, "A batch that does not fit"."""

import math

import numpy as np

from bigtrain_nb.workbook.exercises import exercise, expect


def mean_gradient(parts, sizes):
    total = 0
    for part, size in zip(parts, sizes, strict=True):
        total = total + size * part
    return total / sum(sizes)


@exercise(mean_gradient, minutes=4, difficulty=2)
def _check_mean_gradient(answer):
    """Every example has one vote: a slice of n examples counts n times, and the votes are divided by all examples."""
    a = np.array([1.0, 4.0])
    b = np.array([5.0, 0.0])
    expect(answer([a, b], [2, 2]), np.array([3.0, 2.0]), "the mean of [1, 4] and [5, 0] over two examples each")
    expect(answer([a, b], [3, 1]), np.array([2.0, 3.0]), "the mean of [1, 4] over 3 examples and [5, 0] over 1")
    expect(answer([a, b, a], [1, 1, 2]), np.array([2.0, 3.0]), "the mean over slices of 1, 1 and 2 examples")


@_check_mean_gradient.refuses("over 1: expected array([2., 3.]), got array([3., 2.])")
def _one_vote_each(parts, sizes):
    return sum(parts) / len(parts)


@_check_mean_gradient.refuses("over two examples each: expected array([3., 2.]), got array([6., 4.])")
def _adds_up(parts, sizes):
    return sum(parts)


@_check_mean_gradient.refuses("over two examples each: expected array([3., 2.]), got array([12.,  8.])")
def _forgets_to_divide(parts, sizes):
    return mean_gradient(parts, sizes) * sum(sizes)


def updates(examples, micro_batch, micro_batches):
    examples_an_update = micro_batch * micro_batches
    return -(-examples // examples_an_update)  # rounded up


@exercise(updates, minutes=3, difficulty=1)
def _check_updates(answer):
    """An update takes micro_batch * micro_batches examples; what is left at the end gets an update of its own."""
    expect(answer(640, 16, 4), 10, "updates over 640 examples, 4 slices of 16 an update")
    expect(answer(240, 16, 4), 4, "updates over 240 examples, 4 slices of 16 an update, the leftover too")
    expect(answer(10, 16, 4), 1, "updates over 10 examples, which are all leftover")


@_check_updates.refuses("the leftover too: expected 4, got 3")
def _forgets_the_leftover(examples, micro_batch, micro_batches):
    return examples // (micro_batch * micro_batches)


@_check_updates.refuses("expected 10, got 40")
def _counts_slices(examples, micro_batch, micro_batches):
    return math.ceil(examples / micro_batch)


@_check_updates.refuses("expected 10, got 11")
def _always_one_more(examples, micro_batch, micro_batches):
    return examples // (micro_batch * micro_batches) + 1


def clipped(parts, limit):
    mean = sum(parts) / len(parts)
    norm = np.linalg.norm(mean)
    if norm <= limit:
        return mean
    return mean * limit / norm


@exercise(clipped, minutes=5, difficulty=2)
def _check_clipped(answer):
    """First the mean of the slices, then its norm, np.linalg.norm(mean); shrink it only where the norm is above the
    limit.
    """
    opposed = [np.array([9.0, 4.0]), np.array([-3.0, 4.0])]
    expect(answer(opposed, 10.0), np.array([3.0, 4.0]), "slices [9, 4] and [-3, 4], limit 10: nothing to clip")
    expect(answer(opposed, 2.5), np.array([1.5, 2.0]), "slices [9, 4] and [-3, 4], limit 2.5")


@_check_clipped.refuses("limit 2.5: expected array([1.5, 2. ])")
def _clips_every_slice(parts, limit):
    return sum(clipped([part], limit) for part in parts) / len(parts)


@_check_clipped.refuses("limit 2.5: expected array([1.5, 2. ]), got array([0.75, 1.  ])")
def _clips_the_sum(parts, limit):
    return clipped([sum(parts)], limit) / len(parts)


@_check_clipped.refuses("nothing to clip: expected array([3., 4.]), got array([6., 8.])")
def _scales_up_too(parts, limit):
    mean = sum(parts) / len(parts)
    return mean * limit / np.linalg.norm(mean)


def peak(at_1, at_4, micro_batches):
    activations = (at_1 - at_4) / (1 - 1 / 4)
    return at_1 - activations + activations / micro_batches


@exercise(peak, minutes=6, difficulty=3)
def _check_peak(answer):
    """peak(K) = constant + activations / K. Two measurements give two equations: their difference is 3/4 of the
    activations.
    """
    expect(answer(500.0, 200.0, 1), 500.0, "MiB at K = 1, where 500 MiB were measured")
    expect(answer(500.0, 200.0, 4), 200.0, "MiB at K = 4, where 200 MiB were measured")
    expect(answer(500.0, 200.0, 16), 125.0, "MiB at K = 16, with 500 MiB at K = 1 and 200 at K = 4")


@_check_peak.refuses("at K = 4, where 200 MiB were measured: expected about 200, got 125")
def _no_constant(at_1, at_4, micro_batches):
    return at_1 / micro_batches


@_check_peak.refuses("at K = 16, with 500 MiB at K = 1 and 200 at K = 4: expected about 125, got -1000")
def _straight_line(at_1, at_4, micro_batches):
    return at_1 + (at_4 - at_1) / 3 * (micro_batches - 1)


@_check_peak.refuses("at K = 4, where 200 MiB were measured: expected about 200, got 275")
def _all_that_falls_is_activations(at_1, at_4, micro_batches):
    activations = at_1 - at_4
    return at_4 + activations / micro_batches
