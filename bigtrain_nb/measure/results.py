"""What a measurement gives back: rates with intervals, ratios with verdicts, and their JSON."""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, ClassVar

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import one_of
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import interval, number, quantity
from bigtrain_nb.measure.intervals import median_interval, paired_interval

PRACTICALLY_SAME = 0.02
"""A ratio whose interval reaches within 2 % of 1 is called the same: smaller differences are not worth a change."""


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
    means this one.

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
    """How many times faster ``a`` is than ``b``: the paired rounds' ratio, its 95 % interval and a verdict.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        ratio = bt.compare(sources, seconds=0.5).ratio("long", "short")
        print(ratio.median, ratio.low, ratio.high, ratio.verdict)
    """

    a: str
    b: str
    median: float
    low: float
    high: float
    unit: ClassVar[str] = "x"

    @property
    def verdict(self) -> str:
        """Return "faster" or "slower" where the whole interval is more than 2 % off 1, else "same"."""
        if self.low > 1 + PRACTICALLY_SAME:
            return "faster"
        return "slower" if self.high < 1 / (1 + PRACTICALLY_SAME) else "same"

    def __str__(self):
        if self.verdict == "same" and self.low <= 1 <= self.high:
            return f"no difference larger than the noise ({quantity(self.low, 'x')} to {quantity(self.high, 'x')})"
        return interval(self)

    def _card(self):
        return cards.note(f"{self.a} against {self.b}", str(self))


@dataclass(frozen=True, repr=False)
class Comparison(Saved, cards.Shown):
    """Several sources measured in interleaved rounds: round i of each ran within the same moments.

    ``results``: {name: `Result`}, all with as many rounds.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.names, both.results["long"].median, both.ratio("long", "short"))
        both.save("lists.json")
    """

    results: dict[str, Result]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.results)

    def ratio(self, a: str, b: str) -> Ratio:
        """Return the `Ratio` of a's rate over b's, from the rounds that ran side by side.

        Raises ValueError for a name that is not among `names`.
        """
        centre, low, high = paired_interval(self.log_ratios(a, b))
        return Ratio(a, b, math.exp(centre), math.exp(low), math.exp(high))

    def log_ratios(self, a: str, b: str) -> list[float]:
        """Return the logarithm of a's rate over b's for each round that both took part in."""
        one_of("a", a, self.names)
        one_of("b", b, self.names)
        pairs = zip(self.results[a].rounds, self.results[b].rounds, strict=False)
        return [math.log(rate / other) for rate, other in pairs]

    def _card(self):
        first = self.names[0]
        head = ["", self.results[first].unit, "95 % interval", "rounds", "first batch (s)", f"against {first}"]
        rows = []
        for name, result in self.results.items():
            ends = f"{number(result.low)} to {number(result.high)}"
            against = "" if name == first else str(self.ratio(name, first))
            cells = [number(result.median), ends, str(len(result.rounds)), f"{result.first_seconds:.2f}", against]
            rows.append([name, *cells])
        unsure = [name for name, result in self.results.items() if result.note]
        closing = f"{', '.join(unsure)}: {self.results[unsure[0]].note}" if unsure else ""
        return cards.table("", head, rows, closing)

    def to_dict(self) -> dict:
        return {"results": [result.to_dict() for result in self.results.values()]}

    def figure(self) -> Any:
        from bigtrain_nb.plots import comparison_figure

        return comparison_figure(list(self.results.values()))
