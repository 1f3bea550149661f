"""The page itself: HTML that needs no other file and no network, and prints well."""

import html
from datetime import datetime

from bigtrain_nb.common import cards
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.plots import figure_svg, prediction_figure
from bigtrain_nb.workbook import tables
from bigtrain_nb.workbook.record import Notes

TITLE = "What was predicted, measured and solved"
WHAT_IT_IS = (
    "A prediction counts if it was typed before its measurement was first revealed; one that came later is marked"
    f" \u201c{tables.SECOND_TIME}\u201d. A hit lies inside the measured interval, or within 10 % of the median. An"
    " interval from less than half of the median to more than its double judges nothing, and is not counted. The"
    " exercises were checked again for this page, each from its cell and what that needs. The record is the reader's"
    " own: the notebooks kept it on the reader's machine, where it can be edited."
)
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #999 }
table { border-collapse: collapse; margin: 0.6rem 0; width: 100% } tr { border-bottom: 1px solid #9995 }
th:first-child { width: 30% } :is(th, td):nth-child(2) { white-space: nowrap; width: 8rem }
caption { font-weight: bold } p { margin: 0.5rem 0 } svg { max-width: 100%; height: auto }
@media (max-width: 40rem) { table { display: block; overflow-x: auto } }
@media print {
  :root { color-scheme: light }
  body { font-size: 10pt; margin: 0; max-width: none }
  h2, caption { break-after: avoid } tr, svg { break-inside: avoid }
}
"""


def page(record, checked):
    """Return the HTML page of a reader.

    ``record``: {notebook: `Notes`}. ``checked``: {notebook: {exercise: `Checked`}}, as `check_again` found them.
    """
    names = sorted({name for name, notes in record.items() if notes.predictions} | checked.keys())
    parts = [f"<h1>{TITLE}</h1><p>{html.escape(WHAT_IT_IS)}</p>", _overview(names, record, checked)]
    for name in names:
        parts.append(_notebook(name, record.get(name, Notes()), checked.get(name, {})))
    parts.append(f"<p>Made on {datetime.now():%Y-%m-%d at %H:%M}, on {html.escape(_in_words(machine()))}.</p>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{TITLE}</title>'
    body = "".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>{body}</body></html>\n'


def _overview(names, record, checked):
    counted = {}
    for name in names:
        statuses = [found.status for found in checked.get(name, {}).values()]
        of_checks = {"exercises": len(statuses), "right": statuses.count(tables.RIGHT)}
        counted[name] = tables.counts(record.get(name, Notes())) | of_checks
    return tables.of_notebooks(counted).html


def _notebook(name, notes, checked):
    parts = [f"<h2>{html.escape(name)}</h2>"]
    if notes.predictions:
        drawn = [row for row in notes.counted if row.factor]
        if drawn:
            parts.append(
                figure_svg(prediction_figure(drawn), f"predictions of {name} as multiples of what was measured")
            )
        parts.append(cards.table("Predictions", tables.HEAD, tables.prediction_rows(notes)).html)
    if notes.machine:
        parts.append(f"<p>Measured on {html.escape(_in_words(notes.machine))}.</p>")
    if checked:
        rows = [[exercise, found.status, found.message] for exercise, found in checked.items()]
        parts.append(cards.table("Exercises, checked again", ["", "found", "why"], rows).html)
    return "".join(parts)


def _in_words(here):
    """A machine, and what is installed there, as `bt.machine` tells of it."""
    words = []
    for name, value in here.items():
        unit = " GiB" if "_gib" in name else ""
        words.append(f"{name.replace('_gib', '').replace('_', ' ')}: {value}{unit}")
    return "; ".join(words)
