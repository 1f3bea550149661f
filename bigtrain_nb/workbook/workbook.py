"""The reader's side of a notebook: predictions and how far off they were, exercises with check, hint, solution.

What was predicted and checked lasts as long as the kernel; running a cell again replaces what it said before. `score`
notes a summary beside the notebook (see `scores`), so that the last notebook can show the whole series.
"""

import difflib
import html
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.checks import function, of_kind, positive, switch
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import interval, quantity
from bigtrain_nb.plots import Picture, comparison_figure, prediction_figure
from bigtrain_nb.workbook import exercises, scores
from bigtrain_nb.workbook.time_limit import TookTooLong, time_limit

NOT_ATTEMPTED, RIGHT, WRONG = "not attempted", "right", "wrong"
CLOSE = 1.1
"""Times: as near to what was measured as a prediction can be asked to be."""

_predictions = {}
_checked = {}


@dataclass(frozen=True)
class Prediction:
    """What the reader said, and, once revealed, what was measured: median with interval, all in `unit`."""

    name: str
    predicted: float
    unit: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: tuple = ()

    @property
    def factor(self):
        """How many times the prediction is what was measured."""
        return self.predicted / self.median

    @property
    def times_off(self):
        """The same for predictions too high and too low: 2 for a half as for a double."""
        return max(self.factor, 1 / self.factor)

    @property
    def inside(self):
        """Whether the prediction lies in the measured interval."""
        return self.low <= self.predicted <= self.high

    @property
    def hit(self):
        """Whether the prediction lies in the interval or within 10 % of the median: a narrow interval is no harder."""
        return self.inside or self.times_off <= CLOSE

    @property
    def verdict(self):
        """In words: "inside the interval", "within 10 %" or "off by 1.4x, too low"."""
        if self.hit:
            return "inside the interval" if self.inside and self.low < self.high else "within 10 %"
        side = "high" if self.factor > 1 else "low"
        return f"off by {quantity(self.times_off, 'x')}, too {side}"

    @property
    def measured(self):
        """What was measured, in words, with its unit."""
        return interval(self) if self.unit == "x" else f"{interval(self)} {self.unit}".strip()


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """What a check found: status "not attempted", "right" or "wrong", and a message."""

    status: str
    message: str = ""

    def _card(self):
        yet = " yet" if self.status == NOT_ATTEMPTED else ""
        return cards.note(self.status.capitalize() + yet, self.message)


def predict(name: str, value: float, unit: str = "") -> cards.Card:
    """Note what you expect before you measure it; `value` is a number above zero in `unit` ("x" for a ratio).

    Raises ValueError for anything else, TypeError for a name or a unit that is no text.

    Example::

        bt.predict("two workers", 1.8, "x")
    """
    of_kind("name", name, str, "a text")
    of_kind("unit", unit, str, "a text")
    _predictions[name] = Prediction(name, positive("value", value), unit)
    return cards.note("Your prediction", f"{name} = {quantity(value, unit)}")


def reveal(name: str, measured: Any) -> cards.Card:
    """Set what was measured beside the prediction of that name; an interval is shown in a picture too.

    `measured`: a `Ratio`, a `Result` or a plain number. Raises TypeError for anything else, ValueError if there is no
    such prediction, or if what was measured is not above zero or has another unit.

    Example::

        bt.predict("lists", 1e6, "examples/s")
        bt.reveal("lists", bt.throughput([[0] * 8] * 50, seconds=0.5))
    """
    said = _look_up(name, _predictions, "prediction")
    if hasattr(measured, "median"):
        median, low, high, unit = measured.median, measured.low, measured.high, measured.unit
    else:
        median = low = high = _number(measured)
        unit = said.unit
    positive("measured", median)
    if said.unit and said.unit != unit:
        raise ValueError(f"{name!r} was predicted in {said.unit} and measured in {unit}: predict in {unit}")
    rounds = getattr(measured, "rounds", ())
    row = replace(said, unit=unit, median=median, low=low, high=high, rounds=rounds)
    _predictions[name] = row
    line = f"{name}: you said {quantity(row.predicted, unit)}, measured {row.measured}: {row.verdict}."
    if low < high:
        _show(comparison_figure([row], prediction=row.predicted), line)
    return cards.note("Measured", line)


def _number(measured):
    try:
        return float(measured)  # of a tensor too
    except (TypeError, ValueError):
        raise TypeError(f"measured={measured!r:.99} must be a Ratio, a Result or a number") from None


def predicted(name):
    """What was predicted under that name, or None."""
    return _predictions.get(name)


