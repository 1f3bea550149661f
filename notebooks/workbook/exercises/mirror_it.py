"""Exercises of notebook 02, "Mirror it"."""

import numpy as np

from bigtrain_nb.workbook.exercises import exercise, expect


def shares(batch, replicas):
    most = -(-batch // replicas)  # rounded up
    taken = []
    for _ in range(replicas):
        left = batch - sum(taken)
        taken.append(min(most, left))
    return taken


@exercise(shares, minutes=4, difficulty=2)
def _check_shares(answer):
    """The first replicas take ceil(batch / replicas) examples each, `-(-batch // replicas)`, until none are left."""
    expect(answer(64, 2), [32, 32], "a batch of 64 over 2 replicas")
    expect(answer(7, 2), [4, 3], "a batch of 7 over 2 replicas")
    expect(answer(1, 2), [1, 0], "a batch of 1 over 2 replicas")
    expect(answer(5, 4), [2, 2, 1, 0], "a batch of 5 over 4 replicas, ceil(5/4) = 2 at most")


@_check_shares.refuses("expected [32, 32], got [64, 64]")
def _the_whole_batch_for_each(batch, replicas):
    return [batch] * replicas


@_check_shares.refuses("expected [4, 3], got [3, 3]")
def _drops_the_rest(batch, replicas):
    return [batch // replicas] * replicas


@_check_shares.refuses("expected [2, 2, 1, 0], got [2, 1, 1, 1]")
def _deals_like_cards(batch, replicas):
    least = batch // replicas
    one_more = batch % replicas
    return [least + 1] * one_more + [least] * (replicas - one_more)


def combine(gradients, counts):
    total = 0
    for gradient, count in zip(gradients, counts, strict=True):
        total = total + count * gradient
    return total / sum(counts)


@exercise(combine, minutes=4, difficulty=2)
def _check_combine(answer):
    """A mean of m examples stands for a sum of m: multiply each gradient by its count, add, divide once by all."""
    one = np.array([1.0, 3.0])
    other = np.array([5.0, -1.0])
    expect(answer([one, other], [32, 32]), np.array([3.0, 1.0]), "the mean of [1, 3] and [5, -1], 32 examples each")
    expect(answer([one, other], [3, 1]), np.array([2.0, 2.0]), "[1, 3] from 3 examples and [5, -1] from 1")
    expect(answer([one, other, one], [2, 1, 0]), np.array([7 / 3, 5 / 3]), "[1, 3] from 2 examples, [5, -1] from 1")


@_check_combine.refuses("[1, 3] from 3 examples and [5, -1] from 1: expected array([2., 2.]), got")
def _counts_replicas_alike(gradients, counts):
    return sum(gradients) / len(gradients)


@_check_combine.refuses("32 examples each: expected array([3., 1.]), got array([6., 2.])")
def _only_adds(gradients, counts):
    return sum(gradients)


@_check_combine.refuses("32 examples each: expected array([3., 1.]), got array([1.5, 0.5])")
def _divides_twice(gradients, counts):
    return combine(gradients, counts) / len(gradients)


def rate_at(step, batch, base_rate, base_batch, warmup_steps):
    peak = base_rate * batch / base_batch
    warmed_up = min(1, (step + 1) / (warmup_steps + 1))
    return peak * warmed_up


@exercise(rate_at, minutes=5, difficulty=2)
def _check_rate_at(answer):
    """The peak grows as the batch does. Step t gets (t + 1) / (warmup_steps + 1) of it, but never more than 1."""
    told = "for a batch of 256 where 0.1 is right for 32, after 9 steps of warm-up"
    expect(answer(9, 256, 0.1, 32, 9), 0.8, f"the rate of step 9 {told}")
    expect(answer(500, 256, 0.1, 32, 9), 0.8, f"the rate of step 500 {told}")
    expect(answer(4, 256, 0.1, 32, 9), 0.4, f"the rate of step 4 {told}")
    expect(answer(0, 256, 0.1, 32, 9), 0.08, f"the rate of step 0 {told}")
    expect(answer(0, 32, 0.1, 32, 0), 0.1, "the rate of step 0 for a batch of 32 without a warm-up")


@_check_rate_at.refuses("the rate of step 9 for a batch of 256 where 0.1 is right for 32")
def _forgets_the_batch(step, batch, base_rate, base_batch, warmup_steps):
    return rate_at(step, base_batch, base_rate, base_batch, warmup_steps)


@_check_rate_at.refuses("expected about 0.8, got 40.08")
def _never_stops_rising(step, batch, base_rate, base_batch, warmup_steps):
    peak = base_rate * batch / base_batch
    return peak * (step + 1) / (warmup_steps + 1)


@_check_rate_at.refuses("expected about 0.4, got 0.355556")
def _wastes_the_first_step(step, batch, base_rate, base_batch, warmup_steps):
    peak = base_rate * batch / base_batch
    return peak * min(1, step / max(1, warmup_steps))


def lost(devices, rates):
    rate_of_one = rates[0] / devices[0]
    shares = []
    for count, rate in zip(devices, rates, strict=True):
        ideal = count * rate_of_one
        shares.append(1 - rate / ideal)
    return shares


@exercise(lost, minutes=4, difficulty=2)
def _check_lost(answer):
    """Ideal is the first rate times how many times the first devices there are. Lost is 1 minus rate / ideal."""
    expect(answer([1, 2, 4], [100.0, 180.0, 300.0]), [0.0, 0.1, 0.25], "100, 180 and 300 examples/s on 1, 2, 4 devices")
    expect(answer([8, 16], [800.0, 1504.0]), [0.0, 0.06], "800 and 1504 examples/s on 8 and 16 devices")


@_check_lost.refuses("expected [0.0, 0.1, 0.25], got [1.0, 0.9, 0.75]")
def _returns_the_efficiency(devices, rates):
    return [1 - share for share in lost(devices, rates)]


@_check_lost.refuses("expected [0.0, 0.1, 0.25], got [0.0, 0.44")
def _divides_by_the_speedup(devices, rates):
    return [1 - rates[0] / rate for rate in rates]


@_check_lost.refuses("expected [0.0, 0.06")
def _takes_the_first_for_one_device(devices, rates):
    return [1 - rate / (rates[0] * count) for count, rate in zip(devices, rates, strict=True)]
