"""What a measurement gives back: rates with intervals, ratios with verdicts, and their JSON."""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar

from bigtrain_nb.common.checks import positive
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import interval, number, quantity
from bigtrain_nb.measure.intervals import median_interval, paired_interval

PRACTICALLY_SAME = 0.02
"""A ratio whose interval reaches within 2 % of 1 is called the same: smaller differences are not worth a change."""


class _Saved:
    def save(self, path):
        """Write this and the machine's description as JSON; `bigtrain_nb.load` reads it back."""
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")


@dataclass(frozen=True)
class Result(_Saved):
    """The rate of one source: every measured round, their median and its interval.

    ``rounds`` are rates in ``unit`` ("examples/s" or "steps/s"); ``first_seconds`` is the time from asking for an
    iterator to its first batch, in seconds; ``examples`` and ``seconds`` are what all rounds counted together;
    ``note`` says what a reader should know, or is empty. ``machine`` describes the machine of a loaded result; None
    means this one.

    Raises ValueError for no rounds and for rounds that are not positive, finite numbers.
    """

    name: str
    rounds: tuple
    unit: str
    first_seconds: float
    examples: int
    seconds: float
    note: str = ""
    machine: dict | None = field(default=None, compare=False)

    def __post_init__(self):
        if not isinstance(self.rounds, Sequence) or not self.rounds:
            raise ValueError(f"rounds={self.rounds!r} must be a tuple of at least one rate")
        for rate in self.rounds:
            positive("rounds", rate)

    @property
    def median(self):
        return median(self.rounds)

    @property
    def low(self):
        return median_interval(self.rounds)[0]

    @property
    def high(self):
        return median_interval(self.rounds)[1]

    def __str__(self):
        name = f"{self.name}: " if self.name else ""
        note = f" ({self.note})" if self.note else ""
        return f"{name}{interval(self)} {self.unit}{note}"

    __repr__ = __str__

    def _repr_html_(self):
        return _table(["", self.unit, "95 % interval", "rounds", "first batch (s)", ""], [_cells(self)])

    def to_dict(self):
        return {"kind": "result", **asdict(self), "rounds": list(self.rounds), "machine": self.machine or machine()}

    @classmethod
    def from_dict(cls, fields):
        fields = {key: value for key, value in fields.items() if key in cls.__dataclass_fields__}
        return cls(**{**fields, "rounds": tuple(fields["rounds"])})

    def figure(self):
        from bigtrain_nb.plots import throughput_figure

        return throughput_figure(self)


@dataclass(frozen=True)
class Ratio:
    """How many times faster ``a`` is than ``b``: the paired rounds' ratio, its 95 % interval and a verdict."""

    a: str
    b: str
    median: float
    low: float
    high: float
    unit: ClassVar[str] = "x"

    @property
    def verdict(self):
        """Return "faster" or "slower" where the whole interval is more than 2 % off 1, else "same"."""
        if self.low > 1 + PRACTICALLY_SAME:
            return "faster"
        return "slower" if self.high < 1 / (1 + PRACTICALLY_SAME) else "same"

    def __str__(self):
        if math.isinf(self.high):
            return "unknown: fewer than six rounds side by side"
        if self.verdict == "same":
            return f"no difference larger than the noise ({quantity(self.low, 'x')} to {quantity(self.high, 'x')})"
        return interval(self)

    def __repr__(self):
        return f"{self.a} against {self.b}: {self}"

    def _repr_html_(self):
        return f"<p><b>{html.escape(self.a)}</b> against {html.escape(self.b)}: {html.escape(str(self))}</p>"

    def to_dict(self):
        return asdict(self)


@dataclass(frozen=True)
class Comparison(_Saved):
    """Several sources measured in interleaved rounds: round i of each ran within the same moments.

    Raises ValueError for fewer than two results and for unequal numbers of rounds.
    """

    results: dict
    machine: dict | None = field(default=None, compare=False)

    def __post_init__(self):
        if len(self.results) < 2:
            raise ValueError(f"results={self.results!r} must hold at least two results")
        counts = {name: len(result.rounds) for name, result in self.results.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"results have {counts} rounds and must have equally many, which ran side by side")

    @property
    def names(self):
        return tuple(self.results)

    def ratio(self, a, b):
        """Return the `Ratio` of a's rate over b's, from the rounds that ran side by side."""
        for name in (a, b):
            if name not in self.results:
                raise KeyError(f"no result named {name!r}; there are {', '.join(map(repr, self.names))}")
        pairs = zip(self.results[a].rounds, self.results[b].rounds, strict=True)
        return Ratio(a, b, *map(math.exp, paired_interval([math.log(x / y) for x, y in pairs])))

    def __str__(self):
        first, *others = self.names
        verdicts = [f"{name} against {first}: {self.ratio(name, first)}" for name in others]
        return "\n".join([*map(str, self.results.values()), *verdicts])

    __repr__ = __str__

    def _repr_html_(self):
        first = self.names[0]
        unit = self.results[first].unit
        heads = ["", unit, "95 % interval", "rounds", "first batch (s)", "", f"against {first}"]
        rows = [
            [*_cells(result), "" if name == first else str(self.ratio(name, first))]
            for name, result in self.results.items()
        ]
        return _table(heads, rows)

    def to_dict(self):
        results = [result.to_dict() for result in self.results.values()]
        return {"kind": "comparison", "results": results, "machine": self.machine or machine()}

    @classmethod
    def from_dict(cls, fields):
        results = map(Result.from_dict, fields["results"])
        return cls({result.name: result for result in results}, fields["machine"])

    def figure(self):
        from bigtrain_nb.plots import comparison_figure

        return comparison_figure(self)


def load(path):
    """Read a `Result` or a `Comparison` that was saved; raises ValueError if the file holds neither."""
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        return {"result": Result, "comparison": Comparison}[fields["kind"]].from_dict(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no saved result or comparison: {error!r}") from error


def _cells(result):
    ends = f"{number(result.low)} to {number(result.high)}"
    first = f"{result.first_seconds:.2f}"
    return [result.name, number(result.median), ends, len(result.rounds), first, result.note]


def _table(heads, rows):
    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    keep = [i for i, head in enumerate(heads) if head or any(cells[i] for cells in rows)]
    lines = [row([heads[i] for i in keep], "th"), *(row([cells[i] for i in keep], "td") for cells in rows)]
    return "<table>" + "".join(lines) + "</table>"
