"""The runs of a Lab: what was measured with which settings, and how to say it, draw it and write it down.

A run has a ratio only to runs that it took turns with; anything else was "measured apart".
"""

import csv
import io
from dataclasses import dataclass, replace

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import amount, interval
from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.plots import comparison_figure

SHOWN = 24
ALL = object()
"""In place of the name of a control that is swept: all combinations race."""


@dataclass(repr=False, eq=False)
class Run:
    """One measurement.

    `comparison` holds all that took turns with it, the baseline first (in a race the fastest), or is None for a run
    that was measured alone. `ratio` is the rate over that one's, or None for that one itself.
    """

    settings: dict
    result: Result
    comparison: Comparison | None = None

    @property
    def name(self):
        return self.result.name

    @property
    def ratio(self):
        baseline = self.comparison.names[0] if self.comparison else self.name
        return None if baseline == self.name else self.comparison.ratio(self.name, baseline)

    def __repr__(self):
        words = f"{self.name} ({describe(self.settings)}): {_rate(self.result)}"
        ratio = self.ratio
        if ratio:
            words += f"; against {ratio.b}: {ratio}"
        return f"{words}. {ratio.advice}" if ratio and ratio.advice else words


def standings(race):
    """Who is still in, and who has left."""
    rows = []
    for name, result in race.results.items():
        state = f"left after {race.left[name]} rounds" if name in race.left else "still in"
        rows.append([name, describe(race.settings[name]), interval(result), state])
    return cards.table("", ["run", "settings", "median (interval)", "the race"], rows)


def shown(runs, baseline):
    """The last 24 runs, the baseline always among them."""
    last = runs[-SHOWN:]
    return last if baseline in last else [baseline, *last[1:]]


def verdict(run, baseline):
    """In words, with the ratio if the two took turns."""
    if run is baseline:
        return "baseline"
    together = _measured_together(run, baseline)
    return str(together.ratio(run.name, baseline.name)) if together else "measured apart"


def table(runs, baseline):
    """The runs that `shown` selects, with their settings, rates and verdicts."""
    if not runs:
        return cards.note("Runs", "none so far")
    head = ["run", "settings", "median (interval)", "first batch", f"against {baseline.name}"]
    rows = []
    for run in shown(runs, baseline):
        first = amount(run.result.first_seconds, "s")
        rows.append([run.name, describe(run.settings), _rate(run.result), first, verdict(run, baseline)])
    return cards.table(f"The last {len(rows)} of {len(runs)} runs", head, rows)


def figure(runs, baseline):
    """The runs that `shown` selects as a matplotlib figure, each with the baseline's rate in the same rounds.

    A run is called by its name and the settings that tell it from the others: "run 2: batch=32 prefetch=2".
    """
    differing = [name for name in baseline.settings if len({text(run.settings[name]) for run in runs}) > 1]
    if len(runs) == 1:
        differing = list(baseline.settings)
    rows = []
    beside = []
    for run in shown(runs, baseline):
        name = f"{run.name}: {describe({name: run.settings[name] for name in differing})}"
        rows.append(replace(run.result, name=f"baseline: {name}" if run is baseline else name))
        together = None if run is baseline else _measured_together(run, baseline)
        beside.append(together and together.results[baseline.name].median)
    return comparison_figure(rows, beside=beside)


def csv_lines(runs):
    """All runs as CSV; the columns from `baseline` on are empty for a run without a ratio.

    Raises ValueError for a choice that has the name of another column.
    """
    measured = ["unit", "median", "low", "high", "first_seconds", "note"]
    ratio = {"baseline": "b", "ratio": "median", "ratio_low": "low", "ratio_high": "high", "verdict": "verdict"}
    lines = []
    for run in runs:
        taken = run.settings.keys() & {"run", *measured, *ratio}
        if taken:
            raise ValueError(f"a choice cannot be written under {min(taken)!r}, which is another column: rename it")
        line = {"run": run.name, **{name: text(value) for name, value in run.settings.items()}}
        line |= {name: getattr(run.result, name) for name in measured}
        line |= {column: getattr(run.ratio, name, "") for column, name in ratio.items()}
        lines.append(line)
    file = io.StringIO()
    table = csv.DictWriter(file, lines[0] if lines else [])
    table.writeheader()
    table.writerows(lines)
    return file.getvalue()


def _measured_together(run, other):
    """Return the `Comparison` that holds both runs, or None."""
    for comparison in (run.comparison, other.comparison):
        if comparison and {run.name, other.name} <= set(comparison.results):
            return comparison
    return None


def _rate(result):
    note = f" ({result.note})" if result.note else ""
    return f"{interval(result)} {result.unit}{note}"
