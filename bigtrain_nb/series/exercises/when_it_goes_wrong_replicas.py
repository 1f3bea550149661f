"""Exercises of notebook 11, "When it goes wrong": a replica whose weights differ from the others."""

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

STEPS, LOADS = 1000, 12
"""The steps of a training run, and how many of its checkpoints an answer may load."""


def corrupt(weights, steps):
    def odd_one(step):
        bits = weights(step).view(np.uint32)
        for replica, own in enumerate(bits):
            alike = sum(np.array_equal(own, other) for other in bits)
            if alike <= len(bits) // 2:
                return replica
        return None

    replica = odd_one(steps)
    if replica is None:
        return None
    equal, broken = 0, steps
    while broken - equal > 1:
        middle = (equal + broken) // 2
        if odd_one(middle) is None:
            equal = middle
        else:
            broken = middle
    return replica, broken


class Checkpoints:
    """The weights of all replicas after each step; from ``broken`` on, one replica has one bit flipped.

    ``flip``: "last" for the last bit of a weight, "sign" for the sign of a zero, None for equal replicas. One value is
    NaN in all replicas, like the running mean of an unused part of a model.
    """

    def __init__(self, seed, replicas, replica, broken, flip):
        self.replicas, self.replica, self.broken, self.flip = replicas, replica, broken, flip
        self.start = np.random.default_rng(seed).normal(size=500).astype("float32")
        self.start[[7, 40, 300]] = np.nan, 0.001, 0.0
        self.loads = 0

    def weights(self, step):
        self.loads += 1
        if self.loads > LOADS:
            raise Wrong(f"more than {LOADS} of the {STEPS} checkpoints were loaded; {LOADS} are enough")
        if not 0 <= step <= STEPS:
            raise Wrong(f"there is no checkpoint after step {step}, only after steps 0 to {STEPS}")
        held = np.tile(self.start * np.float32(0.999**step), (self.replicas, 1))
        if self.flip and step >= self.broken:
            place, bit = (300, 31) if self.flip == "sign" else (40, 0)
            held.view(np.uint32)[self.replica, place] ^= np.uint32(1 << bit)
        return held

    def __str__(self):
        if self.flip is None:
            return f"{self.replicas} equal replicas, with a NaN at the same position in all"
        flipped = "the last bit of a weight" if self.flip == "last" else "the sign of a zero"
        return f"{self.replicas} replicas, where {flipped} was flipped"


@exercise(
    corrupt,
    takes="weights(step) -> float32 [replicas, n], which loads checkpoints; the last step",
    returns="a tuple (replica from 0, first step after which it differs), or None",
    minutes=20,
    difficulty=4,
)
def _check_corrupt(answer):
    """Two questions. Which replica? The one that differs from the most others. Compare bits, as integers
    (`values.view(np.uint32)`): a sum is rounded, 0.0 == -0.0, and a NaN is not equal to itself. Since when? A replica
    that has diverged stays different, so bisect the steps: between a step after which all are equal and one after
    which they are not.
    """
    cases = [
        (3, 1, 614, "last"),
        (4, 0, 77, "last"),
        (5, 4, STEPS, "sign"),
        (3, 0, 0, None),
        (3, 2, 1, "sign"),
        (4, 3, 500, "last"),
    ]
    for seed, (replicas, replica, broken, flip) in enumerate(cases):
        checkpoints = Checkpoints(seed, replicas, replica, broken, flip)
        found = answer(checkpoints.weights, STEPS)
        expected = None if flip is None else (replica, broken)
        if (found is None) != (expected is None):
            raise Wrong(f"{checkpoints}: expected {expected}, got {found!r}")
        if expected:
            expect(found[0], replica, f"{checkpoints}: which replica")
            expect(found[1], broken, f"{checkpoints}: the first step after which it differs")


@_check_corrupt.refuses("where the last bit of a weight was flipped: expected (1, 614), got None")
def _compares_sums(weights, steps):
    def summed(step):
        sums = np.nan_to_num(weights(step)).sum(axis=1, keepdims=True)
        return sums.astype("float32")

    return corrupt(summed, steps)


@_check_corrupt.refuses("4 replicas, where the last bit of a weight was flipped: which replica: expected 0, got 1")
def _takes_the_first_replica_for_right(weights, steps):
    found = corrupt(weights, steps)
    if found is None:
        return None
    bits = weights(steps).view(np.uint32)
    differs = [replica for replica in range(1, len(bits)) if not np.array_equal(bits[0], bits[replica])]
    return differs[0], found[1]


@_check_corrupt.refuses("which replica: expected 1, got 0")
def _compares_numbers_with_the_first(weights, steps):
    values = weights(steps)
    differs = [replica for replica, own in enumerate(values) if (own != values[0]).any()]
    return (differs[0], corrupt(weights, steps)[1]) if differs else None


@_check_corrupt.refuses("5 replicas, where the sign of a zero was flipped: expected (4, 1000), got None")
def _takes_both_zeros_for_equal(weights, steps):
    return corrupt(lambda step: weights(step) + np.float32(0), steps)


@_check_corrupt.refuses("more than 12 of the 1000 checkpoints were loaded")
def _looks_at_every_step(weights, steps):
    for step in range(steps + 1):
        found = corrupt(lambda _, step=step: weights(step), 0)
        if found:
            return found[0], step
    return None


@_check_corrupt.refuses("the first step after which it differs: expected 614, got 613")
def _the_last_step_that_is_equal(weights, steps):
    found = corrupt(weights, steps)
    return found and (found[0], found[1] - 1)
