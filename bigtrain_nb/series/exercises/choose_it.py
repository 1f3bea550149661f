"""Exercises of notebook 13, "Choose it"."""

import numpy as np

from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished


def halving(train, trials, budget):
    left = np.arange(trials)
    rounds = int(np.ceil(np.log2(trials)))
    for _ in range(rounds):
        epochs = budget // (rounds * len(left))
        losses = [train(trial, epochs) for trial in left]
        better_half = np.argsort(losses)[: (len(left) + 1) // 2]
        left = left[better_half]
    return left[0]


class _Curves:
    """Simulated trials: each loss falls to its own limit at its own speed. Epochs beyond the budget are refused."""

    def __init__(self, trials, budget, seed):
        random = np.random.default_rng(seed)
        self.ends = random.uniform(1.0, 3.0, trials)
        self.powers = random.uniform(0.5, 1.2, trials)
        self.noise = random.normal(0, 0.03, [trials, budget + 1])
        self.epochs = np.zeros(trials, int)
        self.budget = budget

    def train(self, trial, epochs):
        if epochs < 1:
            raise Wrong(f"train was called with {epochs} epochs; at least one is needed")
        if epochs != int(epochs):
            raise Wrong(f"train was called with {epochs} epochs; expected an integer")
        self.epochs[trial] += epochs
        if self.epochs.sum() > self.budget:
            raise Wrong(
                f"{self.epochs.sum()} epochs were spent on {len(self.ends)} trials, the budget is {self.budget}"
            )
        after = self.epochs[trial]
        return self.ends[trial] + 2 * (1.0 + after) ** -self.powers[trial] + self.noise[trial, after]


@exercise(
    halving,
    takes="train(trial, epochs) -> loss, which goes on where it stopped; trials; epochs in all",
    returns="the number of a trial, from 0",
    minutes=25,
    difficulty=4,
)
def _check_halving(answer):
    """32 trials become 16, 8, 4, 2 and 1: five rounds. Give each round an equal part of the budget. Then the fewer
    trials are left, the more epochs each one gets. Remember that `train` continues where it stopped.
    """
    found = 0
    searches = []
    for repetition in range(200):
        trials, budget = [(32, 320), (24, 240)][repetition % 2]
        curves = _Curves(trials, budget, seed=repetition)
        best = answer(curves.train, trials, budget)
        if not isinstance(best, int | np.integer) or not 0 <= best < trials:
            raise Wrong(f"expected the number of a trial, 0 to {trials - 1}, got {best!r}")
        searches.append((curves, trials, budget))
        found += curves.ends[best] < min(curves.ends) + 0.05
    if found < 150:
        raise Wrong(f"the best trial, or one within 0.05 of it, was found in {found} of 200 searches; 150 are required")
    for search in searches:
        _expect_halves(*search)


def _expect_halves(curves, trials, budget):
    """Raise `Wrong` unless each round trains half the trials of the previous one, down to two or three.

    All trials that leave after the same round have the same number of epochs. Half of an odd number may be rounded
    either way, and the winner may be trained once more.
    """
    told = f"{trials} trials, {budget} epochs"
    rounds = [int(np.sum(curves.epochs >= epochs)) for epochs in np.unique(curves.epochs[curves.epochs > 0])]
    expect(rounds[0], trials, f"{told}: the number of trials in the first round")
    for before, now in zip(rounds, rounds[1:], strict=False):
        if now not in (before // 2, -(-before // 2)) or before == 1:
            raise Wrong(
                f"{told}: expected half of the trials to remain after each round, got {rounds} trials per round"
            )
    if rounds[-1] > 3:
        raise Wrong(f"{told}: expected rounds until one trial is left, got {rounds} trials per round")
    if curves.epochs.sum() < 0.7 * budget:
        raise Wrong(f"{told}: only {curves.epochs.sum()} epochs were spent, so the last trials saw too few")


@_check_halving.refuses("of 200 searches; 150 are required")
def _all_alike(train, trials, budget):
    return int(np.argmin([train(trial, budget // trials) for trial in range(trials)]))


@_check_halving.refuses("of 200 searches; 150 are required")
def _decides_after_one_epoch(train, trials, budget):
    best = int(np.argmin([train(trial, 1) for trial in range(trials)]))
    train(best, budget - trials)
    return best


@_check_halving.refuses("were spent on 32 trials, the budget is 320")
def _whole_budget_in_each_round(train, trials, budget):
    return halving(train, trials, 5 * budget)


@_check_halving.refuses("of 200 searches; 150 are required")
def _keeps_the_worse_half(train, trials, budget):
    return halving(lambda trial, epochs: -train(trial, epochs), trials, budget)


def expected_gain(gains, noise):
    seen = np.var(gains, ddof=1)
    real_part = max(0.0, 1 - noise**2 / seen)
    mean = np.mean(gains)
    return mean + real_part * (max(gains) - mean)


@exercise(
    expected_gain, takes="gains [trials]; the standard deviation of seeds", returns="a number", minutes=15, difficulty=3
)
def _check_expected_gain(answer):
    """The variance of the observed gains is spread² + noise². So what fraction of it is spread²? The winner keeps this
    fraction of its distance. Its distance from what? If all were noise, it would fall back to the mean of all.
    """
    for spread, noise, mean in [(1.0, 1.0, 0.0), (1.0, 0.3, -0.5), (0.5, 1.0, -2.0), (0.0, 1.0, 0.5), (1.0, 2.0, 0.0)]:
        random = np.random.default_rng(7)
        errors = []
        for _ in range(400):
            true = random.normal(mean, spread, 60)
            gains = true + noise * random.normal(size=60)
            estimate = answer(gains, noise)
            if not np.isscalar(estimate) or not np.isfinite(estimate):
                raise Wrong(f"expected a number, got {estimate!r}")
            errors.append(estimate - true[gains.argmax()])
        told = f"true gains with a standard deviation of {spread} around {mean:g}, seeds with one of {noise}"
        if abs(np.mean(errors)) > 0.2:
            side = "too high" if np.mean(errors) > 0 else "too low"
            raise Wrong(f"{told}: the estimate is on average {abs(np.mean(errors)):.2f} {side}; at most 0.2 is allowed")
    told = (
        "gains of 0.1, 0.2 and 0.6, seeds with a standard deviation of 1.0, more than that of the gains: all of it is"
        " noise"
    )
    expect(answer(np.array([0.1, 0.2, 0.6]), 1.0), 0.3, told, rel=1e-3)


@_check_expected_gain.refuses(
    "true gains with a standard deviation of 1.0 around 0, seeds with one of 1.0: the estimate is on average 1.6"
)
def _believes_the_search(gains, noise):
    return max(gains)


@_check_expected_gain.refuses("too high; at most 0.2 is allowed")
def _takes_what_is_seen_for_the_spread(gains, noise):
    seen = np.var(gains)
    return np.mean(gains) + seen / (seen + noise**2) * (max(gains) - np.mean(gains))


@_check_expected_gain.refuses("around -2, seeds with one of 1.0: the estimate is on average 1.6")
def _pulls_to_zero(gains, noise):
    return max(0, 1 - noise**2 / np.var(gains)) * max(gains)


@_check_expected_gain.refuses("the estimate is on average")
def _takes_off_one_noise(gains, noise):
    return max(gains) - noise


def best_rates(train, batches, rate):
    known = {}

    def loss(batch, power):
        if (batch, power) not in known:
            losses = [train(batch, rate * 2.0**power, seed) for seed in range(3)]
            known[batch, power] = np.inf if np.isnan(losses).any() else np.mean(losses)
        return known[batch, power]

    best = {}
    for batch in batches:
        power = 0
        while loss(batch, power) == np.inf or loss(batch, power - 1) < loss(batch, power):
            power -= 1
        while loss(batch, power + 1) < loss(batch, power):
            power += 1
        best[batch] = rate * 2.0**power, loss(batch, power)
    return best


class _Trainings:
    """Simulated training runs. For each batch size the mean loss of three seeds is a parabola over log2 of the learning
    rate with its minimum at ``best``; from ``diverges_at`` on, the seed ``nan_of`` diverges, or all if None. Learning
    rates are powers of two times ``start``.
    """

    def __init__(self, start, best, diverges_at, nan_of):
        self.start = start
        self.count = dict.fromkeys(best, 0)
        self._best = best
        self._diverges_at = diverges_at
        self._nan_of = nan_of
        self._done = set()

    def train(self, batch, rate, seed):
        power = np.log2(rate / self.start)
        if batch not in self._best or seed not in (0, 1, 2) or abs(power - round(power)) > 1e-6:
            raise Wrong(
                f"train({batch}, {rate}, {seed}): expected one of the batches {list(self._best)}, {self.start} times a"
                " power of two, and one of the seeds 0, 1 and 2"
            )
        power = round(power)
        if abs(power) > 20:
            raise Wrong(f"batch {batch}: the search does not end; it has reached a learning rate of {rate:.2g}")
        if (batch, power, seed) in self._done:
            raise Wrong(f"train({batch}, {rate:.3g}, {seed}) is called twice: store its result")
        self._done.add((batch, power, seed))
        self.count[batch] += 1
        if power >= self._diverges_at[batch] and self._nan_of in (None, seed):
            return float("nan")
        luck = (0.5, -0.2, -0.3)[seed]  # sums to 0
        return self.mean(batch, power) + (luck if power % 2 == 0 else -luck)

    def mean(self, batch, power):
        return 2 + 1 / batch + 0.03 * (power - self._best[batch]) ** 2


@exercise(
    best_rates,
    takes="train(batch, rate, seed) -> loss or nan; batches, a list; the rate to begin with",
    returns="{batch: (best rate, mean loss of seeds 0, 1, 2)}",
    minutes=30,
    difficulty=4,
)
def _check_best_rates(answer):
    """Write a function that returns the mean loss of the three seeds at one rate, or infinity if one of them is nan,
    and caches it in a dictionary. Then go down while the next lower rate is better or the current one diverges, and up
    while the next higher rate is better.
    """
    for best, diverges_at, nan_of in (
        ({8: 0, 16: 1}, {8: 5, 16: 5}, None),
        ({8: -3, 16: 4, 64: 5}, {8: 1, 16: 6, 64: 6}, 1),
        ({16: -4, 32: -2}, {16: -1, 32: -1}, 0),
        ({32: 2}, {32: 3}, 2),
        ({64: -5}, {64: -3}, None),
    ):
        trainings = _Trainings(0.004, best, diverges_at, nan_of)
        found = answer(trainings.train, list(best), trainings.start)
        if is_unfinished(found):
            raise NotAttempted
        if not isinstance(found, dict) or set(found) != set(best):
            raise Wrong(f"batches {list(best)}: expected a dictionary with a pair for each batch, got {found!r:.99}")
        for batch, power in best.items():
            told = f"batch {batch} of {list(best)}, from a learning rate of {trainings.start}"
            pair = found[batch]
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise Wrong(f"{told}: expected a pair, the best learning rate and its mean loss, got {pair!r:.99}")
            expect(pair[0], trainings.start * 2.0**power, f"{told}: the best learning rate")
            expect(
                pair[1], trainings.mean(batch, power), f"{told}: the mean loss of three seeds at the best learning rate"
            )
            needed = 3 * (abs(power) + 3)
            if trainings.count[batch] > needed:
                raise Wrong(f"{told}: expected at most {needed} trainings, got {trainings.count[batch]}")


@_check_best_rates.refuses(
    "batch 8 of [8, 16], from a learning rate of 0.004: the best learning rate: expected about 0.004"
)
def _one_seed(train, batches, rate):
    lucky = {}

    def train_once(batch, rate, seed):
        if seed == 0:
            lucky[batch, rate] = train(batch, rate, 0)
        return lucky[batch, rate]

    return best_rates(train_once, batches, rate)


@_check_best_rates.refuses("batch 8 of [8, 16, 64], from a learning rate of 0.004: the best learning rate")
def _best_of_three_rates(train, batches, rate):
    best = {}
    for batch in batches:
        losses = {}
        for tried in (rate / 2, rate, 2 * rate):
            losses[tried] = np.mean([train(batch, tried, seed) for seed in range(3)])
        best[batch] = min(losses, key=losses.get), min(losses.values())
    return best


@_check_best_rates.refuses("batch 16 of [16, 32], from a learning rate of 0.004: the best learning rate")
def _nan_compared(train, batches, rate):
    known = {}

    def loss(batch, power):
        if (batch, power) not in known:
            known[batch, power] = _mean(train, batch, rate * 2.0**power)
        return known[batch, power]

    best = {}
    for batch in batches:
        power = 0
        while loss(batch, power - 1) < loss(batch, power):  # never true with NaN
            power -= 1
        while loss(batch, power + 1) < loss(batch, power):
            power += 1
        best[batch] = rate * 2.0**power, loss(batch, power)
    return best


@_check_best_rates.refuses("batch 16 of [8, 16], from a learning rate of 0.004: the best learning rate")
def _rate_of_the_first_batch(train, batches, rate):
    found = best_rates(train, batches[:1], rate)
    chosen = found[batches[0]][0]
    return {
        batch: (chosen, np.mean([train(batch, chosen, seed) for seed in range(3)])) for batch in batches[1:]
    } | found


@_check_best_rates.refuses("is called twice: store its result")
def _trains_again(train, batches, rate):
    best = {}
    for batch in batches:
        power = 0
        while _mean(train, batch, rate * 2.0 ** (power + 1)) < _mean(train, batch, rate * 2.0**power):
            power += 1
        best[batch] = rate * 2.0**power, _mean(train, batch, rate * 2.0**power)
    return best


def _mean(train, batch, rate):
    return np.mean([train(batch, rate, seed) for seed in range(3)])


@_check_best_rates.refuses("from a learning rate of 0.004: expected at most 9 trainings, got 51")
def _all_rates_of_a_large_grid(train, batches, rate):
    best = {}
    for batch in batches:
        losses = {}
        for power in range(-8, 9):
            losses[rate * 2.0**power] = _mean(train, batch, rate * 2.0**power)
        losses = {tried: loss for tried, loss in losses.items() if not np.isnan(loss)}
        best[batch] = min(losses.items(), key=lambda pair: pair[1])
    return best
