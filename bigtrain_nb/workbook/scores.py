"""How each notebook of the series went, noted beside the notebooks, so that the last of them can show all.

Only a kernel that a Jupyter server started for a notebook notes anything: not one of the tests, nor of `make render`.
"""

import json
import os
from contextlib import suppress
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


def noted(summary) -> dict:
    """Note this notebook's summary; return {notebook: `Summary`} of all that are noted in the current folder."""
    name = _notebook()
    known = _read() | {name or THIS: summary}
    if name:
        with suppress(OSError):  # a folder that cannot be written shows this notebook only
            write_text(FILE, json.dumps({each: asdict(one) for each, one in known.items()}, indent=1) + "\n")
    return known


def table(summaries) -> cards.Card:
    """A line for each notebook and one for all."""
    rows = [[name, *_cells(one)] for name, one in sorted(summaries.items())]
    totals = [sum(values) for values in zip(*(asdict(one).values() for one in summaries.values()), strict=True)]
    rows.append(["together", *_cells(Summary(*totals))])
    head = ["", "predictions that hit", "within a factor of 2", "exercises right"]
    return cards.table("The whole series, as far as you have come", head, rows)


def _cells(one):
    of = f" of {one.predictions}"
    return [f"{one.hits}{of}", f"{one.within_twice}{of}", f"{one.right} of {one.exercises}"]


def _notebook():
    """Return the name of the notebook that this kernel was started for, by Jupyter's own variable, or None."""
    session = os.environ.get("JPY_SESSION_NAME")
    return Path(session).stem if session else None


def _read():
    try:
        return {name: Summary(**fields) for name, fields in json.loads(Path(FILE).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
