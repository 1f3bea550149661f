"""The runs of a Lab as a file: JSON, or CSV with a line for each run."""

import csv
import io
import json
from pathlib import Path

from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.lab.controls import text
from bigtrain_nb.lab.runs import Run


def write(path, runs: list[Run]) -> Path:
    """Write all runs to a .json or .csv file. Raises ValueError for other names."""
    path = Path(path).absolute()
    records = [_record(run) for run in runs]
    if path.suffix == ".json":
        content = {"machine": machine(), "runs": records}
        write_text(path, json.dumps(content, indent=1, default=text))
    elif path.suffix == ".csv":
        write_text(path, _csv(records))
    else:
        raise ValueError(f"path={str(path)!r}: expected a name that ends in .json or .csv")
    return path


def _record(run):
    """Return a run by column; its rounds and the baseline's ran side by side."""
    result, ratio = run.result, run.ratio
    record = {"run": run.number}
    for name, value in run.settings.items():
        record[name] = text(value) if callable(value) else value
    for column in ("unit", "median", "low", "high", "first_seconds", "rounds", "note"):
        record[column] = getattr(result, column)
    if ratio:
        record["baseline"] = ratio.b
        record["baseline_rounds"] = run.comparison.results[ratio.b].rounds
        record["ratio"] = ratio.median
        record["ratio_low"] = ratio.low
        record["ratio_high"] = ratio.high
        record["verdict"] = ratio.verdict
    return record


def _csv(records):
    columns = {}
    for record in records:
        columns.update(record)
    file = io.StringIO()
    lines = csv.DictWriter(file, columns)
    lines.writeheader()
    lines.writerows(records)
    return file.getvalue()
