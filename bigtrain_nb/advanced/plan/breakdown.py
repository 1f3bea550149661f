"""A sum that shows its lines: predictions, with the arithmetic behind each number."""

from dataclasses import dataclass

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import amount


@dataclass(frozen=True)
class Line:
    """One part of a `Breakdown`: its value and, in ``how``, the arithmetic with its source."""

    name: str
    value: float
    how: str = ""


@dataclass(frozen=True, repr=False)
class Breakdown(cards.Shown):
    """Lines of one unit ("bytes", "FLOP", "s") with their total, which ``total_how`` explains."""

    title: str
    unit: str
    lines: list[Line]
    total_how: str = ""

    @property
    def parts(self) -> dict[str, float]:
        """{name: value} of all lines."""
        return {line.name: line.value for line in self.lines}

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def __getitem__(self, name: str) -> float:
        return self.parts[name]

    def explain(self) -> cards.Card:
        """The arithmetic line by line, as a table in a notebook and as text elsewhere."""
        return cards.table(self.title, ["part", "amount", "how"], self._rows())

    def _card(self):
        return cards.table(self.title, ["part", "amount"], [row[:2] for row in self._rows()])

    def _rows(self):
        lines = [*self.lines, Line("together", self.total, self.total_how)]
        return [[line.name, amount(line.value, self.unit), line.how] for line in lines]
