"""Which of many settings is the fastest? All are interleaved, and significantly slower ones are eliminated early.

Measuring 24 settings equally long is wasteful: most are far behind after a few rounds (see `rounds`). But a race must
not eliminate the best one, which any other setting may seem to beat at any interim check. So the allowed error, one
race in twenty, is divided by the number of settings and of checks (Bonferroni's correction).
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import as_path, takes
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.common.words import interval
from bigtrain_nb.measure.intervals import CONFIDENCE
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.measure.rounds import Rounds, check_factories

CHECKS_AFTER = (4, 6, 8, 12, 18, 28, 40)
"""Rounds before each interim check. Even: the next round runs in reverse order, which cancels drift within a round."""


@dataclass(frozen=True, repr=False)
class Race(Comparison):
    """The result of measuring many settings interleaved while eliminating significantly slower ones.

    `results`: the fastest first, then the eliminated ones. `settings`: {name: settings}. `eliminated`: {name: rounds
    before elimination}. The intervals of `ratio` are wide: in 95 % of races the upper ends of all of them hold at all
    interim checks, and so do all lower ends.
    """

    settings: dict[str, dict] = field(kw_only=True)
    eliminated: dict[str, int] = field(kw_only=True)

    @property
    def remaining(self) -> list[str]:
        """The names of the settings that were not eliminated, the highest mean first."""
        return [name for name in self.names if name not in self.eliminated]

    @property
    def finalists(self) -> list[dict]:
        """Their settings: `build(**race.finalists[0])`."""
        return [self.settings[name] for name in self.remaining]

    def to_dict(self) -> dict:
        """Raises ValueError for settings that change in a JSON round trip, such as functions and tuples."""
        for chosen in self.settings.values():
            for choice, value in chosen.items():
                if json.loads(json.dumps(value, default=repr)) != value:
                    raise ValueError(
                        f"{choice}={value!r} cannot be saved; only None, True, False, numbers, strings and lists of"
                        " them can: let the race choose between names, and look them up in build"
                    )
        return {**super().to_dict(), "settings": self.settings, "eliminated": self.eliminated}

    def _error_of_one(self, a, b):
        return 2 * (1 - CONFIDENCE) / len(CHECKS_AFTER) / (len(self.results) - 1)

    def _against(self, name, first):
        if name not in self.eliminated:
            return super()._against(name, first)
        return f"{interval(self.ratio(name, first))}, eliminated as slower after {self.eliminated[name]} rounds"

    def _card(self):
        what = "Cannot be told apart" if len(self.remaining) > 1 else "The fastest"
        answer = f"{what} ({len(self.remaining)} of {len(self.results)}): {', '.join(self.remaining)}."
        return cards.stacked(cards.note(answer, ""), super()._card())


def race(build: Callable, *, seconds: float = 60.0, progress: Callable | None = None, **choices: Sequence) -> Race:
    """Measure all combinations of the choices, interleaved; return a `Race`, whose `finalists` are the answer.

    `build(**settings)` returns a source as for `throughput`; each choice is a list. Each setting is built once and
    warmed up, and stays in memory until it is eliminated. `seconds` is the measuring time, as for `compare`. After 4,
    6, 8, 12, 18, 28 and 40 rounds, settings significantly slower than the leader are eliminated. The intervals are wide
    enough that the fastest one is eliminated in at most one race in twenty. Because instances differ, settings within
    about 15 % of each other may all remain: compare `finalists` with `bt.compare`. The race ends when one remains,
    after 40 rounds, or when `seconds` would run out before the next check, but not before the first check. `progress`
    is as for `compare`.

    Raises ValueError for fewer than two combinations, for a choice that is not a list and for values with the same
    string, such as 1 and "1", and everything that `compare` raises.

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
    settings = {}
    for values in product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        name = " ".join(f"{choice}={value}" for choice, value in chosen.items())
        if name in settings:
            raise ValueError(f"two settings have the same name, {name}: give each choice values that print differently")
        settings[name] = chosen
    return list(standings_at_checks(build, settings, seconds, progress))[-1]


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


def load(path: str | os.PathLike) -> Result | Comparison | Race:
    """Read a saved `Result`, `Comparison` or `Race`.

    Raises ValueError for a file with other contents, FileNotFoundError if there is no file.

    Example::

        bt.throughput([[0] * 8] * 50, seconds=0.5).save("lists.json")
        print(bt.load("lists.json"))
    """
    try:
        fields = json.loads(Path(as_path("path", path)).read_bytes())
        several = fields.get("results")
        results = {each["name"]: Result(**each | {"rounds": tuple(each["rounds"])}) for each in several or [fields]}
        if several:
            error, seconds = fields["error"], fields["seconds"]
            instances, notes = tuple(fields["instances"]), tuple(fields["notes"])
        race = {}
        if "settings" in fields:
            key = "eliminated" if "eliminated" in fields else "left"  # its former name
            race = {"settings": fields["settings"], "eliminated": fields[key]}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"{path} holds no saved measurement: bt.load reads files that .save(path) of a Result, Comparison or Race"
            " has written; load a model with bt.load_model"
        ) from None
    if several is None:
        return results[fields["name"]]
    kind = Race if race else Comparison
    return kind(results, error, instances, seconds, notes, **race)
