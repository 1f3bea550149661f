"""A ledger of tuning steps: the predicted and the measured gain of each."""

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
    """One training setup. ``rate``: a `Result` in examples/s; ``before``: that of the previous setup, if the two were
    interleaved; ``gain``: ``rate`` divided by the previous rate, a `Ratio` if interleaved, otherwise a number;
    ``loss``: nats per byte. None if not measured. ``predicted``: the reader's prediction, for example "1.5x" or
    "2.2 nats", "" if there is none. ``kept``: whether later steps build on it. ``source``: set if measured here.
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
    """Entries in the order of the steps; the first is the starting point.

        ledger = Ledger()
        ledger.measure("naive", step, loss=2.3)
        bt.predict("bfloat16", 1.5, "x")
        ledger.measure("bfloat16", step_in_bfloat16, loss=2.3)

    Displayed as a table. A machine drifts, so rates in different rows can differ although nothing has changed. A gain
    is relative to the ``before`` in its row, which was interleaved with it.
    """

    def __init__(self):
        self._entries = {}

    @property
    def entries(self):
        return list(self._entries.values())

    @property
    def last(self):
        """The name of the last step measured here and kept, or None."""
        measured = self._measured_before(None)
        return measured[-1].name if measured else None

    def measure(self, name, source, *, seconds=3.0, **others):
        """Measure a step function, or another source of `bt.throughput`, and `enter` it with the ``others``.

        All but the first are compared with the last kept step by `bt.compare`.
        """
        measured = self._measured_before(name)
        if measured:
            rate = _compared(measured[-1], name, source, seconds)
        else:
            rate = throughput(source, seconds=seconds, name=name)
        return self.enter(name, rate, source=source, **others)

    def overall(self, name, *, seconds=4.0, **others):
        """Compare the last kept step with the first by `bt.compare`, and `enter` the result with the ``others``."""
        measured = self._measured_before(name)
        rate = _compared(measured[0], name, measured[-1].source, seconds)
        return self.enter(name, rate, **others)

    def enter(self, name, rate=None, *, loss=None, kept=None, source=None):
        """Add the measurements of one step, and reveal the `bt.predict` prediction of the same name.

        An existing step of that name is replaced in place.

        ``rate``: a `Result`, or a `Comparison` of the previous setup with the new one. The unit of the prediction
        selects the quantity: "x" is the gain in examples/s, "nats" is ``loss``. ``kept``: by default, whether the step
        is faster than the previous one (the whole interval, for a comparison); True without a rate. ``source``: the
        source that later steps can be compared with.

        Raises ValueError if the predicted quantity was not measured.
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
