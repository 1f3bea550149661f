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
from bigtrain_nb.measure.intervals import (
    CONFIDENCE,
    blocks_needed,
    half_width,
    least_distance,
    likely_spread,
    mean_interval,
    median_interval,
)

PRACTICALLY_SAME = 0.02
"""Ratios within 2 % of 1 are called the same: smaller differences are not worth a change."""
LEAST_BLOCKS = 3
"""With fewer, an interval that leaves all open, such as 0.06x to 28x, is none."""
LEAST_ROUNDS = 6
"""With fewer, the whole range of the rounds holds their true median in less than 95 % of all cases."""
PASS_GOES_ON = "measured before its first pass had ended"
ENOUGH_BLOCKS = 5
NARROW = 0.2
"""Of a logarithm: wider intervals are not worth their number of percent."""
MUCH_LONGER = 10
"""Where a verdict needs more than so many times as long, it is said what so many bring."""


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

    ``median`` is the middle of what was measured: in a comparison the geometric mean over blocks, that is over fresh
    instances of both and moments of this run. Where the verdict is "unclear", ``advice`` says how much longer would
    tell, and ``seconds_more`` is that in seconds. After few blocks it is a careful guess, and may be hours: go on for a
    while, and look again. It is None where the verdict is clear, in a race, and where the truth lies so near 2 % that
    no time will do. One block, or two that give no verdict, have no interval: ``low`` is 0 and ``high`` infinite. Then
    the advice is for five blocks.

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
    advice: str = ""
    seconds_more: float | None = None
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
        return f"{interval(self)}, {self.verdict}"

    def _card(self):
        advice = f". {self.advice}" if self.advice else ""
        return cards.note(f"{self.a} against {self.b}", f"{self}{advice}")


