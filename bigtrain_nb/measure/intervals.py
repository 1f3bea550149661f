"""The intervals of this package: for the median of one measurement's rounds, and for the mean of blocks of several."""

import math

import numpy as np

CONFIDENCE = 0.95
SURE = 0.8
"""In such a share of cases the interval for a spread, or for a mean, that a guess counts with holds the true one."""


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
    ranks = np.argsort(np.argsort(rounds, kind="stable"))
    r = max(0.0, neighbours_alike(ranks))
    effective = max(1.0, n * (1 - r) / (1 + r))
    half_width = 1.96 * 0.5 / math.sqrt(effective)
    low = math.floor(n * (0.5 - half_width))
    high = math.ceil(n * (0.5 + half_width))
    return ordered[max(low - 1, 0)], ordered[min(high, n - 1)]


def mean_interval(values, error=1 - CONFIDENCE):
    """Return ``(mean, low, high)`` for the mean of independent values, such as the logarithm of a ratio in each block.

    Student's interval: the true mean lies outside in a share ``error`` of all cases, also with few values, unless some
    of them are far from all others on one side. With fewer than two values its ends are infinite.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), -math.inf, math.inf
    half = student_quantile(error, len(values)) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def student_quantile(error, n):
    """Return how many standard errors lie between the mean of ``n`` values and each end of its interval."""
    from scipy.special import stdtrit  # takes a tenth of a second, which `import bigtrain_nb` need not

    return float(stdtrit(n - 1, 1 - error / 2))


def likely_spread(values):
    """Return a standard deviation of such values that is larger than the true one in a share `SURE` of all cases.

    Few values tell little about how much they scatter: this is the upper end of an interval.
    """
    from scipy.special import chdtri

    freedom = len(values) - 1
    return float(np.std(values, ddof=1)) * math.sqrt(freedom / chdtri(freedom, SURE))


def half_width(spread, blocks, error):
    """Return how far to each side the interval of the mean of blocks with this standard deviation reaches."""
    return student_quantile(error, blocks) * spread / math.sqrt(blocks)


def blocks_needed(spread, goal, error, least):
    """Return how many blocks make the `half_width` ``goal`` or less; up to 2 % too many, and at least ``least``."""
    blocks = least
    while half_width(spread, blocks, error) > goal:
        blocks = math.ceil(1.02 * blocks)
    return blocks


def least_distance(values):
    """Return how far from 0 the mean is at least, by an interval that holds in a share `SURE` of all cases."""
    _, low, high = mean_interval(values, error=1 - SURE)
    return max(low, -high, 0.0)


def neighbours_alike(values):
    """Return the correlation of each value with the next, from -1 to 1: 0 where they are independent."""
    away = np.asarray(values, float) - np.mean(values)
    return float(away[:-1] @ away[1:] / (away @ away or 1))
