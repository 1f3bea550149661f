"""Confidence intervals for a median of rounds, for a mean, and for the ratio of two sources."""

import math

import numpy as np

CONFIDENCE = 0.95
SCATTER, SCATTER_ROUNDS = 0.25, 3
"""Prior: the logarithm of a ratio has a standard deviation of 0.25 between rounds. It has the weight of 3 rounds."""
BETWEEN, WITHIN = 0.12, 2.0
"""Prior where the noise within windows is known: 0.12 between rounds plus twice that noise, added in quadrature and at
most `SCATTER`. The factor of two is there because windows differ by more than their halves show."""
INSTANCE_SCATTER, LUCK_INSTANCES = 0.03, 2
"""Prior: instances of one source have a standard deviation of 3 %, with the weight of 2 instances. The measurements
behind these constants are in benchmarks/README.md, "Does the measuring tell the truth?"."""
LEAST_INSTANCES = 4


def median_interval(rounds):
    """Return ``(low, high)``: a 95 % confidence interval for the median of the rounds of one measurement.

    The ends are two order statistics, chosen by the normal approximation of the binomial. The interval holds the true
    median at least 95 % of the time, whatever the distribution of the noise (J.-Y. Le Boudec, "Performance Evaluation
    of Computer and Communication Systems", 2010, section 2.2; recommended for timings by T. Hoefler and R. Belli,
    "Scientific Benchmarking of Parallel Computing Systems", SC 2015). This requires independent rounds. Drift
    correlates neighboring rounds, so n is first reduced to an effective sample size, ``n (1 - r) / (1 + r)`` with r the
    lag-1 autocorrelation of the ranks. With too few rounds for 95 %, the interval is the full range.
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
    """Return ``(mean, low, high)``: Student's interval for the mean of independent values.

    It misses the true mean in a fraction ``error`` of cases, even with few values, unless outliers skew them. With
    fewer than two values its ends are infinite.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), -math.inf, math.inf
    half = student_quantile(error, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def expected_scatter(noise, of_other):
    """Return the expected standard deviation between rounds of the logarithm of a ratio, before seeing its values.

    ``noise`` and ``of_other``: the standard errors of the logarithm of each source's rate in a window, estimated from
    the halves of windows; None if unknown. They do not include variation between windows.
    """
    if noise is None or of_other is None:
        return SCATTER
    return min(SCATTER, math.hypot(BETWEEN, WITHIN * noise, WITHIN * of_other))


def ratio_interval(values, instances, error, scatter=SCATTER):
    """Return ``(mean, low, high)`` for the logarithm of the ratio of two sources, and the instances' variance share.

    ``values``: that logarithm in each round; ``instances``: for each round, the index of its instances.
    ``scatter``: the expected standard deviation of the values, see `expected_scatter`.

    The variance of the mean is the variance between rounds / their number + the variance between instances / their
    number. The variance between rounds is pooled with a prior that has the weight of a few rounds, so two or three
    rounds that happen to agree do not give a narrow interval. The variance between instances is the prior alone for
    fewer than four instances; from four on, it is pooled with the variance of the instances' means. Student's quantile
    uses the Welch-Satterthwaite degrees of freedom for a sum of variances (B. L. Welch, Biometrika 34, 1947).
    """
    values = np.asarray(values, float)
    rounds = len(values)
    mean = float(values.mean())
    if rounds < 2:
        return mean, -math.inf, math.inf, 1.0
    numbers, sizes = np.unique(instances, return_counts=True)
    means = np.array([values[np.equal(instances, number)].mean() for number in numbers])
    estimates_variance = len(numbers) >= LEAST_INSTANCES
    middles = np.repeat(means, sizes) if estimates_variance else mean
    seen = rounds - (len(numbers) if estimates_variance else 1)
    of_round = ((values - middles) ** 2).sum() + SCATTER_ROUNDS * scatter**2
    of_round /= seen + SCATTER_ROUNDS
    of_instance, instances_seen = 2 * INSTANCE_SCATTER**2, 28  # of both sources; a prior, so with nearly normal tails
    if estimates_variance:
        instances_seen = len(numbers) - 1
        between = max(0.0, means.var(ddof=1) - of_round * (1 / sizes).mean())
        of_instance = LUCK_INSTANCES * of_instance + instances_seen * between
        of_instance /= instances_seen + LUCK_INSTANCES
    noise = of_round / rounds
    instance_noise = of_instance * ((sizes / rounds) ** 2).sum()
    variance = noise + instance_noise
    freedom = variance**2 / (noise**2 / (seen + SCATTER_ROUNDS) + instance_noise**2 / (instances_seen + LUCK_INSTANCES))
    half = student_quantile(error, freedom) * math.sqrt(variance)
    return mean, mean - half, mean + half, float(instance_noise / variance)


def student_quantile(error, freedom):
    """Return the distance from a mean to each end of its interval, in standard errors."""
    from scipy.special import stdtrit  # slow: 0.1 s, so not at `import bigtrain_nb`

    return float(stdtrit(freedom, 1 - error / 2))
