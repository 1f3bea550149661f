"""Results of measurements: rates with confidence intervals, ratios with one of four verdicts, and their JSON.

A verdict is "faster" or "slower" if the entire interval is more than 2 % away from 1, "same" if it is within 2 % of 1,
and otherwise "unclear": a longer measurement may decide.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import as_path, one_of
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import amount, interval, number, quantity
from bigtrain_nb.measure.intervals import CONFIDENCE, expected_scatter, median_interval, ratio_interval

PRACTICALLY_SAME = 0.02
"""Ratios within 2 % of 1 count as the same: smaller differences are not worth a change."""
TIGHT = 1.1
"""A comparison may end early if no interval extends beyond this factor of its middle."""
CLOSE = 1.5
"""An unclear ratio within this factor of 1 is called close, beyond it noisy."""
LARGE_INSTANCE_SHARE = 0.5
"""Share of the instances in the variance above which more rounds of the same instances hardly help."""
CHECKS_AFTER = (4, 6, 8, 12, 18, 28, 40)
"""Rounds before each interim check. Even: the next round runs in reverse order, which cancels drift within a round."""


class Saved:
    """Base of results that can be saved to a file."""

    def save(self, path: str | os.PathLike) -> None:
        """Write all rounds and the machine's description as JSON; `bigtrain_nb.load` reads it back."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")


