"""A ledger of a tuning: what each step was expected to buy, and what it bought."""

from dataclasses import dataclass, field
from itertools import takewhile

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.words import interval, number, quantity
from bigtrain_nb.measure import benchmark as measure
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.workbook import workbook

COLUMN_OF = {"x": "rate", "MiB": "memory", "nats": "loss"}
"""What a prediction is about, by its unit: so many times the examples/s, peak memory, loss in nats a byte."""


@dataclass(frozen=True)
class Entry:
    """One way to train. ``rate``: a `Result` in examples/s; ``before``: the same of the way before, if it was measured
    in turns with this one; ``gain``: ``rate`` as a multiple of the rate before, a `Ratio` if in turns, else a number;
    ``memory``: peak in MiB; ``loss``: nats a byte. None for what was not measured. ``predicted``: {"rate", "memory" or
    "loss": value} in the same units. ``kept``: whether later steps build on it.
    """

    name: str
    rate: Result | None = None
    before: Result | None = None
    gain: object = None
    memory: float | None = None
    loss: float | None = None
    predicted: dict = field(default_factory=dict)
    kept: bool = True


class Ledger(Shown):
    """Entries in the order of the steps, the first for where it began.

        ledger = Ledger()
        ledger.measure("naive", step, memory=220, loss=2.3)
        bt.predict("bfloat16", 1.5, "x")
        ledger.measure("bfloat16", step_in_bfloat16, loss=2.3)

    Shows itself as a table; `figure` draws it. A machine drifts, so rates of different rows can differ though nothing
    has changed; a gain is of the rate beside it, ``before``, which was measured in the same rounds.
    """

    def __init__(self):
        self._entries, self._sources = {}, {}

    @property
    def entries(self):
        return list(self._entries.values())

    @property
    def last(self):
        """The name of the last step that was measured here and kept, None if there is none."""
        return self._last_before(None)

    def measure(self, name, source, *, seconds=2.0, memory=None, loss=None, kept=None):
        """Measure a step function, or another source of `bt.throughput`, and `enter` it.

        All but the first are measured side by side with the last one that was kept, by `bt.compare`.
        """
        before = self._last_before(name)
        if before is None:
            rate = measure.throughput(source, seconds=seconds, name=name)
        else:
            rate = self._compared(before, name, source, seconds)
        card = self.enter(name, rate, memory=memory, loss=loss, kept=kept)
        self._sources[name] = source
        return card

    def overall(self, name, *, seconds=4.0, memory=None, loss=None):
        """Measure the last step that was kept side by side with the first, and `enter` it.

        Raises ValueError if nothing but the first was kept.
        """
        first, last = next(iter(self._sources), None), self._last_before(name)
        if first == last:
            raise ValueError("no step was kept: there is nothing to set beside the first")
        rate = self._compared(first, name, self._sources[last], seconds)
        return self.enter(name, rate, memory=memory, loss=loss)

    def enter(self, name, rate=None, *, memory=None, loss=None, kept=None):
        """Add what was measured of one step, and reveal what was predicted under its name, by `bt.predict`.

        A step that is there already is replaced, where it stands.

        ``rate``: a `Result`, or a `Comparison` of two, the way before and the new one. The unit of the prediction says
        what it is about: "x" the gain in examples/s, "MiB" ``memory``, "nats" ``loss``. ``kept``: by default whether
        the step is faster than the one before (its whole interval, for a comparison), True without a rate.

        Raises ValueError for a comparison of more than two and for a prediction of what was not measured, TypeError for
        a rate that is none of these.
        """
        if not isinstance(rate, Result | Comparison | None):
            raise TypeError(f"rate={rate!r} must be a Result or a Comparison, as measured, or None")
        in_turns = isinstance(rate, Comparison)
        before, rate, gain = self._against(rate, self._earlier(name))
        said = workbook.predicted(name)
        predicted = {}
        if said:
            column = COLUMN_OF.get(said.unit)
            measured = {"rate": gain, "memory": memory, "loss": loss}.get(column)
            if measured is None:
                raise ValueError(
                    f"{name!r} was predicted in {said.unit or 'no unit'}, and that was not measured: predict in "
                    f"{', '.join(COLUMN_OF)}, and give enter a rate, memory= or loss="
                )
            predicted[column] = said.predicted * (before.median if column == "rate" else 1)
            workbook.reveal(name, measured)
        kept = _is_faster(gain) if kept is None else kept
        beside = before if in_turns else None
        self._sources.pop(name, None)  # of an earlier measurement; `measure` gives the new one
        self._entries[name] = entry = Entry(name, rate, beside, gain, memory, loss, predicted, kept)
        return cards.note("Entered", f"{name}: {_words(entry)}.")

    def figure(self):
        """One row for each entry, one panel each for examples/s, memory and loss."""
        from bigtrain_nb.plots import rows_figure

        panels = {
            "examples/s": [_row(entry, "rate") for entry in self.entries],
            "peak memory, MiB": [_row(entry, "memory") for entry in self.entries],
            "loss, nats a byte": [_row(entry, "loss") for entry in self.entries],
        }
        return rows_figure(panels, zoomed=["loss, nats a byte"])

    def words(self):
        """What the figure shows, in a sentence for each entry."""
        return "; ".join(f"{entry.name}: {_words(entry)}" for entry in self.entries)

    def _earlier(self, name):
        return list(takewhile(lambda entry: entry.name != name, self.entries))

    def _last_before(self, name):
        kept = [entry.name for entry in self._earlier(name) if entry.kept and entry.name in self._sources]
        return kept[-1] if kept else None

    def _compared(self, before, name, source, seconds):
        return measure.compare({before: lambda: self._sources[before], name: lambda: source}, seconds=seconds)

    def _against(self, rate, earlier):
        """Return the rate before, the new one, and the new one as a multiple of it."""
        if isinstance(rate, Comparison):
            if len(rate.names) != 2:
                raise ValueError(f"a step is compared with the one before it: two names, not {', '.join(rate.names)}")
            before, new = rate.names
            return rate.results[before], rate.results[new], rate.ratio(new, before)
        known = [entry.rate for entry in earlier if entry.kept and entry.rate]
        if rate is None or not known:
            return None, rate, None
        return known[-1], rate, rate.median / known[-1].median

    def _card(self):
        head = ["", "examples/s before", "examples/s", "gain", "memory, MiB", "loss, nats a byte", "kept?"]
        rows = [
            [
                entry.name,
                *(number(rate.median) if rate else "" for rate in (entry.before, entry.rate)),
                _gain(entry.gain),
                _number(entry.memory),
                _number(entry.loss),
                "yes" if entry.kept else "no",
            ]
            for entry in self.entries
        ]
        return cards.table("Ledger", head, rows)


