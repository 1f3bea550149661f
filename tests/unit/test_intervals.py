"""Both confidence intervals: against SciPy, against tables, and by simulated noisy measurements."""

import math

import numpy as np
import pytest

from bigtrain_nb.measure.intervals import expected_scatter, mean_interval, median_interval, ratio_interval


@pytest.mark.parametrize("n", [2, 5, 20])
def test_the_mean_has_students_interval(n):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(n).normal(3, 2, size=n)
    mean, low, high = mean_interval(values, error=0.01)
    expected = stats.t.interval(0.99, n - 1, values.mean(), values.std(ddof=1) / math.sqrt(n))
    assert (low, high) == pytest.approx(expected) and mean == pytest.approx(values.mean())


def test_what_windows_show_of_their_noise_narrows_an_interval_and_never_widens_it():
    def width(scatter):
        _, low, high, _ = ratio_interval([0.5] * 5, [1] * 5, 0.025, scatter)
        return high - low

    quiet, noisy, unknown = expected_scatter(0.01, 0.01), expected_scatter(0.3, 0.01), expected_scatter(None, 0.01)
    assert quiet < noisy == unknown
    assert width(quiet) < 0.65 * width(unknown)


@pytest.mark.parametrize("rounds", [3, 8])
def test_two_alike_are_seldom_called_different_whatever_share_of_the_noise_windows_show(rounds):
    """Heavy-tailed noise of 16 % per window; a quarter of its variance, or none, is visible within windows."""
    dice = np.random.default_rng(0)
    for seen in (0.0, 0.25):
        wrong = 0
        for _ in range(2000):
            values = dice.standard_t(4, (rounds, 2)) * 0.16 / math.sqrt(2)
            instance = dice.normal(0, 0.03 * math.sqrt(2))
            scatter = expected_scatter(0.16 * math.sqrt(seen), 0.16 * math.sqrt(seen))
            _, low, high, _ = ratio_interval(values[:, 0] - values[:, 1] + instance, [1] * rounds, 0.025, scatter)
            wrong += not low <= math.log(1.02) or not high >= -math.log(1.02)
        assert wrong <= 0.05 * 2000


def test_the_ratio_of_one_instance_of_each_is_as_wide_as_its_rounds_and_luck_say():
    """By hand: 4 rounds without scatter, and a prior worth 3."""
    mean, low, high, luck = ratio_interval([0.5] * 4, [1] * 4, error=0.05)
    noise, of_luck = 3 * 0.25**2 / 6 / 4, 2 * 0.03**2
    freedom = (noise + of_luck) ** 2 / (noise**2 / 6 + of_luck**2 / 30)
    stats = pytest.importorskip("scipy.stats")
    half = stats.t.ppf(0.975, freedom) * math.sqrt(noise + of_luck)
    assert (mean, low, high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert luck == pytest.approx(of_luck / (noise + of_luck))


def test_more_rounds_of_one_instance_stop_at_luck_and_more_instances_do_not():
    def width(instances, rounds):
        numbers = [number * instances // rounds for number in range(rounds)]
        _, low, high, _ = ratio_interval([0.0] * rounds, numbers, error=0.05)
        return high - low

    assert width(1, 1000) > 0.9 * width(1, 300) > 4 * 0.03 * math.sqrt(2) * 0.9
    assert width(20, 1000) < 0.2 * width(1, 1000)


@pytest.mark.parametrize("luck", [0.0, 0.03, 0.1])
def test_with_many_instances_luck_is_measured(luck):
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(400):
        instances = np.repeat(np.arange(8), 5)
        values = rng.normal(0, luck * math.sqrt(2), 8)[instances] + rng.normal(0, 0.1, 40)
        _, low, high, _ = ratio_interval(values, instances, error=0.05)
        missed += not low <= 0 <= high
    assert missed <= 0.075 * 400


def coverage(rng, n, draw, true_median, repeats=1000):
    intervals = (median_interval(list(draw(rng, n))) for _ in range(repeats))
    return sum(low <= true_median <= high for low, high in intervals) / repeats


@pytest.mark.parametrize("n", [10, 40])
def test_the_median_interval_covers_whatever_the_shape_of_the_noise(n):
    rng = np.random.default_rng(3)
    assert coverage(rng, n, lambda rng, n: rng.normal(size=n), 0) >= 0.93
    assert coverage(rng, n, lambda rng, n: rng.lognormal(0, 1, n), 1) >= 0.93


def test_twenty_rounds_that_do_not_drift_run_from_the_fifth_to_the_fifth_and_those_that_do_over_all():
    low_and_high = [value for pair in zip(range(1, 11), range(20, 10, -1), strict=True) for value in pair]
    assert median_interval(low_and_high) == (5, 16)
    assert median_interval(list(range(1, 21))) == (1, 20)


@pytest.mark.parametrize("memory, least", [(0.5, 0.9), (0.8, 0.75)])
def test_rounds_that_resemble_their_neighbours_widen_the_median_interval(memory, least):
    def drifting(rng, n):
        values = [rng.normal()]
        for _ in range(n - 1):
            values.append(memory * values[-1] + math.sqrt(1 - memory**2) * rng.normal())
        return values

    assert coverage(np.random.default_rng(4), 20, drifting, 0) >= least
