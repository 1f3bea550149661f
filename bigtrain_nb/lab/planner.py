"""The planner: what a training step will take, before anything is measured or paid for.

    bt.Planner()             a transformer of a chosen size on accelerators of a chosen kind
    bt.Planner(build)        a Keras model, or the function that builds it

Every control acts at once. `planner.plan(batch=64, on="H100")` is the same path without a screen.
"""

import html
from dataclasses import replace
from functools import lru_cache, partial

import ipywidgets as widgets

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Card
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import amount
from bigtrain_nb.lab import controls
from bigtrain_nb.lab.controls import Choices, Range
from bigtrain_nb.lab.view import ROW, chosen_in, close, colored, field_of
from bigtrain_nb.plan import parallelism as layout
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.clusters import plan_cluster
from bigtrain_nb.plan.plans import plan_of, traced
from bigtrain_nb.plan.transformer import BYTES_OF, RECOMPUTE, SIZES, SLOTS
from bigtrain_nb.plots import INK, MEASURED, PREDICTED, Picture, figure_svg, stacked_figure

FEWEST = "as few as hold it"
EACH = "one a sequence"
HERE = "this machine"
POWERS = tuple(2**n for n in range(14))


class Planner:
    """Controls over `plan_cluster`, or over `plan_step` for a Keras model or the function that builds one.

    Raises TypeError for anything else and ValueError for a model that is not built or does not tell its shapes.
    Settings that do not fit together are said in the status line.
    """

    def __init__(self, model=None):
        if model is not None and not callable(model):
            raise TypeError(f"Planner takes a Keras model, a function that builds one, or nothing, not {model!r}")
        if not getattr(model, "built", True):
            raise ValueError(f"{model.name} has no weights yet: give it a keras.Input, or call it once on a batch")
        if hasattr(model, "built") and not getattr(model, "inputs", None):
            raise ValueError(f"{model.name} does not tell its input shapes: use bt.plan_step(model, (x, y)) for it")
        self.model = model
        own = _for_transformers() if model is None else _for_keras(model)
        self.controls = {control.name: control for control in own}
        self._step = lru_cache(maxsize=2)(partial(traced, model))  # one for all accelerators, one for here
        self._view = None

    def plan(self, **given):
        """Return the plan for these settings, the others at their defaults. Raises ValueError for what cannot be."""
        chosen = controls.settings(self.controls, given)
        if self.model is None:
            model, chosen = _transformer(**chosen)
            return plan_cluster(model, **chosen)
        on = chosen.pop("on")
        return plan_of(self._step(**chosen), on, chosen["devices"])

    def fits(self, **given) -> Card:
        """A table: does it fit on each accelerator and on this machine, on how many, and how long is a step?"""
        chosen = controls.settings(self.controls, given)
        rows = [self._row(name, {**chosen, "on": name}) for name in ACCELERATORS]
        rows.append(self._here(chosen))
        head = ["device", "memory", "fits?", "how", "a step"]
        return cards.table("Does it fit?", head, rows, "Times from published figures; nothing was measured.")

    def picture(self, **given) -> Picture:
        """The memory of a device by part as image/png."""
        plan = self.plan(**given)
        return Picture(_memory_figure(plan, given.get("on", self.controls["on"].default)), _sentence(plan))

    def close(self):
        """Take the controls off the screen."""
        if self._view:
            close(self._view.box)
            self._view = None

    def __repr__(self):
        return "Planner: " + _sentence(self.plan())

    def _repr_mimebundle_(self, **kwargs):
        self._view = self._view or _View(self)
        return {**self._view.box._repr_mimebundle_(**kwargs), "text/plain": repr(self)}

    def _row(self, name, chosen):
        memory = amount(ACCELERATORS[name].memory, "bytes")
        try:
            plan = self.plan(**chosen)
        except ValueError as error:
            return [name, memory, "no", str(error).split(":")[0], ""]
        how = str(plan.layout) if self.model is None else f"{amount(plan.memory.total, 'bytes')} needed"
        fits = plan.memory.total <= layout.USABLE * ACCELERATORS[name].memory
        return [name, memory, "yes" if fits else "no", how, amount(plan.time.total, "s")]

    def _here(self, chosen):
        """The row of this machine: its main memory, one device, no time."""
        memory = machine()["memory_gib"] * 2**30
        if self.model is None:
            model, chosen = _transformer(**chosen)
            settings = [chosen[name] for name in ("policy", "optimizer", "recompute")]
            needed = layout.memory(model, layout.Layout(), 1, *settings).total
        else:
            plan = self.plan(**{**chosen, "devices": 1})
            needed = plan.peak + plan.runtime
        fits = "yes" if needed <= layout.USABLE * memory else "no"
        return [HERE, amount(memory, "bytes"), fits, f"{amount(needed, 'bytes')} needed on one device", "measure it"]