def _is_faster(gain):
    if gain is None:
        return True
    return gain.verdict == "faster" if hasattr(gain, "verdict") else gain > 1


def _row(entry, column):
    """One quantity of an entry as a row of the figure."""
    from bigtrain_nb.plots import Row

    value = getattr(entry, column)
    ends, beside = (), None
    if column == "rate" and value is not None:
        ends = value.low, value.high
        value = value.median
    if column == "rate" and entry.before is not None:
        beside = entry.before.median
    said = entry.predicted.get(column)
    return Row(entry.name, value, ends, (), said, beside, _number(value), pale=not entry.kept)


def _number(value):
    return "" if value is None else number(value)


def _gain(gain):
    if gain is None:
        return ""
    return str(gain) if hasattr(gain, "verdict") else quantity(gain, "x")


def _words(entry):
    beside = f" beside {number(entry.before.median)} before" if entry.before else ""
    found = [f"{interval(entry.rate)} examples/s{beside}"] if entry.rate else []
    found += [_gain(entry.gain)] if entry.gain is not None else []
    found += [f"{number(entry.memory)} MiB"] if entry.memory is not None else []
    found += [f"{number(entry.loss)} nats a byte"] if entry.loss is not None else []
    return ", ".join([*found, *([] if entry.kept else ["not kept"])])
