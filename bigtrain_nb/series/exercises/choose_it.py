"""Exercises of notebook 13, "Choose it": search, and several tasks."""

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


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
    """Simulated trials: each falls to its own end, the good ones often slowly. Epochs beyond the budget are refused."""

    def __init__(self, trials, budget, seed):
        random = np.random.default_rng(seed)
        self.ends = random.uniform(1.0, 3.0, trials)
        self.powers = random.uniform(0.5, 1.2, trials)
        self.noise = random.normal(0, 0.03, [trials, budget + 1])
        self.epochs = np.zeros(trials, int)
        self.budget = budget
        self.asked = []

    def train(self, trial, epochs):
        if epochs < 1:
            raise Wrong(f"train was called with {epochs} epochs; at least one is needed")
        if epochs != int(epochs):
            raise Wrong(f"train was called with {epochs} epochs; it takes whole epochs")
        self.asked.append(int(trial))
        self.epochs[trial] += epochs
        if self.epochs.sum() > self.budget:
            raise Wrong(
                f"{self.epochs.sum()} epochs were spent on {len(self.ends)} trials, the budget is {self.budget}"
            )
        after = self.epochs[trial]
        return self.ends[trial] + 2 * (1.0 + after) ** -self.powers[trial] + self.noise[trial, after]


@exercise(halving, minutes=25, difficulty=4)
def _check_halving(answer):
    """32 trials become 16, 8, 4, 2 and 1: five rounds. Give each round the same part of the budget. Then the fewer
    trials are left, the more epochs each of them gets. Remember that `train` goes on where it stopped.
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
        raise Wrong(f"the best trial, or one within 0.05 of it, was found in {found} of 200 searches; 150 are wanted")
    for search in searches:
        _expect_halves(*search)


def _expect_halves(curves, trials, budget):
    """Raise `Wrong` unless each round trains half of the trials of the one before, down to the better of two or three.

    Half of an odd number may be rounded either way, and the winner may be trained once more.
    """
    told = f"{trials} trials, {budget} epochs"
    times = np.bincount(curves.asked, minlength=trials)
    rounds = [int(np.sum(times >= number)) for number in range(1, times.max() + 1)]
    expect(rounds[0], trials, f"{told}: the trials that train in the first round")
    for before, now in zip(rounds, rounds[1:], strict=False):
        if now not in (before // 2, -(-before // 2)) or before == 1:
            raise Wrong(f"{told}: expected half of the trials to go on after each round, got {rounds} in the rounds")
    if rounds[-1] > 3:
        raise Wrong(f"{told}: expected rounds until one trial is left, got {rounds} in the rounds")
    if curves.epochs.sum() < 0.7 * budget:
        raise Wrong(f"{told}: only {curves.epochs.sum()} epochs were spent, so the last trials saw too few")


@_check_halving.refuses("of 200 searches; 150 are wanted")
def _all_alike(train, trials, budget):
    return int(np.argmin([train(trial, budget // trials) for trial in range(trials)]))


@_check_halving.refuses("of 200 searches; 150 are wanted")
def _decides_after_one_epoch(train, trials, budget):
    best = int(np.argmin([train(trial, 1) for trial in range(trials)]))
    train(best, budget - trials)
    return best


@_check_halving.refuses("were spent on 32 trials, the budget is 320")
def _whole_budget_in_each_round(train, trials, budget):
    return halving(train, trials, 5 * budget)


@_check_halving.refuses("of 200 searches; 150 are wanted")
def _keeps_the_worse_half(train, trials, budget):
    return halving(lambda trial, epochs: -train(trial, epochs), trials, budget)


def expected_gain(gains, noise):
    seen = np.var(gains, ddof=1)
    real_part = max(0.0, 1 - noise**2 / seen)
    mean = np.mean(gains)
    return mean + real_part * (max(gains) - mean)


@exercise(expected_gain, minutes=15, difficulty=3)
def _check_expected_gain(answer):
    """The variance of the gains that were seen is spread² + noise². So which part of it is spread²? This part of
    the winner's distance remains, its distance from what? A trial without any luck would stand at the mean of all.
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
        told = f"settings that scatter by {spread} around {mean:g}, seeds by {noise}"
        if abs(np.mean(errors)) > 0.2:
            side = "too high" if np.mean(errors) > 0 else "too low"
            raise Wrong(f"{told}: the estimate is on average {abs(np.mean(errors)):.2f} {side}; 0.2 are allowed")
    told = "gains of 0.1, 0.2 and 0.6, seeds that scatter by 1.0, which is more than is seen: nothing of it is real"
    expect(answer(np.array([0.1, 0.2, 0.6]), 1.0), 0.3, told, rel=1e-3)


