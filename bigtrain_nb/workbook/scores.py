"""How each notebook of the series went, noted beside the notebooks, so that the last of them can show all.

Only a kernel that a Jupyter server started for a notebook notes anything: not one of the tests, nor of `make render`.
A summary has these counts: predictions (that were revealed), hits, within_twice, exercises, right.
"""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

from bigtrain_nb.common import cards
from bigtrain_nb.common.files import write_text

FILE = ".scores.json"
THIS = "this notebook"


def noted(summary):
    """Note this notebook's summary; return {notebook: summary} of all that are noted in the current folder."""
    try:
        known = json.loads(Path(FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or damaged
        known = {}
    session = os.environ.get("JPY_SESSION_NAME")  # Jupyter's own: the notebook that this kernel was started for
    if not session:
        return known | {THIS: summary}
    known[Path(session).stem] = summary
    with contextlib.suppress(OSError):  # a folder that cannot be written keeps no score
        write_text(FILE, json.dumps(known, indent=1) + "\n")
    return known


def table(summaries):
    """A line for each notebook and one for all."""
    total = Counter()
    for summary in summaries.values():
        total.update(summary)
    rows = [_row(name, summary) for name, summary in sorted(summaries.items())]
    rows.append(_row("together", total))
    head = ["", "predictions that hit", "within a factor of 2", "exercises right"]
    return cards.table("The whole series, as far as you have come", head, rows)


def _row(name, counts):
    return [
        name,
        f"{counts['hits']} of {counts['predictions']}",
        f"{counts['within_twice']} of {counts['predictions']}",
        f"{counts['right']} of {counts['exercises']}",
    ]
