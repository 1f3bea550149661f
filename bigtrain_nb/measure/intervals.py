"""The intervals of this package: for a median of rounds, for a ratio of paired rounds, for many such ratios at once."""

import math
from statistics import NormalDist, median

import numpy as np

CONFIDENCE = 0.95


def median_interval(rounds):
    """Return ``(low, high)``: an interval for the median of a few rounds of one measurement.

    The interval runs between two order statistics, chosen by the normal approximation of the binomial: at least 95 % of
    the time it holds the true median, whatever the shape of the noise, so a skewed round does no harm (J.-Y. Le
    Boudec, "Performance Evaluation of Computer and Communication Systems", 2010, section 2.2; recommended for
    timings by T. Hoefler and R. Belli, "Scientific Benchmarking of Parallel Computing Systems", SC 2015).
    That argument needs independent rounds. Rounds that drift resemble their neighbours, so the number of rounds is
    first reduced to an effective one, ``n (1 - r) / (1 + r)`` with r the lag-1 autocorrelation of the ranks.
    With too few rounds for 95 %, it is the whole range.
    """
    ordered, n = sorted(rounds), len(rounds)
    r = max(0.0, _lag1_of_ranks(rounds))
    effective = max(1.0, n * (1 - r) / (1 + r))
    half_width = 1.96 * 0.5 / math.sqrt(effective)
    low = math.floor(n * (0.5 - half_width))
    high = math.ceil(n * (0.5 + half_width))
    return ordered[max(low - 1, 0)], ordered[min(high, n - 1)]


def paired_interval(logs):
    """Return ``(centre, low, high)`` for the shift of paired differences, such as logarithms of ratios.

    It inverts Wilcoxon's signed-rank test: the centre is the median of all means of two differences (the Hodges-Lehmann
    estimate), the ends are two order statistics of these means, with exact 95 % coverage for any number of pairs from
    six up (J. L. Hodges and E. L. Lehmann, 1963; M. Hollander, D. Wolfe and E. Chicken, "Nonparametric Statistical
    Methods", 3rd ed., section 3.3). Why it suits rounds of a measurement: both members of a pair run within
    moments of each other, so drift cancels; a difference of two equally skewed noises is symmetric, which is all that
    the test assumes; and one wild round moves it little. With fewer than six pairs no 95 % interval exists
    and the ends are infinite.
    """
    n = len(logs)
    means = np.sort(np.add.outer(logs, logs)[np.triu_indices(n)] / 2).tolist()
    cut = _signed_rank_cut(n)
    if cut < 0:
        return median(means), -math.inf, math.inf
    return median(means), means[cut], means[len(means) - 1 - cut]


def strict_interval(logs, error):
    """Return ``(centre, low, high)`` for paired differences, each end wrong with a chance of about ``error``.

    A race looks at many ratios many times, so each single look must err far less often than in 5 % of all cases. The
    signed ranks above cannot promise that from a few pairs: six of them are all positive by chance once in 64.
    Student's interval can, as it asks how far the differences lie from 0 beside how much they scatter. Its quantile is
    the normal one, stretched (D. L. Wallace, "Bounds on normal approximations to Student's and the chi-square
    distributions", 1959). Wild rounds would widen it, so they are first pulled in to four standard deviations of the
    others (1.48 median absolute deviations are one: P. J. Huber, "Robust Statistics", 1981). With six pairs it then
    errs up to 2.6 times as often as said, with twelve 1.3 times; among 24 equals a race still loses a given one in
    1 to 2 % of simulations.
    """
    middle = np.median(logs)
    reach = 4 * 1.48 * np.median(np.abs(logs - middle))
    tame = np.clip(logs, middle - reach, middle + reach)
    freedom = len(logs) - 1
    z = NormalDist().inv_cdf(1 - error) * (8 * freedom + 3) / (8 * freedom + 1)
    quantile = math.sqrt(freedom * math.expm1(z**2 / freedom))
    half_width = quantile * tame.std(ddof=1) / math.sqrt(len(logs))
    return tame.mean(), tame.mean() - half_width, tame.mean() + half_width


def _signed_rank_cut(n):
    """The largest c with P(signed-rank statistic <= c) <= 2.5 % for n pairs, or -1."""
    chances = np.ones(1)
    for rank in range(1, n + 1):  # with even chances it counts for the statistic, or does not
        chances = np.convolve(chances, [0.5, *[0] * (rank - 1), 0.5])
    return int(np.searchsorted(chances.cumsum(), (1 - CONFIDENCE) / 2, side="right")) - 1


def _lag1_of_ranks(values):
    """Lag-1 autocorrelation of the ranks: 0 for independent rounds, towards 1 for a drift."""
    ranks = np.argsort(np.argsort(values, kind="stable")) - (len(values) - 1) / 2
    return float(ranks[:-1] @ ranks[1:] / (ranks @ ranks or 1))
