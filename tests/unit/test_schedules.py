"""Learning rate schedules: warm-up and decay."""

import math

import pytest

from bigtrain_nb.train.schedules import warmup_cosine


@pytest.mark.parametrize(("warmup", "others"), [(0, 8), (3, 8), (0, 1), (1, 1)])
def test_the_rate_rises_straight_to_the_peak_and_falls_like_half_a_cosine_to_zero(warmup, others):
    schedule = warmup_cosine(0.8, warmup, warmup + others)
    got = [float(schedule(step)) for step in range(warmup + others + 2)]
    rise = [0.8 * (step + 1) / (warmup + 1) for step in range(warmup)]
    fall = [0.4 * (1 + math.cos(math.pi * step / others)) for step in range(others + 1)]
    assert got == pytest.approx([*rise, *fall, 0.0], abs=1e-6)
