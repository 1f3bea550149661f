"""Learning rate schedules: warm-up, decay, and scaling for larger batches."""

import math

import pytest

from bigtrain_nb.train.schedules import scaled_learning_rate, warmup_cosine


def rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_rate_rises_straight_to_the_peak_and_falls_like_half_a_cosine_to_zero(warmup):
    got = rates(warmup_cosine(0.8, warmup, warmup + 8), warmup + 10)
    rise = [0.8 * (step + 1) / (warmup + 1) for step in range(warmup)]
    fall = [0.4 * (1 + math.cos(math.pi * step / 8)) for step in range(9)]
    assert got == pytest.approx([*rise, *fall, 0.0], abs=1e-6)


def test_the_rate_grows_as_the_batch_does():
    assert scaled_learning_rate(0.1, 8192, 256) == pytest.approx(3.2)
    with pytest.raises(ValueError, match="batch=0 must be an integer of at least 1"):
        scaled_learning_rate(0.1, 0, 32)


def test_a_single_example_and_steps_that_all_warm_up_but_one_are_allowed():
    assert scaled_learning_rate(0.1, 1, 4) == pytest.approx(0.025)
    assert scaled_learning_rate(0.1, 3, 1) == pytest.approx(0.3)
    for base_batch, rate in ((0, 0.1), (32, 0.0)):
        with pytest.raises(ValueError, match="must be"):
            scaled_learning_rate(rate, 8, base_batch)
    assert rates(warmup_cosine(0.8, 0, 1), 2) == pytest.approx([0.8, 0.0])
    assert rates(warmup_cosine(0.8, 1, 2), 3) == pytest.approx([0.4, 0.8, 0.0])
