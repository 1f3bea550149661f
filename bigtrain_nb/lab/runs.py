"""The runs of a Lab: settings and measurements, described in words, drawn and exported."""

import csv
import io
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from statistics import median

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import interval, number, quantity
from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.measure.results import Comparison, Race, Result
from bigtrain_nb.plots import bars_figure

SHOWN = 24
ALL = object()
"""Passed instead of the name of a control to sweep: all combinations race."""
MEASURED = ("unit", "median", "low", "high", "first_seconds", "note")
RATIO = {"baseline": "b", "ratio": "median", "ratio_low": "low", "ratio_high": "high", "verdict": "verdict"}
"""Columns of the CSV: attributes of a `Result`, and {column: attribute of a `Ratio`}."""


@dataclass(repr=False, eq=False)
class Run:
    """One measurement.

    `comparison` holds all runs interleaved with it; None for a run measured alone. `against` is the run it is compared
    with; None for a run measured alone, for a baseline and for the fastest of a race. `ratio`: its rate over that
    run's. `notes`: {name of a column: number or string} from the Lab's `notes`. `alone`: notes about the machine for a
    run measured alone; otherwise they are in its comparison.
    """

    settings: dict
    result: Result
    comparison: Comparison | None = None
    against: "Run | None" = None
    notes: dict = field(default_factory=dict)
    alone: tuple = ()

    @property
    def name(self):
        return self.result.name

    @property
    def ratio(self):
        return self.comparison.ratio(self.name, self.against.name) if self.against else None

    @property
    def changed(self):
        """The settings that differ from those of the run it is compared with; all, where there is none."""
        before = self.against.settings if self.against else {}
        changed = {}
        for name, value in self.settings.items():
            if name not in before or text(before[name]) != text(value):
                changed[name] = value
        return changed

    def __repr__(self):
        said = [f"{self.name}, {_what(self)}: {_rate(self.result)}{_noted(self)}"]
        ratio = self.ratio
        if ratio:
            said += [f"against {ratio.b}: {ratio}", ratio.advice]
        return "; ".join([*filter(None, said), *_of_the_machine(self)])


def _what(run):
    """The settings that differ from those compared with: "batch=64 (run 1: 32)"; all for a run measured alone."""
    if not run.against:
        return describe(run.settings) or "without settings"
    if not run.changed:
        return f"as {run.against.name}"
    before = run.against.settings
    return f"{describe(run.changed)} ({run.against.name}: {', '.join(text(before[name]) for name in run.changed)})"


def answer(race):
    """The fastest, the remaining settings that may be equally fast, and those that appear slower.

    A race that ended early cannot eliminate all slower ones, but disjoint intervals are not called equal.
    """
    first, *others = race.remaining
    leader = race.results[first]
    alike = [name for name in others if race.results[name].high >= leader.low]
    behind = [name for name in others if name not in alike]
    words = f"The fastest of {len(race.results)}: {first}, {_rate_alone(leader)}."
    if alike:
        words += f" Cannot be told apart from it: {', '.join(alike)}."
    if behind:
        words += f" Slower so far, but not conclusively: {', '.join(behind)}."
    return words


def standings(race):
    """A table of the remaining and the eliminated settings."""
    rows = []
    for name, result in race.results.items():
        state = f"eliminated after {race.eliminated[name]} rounds" if name in race.eliminated else "remaining"
        rows.append([(name,), describe(race.settings[name]), (number(result.median),), (state,)])
    unit = race.results[race.names[0]].unit
    return cards.table("", ["run", "settings", (unit,), "the race"], rows)


def table(runs):
    """The last 24 runs: the settings that differ, notes, and each rate next to that of its baseline."""
    if not runs:
        return cards.note("Runs", "none so far")
    shown = runs[-SHOWN:]
    differing = [name for name in shown[0].settings if len({text(run.settings[name]) for run in shown}) > 1]
    common = {name: value for name, value in shown[0].settings.items() if name not in differing}
    noted = list(dict.fromkeys(name for run in shown for name in run.notes))
    units = {run.result.unit for run in shown}
    unit = units.pop() if len(units) == 1 else ""
    rows = []
    for run in shown:
        values = [text(run.settings[name]) for name in differing]
        values += [_note(run.notes.get(name, "")) for name in noted]
        rate = number(run.result.median) if unit else _rate(run.result)
        beside = ""
        if run.against:
            count = len(run.result.rounds)  # fewer if it was eliminated
            beside = f"{run.against.name}: {number(median(run.comparison.results[run.against.name].rounds[:count]))}"
        rows.append([(run.name,), *values, (rate,), _verdict(run), beside])
    closing = [f"All with {describe(common)}."] if common else []
    if any(run.against for run in shown):
        closing.append(
            "Compare rates within a line: these were interleaved. From line to line the machine may have changed."
        )
    closing += [f"{run.name}: {run.result.note}." for run in shown if run.result.note]
    closing += [f"{shown[-1].name}: {words}." for words in _of_the_machine(shown[-1])]
    head = [("run",), *differing, *noted, (unit or "rate",), "verdict", "against"]
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    caption = f"The last {SHOWN} of {count}" if len(runs) > SHOWN else count
    card = cards.table(caption, head, rows, "\n".join(closing))
    return replace(card, html=f'<div style="font-size: 0.8em">{card.html}</div>')