class _View:
    """The widgets of one `Planner`."""

    def __init__(self, planner):
        self.planner = planner
        self.fields = {name: field_of(control) for name, control in planner.controls.items()}
        self.status, self.memory, self.time, self.table = (widgets.HTML() for _ in range(4))
        fields = widgets.HBox(list(self.fields.values()), layout=ROW)
        self.box = widgets.VBox([fields, self.status, self.memory, self.time, self.table])
        for field in self.fields.values():
            field.observe(self._show, "value")
        self._show()

    def _show(self, _=None):
        chosen = chosen_in(self.fields, self.planner.controls)
        self._say("Planning ...")
        try:
            plan = self.planner.plan(**chosen)
        except Exception as error:
            self._say(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")
            self.memory.value = self.time.value = self.table.value = ""
            return
        self._say(_sentence(plan))
        self.memory.value = colored(figure_svg(_memory_figure(plan, chosen["on"]), _sentence(plan)))
        times = ", ".join(f"{name} {amount(seconds, 's')}" for name, seconds in plan.time.parts.items())
        self.time.value = colored(figure_svg(_time_figure(plan.time), f"The time of a step: {times}"))
        self.table.value = colored(self.planner.fits(**chosen).html)

    def _say(self, words):
        self.status.value = colored(f'<div role="status" aria-live="polite">{html.escape(words)}</div>')


def _for_transformers():
    return [
        Choices("size", (*SIZES,), "7 B"),
        Choices("batch", POWERS, 256),
        Choices("length", POWERS[7:], 2048),
        Choices("policy", (*BYTES_OF,), "mixed_bfloat16"),
        Choices("optimizer", (*SLOTS,), "adamw"),
        Choices("micro_batches", (EACH, *POWERS), EACH),
        Choices("recompute", RECOMPUTE, "attention"),
        Choices("on", (*ACCELERATORS,), "H100"),
        Choices("devices", (FEWEST, *POWERS), FEWEST),
    ]


def _for_keras(model):
    from bigtrain_nb.common.quiet import keras

    built = isinstance(model, keras.Model)
    policy = [] if built else [Choices("policy", (*BYTES_OF,), "float32")]
    return [
        Range("batch", 1, 2**20, 1, 32),
        *policy,
        Choices("optimizer", (*SLOTS,), "adamw"),
        Range("micro_batches", 1, 4096, 1, getattr(model, "micro_batches", 1) if built else 1),
        Choices("on", (*ACCELERATORS,), "H100"),
        Range("devices", 1, 8, 1, 1),
    ]


def _transformer(size, length, **settings):
    """Return the `Transformer`, and what `plan_cluster` takes beside it."""
    settings = {name: None if value in (FEWEST, EACH) else value for name, value in settings.items()}
    return replace(SIZES[size], length=length), settings


def _memory_figure(plan, on):
    limits = {on: ACCELERATORS[on].memory, HERE: machine()["memory_gib"] * 2**30}
    return stacked_figure({"needed": plan.memory.parts}, "bytes", "memory of a device", limits)


def _time_figure(time):
    """Computing and communication one after the other, the input beside them."""
    rows = {"step": {}, "beside it": {}}
    for name, seconds in time.parts.items():
        row = "beside it" if name == "input" else "step"
        rows[row][f"{name}: {amount(seconds, 's')}"] = seconds
    limits = {f"{amount(time.total, 's')} a step": time.total}
    shades = (MEASURED, PREDICTED, (INK, 0.5))
    return stacked_figure(rows, "s", "time", limits, shades)


def _sentence(plan):
    return " ".join(plan.words())