@_check_expected_gain.refuses("settings that scatter by 1.0 around 0, seeds by 1.0: the estimate is on average 1.6")
def _believes_the_search(gains, noise):
    return max(gains)


@_check_expected_gain.refuses("too high; 0.2 are allowed")
def _takes_what_is_seen_for_the_spread(gains, noise):
    seen = np.var(gains)
    return np.mean(gains) + seen / (seen + noise**2) * (max(gains) - np.mean(gains))


@_check_expected_gain.refuses("around -2, seeds by 1.0: the estimate is on average 1.6")
def _pulls_to_zero(gains, noise):
    return max(0, 1 - noise**2 / np.var(gains)) * max(gains)


@_check_expected_gain.refuses("the estimate is on average")
def _takes_off_one_noise(gains, noise):
    return max(gains) - noise


def without_conflict(gradients):
    total = np.zeros_like(gradients[0])
    for task, gradient in enumerate(gradients):
        left = gradient
        for other, against in enumerate(gradients):
            product = left @ against
            if other != task and product < 0:
                left = left - product / (against @ against) * against
        total = total + left
    return total


@exercise(without_conflict, minutes=15, difficulty=3)
def _check_without_conflict(answer):
    """The projection of a on b is (a · b) / (b · b) times b. Only where a · b is below 0 is anything subtracted. Of the
    other tasks take the gradients as they were given, and not what has been left of them.
    """
    random = np.random.default_rng(8)
    cases = {
        "two that agree": [np.array([1.0, 0.5, 0.0]), np.array([0.5, 1.0, 0.3])],
        "two that disagree": [np.array([1.0, 0.5, 0.0]), np.array([-2.0, 0.5, 1.0])],
        "three": [np.array([1.0, 0.2]), np.array([-1.0, 1.0]), np.array([-0.3, -1.0])],
        "four long ones": list(random.normal(size=(4, 50))),
        "six short ones": list(random.normal(size=(6, 2))),
    }
    for name, gradients in cases.items():
        given = [gradient.copy() for gradient in gradients]
        got = answer(gradients)
        expect(
            np.asarray(got),
            without_conflict(given),
            f"{name}: the sum of what is left, each product taken of what is left by then",
        )
        expect(gradients, given, f"{name}: the gradients that were given, which must not change")


@_check_without_conflict.refuses("two that agree: the sum of what is left")
def _always_projects(gradients):
    first, second = gradients[:2]
    return first - (first @ second) / (second @ second) * second + second - (first @ second) / (first @ first) * first


@_check_without_conflict.refuses("two that disagree: the sum of what is left")
def _one_after_another(gradients):
    left = [gradient.copy() for gradient in gradients]
    for task in range(len(left)):
        for other in range(len(left)):
            product = left[task] @ left[other]
            if other != task and product < 0:
                left[task] -= product / (left[other] @ left[other]) * left[other]
    return np.sum(left, axis=0)


@_check_without_conflict.refuses("two that disagree: the sum of what is left")
def _forgets_the_length(gradients):
    total = np.zeros_like(gradients[0])
    for task, gradient in enumerate(gradients):
        others = [other for index, other in enumerate(gradients) if index != task]
        total += gradient - sum(min(0.0, gradient @ other) * other for other in others)
    return total


@_check_without_conflict.refuses("three: the sum of what is left")
def _all_at_once(gradients):
    total = np.zeros_like(gradients[0])
    for gradient in gradients:
        total = total + gradient
        for against in gradients:
            total = total - min(0.0, gradient @ against) / (against @ against) * against
    return total


@_check_without_conflict.refuses("the gradients that were given, which must not change")
def _changes_what_was_given(gradients):
    found = without_conflict(gradients)
    gradients[0] -= 1
    return found