def score(series: bool = False) -> cards.Card:
    """Every prediction beside its measurement, with a picture, and every exercise that was checked.

    Below it, for a prediction made on several days, how far off it was the first time and the last; with ``series``
    also a line for each notebook that the reader has scored in this folder.

    Example::

        bt.predict("workers", 1.8, "x")
        bt.reveal("workers", 1.5)
        bt.score()
    """
    switch("series", series)
    if not _predictions and not _checked:
        return cards.note("Score", "nothing was predicted and no exercise was checked yet")
    revealed = [row for row in _predictions.values() if row.median is not None]
    summary = {
        "predictions": len(revealed),
        "hits": sum(row.hit for row in revealed),
        "within_twice": sum(row.times_off <= 2 for row in revealed),
        "exercises": len(_checked),
        "right": sum(found.status == RIGHT for found in _checked.values()),
        "off": {row.name: row.times_off for row in revealed},
    }
    notebook, history = scores.note(summary)

    closing = f"{summary['hits']} of {len(revealed)} predictions inside the interval, or within 10 %"
    if summary["hits"] < len(revealed):
        worst = max(revealed, key=lambda row: row.times_off)
        closing += f" (furthest off: {worst.name})"
    if revealed:
        _show(prediction_figure(revealed), f"predictions as multiples of what was measured; {closing}")
    if _checked:
        closing += f"; {summary['right']} of {len(_checked)} exercises right"
    here = machine()
    closing += f". Measured on {here['processor']}, {here['cores']} cores, TensorFlow {here['tensorflow']}."

    rows = [_score_row(row) for row in _predictions.values()]
    rows += [[name, "exercise", "", "", found.status] for name, found in _checked.items()]
    shown = [cards.table("Score", ["", "predicted", "measured", "predicted / measured", "verdict"], rows, closing)]
    trend = scores.trend(history[notebook])
    if trend:
        shown.append(cards.table("Your predictions over the days", ["", "the first time", "the last time"], trend))
    if series:
        shown.append(scores.table(history))
    return cards.stacked(*shown)


def _score_row(row):
    said = quantity(row.predicted, row.unit)
    if row.median is None:
        return [row.name, said, "not yet", "", ""]
    return [row.name, said, row.measured, quantity(row.factor, "x"), row.verdict]


def check(name: str, answer: Callable | None = None) -> Checked:
    """Check the reader's function `answer` for the exercise of that name: not attempted yet, right, or wrong and why.

    Never raises for an answer, however wrong, and ends one that runs on and on. Where an exercise needs a script that
    is not beside the notebook, it says what puts it there. Raises ValueError for an unknown name, TypeError for a name
    that is no text and an answer that is no function.

    Example::

        def rate(batch_sizes, seconds):
            return sum(batch_sizes) / seconds

        bt.check("measure_first.rate", rate)
    """
    try:
        exercise = _exercise(name)
    except exercises.NotUnpacked as missing:
        return Checked(NOT_ATTEMPTED, str(missing))
    function("answer", answer, f"your function itself, without brackets, as in bt.check({name!r}, function)")
    try:
        with time_limit(exercise.seconds):
            exercise.check(_guarded(answer))
        found = Checked(RIGHT)
    except exercises.NotAttempted:
        minutes = "1 minute" if exercise.minutes == 1 else f"{exercise.minutes} minutes"
        words = f"about {minutes}, difficulty {exercise.difficulty} of 5; bt.hint({name!r}) helps"
        found = Checked(NOT_ATTEMPTED, words)
    except exercises.Wrong as wrong:
        found = Checked(WRONG, str(wrong))
    except TookTooLong:
        words = f"your function did not end within {exercise.seconds} s: is there a loop that never ends?"
        found = Checked(WRONG, words)
    except Exception as error:
        words = f"the check can do nothing with what your function returned ({_raised(error)})"
        found = Checked(WRONG, words)
    _checked[name] = found
    return found


def hint(name: str | None = None) -> cards.Card:
    """Show the exercise's hint. Raises what `check` does, FileNotFoundError where a script is missing.

    Example::

        bt.hint("measure_first.rate")
    """
    return cards.note("Hint", _exercise(name).hint)


def solution(name: str | None = None) -> cards.Card:
    """Show the exercise's solution as source code. Raises what `hint` does.

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
        except exercises.Wrong:  # what the check handed to the function has said it
            raise
        except Exception as error:
            raise exercises.Wrong(f"your function raised {_raised(error)}") from error
        if exercises.is_unfinished(result):
            raise exercises.NotAttempted
        return result

    return call


def _raised(error):
    return f"{type(error).__name__}: {error}"


def _exercise(name):
    of_kind("name", name, str, 'the name of an exercise, like "measure_first.rate"')
    return _look_up(name, exercises.registry(name), "exercise")


def _look_up(name, known, kind):
    of_kind("name", name, str, f"the name of {kind}")
    if name not in known:
        near = difflib.get_close_matches(name, known) or known
        raise ValueError(f"no {kind} named {name!r}: there is {', '.join(near) or 'none yet'}")
    return known[name]


def _show(figure, words):
    """Display where there is a notebook or an IPython shell; a plain script prints only what it asks for."""
    if "IPython" not in sys.modules:
        return
    import IPython.display

    if IPython.get_ipython():
        IPython.display.display(Picture(figure, words))
