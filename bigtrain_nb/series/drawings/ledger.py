"""The picture of a ledger: a row for each step, a panel each for its speed, its memory and its loss."""

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import canvas, key, label
from bigtrain_nb.plots.rows import Row, draw_rows


def ledger_figure(ledger):
    """Draw the entries of a `Ledger`, the first on top. The axis of the loss does not begin at zero."""
    entries = ledger.entries
    figure, (speed, memory, loss) = canvas(1.2 + 0.4 * len(entries), columns=3)
    marks = draw_rows(speed, [_speed(entry) for entry in entries])
    marks |= draw_rows(memory, [_number(entry, "memory") for entry in entries])
    marks |= draw_rows(loss, [_number(entry, "loss") for entry in entries])
    label(speed, "examples/s")
    label(memory, "peak memory, MiB")
    label(loss, "loss, nats a byte")
    for axes in (speed, memory, loss):
        axes.margins(x=0.15)
        axes.locator_params(axis="x", nbins=2)
        axes.xaxis.set_major_formatter("{x:,.6g}")
        axes.tick_params(axis="y", labelleft=axes is speed)
    speed.set_xlim(left=0)
    memory.set_xlim(left=0)
    key(figure, marks)
    return figure


def _name(entry):
    return entry.name if entry.kept else f"{entry.name} (not kept)"


def _speed(entry):
    predicted = entry.predicted.get("rate")
    if entry.rate is None:
        return Row(_name(entry), predicted=predicted)
    rate = entry.rate
    beside = entry.before.median if entry.before else None
    return Row(_name(entry), rate.median, (rate.low, rate.high), (), beside, predicted, number(rate.median))


def _number(entry, column):
    value = getattr(entry, column)
    words = "" if value is None else number(value)
    return Row(_name(entry), value, predicted=entry.predicted.get(column), words=words)
