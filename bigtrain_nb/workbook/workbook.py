"""The reader's side of a notebook: predictions and how far off they were, exercises with check, hint, solution.

What was predicted and checked lasts as long as the kernel; running a cell again replaces what it said before. `score`
notes a summary beside the notebook (see `scores`), so that the last notebook can show the whole series.
"""

import difflib
import functools
import html
import inspect
import math
import textwrap
from dataclasses import dataclass, replace

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import interval, quantity
from bigtrain_nb.plots import Picture, comparison_figure, prediction_figure
from bigtrain_nb.workbook import exercises, scores

NOT_ATTEMPTED, RIGHT, WRONG = "not attempted", "right", "wrong"

_predictions = {}
_checked = {}


CLOSE = 1.1
"""Times: as near as a single number, without an interval, can be asked to be predicted."""


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
    def factor(self) -> float:
        """How many times the prediction is what was measured."""
        return self.predicted / self.median

    @property
    def hit(self) -> bool:
        """Whether the prediction lies in the measured interval, or within 10 % of a number that has none."""
        if self.low < self.high:
            return self.low <= self.predicted <= self.high
        return max(self.factor, 1 / self.factor) <= CLOSE

    @property
    def verdict(self) -> str:
        """In words: "inside the interval", "within 10 %" or "off by 1.4x, too low"."""
        if self.hit:
            return "inside the interval" if self.low < self.high else "within 10 %"
        times = max(self.factor, 1 / self.factor)
        if times < 1.005:
            return "off by less than 1 %"
        return f"off by {quantity(times, 'x')}, too {'high' if self.factor > 1 else 'low'}"


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """What a check found: status "not attempted", "right" or "wrong", and a message."""

    name: str
    status: str
    message: str = ""

    def _card(self):
        words = {NOT_ATTEMPTED: "Not attempted yet", RIGHT: "Right", WRONG: "Wrong"}
        return cards.note(words[self.status], self.message)


def predict(name: str, value: float, unit: str = "") -> cards.Card:
    """Note what you expect before you measure it; `value` is a number above zero in `unit` ("x" for a ratio).

    Raises ValueError for anything else.
    """
    _predictions[name] = row = Prediction(name, _positive(value, f"predict({name!r})"), unit)
    return cards.note("Your prediction", f"{name} = {quantity(row.predicted, unit)}")


def reveal(name: str, measured) -> cards.Card:
    """Set what was measured beside the prediction of that name, and show both in a picture.

    `measured`: a `Ratio`, a `Result` or a plain number. Raises ValueError if there is no such prediction, or if
    what was measured is not above zero or has another unit.
    """
    earlier = _look_up(_predictions, name, "prediction")
    known = hasattr(measured, "median")
    median = _positive(measured.median if known else measured, f"reveal({name!r})")
    low, high = (measured.low, measured.high) if known else (median, median)
    unit = getattr(measured, "unit", "x" if known else "")
    if earlier.unit and unit and earlier.unit != unit:
        raise ValueError(f"{name!r} was predicted in {earlier.unit} and measured in {unit}: predict in {unit}")
    rounds = tuple(getattr(measured, "rounds", ()))
    row = replace(earlier, median=median, low=low, high=high, rounds=rounds, unit=earlier.unit or unit)
    _predictions[name] = row
    line = f"{name}: you said {quantity(row.predicted, row.unit)}, measured {_measured(row)}: {row.verdict}."
    _show(Picture(comparison_figure([row], prediction=row.predicted), line))
    return cards.note("Measured", line)


def predicted(name: str) -> Prediction | None:
    """What was predicted under that name, or None."""
    return _predictions.get(name)


