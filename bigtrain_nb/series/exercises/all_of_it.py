"""Exercises of notebook 06, "All of it"."""

import keras
import numpy as np

import bigtrain_nb as bt
from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished

ENOUGH = 4
"""So many times as fast a step of the ledger must be, by its whole interval if the machine is calm enough for one."""


def which_stage(weights, peaks):
    devices = np.array(list(peaks))
    measured = np.array(list(peaks.values()))
    scatter = []
    not_shared = []
    for shared in (0, 12, 14, 16):  # bytes a weight
        rest = measured - weights * (16 - shared + shared / devices)
        scatter.append(np.ptp(rest))
        not_shared.append(rest.mean())
    stage = int(np.argmin(scatter))
    return stage, not_shared[stage]


@exercise(which_stage, minutes=15, difficulty=3)
def _check_which_stage(answer):
    """Suppose that it is stage 2. How many bytes of each peak are then not shared? That must be the same number on 4,
    8 and 16 devices. For the wrong stage it is not.
    """
    for weights, stage, rest, off in [
        (1e9, 3, 9.0e9, {4: 0.02e9, 8: -0.02e9, 16: 0.0}),
        (1e9, 0, 2.0e9, {4: 0.01e9, 8: -0.02e9, 16: 0.01e9}),
        (1e9, 1, 12.5e9, {16: -0.01e9, 4: 0.02e9, 8: -0.01e9}),
        (1e9, 2, 3.0e9, {2: 0.0, 8: 0.02e9, 64: -0.02e9}),
        (7e9, 1, 6.0e9, {8: 0.02e9, 16: -0.02e9, 32: 0.0}),
        (7e9, 2, 20.0e9, {8: -0.01e9, 16: -0.01e9, 32: 0.02e9}),
    ]:
        shared = [0, 12, 14, 16][stage]
        peaks = {n: weights * (16 - shared + shared / n) + rest + noise for n, noise in off.items()}
        shown = ", ".join(f"{peak / 1e9:.2f} GB on each of {n}" for n, peak in peaks.items())
        around = f"{weights / 1e9:.0f} B weights, {shown}"
        found = answer(weights, dict(peaks))
        if not isinstance(found, tuple) or len(found) != 2:
            raise Wrong(f"{around}: expected a pair, the stage and the bytes that are not shared, got {found!r}")
        expect(found[0], stage, f"{around}: the stage")
        if not abs(found[1] - rest) < 0.05e9:  # nan is no less than anything
            raise Wrong(f"{around}: expected {rest / 1e9:.2f} GB that are not shared, got {found[1] / 1e9:.2f}")


@_check_which_stage.refuses("10.00 GB on each of 16: the stage: expected 3, got 1")
def _nothing_else_in_memory(weights, peaks):
    devices, peak = max(peaks.items())
    kept = [weights * (16 - shared + shared / devices) for shared in (0, 12, 14, 16)]
    stage = int(np.argmin([abs(peak - each) for each in kept]))
    return stage, peak - kept[stage]


@_check_which_stage.refuses("expected 9.00 GB that are not shared, got 13.02")
def _first_peak_is_the_rest(weights, peaks):
    return which_stage(weights, peaks)[0], next(iter(peaks.values()))


@_check_which_stage.refuses("the stage: expected 0, got 3")
def _believes_what_was_asked_for(weights, peaks):
    devices, peak = next(iter(peaks.items()))
    return 3, peak - 16 * weights / devices


