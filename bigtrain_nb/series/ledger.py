"""A ledger of a tuning: what each step was expected to buy, and what it bought."""

from dataclasses import dataclass

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.words import interval, quantity
from bigtrain_nb.measure.results import Comparison, Ratio, Result
from bigtrain_nb.measure.rounds import compare
from bigtrain_nb.measure.throughput import throughput
from bigtrain_nb.workbook import workbook

HEAD = ("examples/s before", "examples/s", "gain", "nats per byte")


@dataclass(frozen=True)
class Entry:
    """One way to train. ``rate``: a `Result` in examples/s; ``before``: the same of the way before, if it was measured
    interleaved with this one; ``gain``: ``rate`` as a multiple of the rate before, a `Ratio` if in turns, else a
    number; ``loss``: nats per byte. None for what was not measured. ``predicted``: what the reader said, such as "1.5x"
    or "2.2 nats", "" if nothing. ``kept``: whether later steps build on it. ``source``: what was measured, if that was
    here.
    """

    name: str
    rate: Result | None
    before: Result | None
    gain: Ratio | float | None
    loss: float | None
    predicted: str
    kept: bool
    source: object


class Ledger(Shown):
    """Entries in the order of the steps, the first for where it began.

        ledger = Ledger()
        ledger.measure("naive", step, loss=2.3)
        bt.predict("bfloat16", 1.5, "x")
        ledger.measure("bfloat16", step_in_bfloat16, loss=2.3)

    Shows itself as a table. A machine drifts, so rates of different rows can differ though nothing has changed; a gain
    is of the rate beside it, ``before``, which took turns with it.
    """

    def __init__(self):
        self._entries = {}

    @property
    def entries(self):
        return list(self._entries.values())

    @property
    def last(self):
        """The name of the last step that was measured here and kept, None if there is none."""
        measured = self._measured_before(None)
        return measured[-1].name if measured else None

    def measure(self, name, source, *, seconds=3.0, **others):
        """Measure a step function, or another source of `bt.throughput`, and `enter` it with the ``others``.

        All but the first are measured side by side with the last one that was kept, by `bt.compare`.
        """
        measured = self._measured_before(name)
        if measured:
            rate = _compared(measured[-1], name, source, seconds)
        else:
            rate = throughput(source, seconds=seconds, name=name)
        return self.enter(name, rate, source=source, **others)

    def overall(self, name, *, seconds=4.0, **others):
        """Measure the last step that was kept side by side with the first, and `enter` it with the ``others``."""
        measured = self._measured_before(name)
        rate = _compared(measured[0], name, measured[-1].source, seconds)
        return self.enter(name, rate, **others)

    def enter(self, name, rate=None, *, loss=None, kept=None, source=None):
        """Add what was measured of one step, and reveal what was predicted under its name, by `bt.predict`.

        A step that is there already is replaced, where it stands.

        ``rate``: a `Result`, or a `Comparison` of two, the way before and the new one. The unit of the prediction says
        what it is about: "x" the gain in examples/s, "nats" ``loss``. ``kept``: by default whether the step is faster
        than the one before (its whole interval, for a comparison), True without a rate. ``source``: what later steps
        can be measured beside.

        Raises ValueError for a prediction of what was not measured.
        """
        before = gain = base = None
        faster = True
        for earlier in self._kept_before(name):
            base = earlier.rate or base
        if isinstance(rate, Comparison):
            old, new = rate.names
            gain = rate.ratio(new, old)
            faster = gain.verdict == "faster"
            base = before = rate.results[old]
            rate = rate.results[new]
        elif rate and base:
            gain = rate.median / base.median
            faster = gain > 1
        if kept is None:
            kept = faster

        predicted = ""
        said = workbook.predicted(name)
        if said:
            measured = {"x": gain, "nats": loss}.get(said.unit)
            if measured is None:
                raise ValueError(
                    f"{name!r} was predicted in {said.unit!r}, and that was not measured: predict in x or nats"
                )
            workbook.reveal(name, measured)
            if said.predicted is not None:
                predicted = quantity(said.predicted, said.unit)

        entry = Entry(name, rate, before, gain, loss, predicted, kept, source)
        card = cards.note("Entered", f"{name}: {_words(entry)}.")
        self._entries[name] = entry
        return card

    def _kept_before(self, name):
        earlier = []
        for entry in self.entries:
            if entry.name == name:
                break
            if entry.kept:
                earlier.append(entry)
        return earlier

    def _measured_before(self, name):
        return [entry for entry in self._kept_before(name) if entry.source is not None]

    def _card(self):
        rows = []
        for entry in self.entries:
            rows.append([entry.name, *_cells(entry), entry.predicted, "yes" if entry.kept else "no"])
        return cards.table("Ledger", ["", *HEAD, "predicted", "kept?"], rows)


def _compared(before, name, source, seconds):
    return compare({before.name: lambda: before.source, name: lambda: source}, seconds=seconds)


def _cells(entry):
    return [_cell(entry.before), _cell(entry.rate), _cell(entry.gain, "x"), _cell(entry.loss)]


def _cell(value, unit=""):
    if value is None:
        return ""
    if isinstance(value, Ratio):
        return interval(value)
    return quantity(getattr(value, "median", value), unit)


def _words(entry):
    parts = [f"{cell} {head}" for cell, head in zip(_cells(entry), HEAD, strict=True) if cell]
    if entry.predicted:
        parts.append(f"predicted {entry.predicted}")
    if not entry.kept:
        parts.append("not kept")
    return ", ".join(parts)
