"""The planner: what a training step will take, before anything is measured or paid for.

    bt.Planner()             a transformer of a chosen size on accelerators of a chosen kind
    bt.Planner(build)        a Keras model, or the function that builds it

Every control acts at once. `planner.plan(batch=64, on="H100")` is the same path without a screen.
"""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import amount
from bigtrain_nb.lab.controls import Choices, settings
from bigtrain_nb.lab.fields import chosen_in, colored, field, mime_bundle, row, said, widgets
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.clusters import ClusterPlan, plan_cluster
from bigtrain_nb.plan.parallelism import USABLE
from bigtrain_nb.plan.plans import StepPlan, plan_of
from bigtrain_nb.plan.step import Step
from bigtrain_nb.plan.transformer import BYTES_OF, RECOMPUTE, SIZES, SLOTS
from bigtrain_nb.plots import Picture, figure_svg, stacked_figure

FEWEST = "as few as hold it"
EACH = "one a sequence"
POWERS = [2**n for n in range(14)]


class Planner:
    """Controls over `plan_cluster`, or over `plan_step` for a Keras model or the function that builds one.

    Raises what `plan_step` raises for a model that it cannot plan. Settings that do not fit together are said in the
    status line.

    Example::

        planner = bt.Planner()  # alone at the end of a cell: the controls
        print(planner.plan(size="7 B", batch=64, on="H100"))
        print(planner.fits(size="7 B", batch=64))
    """

    def __init__(self, model: Any = None):
        self.model = model
        self.controls = _for_transformers() if model is None else _for_keras(model)
        self._traced = lru_cache(maxsize=1)(partial(Step, model))  # another accelerator needs no new trace
        self.plan()
        self.fields = {name: field(name, control) for name, control in self.controls.items()}
        for one in self.fields.values():
            one.observe(self._show, "value")
        self.status = widgets.HTML()
        self.results = widgets.HTML()
        self.box = widgets.VBox([row(*self.fields.values()), self.status, self.results])

    def plan(self, **given: Any) -> StepPlan | ClusterPlan:
        """Return the plan for these settings, the others at their defaults. Raises ValueError for what cannot be."""
        chosen = settings(self.controls, given)
        if self.model is None:
            return _plan_transformer(**chosen)
        on = chosen.pop("on")
        return plan_of(self._traced(**chosen), on)

    def picture(self, **given: Any) -> Picture:
        """The memory of a device by part as image/png."""
        plan = self.plan(**given)
        return Picture(_memory_figure(plan, settings(self.controls, given)["on"]), _words(plan))

    def fits(self, **given: Any) -> cards.Card:
        """A table: does it fit on each accelerator, on how many, and how long is a step?"""
        rows = [self._row(device, {**given, "on": name}) for name, device in ACCELERATORS.items()]
        closing = "Times from published figures; nothing was measured."
        if self.model is not None:
            closing += " They are lower bounds: no step is faster."
        return cards.table("Does it fit?", ["device", "needed", "fits?", "how", "a step"], rows, closing)

    def __repr__(self):
        return f"Planner: {_words(self.plan())}"

    def _repr_mimebundle_(self, **kwargs):
        self._show()
        return mime_bundle(self.box, repr(self))

    def _row(self, device, given):
        try:
            plan = self.plan(**given)
        except ValueError as error:  # no number of devices holds it, or not as many as were chosen
            return [device.name, "", "no", str(error).split(":")[0], ""]
        needed = plan.memory.total
        fits = "yes" if needed <= USABLE * device.memory else "no"
        if fits == "yes" and self.model is None and plan.missing:
            fits = "not built here"
        amounts = f"{amount(needed, 'bytes')} of {amount(device.memory, 'bytes')}"
        step = amount(plan.time.total, "s")
        if self.model is not None:
            return [device.name, amounts, fits, "", step]
        return [device.name, amounts, fits, str(plan.layout), f"{step}, MFU {plan.mfu:.0%}"]

    def _show(self, _=None):
        self.status.value = said("Planning ...")
        chosen = chosen_in(self.fields, self.controls)
        try:
            plan = self.plan(**chosen)
        except Exception as error:
            self.status.value = said(f"{type(error).__name__}: {error}")
            self.results.value = ""
            return
        words = _words(plan)
        memory = figure_svg(_memory_figure(plan, chosen["on"]), words)
        self.status.value = said(words)
        tables = [plan.time.explain(), self.fits(**chosen)]
        if self.model is None:
            tables.insert(1, plan.where())
        self.results.value = colored(memory + "".join(table.html for table in tables))


def _for_transformers():
    return {
        "size": Choices(list(SIZES), "7 B"),
        "batch": Choices(POWERS, 256),
        "length": Choices(POWERS[7:], 2048),
        "policy": Choices(list(BYTES_OF), "mixed_bfloat16"),
        "optimizer": Choices(list(SLOTS), "adamw"),
        "micro_batches": Choices([EACH, *POWERS], EACH),
        "recompute": Choices(RECOMPUTE, "everything"),
        "chunk_attention": Choices(POWERS[:11], 1),
        "zero_stage": Choices(range(4), 0),
        "sequence_parallel": Choices([False, True], False),
        "context_parallel": Choices(POWERS[:8], 1),
        "expert_parallel": Choices(POWERS[:8], 1),
        "overlap": Choices([0.0, 0.25, 0.5, 0.75, 1.0], 0.0),
        "on": Choices(list(ACCELERATORS), "H100"),
        "devices": Choices([FEWEST, *POWERS], FEWEST),
    }


def _for_keras(model):
    strategy = getattr(model, "distribute_strategy", None)
    replicas = strategy.num_replicas_in_sync if strategy else 1
    controls = {
        "batch": Choices(range(1, 2**20 + 1), 32),
        "policy": Choices(list(BYTES_OF), "float32"),
        "optimizer": Choices(list(SLOTS), "adamw"),
        "micro_batches": Choices(range(1, 4097), getattr(model, "micro_batches", 1)),
        "on": Choices(list(ACCELERATORS), "H100"),
        "devices": Choices(range(1, max(8, replicas) + 1), replicas),
    }
    if hasattr(model, "layers"):  # only a function can be called under another policy
        del controls["policy"]
    return controls


def _plan_transformer(size, length, **chosen):
    given = {name: value for name, value in chosen.items() if value not in (FEWEST, EACH)}
    return plan_cluster(replace(SIZES[size], length=length), **given)


def _memory_figure(plan, on):
    """Return the memory of a device by part, with a line where that of the accelerator ends."""
    limits = {on: ACCELERATORS[on].memory}
    return stacked_figure({"needed": plan.memory.parts}, "bytes", "memory of a device", limits)


def _words(plan):
    return " ".join(plan.words())