def score(series=False) -> cards.Card:
    """Every prediction beside its measurement, with a picture, and every exercise that was checked.

    With ``series``, below it a line for each notebook that the reader has scored in this folder.
    """
    revealed = [row for row in _predictions.values() if row.median is not None]
    rows = [
        [row.name, quantity(row.predicted, row.unit), _measured(row), quantity(row.factor, "x"), row.verdict]
        for row in revealed
    ]
    rows += [[row.name, quantity(row.predicted, row.unit), "not yet", "", ""]
             for row in _predictions.values() if row.median is None]  # fmt: skip
    rows += [[name, "exercise", "", "", found.status] for name, found in _checked.items()]
    if not rows:
        return cards.note("Score", "nothing was predicted and no exercise was checked yet")
    hits = sum(row.hit for row in revealed)
    right = sum(found.status == RIGHT for found in _checked.values())
    closing = f"{hits} of {len(revealed)} predictions inside the interval, or within 10 % of a single number"
    if revealed:
        worst = max(revealed, key=lambda row: abs(math.log(row.factor)))
        closing += f" (furthest off: {worst.name})" if hits < len(revealed) else ""
        words = f"predictions as multiples of what was measured; {closing}"
        _show(Picture(prediction_figure(revealed), words))
    closing += f"; {right} of {len(_checked)} exercises right." if _checked else "."
    here = machine()
    closing += f" Measured on {here['processor']}, {here['cores']} cores, TensorFlow {here['tensorflow']}."
    head = ["", "predicted", "measured", "predicted / measured", "verdict"]
    own = cards.table("Score", head, rows, closing)
    factors = [max(row.factor, 1 / row.factor) for row in revealed]
    lines = scores.noted(scores.Summary(len(revealed), hits, sum(f <= 2 for f in factors), len(_checked), right))
    return cards.stacked(own, scores.table(lines)) if series else own


def check(name: str, answer) -> Checked:
    """Check the reader's function `answer` for the exercise of that name: not attempted yet, right, or wrong and why.

    Never raises for an answer, however wrong. Raises ValueError for an unknown name.
    """
    exercise = _exercise(name)
    try:
        if answer is ...:
            raise exercises.NotAttempted
        if not callable(answer):
            raise exercises.Wrong(f"expected a function, got {answer!r}")
        exercise.check(_guarded(answer))
        found = Checked(name, RIGHT)
    except exercises.NotAttempted:
        found = Checked(name, NOT_ATTEMPTED, f"{_effort(exercise)}; bt.hint({name!r}) helps")
    except exercises.Wrong as wrong:
        found = Checked(name, WRONG, str(wrong))
    except Exception as error:
        reason = f"the check can do nothing with what your function returned ({_raised(error)})"
        found = Checked(name, WRONG, reason)
    _checked[name] = found
    return found


def hint(name: str) -> cards.Card:
    """Show the exercise's hint. Raises ValueError for an unknown name."""
    return cards.note("Hint", _exercise(name).hint)


def solution(name: str) -> cards.Card:
    """Show the exercise's solution as source code. Raises ValueError for an unknown name."""
    source = textwrap.dedent(inspect.getsource(_exercise(name).reference))
    return cards.Card(source, f"<pre>{html.escape(source)}</pre>")


def _guarded(answer):
    """The reader's function, where `...` means not attempted and an exception is a wrong answer."""

    @functools.wraps(answer)
    def call(*args, **kwargs):
        try:
            result = answer(*args, **kwargs)
        except Exception as error:
            raise exercises.Wrong(f"your function raised {_raised(error)}") from error
        if exercises.is_unfinished(result):
            raise exercises.NotAttempted
        return result

    return call


def _exercise(name):
    return _look_up(exercises.registry(), name, "exercise")


def _look_up(known, name, kind):
    if name in known:
        return known[name]
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4) or sorted(known)
    said = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there is no {kind} yet"
    raise ValueError(f"no {kind} named {name!r}: {said}")


def _positive(value, where):
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool | str) or not (math.isfinite(number) and number > 0):
        raise ValueError(f"{where}: {value!r} is not a number above zero")
    return number


def _measured(row):
    if row.low == row.high:
        return quantity(row.median, row.unit)
    return interval(row) + ("" if row.unit in ("", "x") else f" {row.unit}")


def _effort(exercise):
    minutes = f"{exercise.minutes} minute{'s' if exercise.minutes != 1 else ''}"
    return f"about {minutes}, difficulty {exercise.difficulty} of 5"


def _raised(error):
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _show(picture):
    """Display where there is a notebook or an IPython shell; a plain script prints only what it asks for."""
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython():
        display(picture)
