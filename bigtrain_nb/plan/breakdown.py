"""A sum that shows its lines, and a plan of several: what is predicted, with the arithmetic behind each number."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.words import number

BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
COUNTED = ("", "k", "M", "B", "T")
TIMES = (("days", 86400), ("hours", 3600), ("min", 60), ("s", 1), ("ms", 1e-3))


def amount(value: float, unit: str) -> str:
    """A value in words: bytes as "1.21 GiB", seconds as "12.5 ms", anything else with a decimal prefix: "312 TFLOP".

    Things that are counted, in small letters, come in thousands, millions, billions and trillions: "6.58 B weights".
    """
    if not math.isfinite(value):
        return "unknown"
    if unit == "s":
        return _seconds(value)
    base, prefixes = (1024, BINARY) if unit == "bytes" else (1000, DECIMAL if unit[:1].isupper() else COUNTED)
    step = 0
    while abs(value) >= 0.9995 * base and step < len(prefixes) - 1:
        value, step = value / base, step + 1
    if unit == "bytes":
        return f"{number(value)} {prefixes[step]}"
    if prefixes is DECIMAL:
        return f"{number(value)} {prefixes[step]}{unit}"
    return " ".join(filter(None, [number(value), prefixes[step], unit]))


def _seconds(value):
    for unit, size in TIMES:
        if value >= (2 if size > 1 else 1) * size:
            return f"{number(value / size)} {unit}"
    return f"{number(1e6 * value)} µs" if value else "0 s"


@dataclass(frozen=True)
class Line:
    """One part of an `Account`: its value and, in ``how``, the arithmetic with its source."""

    name: str
    value: float
    how: str = ""


@dataclass(frozen=True, repr=False)
class Account(Shown):
    """Lines of one unit ("bytes", "FLOP", "s") with their total.

    The total is the sum of the lines, unless ``total_is`` gives another one together with ``total_how``.
    """

    title: str
    unit: str
    lines: tuple
    total_is: float | None = None
    total_how: str = ""

    @property
    def total(self) -> float:
        return sum(line.value for line in self.lines) if self.total_is is None else self.total_is

    @property
    def parts(self) -> dict:
        """{name: value} of all lines."""
        return {line.name: line.value for line in self.lines}

    def __getitem__(self, name):
        if name not in self.parts:
            raise KeyError(f"{self.title} has no line {name!r}; it has {', '.join(self.parts)}")
        return self.parts[name]

    def explain(self):
        """The arithmetic line by line, as a table in a notebook and as text everywhere else."""
        return self._card(("part", "amount", "how"))

    def _card(self, head=("part", "amount")):
        from bigtrain_nb.common import cards  # brings matplotlib

        rows = [[line.name, amount(line.value, self.unit), line.how] for line in self.lines]
        rows.append(["together", amount(self.total, self.unit), self.total_how])
        return cards.table(self.title, head, [row[: len(head)] for row in rows])


class Plan(Shown):
    """What several `Account` say together.

    A plan is a dataclass with accounts, of which it shows ``memory`` and ``time`` (or None), and has ``words()``.
    """

    @property
    def accounts(self):
        """All of them, which `explain` shows."""
        return [value for value in vars(self).values() if isinstance(value, Account)]

    @property
    def binding(self):
        """What must be less for a shorter step: "computing", "communication" or "input"; None without times."""
        if self.time is None:
            return None
        parts = self.time.parts
        if parts["input"] > parts["computing"] + parts["communication"]:
            return "input"
        return max(("computing", "communication"), key=parts.get)

    def explain(self):
        """The arithmetic of everything, line by line."""
        return self._stacked(one.explain() for one in self.accounts)

    def _card(self):
        return self._stacked(one._card() for one in (self.memory, self.time) if one)

    def _stacked(self, tables):
        from bigtrain_nb.common import cards

        return cards.stacked(*(cards.note(words, "") for words in self.words()), *tables)
