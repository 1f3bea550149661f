"""The runs of a Lab: what was measured with which settings, and how to say it, draw it and write it down."""

import csv
import io
import re
from dataclasses import dataclass, field, replace
from numbers import Integral, Real

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import interval, number
from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.plots import bars_figure

SHOWN = 24
MEDIAN = ("median", "(interval)")
ALL = object()
"""In place of the name of a control that is swept: all combinations race."""
MEASURED = ("unit", "median", "low", "high", "first_seconds", "note")
RATIO = {"baseline": "b", "ratio": "median", "ratio_low": "low", "ratio_high": "high", "verdict": "verdict"}
"""Columns of the CSV: what they are called in a `Result`, and in a `Ratio`."""
ARROWS = {"faster": "\N{BLACK UP-POINTING TRIANGLE} ", "slower": "\N{BLACK DOWN-POINTING TRIANGLE} "}


@dataclass(repr=False, eq=False)
class Run:
    """One measurement.

    `comparison` holds all that took turns with it, or is None for a run that was measured alone. `against` is the run
    that it is compared with, None for one alone and for the fastest of a race; `ratio` is the rate over that one's.
    `notes`: {name of a column: number or text}, as the Lab's `notes` said.
    """

    settings: dict
    result: Result
    comparison: Comparison | None = None
    against: "Run | None" = None
    notes: dict = field(default_factory=dict)

    @property
    def name(self):
        return self.result.name

    @property
    def ratio(self):
        return self.comparison.ratio(self.name, self.against.name) if self.against else None

    @property
    def changed(self):
        """The settings in which it differs from the run that it is compared with; all, where there is none."""
        before = self.against.settings if self.against else {}
        changed = {}
        for name, value in self.settings.items():
            if name not in before or text(before[name]) != text(value):
                changed[name] = value
        return changed

    def __repr__(self):
        words = f"{self.name}, {_what(self)}: {_rate(self.result)}{_noted(self)}"
        ratio = self.ratio
        if not ratio:
            return words
        advice = f"; {ratio.advice}" if ratio.advice else ""
        return f"{words}; against {ratio.b}: {ratio}{advice}"


def _what(run):
    """What is different from the run before: "batch=64 (run 1: 32)"; all settings of a run alone."""
    if not run.against:
        return describe(run.settings) or "without settings"
    if not run.changed:
        return f"as {run.against.name}"
    before = run.against.settings
    return f"{describe(run.changed)} ({run.against.name}: {', '.join(text(before[name]) for name in run.changed)})"


def standings(race):
    """Who is still in, and who has left."""
    rows = []
    for name, result in race.results.items():
        state = f"left after {race.left[name]} rounds" if name in race.left else "still in"
        rows.append([(name,), describe(race.settings[name]), _parts(interval(result)), (state,)])
    return cards.table("", ["run", "settings", MEDIAN, "the race"], rows)


def table(runs):
    """The last 24 runs: the settings that differ among them, rates, verdicts."""
    if not runs:
        return cards.note("Runs", "none so far")
    shown = runs[-SHOWN:]
    differing = [name for name in shown[0].settings if len({text(run.settings[name]) for run in shown}) > 1]
    common = {name: value for name, value in shown[0].settings.items() if name not in differing}
    units = {run.result.unit for run in shown}
    noted = list(dict.fromkeys(name for run in shown for name in run.notes))
    rows = []
    for run in shown:
        values = [text(run.settings[name]) for name in differing]
        values += [_note(run.notes.get(name, "")) for name in noted]
        measured = interval(run.result) if len(units) == 1 else _rate(run.result)
        verdict = _parts(f"{run.ratio} (against {run.against.name})") if run.against else ""
        rows.append([(run.name,), *values, _parts(measured), verdict])
    closing = [f"All with {describe(common)}."] if common else []
    closing += [f"{run.name}: {run.result.note}." for run in shown if run.result.note]
    median = ("median", "(interval),", *units) if len(units) == 1 else MEDIAN
    head = [("run",), *differing, *noted, median, "verdict"]
    return cards.table(f"The last {len(rows)} of {len(runs)} runs", head, rows, "\n".join(closing), last_below=True)


def figure(runs, *lines):
    """The last run as bars with those that took turns with it, at most 24, what it is compared with among them.

    A run is called by its name and the settings that differ among them: "run 2: batch=32".
    """
    last = runs[-1]
    together = _together(runs)
    shown = together[-SHOWN:]
    if last.against and last.against not in shown:
        shown[0] = last.against
    differing = [name for name in last.settings if len({text(run.settings[name]) for run in together}) > 1]
    bars = {}
    for run in shown:
        result = last.comparison.results[run.name] if last.comparison else run.result
        settings = describe({name: run.settings[name] for name in differing or run.settings})
        bars[run.name] = replace(result, name=f"{run.name}: {settings}")
    before = bars[last.against.name].name if last.against else None
    return bars_figure(list(bars.values()), *lines, before=before)


def _together(runs):
    """The last run with all that took turns with it."""
    last = runs[-1]
    if not last.comparison:
        return [last]
    return [run for run in runs if run.comparison is last.comparison or run is last.against]


def headline(runs):
    """Two lines: what stands in large type, and below it: the last rate, up or down; of many the highest one."""
    last, together = runs[-1], _together(runs)
    if len(together) > 2:
        last = max(together, key=lambda run: last.comparison.results[run.name].median)
    rate = f"{number(last.result.median)} {last.result.unit}"
    if len(together) > 2:
        rate = f"up to {rate}"
    if not last.against:
        return rate, f"{last.name}, {_what(last)}{_noted(last)}"
    ratio = last.ratio
    return (
        f"{ARROWS.get(ratio.verdict, '')}{rate}",
        f"{last.name}, {_what(last)}; against {ratio.b}: {ratio}{_noted(last)}",
    )


def csv_lines(runs):
    """All runs as CSV; the columns from `baseline` on are empty for a run without a ratio.

    Raises ValueError for a choice that has the name of another column.
    """
    noted = {name: "" for run in runs for name in run.notes}
    lines = []
    for run in runs:
        taken = run.settings.keys() & {"run", *MEASURED, *RATIO}
        if taken:
            raise ValueError(f"a choice cannot be written under {min(taken)!r}, which is another column: rename it")
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
    """Return further columns of a run. Raises TypeError or ValueError for what cannot be one."""
    if not isinstance(notes, dict):
        raise TypeError(f"notes must return a dictionary, as {{'MiB': 312}}, not {notes!r:.99}")
    for name, value in notes.items():
        if not isinstance(name, str) or name in settings or name in {"run", *MEASURED, *RATIO}:
            what = "a setting" if name in settings else "another column"
            wrong = f"is the name of {what}: rename it" if isinstance(name, str) else "must be a text"
            raise ValueError(f"notes returned the column {name!r}, which {wrong}")
        if not isinstance(value, str | Real):
            raise TypeError(f"notes returned {name}={value!r:.99}, expected a number or a text")
    return dict(notes)


def _note(value):
    """A number to three digits, a whole one and a text as they are."""
    return str(value) if isinstance(value, str | Integral) else number(value)


def _parts(words):
    """Cut words before and after what stands in brackets: there a narrow table may break them."""
    return tuple(filter(None, map(str.strip, re.split(r"(\([^)]*\)[,:]?)", words))))


def _noted(run):
    return f" ({run.result.note})" if run.result.note else ""


def _rate(result):
    return f"{interval(result)} {result.unit}"
