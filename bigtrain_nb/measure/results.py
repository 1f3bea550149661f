"""What a measurement gives back: rates with intervals, ratios with one of four verdicts, and their JSON.

A verdict is "faster" or "slower" where the whole interval lies more than 2 % off 1, "same" where it lies within 2 % of
1, and "unclear" in all other cases: nobody can tell yet, and measuring longer may.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, ClassVar

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import one_of
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import amount, interval, number
from bigtrain_nb.measure.intervals import median_interval, ratio_interval

PRACTICALLY_SAME = 0.02
"""Ratios within 2 % of 1 are called the same: smaller differences are not worth a change."""
CLOSE = 1.5
"""Times. What may be farther apart than this and is not clear is not close: it is noisy."""
MOSTLY_LUCK = 0.5
"""Of the variance. Where luck has more of it, more rounds of the same instances hardly help."""


class Saved:
    """Can be written to a file."""

    def save(self, path: str | os.PathLike) -> None:
        """Write all rounds and the machine's description as JSON; `bigtrain_nb.load` reads it back."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")


@dataclass(frozen=True, repr=False)
class Result(Saved, cards.Shown):
    """The rate of one source: every measured round, their median and its interval.

    ``rounds`` are rates in ``unit`` ("examples/s" or "steps/s"); ``first_seconds`` is the time from asking for an
    iterator to its first batch, in seconds; ``examples`` and ``seconds`` are what all rounds counted together;
    ``note`` says what a reader should know, or is empty. ``machine`` describes the machine of a loaded result; None
    means this one. ``low`` and ``high`` are the ends of a 95 % interval for the median; of fewer than six rounds they
    are the lowest and the highest.

    Example::

        result = bt.throughput([[0] * 8] * 50, seconds=0.5)
        print(result.median, result.low, result.high, result.unit)
        result.save("lists.json")
    """

    name: str
    rounds: tuple[float, ...]
    unit: str
    first_seconds: float
    examples: int
    seconds: float
    note: str = ""
    machine: dict | None = field(default=None, compare=False)

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def low(self) -> float:
        return median_interval(self.rounds)[0]

    @property
    def high(self) -> float:
        return median_interval(self.rounds)[1]

    def _card(self):
        note = f" ({self.note})" if self.note else ""
        return cards.note(self.name, f"{interval(self)} {self.unit}{note}")

    def to_dict(self) -> dict:
        return {**asdict(self), "machine": self.machine or machine()}

    def figure(self) -> Any:
        from bigtrain_nb.plots import throughput_figure

        return throughput_figure(self)


@dataclass(frozen=True, repr=False)
class Ratio(cards.Shown):
    """How many times faster ``a`` is than ``b``, between ``low`` and ``high``, with a verdict.

    ``median`` is the middle of what was measured: in a comparison the geometric mean over rounds. ``advice``: where
    nobody can tell yet, what to do, in a sentence. ``details``: how it was measured. A single round has no interval:
    ``low`` is 0 and ``high`` infinite.
    """

    a: str
    b: str
    median: float
    low: float
    high: float
    advice: str = field(default="", compare=False)
    details: str = ""
    unit: ClassVar[str] = "x"

    @property
    def verdict(self) -> str:
        """Return "faster", "slower", "same" (the whole interval lies within 2 % of 1) or "unclear"."""
        most = 1 + PRACTICALLY_SAME
        if self.low > most:
            return "faster"
        if self.high < 1 / most:
            return "slower"
        return "same" if self.low >= 1 / most and self.high <= most else "unclear"

    def __str__(self):
        if self.verdict != "unclear":
            return f"{interval(self)}, {self.verdict}"
        return f"{interval(self)}: too {'close' if 1 / CLOSE < self.median < CLOSE else 'noisy'} to call"

    def _card(self):
        advice = f"; {self.advice}" if self.advice else ""
        return cards.note(f"{self.a} against {self.b}", f"{self}{advice}")


