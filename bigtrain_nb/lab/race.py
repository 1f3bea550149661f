"""Which of many settings is the fastest? All are interleaved, and significantly slower ones are eliminated early.

Measuring 24 settings equally long is wasteful: most are far behind after a few rounds (see `measure/rounds.py`). But a
race must not eliminate the best one, which any other setting may seem to beat at any interim check. So the allowed
error, one race in twenty, is divided by the number of settings and of checks (Bonferroni's correction).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.measure.intervals import CONFIDENCE
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.results import CHECKS_AFTER, Race
from bigtrain_nb.measure.rounds import Rounds, check_factories

MOST = 256
"""Combinations of choices in a race: each is built and warmed up."""


def race(build: Callable, *, seconds: float = 60.0, progress: Callable | None = None, **choices: Sequence) -> Race:
    """Measure all combinations of the choices, interleaved; return a `Race`, whose `finalists` are the answer.

    `build(**settings)` returns a source as for `throughput`; each choice is a list. Each setting is built once and
    warmed up, and stays in memory until it is eliminated. `seconds` is the measuring time, as for `compare`. After 4,
    6, 8, 12, 18, 28 and 40 rounds, settings significantly slower than the leader are eliminated. The intervals are wide
    enough that the fastest one is eliminated in at most one race in twenty. Because instances differ, settings within
    about 15 % of each other may all remain: compare `finalists` with `bt.compare`. The race ends when one remains,
    after 40 rounds, or when `seconds` would run out before the next check, but not before the first check. `progress`
    is as for `compare`.

    Raises ValueError for fewer than two combinations or more than 256, for a choice that is not a list and for values
    with the same string, such as 1 and "1", and everything that `compare` raises.

    Example::

        def build(batch):
            return tf.data.Dataset.range(10_000).batch(batch)

        found = bt.race(build, seconds=1, batch=[10, 100])
        source = build(**found.finalists[0])
    """
    for choice, values in choices.items():
        if not isinstance(values, list | tuple | range) or not values:
            raise ValueError(f"{choice}={values!r} must be a list of one or more choices")
    if not callable(build) or not takes(build, **choices):
        raise TypeError(
            f"build={build!r:.99} must be a function that takes the choices, {', '.join(choices) or 'none'}"
        )
    refuse_too_many(choices.values())
    settings = {}
    for values in product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        name = " ".join(f"{choice}={value}" for choice, value in chosen.items())
        if name in settings:
            raise ValueError(f"two settings have the same name, {name}: give each choice values that print differently")
        settings[name] = chosen
    return list(standings_at_checks(build, settings, seconds, progress))[-1]


def refuse_too_many(choices):
    """Raise ValueError for more combinations than a race can build."""
    count = math.prod(len(values[: MOST + 1]) for values in choices)
    if count > MOST:
        raise ValueError(f"{count:,} or more combinations, but a race takes at most {MOST}: give fewer choices")


def standings_at_checks(build, settings, seconds, progress=None):
    """Yield the `Race` so far at each interim check; `settings`: {name: settings}."""
    factories = {name: partial(build, **chosen) for name, chosen in settings.items()}
    check_factories(factories)
    seconds = scaled_seconds(seconds)
    rounds = Rounds(factories, seconds)
    eliminated = {}
    with Progress(progress) as reporter:
        rounds.build(reporter)
        done, measured = 0, len(factories)
        for check in CHECKS_AFTER:
            rounds.least = check
            one = rounds.last_seconds * len(rounds.running) / measured
            if rounds.seconds + one * (check - done) > seconds and done:
                return
            while done < check:
                rounds.add(reporter, seconds)
                done += 1
            measured = len(rounds.running)
            seen = _standings(rounds, settings, eliminated)
            leader, *others = seen.remaining
            eliminated = eliminated | {name: check for name in others if seen.ratio(name, leader).high < 1}
            rounds.drop([name for name in rounds.running if name in eliminated])
            yield _standings(rounds, settings, eliminated)
            if len(rounds.running) == 1:
                return


def _standings(rounds, settings, eliminated):
    """Return the `Race` so far: remaining settings, then eliminated ones, last first, each by descending mean rate."""

    def place(name):
        logs = [math.log(rate) for rate in rounds.rates(name)]
        return eliminated.get(name, math.inf), sum(logs) / len(logs)

    results = {name: rounds.result(name) for name in sorted(rounds.factories, key=place, reverse=True)}
    done = tuple(rounds.instances)
    return Race(results, 1 - CONFIDENCE, done, rounds.seconds, rounds.notes(), settings=settings, eliminated=eliminated)
