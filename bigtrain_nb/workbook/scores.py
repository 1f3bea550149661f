"""How each notebook of the series went, noted beside the notebooks, so that the last of them can show all.

Only a kernel that a Jupyter server started for a notebook notes anything: not one of the tests, nor of `make render`.
"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from bigtrain_nb.common import cards
from bigtrain_nb.common.files import write_text

FILE = ".scores.json"
THIS = "this notebook"


@dataclass(frozen=True)
class Summary:
    """Of one notebook: how many predictions were revealed, were hits, were within a factor of 2; exercises."""

    predictions: int
    hits: int
    within_twice: int
    exercises: int
    right: int


def noted(summary):
    """Note this notebook's summary; return {notebook: `Summary`} of all that are noted in the current folder."""
    session = os.environ.get("JPY_SESSION_NAME")  # Jupyter's own: the notebook that this kernel was started for
    known = _read()
    if not session:
        return known | {THIS: summary}
    known[Path(session).stem] = summary
    fields = {name: asdict(one) for name, one in known.items()}
    try:
        write_text(FILE, json.dumps(fields, indent=1) + "\n")
    except OSError:
        pass  # a folder that cannot be written keeps no score
    return known


def table(summaries):
    """A line for each notebook and one for all."""
    total = Counter()
    for one in summaries.values():
        total.update(asdict(one))
    rows = [_row(name, one) for name, one in sorted(summaries.items())]
    rows.append(_row("together", Summary(**total)))
    head = ["", "predictions that hit", "within a factor of 2", "exercises right"]
    return cards.table("The whole series, as far as you have come", head, rows)


def _row(name, one):
    hits = f"{one.hits} of {one.predictions}"
    within_twice = f"{one.within_twice} of {one.predictions}"
    return [name, hits, within_twice, f"{one.right} of {one.exercises}"]


def _read():
    try:
        known = json.loads(Path(FILE).read_text(encoding="utf-8"))
        return {name: Summary(**fields) for name, fields in known.items()}
    except (OSError, ValueError, TypeError):  # none yet, or damaged
        return {}
