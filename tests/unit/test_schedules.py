"""Learning rate schedules: warm-up and decay."""

import math

import pytest

from bigtrain_nb.train.schedules import warmup_cosine


def rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_rate_rises_straight_to_the_peak_and_falls_like_half_a_cosine_to_zero(warmup):
    got = rates(warmup_cosine(0.8, warmup, warmup + 8), warmup + 10)
    rise = [0.8 * (step + 1) / (warmup + 1) for step in range(warmup)]
    fall = [0.4 * (1 + math.cos(math.pi * step / 8)) for step in range(9)]
    assert got == pytest.approx([*rise, *fall, 0.0], abs=1e-6)


def test_steps_that_all_warm_up_but_one_are_allowed():
    assert rates(warmup_cosine(0.8, 0, 1), 2) == pytest.approx([0.8, 0.0])
    assert rates(warmup_cosine(0.8, 1, 2), 3) == pytest.approx([0.4, 0.8, 0.0])
