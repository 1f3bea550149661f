"""Predictions and exercises as table rows, for the score of a notebook and of the series."""

from collections import Counter

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import quantity
from bigtrain_nb.workbook.record import UNTIL

SECOND_TIME = "second time"
RIGHT = "right"
HEAD = ["", "predicted", "measured", "predicted / measured", "verdict"]


def prediction_rows(notes):
    """A row with the columns `HEAD` for each prediction of a notebook's `Notes`, first and second time."""
    rows = []
    for name, (first, *again) in notes.predictions.items():
        rows.append(_row(name, first))
        rows += [_row(f"{name}, {SECOND_TIME}", one) for one in again]
    return rows


def _row(name, one):
    if one.predicted is None or not one.revealed:
        return [name, one.in_words, one.measured, "", ""]
    return [name, one.in_words, one.measured, quantity(one.factor, "x") if one.factor else "", one.verdict]


def counts(notes):
    """The numbers of counted predictions, hits, those within a factor of 2, exercises, and right exercises."""
    counted = notes.counted
    return {
        "predictions": len(counted),
        "hits": sum(one.hit for one in counted),
        "within_twice": sum(one.within_twice for one in counted),
        "exercises": len(notes.exercises),
        "right": list(notes.exercises.values()).count(RIGHT),
    }


def of_notebooks(series_notes):
    """A table with a row for each notebook of {name: its `Notes`}, and a total without earlier rounds."""
    together, rows = Counter(), []
    for name, notes in sorted(series_notes.items()):
        of_one = counts(notes)
        rows.append(_counts_row(name, of_one))
        if UNTIL not in name:
            together.update(of_one)
    head = ["", "predictions that hit", "within a factor of 2", "exercises right"]
    rows.append(_counts_row("together", together))
    return cards.table("The whole series, as far as you have come", head, rows)


def _counts_row(name, count):
    return [
        name,
        f"{count['hits']} of {count['predictions']}",
        f"{count['within_twice']} of {count['predictions']}",
        f"{count['right']} of {count['exercises']}",
    ]
