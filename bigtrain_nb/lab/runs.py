"""The runs of a Lab: what was measured with which settings, and how to say it, draw it and write it down.

A run has a ratio only to runs that were measured in interleaved rounds with it; anything else was "measured apart".
"""

import csv
import io
from dataclasses import dataclass, replace

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import amount, interval
from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.measure.results import Comparison, Ratio, Result
from bigtrain_nb.plots import comparison_figure

SHOWN = 24


@dataclass(repr=False, eq=False)
class Run:
    """One measurement.

    `comparison` holds all that was measured in the same interleaved rounds, the baseline first, or is None for a
    run that was measured alone. `ratio` is the rate over that baseline's, or None for the first baseline itself.
    """

    number: int
    settings: dict
    result: Result
    comparison: Comparison | None = None

    @property
    def name(self) -> str:
        return run_name(self.number)

    @property
    def ratio(self) -> Ratio | None:
        if self.comparison is None or self.comparison.names[0] == self.name:
            return None
        return self.comparison.ratio(self.name, self.comparison.names[0])

    def __repr__(self):
        against = f"; against {self.ratio.b}: {_ratio_words(self.ratio)}" if self.ratio else ""
        return f"Run {self.number} ({describe(self.settings)}): {_rate(self)}{against}"


def run_name(number: int) -> str:
    return f"run {number}"


def shown(runs: list[Run], baseline: Run) -> list[Run]:
    """The last 24 runs, the baseline always among them."""
    last = runs[-SHOWN:]
    if baseline not in last:
        last[0] = baseline
    return last


def verdict(run: Run, baseline: Run) -> str:
    """In words, with the ratio if the two were measured in interleaved rounds."""
    if run is baseline:
        return "baseline"
    together = _measured_together(run, baseline)
    if together is None:
        return "measured apart"
    return _ratio_words(together.ratio(run.name, baseline.name))


def words(runs: list[Run], baseline: Run) -> str:
    """The last run in one sentence; what a screen reader says for the picture."""
    last = runs[-1]
    label = labels(runs)[last]
    setting = f" ({label})" if label else ""
    if last is baseline:
        against = "it is the baseline"
    else:
        against = f"against {baseline.name}: {verdict(last, baseline)}"
    return f"Run {last.number}{setting}: {_rate(last)}; {against}."


def labels(runs: list[Run]) -> dict[Run, str]:
    """By run the settings that tell it from the others: "batch=32 prefetch=2"."""
    differing = []
    for name in runs[0].settings:
        if len({text(run.settings[name]) for run in runs}) > 1:
            differing.append(name)
    return {run: describe({name: run.settings[name] for name in differing}) for run in runs}


def table(runs: list[Run], baseline: Run | None) -> cards.Card:
    """The runs that `shown` selects, with their settings, rates and verdicts."""
    if not runs:
        return cards.note("Runs", "none so far")
    head = ["run", "settings", "median (interval)", "first batch", f"against {baseline.name}"]
    rows = []
    for run in shown(runs, baseline):
        row = [
            str(run.number),
            describe(run.settings),
            _rate(run),
            amount(run.result.first_seconds, "s"),
            verdict(run, baseline),
        ]
        rows.append(row)
    left_out = len(runs) - len(rows)
    caption = f"Runs (the last {SHOWN}; {left_out} more are in the export)" if left_out else "Runs"
    return cards.table(caption, head, rows)


def figure(runs: list[Run], baseline: Run):
    """The runs that `shown` selects as a matplotlib figure, each with the baseline's rate in the same rounds."""
    titles = {}
    for run, label in labels(runs).items():
        titles[run] = f"{run.number}: {label}" if label else run.name
    rows = []
    beside = []
    for run in shown(runs, baseline):
        rows.append(replace(run.result, name=titles[run]))
        together = _measured_together(run, baseline)
        if run is baseline or together is None:
            beside.append(None)
        else:
            beside.append(together.results[baseline.name].median)
    return comparison_figure(rows, baseline=titles[baseline], beside=beside)


def csv_lines(runs: list[Run]) -> str:
    """All runs as CSV; the columns from `baseline` on are empty for a run without a ratio."""
    measured = ["unit", "median", "low", "high", "first_seconds", "note"]
    ratio = {"baseline": "b", "ratio": "median", "ratio_low": "low", "ratio_high": "high", "verdict": "verdict"}
    file = io.StringIO()
    lines = csv.writer(file)
    for run in runs:
        if run.number == 1:
            lines.writerow(["run", *run.settings, *measured, *ratio])
        line = [run.number, *map(text, run.settings.values())]
        line += [getattr(run.result, name) for name in measured]
        line += [getattr(run.ratio, name, "") for name in ratio.values()]
        lines.writerow(line)
    return file.getvalue()


def _measured_together(run, other):
    """Return the `Comparison` that holds both runs, or None."""
    for comparison in (run.comparison, other.comparison):
        if comparison and run.name in comparison.results and other.name in comparison.results:
            return comparison
    return None


def _rate(run):
    note = f" ({run.result.note})" if run.result.note else ""
    return f"{interval(run.result)} {run.result.unit}{note}"


def _ratio_words(ratio):
    return str(ratio) if ratio.verdict == "same" else f"{ratio.verdict}, {ratio}"
