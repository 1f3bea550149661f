"""A race of many settings on a simulated clock: the best stays, along with those too close to it."""

from functools import partial
from math import exp, prod

import numpy as np
from clocks import Clock, Source

from bigtrain_nb.lab import runs
from bigtrain_nb.lab.race import race
from bigtrain_nb.measure import progress, source
from bigtrain_nb.measure.results import CHECKS_AFTER, Race, Result

CHOICES = {"reads": [1.0, 1.9, 2.0, 1.5], "calls": [1.0, 0.6, 0.9], "copies": [0.97, 1.0]}
BEST = {"reads": 2.0, "calls": 1.0, "copies": 1.0}
SEEDS = 20


class Noisy(Source):
    """A source on a drifting machine. Instances vary, and some batches stall."""

    def __init__(self, clock, cost, rng):
        super().__init__(clock, self.noisy)
        self.base, self.rng = cost, rng
        self.luck = exp(self.rng.normal(0, 0.03))

    def noisy(self, _):
        drift = 1 + 0.002 * self.clock.now + 0.3 * np.sin(self.clock.now / 7)
        stall = self.rng.exponential(2) if self.rng.random() < 0.01 else 0
        return self.base * drift * self.luck * (self.rng.lognormal(0, 0.1) + stall)


def noisy_races(monkeypatch, speed):
    """Return a race of the 24 choices for each seed; `speed(settings)` is their speed."""
    monkeypatch.setattr(source, "wait_until_idle", lambda *_: False)
    races = []
    for seed in range(SEEDS):
        clock = Clock()
        monkeypatch.setattr(source, "now", clock)
        monkeypatch.setattr(progress, "now", clock)
        build = partial(noisy_source, clock, np.random.default_rng(seed), speed)
        races.append(race(build, seconds=120, **CHOICES))
    return races


def noisy_source(clock, rng, speed, **chosen):
    return Noisy(clock, 0.02 / speed(chosen), rng)


def test_the_best_of_24_stays_and_less_than_half_of_the_rounds_suffices(monkeypatch):
    races = noisy_races(monkeypatch, lambda chosen: prod(chosen.values()))
    assert sum(BEST in found.finalists for found in races) >= 0.95 * SEEDS
    assert np.mean([len(found.finalists) for found in races]) < 9
    for found in races:
        rounds = [len(result.rounds) for result in found.results.values()]
        assert min(rounds) >= CHECKS_AFTER[0] and sum(rounds) <= 0.4 * 24 * CHECKS_AFTER[-1]


def test_none_of_24_equals_is_thrown_out_by_luck(monkeypatch):
    races = noisy_races(monkeypatch, lambda chosen: 1.0)
    assert sum(BEST in found.finalists for found in races) >= 0.95 * SEEDS


def test_each_setting_is_built_once_and_let_go_when_it_leaves(clock):
    built = []

    def build(cost):
        built.append(cost)
        return Source(clock, cost, [32] * 20)

    found = race(build, seconds=60, cost=[0.01, 0.02, 0.0101])
    assert sorted(built) == [0.01, 0.0101, 0.02]
    assert found.eliminated == {"cost=0.02": CHECKS_AFTER[0]} and len(found.finalists) == 2


def test_the_answer_says_who_remains_and_who_was_eliminated_when(clock):
    rng = np.random.default_rng(0)

    def build(cost, place):
        return Source(clock, lambda _: cost / 1000 * rng.lognormal(0, 0.1))

    found = race(build, seconds=90, cost=[20, 10], place=[1, 2])
    assert {chosen["cost"] for chosen in found.finalists} == {10} and len(found.finalists) == 2
    assert found.eliminated == {"cost=20 place=1": 4, "cost=20 place=2": 4}
    assert [len(result.rounds) for result in found.results.values()] == [40, 40, 4, 4]
    assert str(found).startswith(f"Cannot be told apart (2 of 4): {', '.join(found.remaining)}.\n")
    assert str(found).count("at most 0.") == 2
    assert found._repr_html_().count('scope="row"') == 4
    assert found.figure().axes


def test_the_lab_shows_of_a_race_what_was_measured_in_the_same_rounds():
    """A machine that slowed down, and an elimination by less than what is called slower."""
    rounds = {"run 1": [1200.0] * 4 + [500.0] * 36, "run 2": [1190.0] * 4 + [496.0] * 36, "run 3": [800.0] * 4}
    results = {name: Result(name, tuple(each), "examples/s", 0.1, 99, 1.0, noise=0.01) for name, each in rounds.items()}
    settings = {name: {"n": number} for number, name in enumerate(rounds, 1)}
    race = Race(results, 0.05, (), 9.0, (), settings=settings, eliminated={"run 3": 4})
    first = runs.Run(settings["run 1"], results["run 1"], race)
    others = [runs.Run(settings[name], results[name], race, against=first) for name in ("run 3", "run 2")]
    large, measured = runs.headline([*others, first])
    assert "run 2, n=2" in measured and "496 examples/s against 500" in measured and "fastest" not in large
    (row,) = [line for line in runs.table([*others, first]).text.splitlines() if line.startswith("run 3")]
    assert row.split()[3:] == ["800", "0.67x:", "eliminated", "run", "1:", "1,200"]