@_check_which_stage.refuses("expected a pair, the stage and the bytes that are not shared, got 3")
def _the_stage_only(weights, peaks):
    return which_stage(weights, peaks)[0]


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
    """Imitated trainings. For each batch the mean loss of three seeds is a parabola over log2 of the rate, with its
    least value at ``best``; from ``diverges_at`` on, the seed ``nan_of`` diverges, or all do. Rates are counted in
    powers of two from ``start``.
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
            raise Wrong(f"batch {batch}: the search does not end, it is at a rate of {rate:.2g}")
        if (batch, power, seed) in self._done:
            raise Wrong(f"train({batch}, {rate:.3g}, {seed}) is called twice: keep what you know")
        self._done.add((batch, power, seed))
        self.count[batch] += 1
        if power >= self._diverges_at[batch] and self._nan_of in (None, seed):
            return float("nan")
        luck = (0.5, -0.2, -0.3)[seed]  # together 0
        return self.mean(batch, power) + (luck if power % 2 == 0 else -luck)

    def mean(self, batch, power):
        return 2 + 1 / batch + 0.03 * (power - self._best[batch]) ** 2


@exercise(best_rates, minutes=30, difficulty=4)
def _check_best_rates(answer):
    """Write a function that gives the mean loss of the three seeds at one rate, and keeps it in a dictionary; if one
    of them is nan, it gives infinity. Then go down while the rate below is better or the one where you stand diverges,
    and up while the rate above is better.
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
            told = f"batch {batch} of {list(best)}, from a rate of {trainings.start} on"
            pair = found[batch]
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise Wrong(f"{told}: expected a pair, the best rate and its mean loss, got {pair!r:.99}")
            expect(pair[0], trainings.start * 2.0**power, f"{told}: the best rate")
            expect(pair[1], trainings.mean(batch, power), f"{told}: the mean loss of three seeds at the best rate")
            needed = 3 * (abs(power) + 3)
            if trainings.count[batch] > needed:
                raise Wrong(f"{told}: expected at most {needed} trainings, got {trainings.count[batch]}")


@_check_best_rates.refuses("batch 8 of [8, 16], from a rate of 0.004 on: the best rate: expected about 0.004")
def _one_seed(train, batches, rate):
    lucky = {}

    def train_once(batch, rate, seed):
        if seed == 0:
            lucky[batch, rate] = train(batch, rate, 0)
        return lucky[batch, rate]

    return best_rates(train_once, batches, rate)


@_check_best_rates.refuses("batch 8 of [8, 16, 64], from a rate of 0.004 on: the best rate")
def _best_of_three_rates(train, batches, rate):
    best = {}
    for batch in batches:
        losses = {}
        for tried in (rate / 2, rate, 2 * rate):
            losses[tried] = np.mean([train(batch, tried, seed) for seed in range(3)])
        best[batch] = min(losses, key=losses.get), min(losses.values())
    return best


@_check_best_rates.refuses("batch 16 of [16, 32], from a rate of 0.004 on: the best rate")
def _nan_compared(train, batches, rate):
    known = {}

    def loss(batch, power):
        if (batch, power) not in known:
            known[batch, power] = _mean(train, batch, rate * 2.0**power)
        return known[batch, power]

    best = {}
    for batch in batches:
        power = 0
        while loss(batch, power - 1) < loss(batch, power):  # never true beside nan
            power -= 1
        while loss(batch, power + 1) < loss(batch, power):
            power += 1
        best[batch] = rate * 2.0**power, loss(batch, power)
    return best


@_check_best_rates.refuses("batch 16 of [8, 16], from a rate of 0.004 on: the best rate")
def _rate_of_the_first_batch(train, batches, rate):
    found = best_rates(train, batches[:1], rate)
    chosen = found[batches[0]][0]
    return {
        batch: (chosen, np.mean([train(batch, chosen, seed) for seed in range(3)])) for batch in batches[1:]
    } | found


@_check_best_rates.refuses("is called twice: keep what you know")
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


@_check_best_rates.refuses("from a rate of 0.004 on: expected at most 9 trainings, got 51")
def _all_rates_of_a_large_grid(train, batches, rate):
    best = {}
    for batch in batches:
        losses = {}
        for power in range(-8, 9):
            losses[rate * 2.0**power] = _mean(train, batch, rate * 2.0**power)
        losses = {tried: loss for tried, loss in losses.items() if not np.isnan(loss)}
        best[batch] = min(losses.items(), key=lambda pair: pair[1])
    return best


