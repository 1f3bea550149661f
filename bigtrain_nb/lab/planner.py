"""The planner: what a training step will take, before anything is measured or paid for.

    bt.Planner()             a transformer of a chosen size on accelerators of a chosen kind
    bt.Planner(build)        a Keras model, or the function that builds it

Every control acts at once. `planner.plan(batch=64, on="H100")` is the same path without a screen.
"""

from dataclasses import replace
from functools import lru_cache, partial

import ipywidgets as widgets

from bigtrain_nb.common import cards
from bigtrain_nb.common.hardware import machine
from bigtrain_nb.common.words import amount
from bigtrain_nb.lab.controls import Choices, settings
from bigtrain_nb.lab.fields import chosen_in, close, colored, fields_of, row, said
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.clusters import plan_cluster
from bigtrain_nb.plan.parallelism import USABLE
from bigtrain_nb.plan.plans import plan_of, traced
from bigtrain_nb.plan.transformer import BYTES_OF, RECOMPUTE, SIZES, SLOTS
from bigtrain_nb.plots import MEASURED, PREDICTED, Picture, figure_svg, stacked_figure

FEWEST = "as few as hold it"
EACH = "one a sequence"
HERE = "this machine"
POWERS = tuple(2**n for n in range(14))


class Planner:
    """Controls over `plan_cluster`, or over `plan_step` for a Keras model or the function that builds one.

    Raises what `plan_step` raises for a model that it cannot plan. Settings that do not fit together are said in the
    status line.
    """

    def __init__(self, model=None):
        self.model = model
        if model is None:
            self.controls = _for_transformers()
        else:
            self.controls = _for_keras(model)
        self._traced = lru_cache(maxsize=1)(partial(traced, model))  # another accelerator needs no new trace
        self.plan()
        self.fields = fields_of(self.controls)
        for field in self.fields.values():
            field.observe(self._show, "value")
        self.status = widgets.HTML()
        self.memory = widgets.HTML()
        self.time = widgets.HTML()
        self.table = widgets.HTML()
        fields = row(*self.fields.values())
        self.box = widgets.VBox([fields, self.status, self.memory, self.time, self.table])

    def plan(self, **given):
        """Return the plan for these settings, the others at their defaults. Raises ValueError for what cannot be."""
        chosen = settings(self.controls, given)
        if self.model is None:
            return _plan_transformer(**chosen)
        on = chosen.pop("on")
        return plan_of(self._traced(**chosen), on, chosen["devices"])

    def picture(self, **given) -> Picture:
        """The memory of a device by part as image/png."""
        plan = self.plan(**given)
        on = settings(self.controls, given)["on"]
        return Picture(_memory_figure(plan, on), _words(plan))

    def fits(self, **given) -> cards.Card:
        """A table: does it fit on each accelerator, on how many, and how long is a step?"""
        return cards.table(
            "Does it fit?",
            ["device", "memory", "fits?", "how", "a step"],
            [self._row(name, given) for name in ACCELERATORS],
            "Times from published figures; nothing was measured.",
        )

    def close(self):
        """Take the controls off the screen."""
        close(self.box)

    def __repr__(self):
        return f"Planner: {_words(self.plan())}"

    def _repr_mimebundle_(self, **kwargs):
        self._show()
        return {**self.box._repr_mimebundle_(**kwargs), "text/plain": repr(self)}

    def _row(self, on, given):
        memory = ACCELERATORS[on].memory
        row = [on, amount(memory, "bytes")]
        try:
            plan = self.plan(**{**given, "on": on})
        except ValueError as error:  # no number of devices holds it, or not as many as were chosen
            reason = str(error).split(":")[0]
            return [*row, "no", reason, ""]
        needed = plan.memory.total
        fits = "yes" if needed <= USABLE * memory else "no"
        if self.model is None:
            how = str(plan.layout)
        else:
            how = f"{amount(needed, 'bytes')} needed"
        return [*row, fits, how, amount(plan.time.total, "s")]

    def _show(self, _=None):
        chosen = chosen_in(self.fields, self.controls)
        self.status.value = said("Planning ...")
        try:
            plan = self.plan(**chosen)
        except Exception as error:
            kind = type(error).__name__
            self.status.value = said(str(error) if kind == "ValueError" else f"{kind}: {error}")
            self.memory.value = ""
            self.time.value = ""
            self.table.value = ""
            return
        words = _words(plan)
        self.status.value = said(words)
        figure = _memory_figure(plan, chosen["on"])
        self.memory.value = colored(figure_svg(figure, words))
        self.time.value = colored(_time_svg(plan.time))
        self.table.value = colored(self.fits(**chosen).html)


def _for_transformers():
    return _by_name(
        Choices("size", tuple(SIZES), "7 B"),
        Choices("batch", POWERS, 256),
        Choices("length", POWERS[7:], 2048),
        Choices("policy", tuple(BYTES_OF), "mixed_bfloat16"),
        Choices("optimizer", tuple(SLOTS), "adamw"),
        Choices("micro_batches", (EACH, *POWERS), EACH),
        Choices("recompute", RECOMPUTE, "attention"),
        Choices("on", tuple(ACCELERATORS), "H100"),
        Choices("devices", (FEWEST, *POWERS), FEWEST),
    )


def _for_keras(model):
    controls = _by_name(
        Choices("batch", range(1, 2**20 + 1), 32),
        Choices("policy", tuple(BYTES_OF), "float32"),
        Choices("optimizer", tuple(SLOTS), "adamw"),
        Choices("micro_batches", range(1, 4097), getattr(model, "micro_batches", 1)),
        Choices("on", tuple(ACCELERATORS), "H100"),
        Choices("devices", range(1, 9), 1),
    )
    if hasattr(model, "layers") or not callable(model):  # only a function can be called under another policy
        del controls["policy"]
    return controls


def _by_name(*controls):
    return {control.name: control for control in controls}


def _plan_transformer(size, length, **chosen):
    for name, value in chosen.items():
        if value in (FEWEST, EACH):
            chosen[name] = None
    model = replace(SIZES[size], length=length)
    return plan_cluster(model, **chosen)


def _memory_figure(plan, on):
    """Return the memory of a device by part, with lines where that of the accelerator and of this machine ends."""
    limits = {
        on: ACCELERATORS[on].memory,
        HERE: machine()["memory_gib"] * 2**30,
    }
    return stacked_figure({"needed": plan.memory.parts}, "bytes", "memory of a device", limits)


def _time_svg(time):
    parts = {}
    for name, seconds in time.parts.items():
        if seconds:
            parts[f"{name}: {amount(seconds, 's')}"] = seconds
    figure = stacked_figure({"a step": parts}, "s", "time", shades=(MEASURED, PREDICTED))
    return figure_svg(figure, f"The time of a step: {', '.join(parts)}")


def _words(plan):
    return " ".join(plan.words())
