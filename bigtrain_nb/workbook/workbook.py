"""The reader's side of a notebook: predictions and their errors, exercises with check, hint and solution.

Predictions and checks are recorded in the notebook's folder (see `record`), so that the last notebook can show the
whole series, and so that a prediction counts only if it was made before its measurement was seen.
"""

import difflib
import html
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from types import EllipsisType
from typing import Any

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.checks import finite, function, of_kind, switch
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.plots import Picture, prediction_figure
from bigtrain_nb.workbook import exercises, record
from bigtrain_nb.workbook.predictions import Prediction
from bigtrain_nb.workbook.tables import HEAD, RIGHT, SECOND_TIME, counts, of_notebooks, prediction_rows
from bigtrain_nb.workbook.time_limit import TookTooLong, within

NOT_ATTEMPTED, WRONG = "not attempted", "wrong"

_named = set()
"""The names of predictions in cells run by this kernel, to detect misspelled ones."""


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """The result of a check: status "not attempted", "right" or "wrong", and a message."""

    status: str
    message: str = ""

    def _card(self):
        yet = " yet" if self.status == NOT_ATTEMPTED else ""
        return cards.note(self.status.capitalize() + yet, self.message)


def predict(name: str, value: float | EllipsisType, unit: str = "") -> cards.Card:
    """Note what you expect before you measure it; `value` is a number in `unit` ("x" for a ratio), or `...` for none.

    The first number before the first `reveal` counts, also after a kernel restart. A later number is compared too,
    and marked "second time".

    Raises ValueError for anything else, TypeError for a name or a unit that is not a string.

    Example::

        bt.predict("two workers", 1.8, "x")
    """
    of_kind("name", name, str, "a string")
    of_kind("unit", unit, str, "a string")
    number = None if value is ... else finite("value", value, "a finite number, or ... for no prediction")
    said = None if number is None else _now()
    new = Prediction(name, unit, number, said)
    _named.add(name)
    with record.opened() as notes:
        rounds = notes.predictions.setdefault(name, [new])
        last = rounds[-1]
        if last.revealed:
            if number is not None:
                rounds[1:] = [new]
        elif last.predicted is None or last.unit != unit:
            rounds[-1] = new
        elif number not in (None, last.predicted):
            words = f"{name} = {last.in_words} is kept: the first number counts, not {new.in_words}"
            return cards.note("Your prediction", words)
        is_late = len(rounds) > 1 or bool(last.revealed)
    stands = rounds[-1]  # a blank in another unit has replaced a number
    if number is None and stands.predicted is not None and not stands.revealed:
        return cards.note("Your prediction", f"{name} = {stands.in_words} is kept")
    if number is None:
        return cards.note("Your prediction", f"{name}: no prediction yet; replace ... with {_kind(unit)}")
    late = f" ({SECOND_TIME}: it was revealed before, so the score does not count it)" if is_late else ""
    return cards.note("Your prediction", f"{name} = {new.in_words}{late}")


def _kind(unit):
    if unit == "x":
        return "a ratio, such as 1.5 for 1.50x"
    if unit.startswith("of "):  # a count, as in "of 64"
        return f"a number, {unit}"
    return f"a number, in {unit}" if unit else "a number"