@dataclass(frozen=True, repr=False)
class Result(Saved, cards.Shown):
    """The throughput of one source: all measured rounds, their median and its confidence interval.

    ``rounds`` are rates in ``unit`` ("examples/s" or "steps/s"); ``first_seconds`` is the time from requesting an
    iterator to its first batch, in seconds; ``examples`` and ``seconds`` are totals over all rounds; ``note`` is a
    caveat, or empty. ``noise`` is the standard error of the logarithm of a round's rate, estimated from the halves
    of rounds, or None if unknown. ``machine`` describes the machine of a loaded result; None means this one.
    ``low`` and ``high`` are the ends of a 95 % interval for the median; with fewer than six rounds they are the minimum
    and the maximum.

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
    noise: float | None = None

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

    ``median`` is the middle: in a comparison the geometric mean over rounds. ``advice``: what to do about an unclear
    verdict. ``details``: how it was measured. A single round has no interval: ``low`` is 0 and ``high`` infinite.
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
        """Return "faster", "slower", "same" (the entire interval is within 2 % of 1) or "unclear"."""
        most = 1 + PRACTICALLY_SAME
        if self.low > most:
            return "faster"
        if self.high < 1 / most:
            return "slower"
        return "same" if self.low >= 1 / most and self.high <= most else "unclear"

    def __str__(self):
        if self.verdict != "unclear":
            return f"{interval(self)}, {self.verdict}"
        is_close = 1 / CLOSE < self.median < CLOSE
        return f"{interval(self)}: {'too close to call' if is_close else 'too noisy to call'}"

    def _card(self):
        advice = f"; {self.advice}" if self.advice else ""
        return cards.note(f"{self.a} against {self.b}", f"{self}{advice}")


@dataclass(frozen=True, repr=False)
class Comparison(Saved, cards.Shown):
    """Several sources measured in interleaved rounds.

    ``results``: {name: `Result`}, whose ``rounds`` are in the same order. ``error``: the share of comparisons in which
    at least one interval against the first source misses the true ratio, at this interim check. ``instances``: for each
    round, the index of its instances, () for one of each. ``seconds``: duration of all rounds. ``notes``:
    reasons to trust the intervals less.

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
    """A function of seconds and progress that measures more rounds and returns the `Comparison` of all; or None."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.results)

    @property
    def is_clear(self) -> bool:
        """Whether every source is faster or slower than the first one, or the same."""
        return all(ratio.verdict != "unclear" for ratio in self._ratios())

    @property
    def is_tight(self) -> bool:
        """Whether every interval against the first source is within 10 % of its middle."""
        return all(ratio.high < TIGHT * ratio.median for ratio in self._ratios())

    def ratio(self, a: str, b: str) -> Ratio:
        """Return the `Ratio` of a's rate over b's.

        Its interval is widened so that the intervals of all sources against the first one hold simultaneously
        (Bonferroni's correction); if neither is the first, those of all pairs.

        Raises ValueError for a name that is not in `names`.
        """
        one_of("a", a, self.names)
        one_of("b", b, self.names)
        pairs = zip(self.results[a].rounds, self.results[b].rounds, strict=False)  # one may have been eliminated
        logs = [math.log(rate / other) for rate, other in pairs]
        instances = self.instances[: len(logs)] or (1,) * len(logs)
        error = self._error_of_one(a, b)
        scatter = expected_scatter(self.results[a].noise, self.results[b].noise)
        *ends, instance_share = ratio_interval(logs, instances, error, scatter)
        mean, low, high = map(math.exp, ends)
        found = Ratio(a, b, mean, low, high, details=self._how(instances, error))
        if found.verdict != "unclear" or self.extend_with is None:
            return found
        return replace(found, advice=self._advice(instance_share))

    def extend(self, seconds: float, progress: Callable | None = None) -> "Comparison":
        """Measure ``seconds`` more, not multiplied by BIGTRAIN_NB_TIME_SCALE; return the `Comparison` of all rounds.

        Each later interim check has a smaller `error`: the total is at most 5 %. ``progress`` is as for `compare`.

        Raises RuntimeError if the sources are gone: for a loaded comparison, and for a race.
        """
        if self.extend_with is None:
            raise RuntimeError(
                "only what bt.compare returned in this process can be extended; compare the same sources for longer"
                " instead: bt.compare({name: function}, seconds=...)"
            )
        return self.extend_with(seconds, progress)

    @property
    def details(self) -> str:
        """How it was measured, in sentences."""
        lines = [f"{ratio.a} against {ratio.b}: {ratio.details}." for ratio in self._ratios()]
        return "\n".join([*lines, *self._told()])

    def _told(self):
        """Return the notes on the sources and the machine, as lines."""
        lines = [f"{name}: {result.note}." for name, result in self.results.items() if result.note]
        return [*lines, *(f"{note}." for note in self.notes)]

    def _ratios(self):
        """Return the ratios of all other sources against the first one."""
        first, *others = self.names
        return [self.ratio(name, first) for name in others]

    def _error_of_one(self, a, b):
        others = len(self.names) - 1
        pairs = others if self.names[0] in (a, b) else others * (others + 1) / 2
        return self.error / max(1, pairs)

    def _how(self, instances, error):
        built = len(set(instances))
        of_each = "one instance of each" if built == 1 else f"{built} instances of each"
        took = f" in {amount(self.seconds, 's')}" if self.seconds else ""
        return f"{len(instances)} rounds{took}, by {of_each}; interval of {100 * (1 - error):.3g} %"

    def _advice(self, instance_share):
        """Say how to get a clear verdict, or why more rounds cannot: four times as many rounds halve the width."""
        if instance_share > LARGE_INSTANCE_SHARE:
            return "two builds of the same can differ by as much"
        return f"another {amount(3 * self.seconds, 's')} would halve that"

    def _against(self, name, first):
        """Return the table cell that compares a source with the first one."""
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
        advice = [f"{ratio.a}: {ratio.advice}." for ratio in self._ratios() if ratio.advice]
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
        return f"at most {quantity(self.ratio(name, first).high, 'x')}, eliminated after {self.eliminated[name]} rounds"

    def _card(self):
        what = "Cannot be told apart" if len(self.remaining) > 1 else "The fastest"
        answer = f"{what} ({len(self.remaining)} of {len(self.results)}): {', '.join(self.remaining)}."
        return cards.stacked(cards.note(answer, ""), super()._card())


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
        race = {name: fields[name] for name in ("settings", "eliminated")} if "settings" in fields else {}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(
            f"{path} holds no saved measurement: bt.load reads files that .save(path) of a Result, Comparison or Race"
            " has written; load a model with bt.load_model"
        ) from None
    if several is None:
        return results[fields["name"]]
    kind = Race if race else Comparison
    return kind(results, error, instances, seconds, notes, **race)