def next_step(model, optimizer, examples):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train(seen, follows):
        with tf.GradientTape() as tape:
            mean = loss(follows, model(seen, training=True))
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    def step():
        batch = [next(examples) for _ in range(4)]
        seen = np.stack([example[0] for example in batch])
        follows = np.stack([example[1] for example in batch])
        train(seen, follows)
        return 4

    return step


def colleagues_step(model, optimizer, examples):
    """Return the step function that the notebook shows, which trains on one example after the other."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step():
        with tf.GradientTape() as tape:
            mean = 0.0
            for _ in range(4):
                seen, follows = next(examples)
                mean += loss(follows[None], model(seen[None], training=True)) / 4
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return 4

    return step


@exercise(next_step, minutes=20, difficulty=4, seconds=120)
def _check_next_step(answer):
    """Where does the time go? Four small forward passes, and hundreds of operations that Python starts one by one. Put
    the four examples into one batch, and make one graph of the step with `tf.function`. What Python draws must stay
    outside the graph, or it is drawn once and never again.
    """
    model, optimizer, examples = _new_training()
    yours = answer(model, optimizer, examples)
    if not callable(yours):
        raise Wrong(f"next_step: expected a step function, got {yours!r}")
    reference, their_optimizer, their_examples = _new_training()
    start = [weight.numpy() for weight in reference.trainable_variables]
    theirs = colleagues_step(reference, their_optimizer, their_examples)
    _train(theirs, 16)
    expect(_train(yours, 16), 16, "examples after which a step ends; the sum of what the step function returns")

    moved = []
    apart = []
    for before, right, weight in zip(start, reference.trainable_variables, model.trainable_variables, strict=True):
        moved.append(np.abs(right - before).max())
        apart.append(np.abs(right - weight).max())
    off = np.max(apart) / np.max(moved)
    if not off < 1e-3:  # nan is no less than anything
        raise Wrong(
            f"after 16 examples: expected the weights of the colleague's step, got some that are {off:.1%} of"
            " the way apart. Does each step take the next four examples, and is there one update for every four?"
        )

    for seconds in (1, 4):  # if the interval still holds it then, the median decides
        measured = bt.compare({"yours": lambda: yours, "the colleague's": lambda: theirs}, seconds=seconds)
        gain = measured.ratio("yours", "the colleague's")
        if not gain.low <= ENOUGH < gain.high:
            break
    if not gain.median > ENOUGH:
        raise Wrong(f"examples/s: expected the whole interval above {ENOUGH}x the colleague's, measured {gain}")


def _new_training():
    """A small model, its optimizer, and examples without end; each time the same."""
    keras.utils.set_random_seed(1)
    model = bt.gpt(length=16, width=16, layers=1, heads=2)
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
    return model, optimizer, _examples()


def _examples():
    drawn = np.random.default_rng(0)
    while True:
        window = drawn.integers(0, 256, 17)
        yield window[:-1], window[1:]


def _train(step, least):
    """Call a step function until it has taken so many examples; return how many."""
    taken = 0
    while taken < least:
        taken += step()
    return taken


@_check_next_step.refuses("expected the whole interval above 4x the colleague's, measured")
def _as_it_is(model, optimizer, examples):
    return colleagues_step(model, optimizer, examples)


@_check_next_step.refuses("Does each step take the next four examples")
def _draws_inside_the_graph(model, optimizer, examples):
    return tf.function(colleagues_step(model, optimizer, examples))


@_check_next_step.refuses("Does each step take the next four examples")
def _one_update_for_16(model, optimizer, examples):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step():
        batch = [next(examples) for _ in range(16)]
        seen = np.stack([example[0] for example in batch])
        follows = np.stack([example[1] for example in batch])
        with tf.GradientTape() as tape:
            mean = loss(follows, model(seen, training=True))
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return 16

    return step


@_check_next_step.refuses("is there one update for every four?")
def _counts_more_than_it_takes(model, optimizer, examples):
    small = next_step(model, optimizer, examples)

    def step():
        return 4 * small()

    return step


@_check_next_step.refuses("expected a step function, got None")
def _returns_nothing(model, optimizer, examples):
    colleagues_step(model, optimizer, examples)