def reveal(name: str, measured: Any) -> cards.Card:
    """Compare the measurement with the prediction of that name.

    Without a prediction, only the measurement is shown; without a `predict` of that name, nothing is recorded.
    `measured`: a `Ratio`, a `Result`, another object with `median`, `low`, `high` and `unit`, or a plain number. Raises
    TypeError for anything else, ValueError for a name that is nearly one passed to `predict`, or for a measurement
    that is not finite or has another unit.

    Example::

        bt.predict("lists", 1e6, "examples/s")
        bt.reveal("lists", bt.throughput([[0] * 8] * 50, seconds=0.5))
    """
    of_kind("name", name, str, "the name of a prediction")
    if name not in _named and not difflib.get_close_matches(name, _named):
        row = _measured(Prediction(name), measured)
        return cards.note("Measured", f"{name}: {row.measured}. No cell with bt.predict({name!r}, ...) was run before.")
    _known(name, _named, "prediction")
    with record.opened() as notes:
        rounds = notes.predictions.setdefault(name, [Prediction(name)])  # the copy may have been made again
        row = rounds[-1] = _measured(rounds[-1], measured)
        is_late = len(rounds) > 1
        notes.machine = machine()
    if row.predicted is None:
        return cards.note("Measured", f"{name}: {row.measured}.")
    late = f" ({SECOND_TIME})" if is_late else ""
    line = f"{name}: you said {row.in_words}{late}, measured {row.measured}: {row.verdict}."
    return cards.note("Measured", line)


def _measured(said, measured):
    """Return a `Prediction` with the measurement; raise if it is not a number or has another unit."""
    if all(hasattr(measured, name) for name in ("median", "low", "high", "unit")):
        median, low, high = map(float, (measured.median, measured.low, measured.high))
        unit = measured.unit
    else:
        try:
            median = low = high = float(measured)  # also from a tensor
        except (TypeError, ValueError):
            raise TypeError(f"measured={measured!r:.99} must be a Ratio, a Result or a number") from None
        unit = said.unit
    finite("measured", median, "a finite number")
    if said.unit and said.unit != unit:
        raise ValueError(f"{said.name!r} was predicted in {said.unit} and measured in {unit}: predict in {unit}")
    return replace(said, unit=unit, median=median, low=low, high=high, revealed=_now())


def _now():
    return datetime.now().isoformat(timespec="seconds")


def predicted(name):
    """The last `Prediction` of that name; None if this kernel ran no `predict` for it."""
    if name not in _named:
        return None
    with record.opened() as notes:
        return notes.predictions.get(name, [None])[-1]


def score(series: bool = False) -> cards.Card:
    """Every prediction compared with its measurement, with a picture, and every checked exercise.

    Predictions count if they were made before their measurement was revealed; a later one is listed as "second time". A
    prediction does not count if the measured interval extends from below half to above double the median, as does an
    infinite one. With ``series``, a second table lists the notebooks that the reader has worked through in this folder.

    Example::

        bt.predict("workers", 1.8, "x")
        bt.reveal("workers", 1.5)
        bt.score()
    """
    switch("series", series)
    notes, series_notes = record.noted()
    if not notes.predictions and not notes.exercises:
        return cards.note("Score", "nothing was predicted and no exercise was checked yet")
    counted = notes.counted
    count = counts(notes)
    closing = "no prediction was made before its measurement"
    if notes.in_time:
        closing = (
            f"{count['hits']} of {len(counted)} predictions inside the interval, or within 10 %;"
            f" {count['within_twice']} within 2x"
        )
    if len(counted) < len(notes.in_time):
        closing += f", {len(notes.in_time) - len(counted)} not judged"
    if count["hits"] < len(counted):
        worst = max(counted, key=lambda row: 1 if row.hit else row.times_off)
        closing += f" (furthest off: {worst.name})"
    drawn = [row for row in counted if row.factor]
    if drawn:
        _show(prediction_figure(drawn), f"predictions as multiples of what was measured; {closing}")
    if notes.exercises:
        closing += f"; {count['right']} of {count['exercises']} exercises right"
    here = machine() | notes.machine
    closing += f". Measured on {here['processor']}, {here['cores']} cores, TensorFlow {here['tensorflow']}."

    rows = prediction_rows(notes) + [[name, "exercise", "", "", status] for name, status in notes.exercises.items()]
    shown = [cards.table("Score", HEAD, rows, closing)]
    if series:
        shown.append(of_notebooks(series_notes))
    return cards.stacked(*shown)