def figure(runs, *lines):
    """Bars of the last run and those interleaved with it, at most 24, always including its baseline.

    The label of each bar is the run's name, its verdict and the settings that differ: "run 2, 6.4x faster: batch=32".
    The runs of a race are in its order, the fastest first.
    """
    last = runs[-1]
    together = _together(runs)
    shown = together[:SHOWN]
    if last not in shown:
        shown = [together[0], *together[1 - SHOWN :]]
    differing = [name for name in last.settings if len({text(run.settings[name]) for run in together}) > 1]
    bars = {}
    for run in shown:
        settings = describe({name: run.settings[name] for name in differing or run.settings})
        verdict = ""
        if len(together) > 1:
            first = "the fastest" if isinstance(last.comparison, Race) else "the baseline"
            verdict = ", " + (_verdict(run) if run.comparison is last.comparison and run.against else first)
        bars[run.name] = replace(_result(run, last), name=f"{run.name}{verdict}: {settings}")
    before = bars[last.against.name].name if last.against else None
    return bars_figure(list(bars.values()), *lines, before=before)


def _together(runs):
    """The last run and all runs interleaved with it, in their order."""
    last = runs[-1]
    if not last.comparison:
        return [last]
    known = {run.name: run for run in runs}
    return [known[name] for name in last.comparison.names]


def _result(run, last):
    """The result of a run as measured together with the last one."""
    return last.comparison.results[run.name] if last.comparison else run.result


def headline(runs):
    """Two lines: the verdict, shown in large type, and the measurement of the last or the best run.

    The second line begins with the ratio, because a picture cuts the end of a long line. A first run has no verdict, so
    the first line is its rate.
    """
    last, together = runs[-1], _together(runs)
    if len(together) == 1:
        return _rate_alone(last.result), f"{last.name}, {_what(last)}{_noted(last)}"
    first, *others = together
    remaining = getattr(last.comparison, "remaining", ())
    others = [run for run in others if run.name in remaining] or others
    best = max(others, key=lambda run: _result(run, last).median)
    ratio = last.comparison.ratio(best.name, first.name)
    large = outcome(ratio)
    if len(others) > 1 and ratio.median < 1:
        large = f"{first.name} is the fastest" if ratio.verdict == "slower" else f"none is faster than {first.name}"
    rates = f"{_rate_alone(_result(best, last))} against {number(_result(first, last).median)}"
    return large, f"{interval(ratio)}, {rates}: {best.name}, {_what(best)}{_noted(best)}"


def outcome(ratio):
    """A verdict with its ratio: "6.4x faster", "0.8x: slower", "too close to call"."""
    words = str(ratio)
    if ratio.verdict == "unclear":
        return words.partition(": ")[2]
    times = quantity(ratio.median, "x")
    return {"faster": f"{times} faster", "slower": f"{times}: slower", "same": f"{times}: the same"}[ratio.verdict]


def _verdict(run):
    """The verdict of a run; empty for a run measured alone and for the baseline."""
    if run.name in getattr(run.comparison, "eliminated", ()):
        return f"{quantity(run.ratio.median, 'x')}: eliminated"
    return outcome(run.ratio) if run.against else ""


def _of_the_machine(run):
    """Notes about the machine during the measurement."""
    return run.comparison.notes if run.comparison else run.alone


def csv_lines(runs):
    """All runs as CSV; the columns from `baseline` on are empty for a run without a ratio.

    Raises ValueError for a choice with the name of another column.
    """
    noted = {name: "" for run in runs for name in run.notes}
    lines = []
    for run in runs:
        taken = run.settings.keys() & {"run", *MEASURED, *RATIO}
        if taken:
            raise ValueError(f"a choice cannot be exported as {min(taken)!r}, the name of another column: rename it")
        line = {"run": run.name, **{name: text(value) for name, value in run.settings.items()}}
        line |= noted | run.notes
        line |= {name: getattr(run.result, name) for name in MEASURED}
        line |= {column: getattr(run.ratio, name, "") for column, name in RATIO.items()}
        lines.append(line)
    file = io.StringIO()
    table = csv.DictWriter(file, lines[0] if lines else [])
    table.writeheader()
    table.writerows(lines)
    return file.getvalue()


def checked_notes(notes, settings):
    """Return the extra columns of a run. Raises TypeError or ValueError for an invalid one."""
    if not isinstance(notes, dict):
        raise TypeError(f"notes must return a dictionary, like {{'MiB': 312}}, not {notes!r:.99}")
    for name, value in notes.items():
        if not isinstance(name, str) or name in settings or name in {"run", *MEASURED, *RATIO}:
            what = "a setting" if name in settings else "another column"
            wrong = f"is the name of {what}: rename it" if isinstance(name, str) else "must be a string"
            raise ValueError(f"notes returned the column {name!r}, which {wrong}")
        if not isinstance(value, str | Real):
            raise TypeError(f"notes returned {name}={value!r:.99}, expected a number or a string")
    return dict(notes)


def _note(value):
    """A number to three digits; integers and strings unchanged."""
    return str(value) if isinstance(value, str | Integral) else number(value)


def _noted(run):
    return f" ({run.result.note})" if run.result.note else ""


def _rate(result):
    return f"{interval(result)} {result.unit}"


def _rate_alone(result):
    return f"{number(result.median)} {result.unit}"
