"""The runs of a Lab as a file: JSON, or CSV with a line for each run."""

import csv
import io
import json
from pathlib import Path

from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.lab.controls import text
from bigtrain_nb.lab.runs import Run

COMPARED = {
    "baseline": "b",
    "ratio": "median",
    "ratio_low": "low",
    "ratio_high": "high",
    "verdict": "verdict",
}
"""Columns, and what a `Ratio` calls them."""


def write(path, runs: list[Run]) -> Path:
    """Write all runs to a .json or .csv file. Raises ValueError for other names."""
    path = Path(path).absolute()
    if path.suffix == ".json":
        write_text(path, _json(runs))
    elif path.suffix == ".csv":
        write_text(path, _csv(runs))
    else:
        raise ValueError(f"path={str(path)!r}: expected a name that ends in .json or .csv")
    return path


def _json(runs):
    records = []
    for run in runs:
        record = {
            "run": run.number,
            "settings": run.settings,
            **_measured(run),
            "rounds": run.result.rounds,
        }
        if run.ratio:  # whose round i ran beside the run's round i
            record["baseline_rounds"] = run.comparison.results[run.ratio.b].rounds
        records.append(record)
    return json.dumps({"machine": machine(), "runs": records}, indent=1, default=text)


def _csv(runs):
    file = io.StringIO()
    lines = csv.writer(file)
    for run in runs:
        measured = _measured(run)
        if run.number == 1:
            lines.writerow(["run", *run.settings, *measured])
        settings = [text(value) for value in run.settings.values()]
        lines.writerow([run.number, *settings, *measured.values()])
    return file.getvalue()


def _measured(run):
    """Return what was measured by column; None for the ratio where there is none."""
    columns = {}
    for name in ("unit", "median", "low", "high", "first_seconds", "note"):
        columns[name] = getattr(run.result, name)
    for name, field in COMPARED.items():
        columns[name] = getattr(run.ratio, field, None)
    return columns