def check(name: str, answer: Callable | None = None) -> Checked:
    """Check the reader's function `answer` for the exercise of that name: not attempted yet, right, or wrong and why.

    The check calls `answer` and tests its behavior; a function of the reader's own project works as well. Without
    `answer` it raises an error that describes the arguments and the expected result.

    Never raises for a wrong answer, and stops an endless one. If a script that the exercise needs is missing, the
    message explains how to get it. Raises ValueError for an unknown name, TypeError for a name that is not a string or
    an answer that is not a function. An exercise that was right once counts in the `score`, whatever is tried later.

    Example::

        def rate(sizes, ready):
            return sum(sizes[1:]) / (ready[-1] - ready[0])

        bt.check("measure_first.rate", rate)
    """
    try:
        exercise = _exercise(name)
    except exercises.NotUnpacked as missing:
        return Checked(NOT_ATTEMPTED, str(missing))
    form = f"your function itself, without parentheses, as in bt.check({name!r}, function)"
    form += f"; it gets {exercise.takes}, and returns {exercise.returns}"
    function("answer", answer, form)
    found = checked(exercise, answer)
    with record.opened() as notes:
        if notes.exercises.get(name) != RIGHT:  # a worse version tried later does not undo it
            notes.exercises[name] = found.status
    return found


def checked(exercise, answer):
    """The result of an `Exercise`'s check of an answer; nothing is recorded."""
    try:
        within(exercise.seconds, exercise.check, _guarded(answer))
        return Checked(RIGHT)
    except exercises.NotAttempted:
        minutes = "1 minute" if exercise.minutes == 1 else f"{exercise.minutes} minutes"
        hint_here = f"bt.hint({exercise.name!r}) helps"
        return Checked(NOT_ATTEMPTED, f"about {minutes}, difficulty {exercise.difficulty} of 5; {hint_here}")
    except exercises.Wrong as wrong:
        return Checked(WRONG, str(wrong))
    except TookTooLong:
        return Checked(WRONG, f"your function did not return within {exercise.seconds} s: is there an infinite loop?")
    except (Exception, SystemExit) as error:
        return Checked(WRONG, f"the check cannot use your function's result ({_raised(error)})")


def hint(name: str | None = None) -> cards.Card:
    """Show the exercise's hint. Raises the errors of `check`, and FileNotFoundError if a script is missing.

    Example::

        bt.hint("measure_first.rate")
    """
    return cards.note("Hint", _exercise(name).hint)


def solution(name: str | None = None) -> cards.Card:
    """Show the exercise's solution as source code. Raises the errors of `hint`.

    Example::

        bt.solution("measure_first.rate")
    """
    source = textwrap.dedent(inspect.getsource(_exercise(name).reference))
    return cards.Card(source, f"<pre>{html.escape(source)}</pre>")


def _guarded(answer):
    """The reader's function, where `...` means not attempted and an exception is a wrong answer."""

    def call(*args, **kwargs):
        try:
            result = answer(*args, **kwargs)
        except exercises.Wrong:  # raised by an object that the check passed to the function
            raise
        except (Exception, SystemExit) as error:
            raise exercises.Wrong(f"your function raised {_raised(error)}") from error
        if exercises.is_unfinished(result):
            raise exercises.NotAttempted
        return result

    return call


def _raised(error):
    return f"{type(error).__name__}: {error}"


def _exercise(name):
    of_kind("name", name, str, 'the name of an exercise, like "measure_first.rate"')
    known = exercises.registry(name)
    _known(name, known, "exercise")
    return known[name]


def _known(name, known, kind):
    of_kind("name", name, str, f"the name of {kind}")
    if name not in known:
        near = difflib.get_close_matches(name, known) or sorted(known)
        raise ValueError(f"no {kind} named {name!r}; known: {', '.join(near) or 'none yet'}")


def _show(figure, words):
    """Display the figure in a notebook or an IPython shell; do nothing in a plain script."""
    if "IPython" not in sys.modules:
        return
    import IPython.display

    if IPython.get_ipython():
        IPython.display.display(Picture(figure, words))
