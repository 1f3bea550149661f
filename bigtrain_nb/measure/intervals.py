"""Intervals: for the median of one measurement's rounds, for the mean of values, for the ratio of two sources."""

import math

import numpy as np

CONFIDENCE = 0.95
SCATTER, SCATTER_ROUNDS = 0.25, 3
"""Before anything is measured: logarithms of a ratio scatter by 0.25 from round to round. That counts as 3 rounds."""
BETWEEN, WITHIN = 0.12, 2.0
"""Where the noise within windows is known, rounds are expected to scatter by 0.12, and by twice what that noise makes
of a round, as windows differ by more than what their parts show; but by no more than `SCATTER`."""
LUCK, LUCK_INSTANCES = 0.03, 2
"""And instances of one source differ by 3 % (a standard deviation). That counts as 2 instances. What was measured, and
chosen by it, stands in benchmarks/README.md, "Does the measuring tell the truth?"."""
INSTANCES_TO_SEE_LUCK = 4


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
    away = ranks - ranks.mean()
    r = max(0.0, away[:-1] @ away[1:] / (away @ away or 1))
    effective = max(1.0, n * (1 - r) / (1 + r))
    half_width = 1.96 * 0.5 / math.sqrt(effective)
    low = math.floor(n * (0.5 - half_width))
    high = math.ceil(n * (0.5 + half_width))
    return ordered[max(low - 1, 0)], ordered[min(high, n - 1)]


def mean_interval(values, error=1 - CONFIDENCE):
    """Return ``(mean, low, high)`` for the mean of independent values.

    Student's interval: the true mean lies outside in a share ``error`` of all cases, also with few values, unless some
    of them are far from all others on one side. With fewer than two values its ends are infinite.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), -math.inf, math.inf
    half = student_quantile(error, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def expected_scatter(noise, of_other):
    """Return how much logarithms of a ratio scatter from round to round, as far as is known without looking at them.

    ``noise`` and ``of_other``: the standard errors of the logarithm of each source's rate in a window, as the parts
    of windows show them; None where they are not known. What changes between windows, they do not show.
    """
    if noise is None or of_other is None:
        return SCATTER
    return min(SCATTER, math.hypot(BETWEEN, WITHIN * noise, WITHIN * of_other))


def ratio_interval(values, instances, error, scatter=SCATTER):
    """Return ``(mean, low, high)`` for the logarithm of the ratio of two sources, and the share of luck in the width.

    ``values``: that logarithm in each round; ``instances``: for each round, the number of those that it visited.
    ``scatter``: how much the values were expected to scatter, see `expected_scatter`.

    The variance of the mean is that of rounds / their number + that of luck / the number of instances. To the scatter
    of the rounds something is added that was known before, as if a few rounds more had been seen, so that two or three
    rounds that agree by chance promise little. So it is with luck: with fewer than four instances it is what was known
    before; from four on, the means of instances show it too. Student's quantile is taken at Welch and Satterthwaite's
    degrees of freedom for a sum of variances (B. L. Welch, Biometrika 34, 1947).
    """
    values = np.asarray(values, float)
    rounds = len(values)
    mean = float(values.mean())
    if rounds < 2:
        return mean, -math.inf, math.inf, 1.0
    numbers, sizes = np.unique(instances, return_counts=True)
    means = np.array([values[np.equal(instances, number)].mean() for number in numbers])
    sees_luck = len(numbers) >= INSTANCES_TO_SEE_LUCK
    middles = np.repeat(means, sizes) if sees_luck else mean
    seen = rounds - (len(numbers) if sees_luck else 1)
    of_round = ((values - middles) ** 2).sum() + SCATTER_ROUNDS * scatter**2
    of_round /= seen + SCATTER_ROUNDS
    of_luck, luck_seen = 2 * LUCK**2, 28  # of the two together; known before, so with nearly normal tails
    if sees_luck:
        luck_seen = len(numbers) - 1
        between = max(0.0, means.var(ddof=1) - of_round * (1 / sizes).mean())
        of_luck = LUCK_INSTANCES * of_luck + luck_seen * between
        of_luck /= luck_seen + LUCK_INSTANCES
    noise = of_round / rounds
    luck = of_luck * ((sizes / rounds) ** 2).sum()
    variance = noise + luck
    freedom = variance**2 / (noise**2 / (seen + SCATTER_ROUNDS) + luck**2 / (luck_seen + LUCK_INSTANCES))
    half = student_quantile(error, freedom) * math.sqrt(variance)
    return mean, mean - half, mean + half, float(luck / variance)


def student_quantile(error, freedom):
    """Return how many standard errors lie between a mean and each end of its interval."""
    from scipy.special import stdtrit  # takes a tenth of a second, which `import bigtrain_nb` need not

    return float(stdtrit(freedom, 1 - error / 2))
