"""The two intervals: against SciPy's signed-rank test, against tables, and by simulation of noisy measurements."""

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest

from bigtrain_nb.measure.intervals import _lag1_of_ranks, median_interval, paired_interval, strict_interval


@pytest.mark.parametrize("n", [6, 14])
def test_the_paired_interval_holds_just_the_shifts_that_the_signed_rank_test_accepts(n):
    wilcoxon = pytest.importorskip("scipy.stats").wilcoxon
    values = np.random.default_rng(n).normal(size=n)
    centre, low, high = paired_interval(list(values))
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(values, 2))
    for shift in np.add(means[:-1], means[1:]) / 2:
        is_accepted = wilcoxon(values - shift, method="exact").pvalue > 0.05
        assert is_accepted == (low < shift < high)
    assert low <= centre <= high and centre == pytest.approx(np.median(means))


def test_six_pairs_give_their_whole_range_and_five_no_interval():
    assert paired_interval([0.3, 0.1, 0.2, 0.6, 0.4, 0.5]) == (pytest.approx(0.35), 0.1, 0.6)
    centre, low, high = paired_interval([0.1, 0.2, 0.3, 0.4, 0.5])
    assert (low, centre, high) == (-math.inf, pytest.approx(0.3), math.inf)


def noisy_rounds(rng, n):
    """Logarithms of rates in paired rounds of the same source: common drift, lognormal noise and rare stalls."""
    drift = np.cumsum(rng.normal(0, 0.03, n)) + np.linspace(0, rng.normal(0, 0.3), n)

    def side():
        return drift - rng.lognormal(-3, 0.8, n) - (rng.random(n) < 0.1) * rng.exponential(0.5, n)

    return side(), side()


@pytest.mark.parametrize("n", [6, 20])
def test_a_source_against_itself_rarely_looks_different(n):
    rng = np.random.default_rng(1)
    outside = 0
    for _ in range(1000):
        a, b = noisy_rounds(rng, n)
        _, low, high = paired_interval(list(a - b))
        outside += not low <= 0 <= high
    assert outside <= 70


@pytest.mark.parametrize("n", [6, 12, 42])
@pytest.mark.parametrize("error", [0.025, 0.002])
def test_each_end_of_the_strict_interval_errs_as_seldom_as_it_promises(n, error):
    rng = np.random.default_rng(5)
    above = 0
    for _ in range(2000):
        a, b = noisy_rounds(rng, n)
        above += strict_interval(a - b, error)[1] > 0
    assert above <= 1.5 * error * 2000


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
        ([1, 2, 3, 4, 50], 0.4),  # ranks -2 to 2: (2 + 0 + 0 + 2) / 10
        ([1, 50, 2, 4, 3], -0.7),  # ranks -2, 2, -1, 1, 0: (-4 - 2 - 1 + 0) / 10
        ([7], 0.0),
    ],
)
def test_the_autocorrelation_of_ranks(values, expected):
    assert _lag1_of_ranks(values) == pytest.approx(expected)


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