@dataclass(frozen=True, repr=False)
class Comparison(Saved, cards.Shown):
    """Several sources that took turns in rounds.

    ``results``: {name: `Result`}; round i of each is its rate in round i. ``error``: the share of comparisons in which
    at least one interval against the first source misses the truth, at this look. ``instances``: for each round, the
    number of the instances that it visited, () for one of each. ``seconds``: how long the rounds took. ``notes``:
    what makes these intervals worse than they say.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.names, both.results["long"].median, both.ratio("long", "short"))
        both = both.extend(seconds=0.5)
        both.save("lists.json")
    """

    results: dict[str, Result]
    error: float = 0.05
    instances: tuple[int, ...] = ()
    seconds: float | None = None
    notes: tuple[str, ...] = ()
    extend_with: Callable | None = field(default=None, compare=False)
    """Measures on: a function of seconds and progress that returns the `Comparison` of all rounds, or None."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.results)

    @property
    def is_clear(self) -> bool:
        """Whether every source is faster or slower than the first one, or the same."""
        first, *others = self.names
        return all(self.ratio(name, first).verdict != "unclear" for name in others)

    def ratio(self, a: str, b: str) -> Ratio:
        """Return the `Ratio` of a's rate over b's.

        Its interval is so wide that those of all sources against the first one hold together (Bonferroni's
        correction); if neither is the first, those of all pairs.

        Raises ValueError for a name that is not among `names`.
        """
        one_of("a", a, self.names)
        one_of("b", b, self.names)
        pairs = zip(self.results[a].rounds, self.results[b].rounds, strict=False)  # one of them may have left a race
        logs = [math.log(rate / other) for rate, other in pairs]
        instances = self.instances[: len(logs)] or (1,) * len(logs)
        error = self._error_of_one(a, b)
        *ends, share_of_luck = ratio_interval(logs, instances, error)
        mean, low, high = map(math.exp, ends)
        found = Ratio(a, b, mean, low, high, details=self._how(instances, error))
        if found.verdict != "unclear" or self.extend_with is None:
            return found
        return replace(found, advice=self._advice(share_of_luck))

    def extend(self, seconds: float, progress: Callable | None = None) -> "Comparison":
        """Measure on for so many seconds, and return the `Comparison` of all rounds so far.

        These are seconds as an answer names them: BIGTRAIN_NB_TIME_SCALE is not put to them.

        Each further look has a smaller `error`: all together have at most 5 %. ``progress`` is as for `compare`.

        Raises RuntimeError where the sources are gone: for a comparison that was loaded, and for a race, which is over.
        """
        if self.extend_with is None:
            raise RuntimeError(
                "only what bt.compare returned in this process can be extended; compare the same sources again, for"
                " longer: bt.compare({name: function}, seconds=...)"
            )
        return self.extend_with(seconds, progress)

    @property
    def details(self) -> str:
        """All that is known of how it was measured, in sentences."""
        first, *others = self.names
        lines = [f"{name} against {first}: {self.ratio(name, first).details}." for name in others]
        return "\n".join([*lines, *self._told()])

    def _told(self):
        """What a reader should know of the sources and of the machine, in lines."""
        lines = [f"{name}: {result.note}." for name, result in self.results.items() if result.note]
        return [*lines, *(f"{note}." for note in self.notes)]

    def _error_of_one(self, a, b):
        others = len(self.names) - 1
        pairs = others if self.names[0] in (a, b) else others * (others + 1) / 2
        return self.error / max(1, pairs)

    def _how(self, instances, error):
        built = len(set(instances))
        of_each = "one instance of each" if built == 1 else f"{built} instances of each"
        took = f" in {amount(self.seconds, 's')}" if self.seconds else ""
        return f"{len(instances)} rounds{took}, by {of_each}; interval of {100 * (1 - error):.3g} %"

    def _advice(self, share_of_luck):
        """What to do where nobody can tell, or why nothing helps: four times as many rounds have half the width."""
        if share_of_luck > MOSTLY_LUCK:
            return "two builds of the same can differ by as much"
        return f"another {amount(3 * self.seconds, 's')} would halve that"

    def _against(self, name, first):
        """What the table says of a source beside the first one."""
        return str(self.ratio(name, first))

    def _card(self):
        first = self.names[0]
        head = ["", self.results[first].unit, "low to high", "rounds", "first batch (s)", f"against {first}"]
        rows = []
        for name, result in self.results.items():
            ends = f"{number(result.low)} to {number(result.high)}"
            against = "" if name == first else self._against(name, first)
            cells = [number(result.median), ends, str(len(result.rounds)), f"{result.first_seconds:.2f}", against]
            rows.append([name, *cells])
        ratios = [self.ratio(name, first) for name in self.names[1:]]
        advice = [f"{ratio.a}: {ratio.advice}." for ratio in ratios if ratio.advice]
        return cards.table("", head, rows, "\n".join([*advice[-1:], *self._told()]))

    def to_dict(self) -> dict:
        return {
            "results": [result.to_dict() for result in self.results.values()],
            "error": self.error,
            "instances": list(self.instances),
            "seconds": self.seconds,
            "notes": list(self.notes),
        }

    def figure(self) -> Any:
        from bigtrain_nb.plots import comparison_figure

        return comparison_figure(list(self.results.values()))
