"""Which of many settings is the fastest? All take turns, and those that are surely slower leave the race.

To measure 24 settings equally long is a waste: most are far behind after a few rounds. What a race must not do is lose
the best one by bad luck, and luck has many chances: each of the others may look faster, at each look. So the error
that is allowed, one race in twenty, is divided by the number of both (Bonferroni's correction).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import takes
from bigtrain_nb.measure.benchmark import Budget, line_up, take_turns
from bigtrain_nb.measure.intervals import CONFIDENCE, strict_interval
from bigtrain_nb.measure.results import Comparison, Ratio

LOOKS = 7
FINALISTS = 4
"""So many are expected to run all rounds, which decides how long a round is."""
ROUNDS = 6
"""From one look to the next. An even number: a drift within a round cancels with the next one, which runs backwards."""


@dataclass(frozen=True, repr=False)
class Race(Comparison):
    """What is known of many settings that took turns, until those that were surely slower had left.

    `results`: the fastest first, then those that left. `settings`: {name: settings}. `left`: {name: after how many
    rounds}.
    """

    settings: dict[str, dict]
    left: dict[str, int]

    @property
    def still_in(self) -> list[str]:
        """The names of those that cannot be told apart, the highest median first."""
        return [name for name in self.names if name not in self.left]

    @property
    def best(self) -> list[dict]:
        """Their settings: `build(**race.best[0])`."""
        return [self.settings[name] for name in self.still_in]

    def ratio(self, a: str, b: str) -> Ratio:
        """Return the `Ratio` of a's rate over b's. All intervals of a race hold together, so they are wide."""
        error = (1 - CONFIDENCE) / LOOKS / (len(self.results) - 1)
        centre, low, high = strict_interval(self.log_ratios(a, b), error)
        return Ratio(a, b, math.exp(centre), math.exp(low), math.exp(high))

    @property
    def answer(self) -> str:
        """Who is still in, in a sentence."""
        what = "Cannot be told apart" if len(self.best) > 1 else "The fastest"
        return f"{what} ({len(self.best)} of {len(self.results)}): {', '.join(self.still_in)}."

    def to_dict(self) -> dict:
        """Raises ValueError for settings that JSON would not give back as they are, such as functions and tuples."""
        for chosen in self.settings.values():
            for choice, value in chosen.items():
                if not _is_kept_by_json(value):
                    raise ValueError(
                        f"{choice}={value!r} cannot be saved, only None, True, False, numbers, texts and lists of them:"
                        " let the race choose between names, and build look up what they stand for"
                    )
        return {**super().to_dict(), "settings": self.settings, "left": self.left}

    def _card(self):
        return cards.stacked(cards.note(self.answer, ""), super()._card())


def race(build: Callable, *, seconds: float = 60.0, progress: Callable | None = None, **choices: Sequence) -> Race:
    """Measure all combinations of the choices in interleaved rounds; return a `Race`, whose `best` is the answer.

    `build(**settings)` returns a source as for `throughput`; each choice is a list. After every sixth round, those that
    are slower than the leader by more than 2 % leave: the whole interval says so, and it is so wide that the fastest
    one leaves in at most one race of twenty. The race ends when one is left, after 42 rounds, or when `seconds` do not
    suffice for six more, but not before the first look. `progress` is as for `throughput`.

    Raises ValueError for fewer than two combinations and for a choice that is no list, and whatever `compare` raises.

    Example::

        def build(batch):
            return tf.data.Dataset.range(10_000).batch(batch)

        found = bt.race(build, seconds=1, batch=[10, 100])
        source = build(**found.best[0])
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
        settings[name] = chosen
    return list(looks(build, settings, seconds, progress))[-1]


def looks(build, settings, seconds, progress=None):
    """Yield the `Race` as it stands at each look; `settings`: {name: settings}."""
    budget = Budget(seconds, progress)
    factories = {name: partial(build, **chosen) for name, chosen in settings.items()}
    expected = ROUNDS + ROUNDS * LOOKS * FINALISTS / len(settings)  # rounds of one, on average
    meters, slot = line_up(factories, budget, expected)
    running = list(meters)
    left = {}
    for look in range(1, LOOKS + 1):
        for _ in range(ROUNDS):
            take_turns(running, slot)
        seen = _standings(meters, settings, left)
        leader, *others = seen.still_in
        slower = [name for name in others if seen.ratio(name, leader).verdict == "slower"]
        left = {**left, **dict.fromkeys(slower, look * ROUNDS)}
        running = [meter for meter in running if meter.name not in left]
        yield _standings(meters, settings, left)
        if len(running) == 1 or budget.left() < ROUNDS * len(running) * slot:
            return


def _standings(meters, settings, left):
    results = [meter.result() for meter in meters]
    results.sort(key=lambda result: (left.get(result.name, math.inf), result.median), reverse=True)
    return Race({result.name: result for result in results}, settings, left)


def _is_kept_by_json(value):
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
