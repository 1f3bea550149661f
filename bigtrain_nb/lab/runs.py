"""The runs of a Lab: what was measured with which settings, and how to say, draw and write it down.

A run has a ratio only to runs that were measured in interleaved rounds with it; anything else was "measured apart".
"""

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

from bigtrain_nb.common import cards
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import amount, interval
from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.measure.results import Comparison, Ratio, Result
from bigtrain_nb.plots import comparison_figure

SHOWN = 24
COLUMNS = ("unit", "median", "low", "high", "first_seconds", "baseline", "ratio", "ratio_low", "ratio_high", "verdict")


@dataclass(repr=False)
class Run:
    """One measurement. `label` names the settings in which the Lab's runs differ so far.

    `baseline` is the number of the run that was measured in interleaved rounds with this one, and `ratio` is the
    rate over that baseline's; both are None for the first baseline itself. `comparison` holds all that was
    measured in those rounds, or None for a run that was measured alone.
    """

    number: int
    settings: dict
    result: Result
    label: str = ""
    baseline: int | None = None
    comparison: Comparison | None = None

    @property
    def name(self) -> str:
        return run_name(self.number)

    @property
    def ratio(self) -> Ratio | None:
        if self.baseline is None:
            return None
        return self.comparison.ratio(self.name, run_name(self.baseline))

    def __repr__(self):
        ratio = f"; against run {self.baseline}: {_ratio_words(self.ratio)}" if self.ratio else ""
        return f"Run {self.number} ({describe(self.settings)}): {_rate(self)}{ratio}"


def run_name(number: int) -> str:
    return f"run {number}"


def relabel(runs: list[Run]) -> None:
    """Give each run the label that tells it from the others."""
    names = [name for name in (runs[0].settings if runs else ()) if len({text(run.settings[name]) for run in runs}) > 1]
    for run in runs:
        run.label = describe({name: run.settings[name] for name in names}) or run.name


def verdict(run: Run, baseline: Run) -> str:
    """In words, with the ratio if the two were measured in interleaved rounds."""
    if run is baseline:
        return "baseline"
    shared = _shared(run, baseline)
    return _ratio_words(shared.ratio(run.name, baseline.name)) if shared else "measured apart"


def words(runs: list[Run], baseline: Run) -> str:
    """The last run in one sentence; what a screen reader says for the picture."""
    last = runs[-1]
    against = "it is the baseline" if last is baseline else f"against run {baseline.number}: {verdict(last, baseline)}"
    setting = f" ({last.label})" if last.label != last.name else ""
    return f"Run {last.number}{setting}: {_rate(last)}; {against}."


def table(runs: list[Run], baseline: Run | None) -> cards.Card:
    """The runs that `shown` selects, with their settings, rates and verdicts."""
    if not runs:
        return cards.note("Runs", "none so far")
    rows = [
        [str(run.number), describe(run.settings), _rate(run), amount(run.result.first_seconds, "s"),
         verdict(run, baseline), run.result.note]
        for run in shown(runs, baseline)
    ]  # fmt: skip
    head = ["run", "settings", "median (interval)", "first element", f"against {baseline.name}", "note"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    left_out = len(runs) - len(rows)
    caption = "Runs" + (f" (the last {SHOWN}; {left_out} more are in the export)" if left_out else "")
    return cards.table(caption, head, rows)


def figure(runs: list[Run], baseline: Run):
    """The runs that `shown` selects as a matplotlib figure, each with the baseline's rate in the same rounds."""
    rows = shown(runs, baseline)
    beside = []
    for run in rows:
        shared = _shared(run, baseline) if run is not baseline else None
        beside.append(shared.results[baseline.name].median if shared else None)
    drawn = [replace(run.result, name=_title(run)) for run in rows]
    return comparison_figure(drawn, baseline=_title(baseline), beside=beside)


def shown(runs: list[Run], baseline: Run | None) -> list[Run]:
    """The last 24 runs, the baseline always among them."""
    last = runs[-SHOWN:]
    return last if baseline is None or baseline in last else [baseline, *last[1:]]


def write(path, runs: list[Run], baseline: Run | None, title: str) -> Path:
    """Write all runs to a .json or .csv file, beside it first and then renamed. Raises ValueError for other names."""
    path = Path(path).absolute()
    if path.suffix not in (".json", ".csv"):
        raise ValueError(f"path={str(path)!r}: expected a name that ends in .json or .csv")
    write_text(path, _csv(runs) if path.suffix == ".csv" else _json(runs, baseline, title))
    return path


def _title(run):
    return run.name if run.label == run.name else f"{run.number}: {run.label}"


def _shared(run, other):
    for comparison in (run.comparison, other.comparison):
        if comparison is not None and {run.name, other.name} <= set(comparison.results):
            return comparison
    return None


def _rate(run):
    return f"{interval(run.result)} {run.result.unit}"


def _ratio_words(ratio):
    return str(ratio) if ratio.verdict == "same" else f"{ratio.verdict}, {ratio}"


def _json(runs, baseline, title):
    return json.dumps(
        {
            "title": title,
            "machine": machine(),
            "baseline": baseline and baseline.number,
            "runs": [_record(run) for run in runs],
        },
        indent=1,
    )


def _record(run):
    ratio = run.ratio
    beside = run.comparison.results[run_name(run.baseline)] if ratio else None
    return {
        "number": run.number,
        "label": run.label,
        "settings": {name: _plain(value) for name, value in run.settings.items()},
        "result": run.result.to_dict(),
        "baseline": run.baseline,
        "baseline_result": beside and beside.to_dict(),
        "ratio": ratio and {**ratio.to_dict(), "verdict": ratio.verdict},
    }


def _csv(runs):
    file = io.StringIO()
    lines = csv.writer(file)
    lines.writerow(["run", *(runs[0].settings if runs else ()), *COLUMNS])
    for run in runs:
        result, ratio = run.result, run.ratio
        against = [ratio.median, ratio.low, ratio.high, ratio.verdict] if ratio else [""] * 4
        measured = [result.unit, result.median, result.low, result.high, result.first_seconds]
        baseline = "" if run.baseline is None else run.baseline
        lines.writerow([run.number, *map(_plain, run.settings.values()), *measured, baseline, *against])
    return file.getvalue()


def _plain(value):
    return value if value is None or isinstance(value, bool | int | float | str) else text(value)
