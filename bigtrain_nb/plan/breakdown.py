"""A sum that shows its lines, and a plan of several: what is predicted, with the arithmetic behind each number."""

from dataclasses import dataclass

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import not_negative
from bigtrain_nb.common.words import amount


@dataclass(frozen=True)
class Line:
    """One part of a `Breakdown`: its value and, in ``how``, the arithmetic with its source."""

    name: str
    value: float
    how: str = ""


@dataclass(frozen=True, repr=False)
class Breakdown(cards.Shown):
    """Lines of one unit ("bytes", "FLOP", "s") with their total.

    The total is the sum of the lines, unless ``total_is`` gives another one. ``total_how`` says something about it.
    """

    title: str
    unit: str
    lines: list[Line]
    total_is: float | None = None
    total_how: str = ""

    @property
    def parts(self) -> dict[str, float]:
        """{name: value} of all lines."""
        return {line.name: line.value for line in self.lines}

    @property
    def total(self) -> float:
        return sum(self.parts.values()) if self.total_is is None else self.total_is

    def __getitem__(self, name: str) -> float:
        return self.parts[name]

    def explain(self) -> cards.Card:
        """The arithmetic line by line, as a table in a notebook and as text everywhere else."""
        return cards.table(self.title, ["part", "amount", "how"], self._rows())

    def _card(self):
        return cards.table(self.title, ["part", "amount"], [row[:2] for row in self._rows()])

    def _rows(self):
        lines = [*self.lines, Line("together", self.total, self.total_how)]
        return [[line.name, amount(line.value, self.unit), line.how] for line in lines]


class Plan(cards.Shown):
    """What several `Breakdown` say together.

    A plan is a dataclass with breakdowns, of which it shows ``memory`` and ``time`` (or None), and has ``words()``.
    """

    @property
    def binding(self) -> str | None:
        """What must be less for a shorter step: "computing", "communication" or "input"; None without times."""
        if self.time is None:
            return None
        computing, communication, input_seconds = self.time.parts.values()
        if input_seconds > computing + communication:
            return "input"
        return "computing" if computing >= communication else "communication"

    def explain(self) -> cards.Card:
        """The arithmetic of everything, line by line."""
        parts = [value for value in vars(self).values() if isinstance(value, Breakdown)]
        return cards.stacked(*self._notes(), *[part.explain() for part in parts])

    def _card(self):
        parts = [part._card() for part in (self.memory, self.time) if part]
        return cards.stacked(*self._notes(), *parts)

    def _notes(self):
        return [cards.note(words, "") for words in self.words()]


def step_time(computing, communication, input_seconds, how="", how_sent=""):
    """Return a `Breakdown` of a step's seconds: max(computing + communication, input).

    Input overlaps with the step where the pipeline prefetches. Communication does not overlap with computing:
    `bt.Model` reduces once, after the last gradient. ``input_seconds``: how long it takes to make a batch.
    """
    busy = computing + communication
    not_negative("input_seconds", input_seconds, "seconds")
    lines = [
        Line("computing", computing, how),
        Line("communication", communication, how_sent),
        Line("input", input_seconds, "as given"),
    ]
    total_how = f"max({amount(busy, 's')} computing + communication, {amount(input_seconds, 's')} input beside it)"
    return Breakdown("Time of a training step", "s", lines, max(busy, input_seconds), total_how)