@dataclass(frozen=True, repr=False)
class Comparison(Saved, cards.Shown):
    """Several sources that took turns in blocks, each time with fresh instances.

    ``results``: {name: `Result`}; round i of each is its rate in block i. ``looks``: how many times it was looked at,
    which `go_on` counts. ``block_seconds``: how long one block of all takes. ``notes``: sentences on what makes these
    intervals worse than they say.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.names, both.results["long"].median, both.ratio("long", "short"))
        both = both.go_on(seconds=0.5)
        both.save("lists.json")
    """

    results: dict[str, Result]
    looks: int = 1
    block_seconds: float | None = None
    notes: tuple[str, ...] = ()
    go_on_with: Callable | None = field(default=None, compare=False)
    """Measures on: a function of seconds and progress that returns the `Comparison` of all blocks, or None."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.results)

    @property
    def error(self) -> float:
        """The share of comparisons like this in which at least one interval against the first source misses the truth.

        2.5 % at the first look, half of that at each further one: together at most 5 %, however often one goes on.
        """
        return (1 - CONFIDENCE) / 2**self.looks

    def ratio(self, a: str, b: str) -> Ratio:
        """Return the `Ratio` of a's rate over b's.

        Its interval is Student's over the blocks, and so wide that those of all sources against the first one hold
        together (Bonferroni's correction); if neither is the first, those of all pairs.

        Raises ValueError for a name that is not among `names`.
        """
        logs = self.log_ratios(a, b)
        error = self._error_of_one(a, b)
        mean, low, high = mean_interval(logs, error)
        found = Ratio(a, b, math.exp(mean), math.exp(low), math.exp(high))
        if found.verdict != "unclear":
            return found
        if len(logs) < LEAST_BLOCKS:
            found = replace(found, low=0.0, high=math.inf)
        if not self.block_seconds:
            return found
        advice, seconds = self._advice(logs, error / 2)
        return replace(found, advice=advice, seconds_more=seconds)

    def go_on(self, seconds: float, progress: Callable | None = None) -> "Comparison":
        """Measure on for so many seconds, and return the `Comparison` of all blocks so far.

        Its intervals pay for looking once more: see `error`. ``progress`` is as for `throughput`.

        Raises RuntimeError where the sources are gone: for a comparison that was loaded, and for a race.
        """
        if self.go_on_with is None:
            raise RuntimeError(
                "only what bt.compare returned in this process can go on; compare the same sources again, for longer:"
                " bt.compare({name: function}, seconds=...)"
            )
        return self.go_on_with(seconds, progress)

    def log_ratios(self, a: str, b: str) -> list[float]:
        """Return the logarithm of a's rate over b's for each block that both took part in."""
        one_of("a", a, self.names)
        one_of("b", b, self.names)
        pairs = zip(self.results[a].rounds, self.results[b].rounds, strict=False)
        return [math.log(rate / other) for rate, other in pairs]

    def _error_of_one(self, a, b):
        others = len(self.names) - 1
        pairs = others if self.names[0] in (a, b) else others * (others + 1) / 2
        return self.error / max(1, pairs)

    def _advice(self, logs, next_error):
        """How much longer would tell, in a sentence and in seconds; the next look allows ``next_error``.

        Few blocks that look more different or less noisy than they are would get too short a time. So the difference is
        taken at the lower end and the noise at the upper end of what is likely. The interval is to be narrow enough to
        tell that difference from 2 %, or to fit within 2 %, whichever is easier. benchmarks/honesty.py counts how often
        the time is enough.
        """
        blocks = len(logs)
        if blocks < LEAST_BLOCKS:
            seconds = math.ceil((ENOUGH_BLOCKS - blocks) * self.block_seconds)
            if blocks == 2:
                return f"Two blocks say nothing yet: about {amount(seconds, 's')} more make five.", seconds
            few, more = (amount(count * self.block_seconds, "s") for count in (LEAST_BLOCKS, ENOUGH_BLOCKS))
            return f"One instance of each fits into the time: three need about {few}, five about {more}.", seconds
        same = math.log1p(PRACTICALLY_SAME)
        least = least_distance(logs)
        goal = max(0.8 * (least - same), same / 2)
        spread = likely_spread(logs)
        needed = blocks_needed(spread, goal, next_error, least=blocks)
        if needed == blocks:
            return f"It is so narrow already that the truth must be near {_percent(same)}: longer hardly tells.", None
        seconds = math.ceil((needed - blocks) * self.block_seconds)
        words = f"About {amount(seconds, 's')} more "
        if goal > NARROW:
            words += "would tell"
        elif goal > same / 2:
            words += f"narrow it to ±{_percent(goal)}, which tells if they differ by {_percent(least)} or more"
        else:
            words += f"narrow it to ±{_percent(goal)}, which tells unless the truth is near {_percent(same)}"
        many = MUCH_LONGER * blocks
        if needed > many:
            reach = _percent(half_width(spread, many, next_error))
            words += f"; {MUCH_LONGER} times as long as so far narrows it to ±{reach}"
        return f"{words}.", seconds

    def _card(self):
        first = self.names[0]
        is_interval = all(len(result.rounds) >= LEAST_ROUNDS for result in self.results.values())
        ends = "95 % interval" if is_interval else "lowest to highest"
        head = ["", self.results[first].unit, ends, "blocks", "first batch (s)", f"against {first}"]
        rows = []
        for name, result in self.results.items():
            ends = f"{number(result.low)} to {number(result.high)}"
            against = "" if name == first else str(self.ratio(name, first))
            cells = [number(result.median), ends, str(len(result.rounds)), f"{result.first_seconds:.2f}", against]
            rows.append([name, *cells])
        return cards.table("", head, rows, "\n".join(self._closing()))

    def _closing(self):
        """The sentences below a table: what is unclear and until when, and what to know about the intervals."""
        first, *others = self.names
        ratios = [self.ratio(name, first) for name in others]
        lines = [self._promise()]
        unclear = [ratio for ratio in ratios if ratio.advice]
        if unclear:
            longest = max(unclear, key=lambda ratio: ratio.seconds_more or 0)
            lines.append(f"Unclear: {', '.join(ratio.a for ratio in unclear)}. {longest.advice}")
        unsure = [name for name, result in self.results.items() if result.note]
        if unsure:
            lines.append(f"{', '.join(unsure)}: {self.results[unsure[0]].note}.")
        return [*lines, *(f"{note}." for note in self.notes)]

    def _promise(self):
        confidence = f"{100 * (1 - self.error):g} % of such comparisons"
        if len(self.names) > 2:
            return f"The intervals against {self.names[0]} hold all together in {confidence}."
        return f"The interval against {self.names[0]} holds in {confidence}."

    def to_dict(self) -> dict:
        return {
            "results": [result.to_dict() for result in self.results.values()],
            "looks": self.looks,
            "block_seconds": self.block_seconds,
            "notes": list(self.notes),
        }

    def figure(self) -> Any:
        from bigtrain_nb.plots import comparison_figure

        return comparison_figure(list(self.results.values()))


def _percent(logarithm):
    percent = 100 * math.expm1(logarithm)
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"
