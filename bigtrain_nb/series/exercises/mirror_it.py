"""Exercises of notebook 02, "Mirror it": shares of a batch and what is lost; see also `mirror_it_step`, `_loops`."""

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def shares(batch, replicas):
    most = -(-batch // replicas)  # rounded up
    taken = []
    for _ in range(replicas):
        left = batch - sum(taken)
        taken.append(min(most, left))
    return taken


@exercise(shares, minutes=4, difficulty=2)
def _check_shares(answer):
    """Look at how 7 examples were cut: which replica gets more? Now 5 examples and 4 replicas: the first
    takes two, and so do the others, until none are left."""
    first = answer(64, 2)
    if isinstance(first, np.ndarray):
        raise Wrong("expected a list, got a NumPy array: `tolist()` makes a list of it")
    expect(first, [32, 32], "a batch of 64 over 2 replicas")
    expect(answer(7, 2), [4, 3], "a batch of 7 over 2 replicas")
    expect(answer(1, 2), [1, 0], "a batch of 1 over 2 replicas")
    expect(answer(5, 4), [2, 2, 1, 0], "a batch of 5 over 4 replicas, ceil(5/4) = 2 at most")


@_check_shares.refuses("expected [32, 32], got [64, 64]")
def _the_whole_batch_for_each(batch, replicas):
    return [batch] * replicas


@_check_shares.refuses("expected a list, got a NumPy array")
def _an_array(batch, replicas):
    return np.array(shares(batch, replicas))


@_check_shares.refuses("expected [4, 3], got [3, 3]")
def _drops_the_rest(batch, replicas):
    return [batch // replicas] * replicas


@_check_shares.refuses("expected [2, 2, 1, 0], got [2, 1, 1, 1]")
def _deals_like_cards(batch, replicas):
    least = batch // replicas
    one_more = batch % replicas
    return [least + 1] * one_more + [least] * (replicas - one_more)


def lost_on(devices, ms_one, ms_two):
    all_reduce = (ms_two - ms_one / 2) * 2 * (devices - 1) / devices
    shared = ms_one / devices
    return all_reduce / (shared + all_reduce), all_reduce / (ms_one + all_reduce)


@exercise(lost_on, minutes=8, difficulty=3)
def _check_lost_on(answer):
    """First find what the all-reduce over two devices took: it is what `ms_two` has more than half of the work.
    Then use the ring's formula: how much longer does the same message take over n devices than over two?"""
    _expect_lost(answer, 2, 100.0, 55.0, 5 / 55, 5 / 105)
    _expect_lost(answer, 8, 100.0, 55.0, 7 / 17, 7 / 87)
    _expect_lost(answer, 4, 61.0, 30.5, 0.0, 0.0)


def _expect_lost(answer, devices, one, two, sharing, each):
    told = f"one device takes {one:g} ms and two that share take {two:g}: lost on {devices} devices"
    got = answer(devices, one, two)
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Wrong(f"{told}: expected two numbers, for sharing a batch and for a batch each, got {got!r}")
    try:
        expect(got[0], sharing, f"{told} that share a batch")
        expect(got[1], each, f"{told} with a batch each")
    except Wrong as wrong:
        if devices == 2:
            raise
        raise Wrong(
            f"{wrong}. Two devices were right. Is the all-reduce that of two devices, or of {devices}?"
        ) from None


@_check_lost_on.refuses("Is the all-reduce that of two devices, or of 8?")
def _keeps_the_time_of_two(devices, ms_one, ms_two):
    all_reduce = ms_two - ms_one / 2
    return all_reduce / (ms_one / devices + all_reduce), all_reduce / (ms_one + all_reduce)


@_check_lost_on.refuses("lost on 2 devices that share a batch: expected about 0.0909091, got 0.909091")
def _returns_what_is_used(devices, ms_one, ms_two):
    shared, each = lost_on(devices, ms_one, ms_two)
    return 1 - shared, 1 - each


@_check_lost_on.refuses("lost on 8 devices that share a batch: expected about 0.411765, got 0.615385")
def _doubles_with_each_doubling(devices, ms_one, ms_two):
    all_reduce = (ms_two - ms_one / 2) * devices / 2
    return all_reduce / (ms_one / devices + all_reduce), all_reduce / (ms_one + all_reduce)
