"""The two intervals: against SciPy, against tables, and by simulation of noisy measurements."""

import math

import numpy as np
import pytest

from bigtrain_nb.measure.intervals import (
    blocks_needed,
    likely_spread,
    mean_interval,
    median_interval,
    neighbours_alike,
)


@pytest.mark.parametrize("n", [2, 5, 20])
def test_the_mean_has_students_interval(n):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(n).normal(3, 2, size=n)
    mean, low, high = mean_interval(values, error=0.01)
    expected = stats.t.interval(0.99, n - 1, values.mean(), values.std(ddof=1) / math.sqrt(n))
    assert (low, high) == pytest.approx(expected) and mean == pytest.approx(values.mean())


def test_one_value_has_no_interval():
    assert mean_interval([0.3]) == (0.3, -math.inf, math.inf)


def test_blocks_needed_suffice_in_four_of_five_cases():
    rng = np.random.default_rng(8)
    enough = 0
    for _ in range(200):
        needed = blocks_needed(likely_spread(rng.normal(0, 0.05, 8)), goal=0.02, error=0.05, least=8)
        _, low, high = mean_interval(rng.normal(0, 0.05, needed), 0.05)
        enough += (high - low) / 2 <= 0.02
    assert enough >= 0.75 * 200


def noisy_rounds(rng, n):
    """Logarithms of rates in paired rounds of the same source: common drift, lognormal noise and rare stalls."""
    drift = np.cumsum(rng.normal(0, 0.03, n)) + np.linspace(0, rng.normal(0, 0.3), n)

    def side():
        return drift - rng.lognormal(-3, 0.8, n) - (rng.random(n) < 0.1) * rng.exponential(0.5, n)

    return side(), side()


@pytest.mark.parametrize("n", [5, 20])
@pytest.mark.parametrize("error", [0.05, 0.005])
def test_a_source_against_itself_rarely_looks_different(n, error):
    rng = np.random.default_rng(1)
    outside = 0
    for _ in range(2000):
        a, b = noisy_rounds(rng, n)
        _, low, high = mean_interval(a - b, error)
        outside += not low <= 0 <= high
    assert outside <= 1.4 * error * 2000


def coverage(rng, n, draw, true_median, repeats=1000):
    intervals = (median_interval(list(draw(rng, n))) for _ in range(repeats))
    return sum(low <= true_median <= high for low, high in intervals) / repeats


@pytest.mark.parametrize("n", [10, 40])
def test_the_median_interval_covers_whatever_the_shape_of_the_noise(n):
    rng = np.random.default_rng(3)
    assert coverage(rng, n, lambda rng, n: rng.normal(size=n), 0) >= 0.93
    assert coverage(rng, n, lambda rng, n: rng.lognormal(0, 1, n), 1) >= 0.93


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4, 5], 0.4),  # from their mean -2 to 2: (2 + 0 + 0 + 2) / 10
        ([1, 5, 2, 4, 3], -0.7),  # -2, 2, -1, 1, 0: (-4 - 2 - 1 + 0) / 10
        ([1, 2, 3, 4, 5, 6], 0.5),
        ([1, -1] * 5, -0.9),
        ([2, 2, 2], 0.0),
        ([7], 0.0),
    ],
)
def test_how_much_neighbours_are_alike(values, expected):
    assert neighbours_alike(values) == pytest.approx(expected)


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
