"""The cheapest way to make a training step fit into the memory of a device: tried in plans, which change nothing."""

import re
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.parallel.attention import chunk_attention
from bigtrain_nb.parallel.recompute import recompute
from bigtrain_nb.plan.plans import StepPlan, plan_step

CHUNKS = 8
"""Of attention: an eighth of the scores at a time; more saves little beside what else there is."""
DEVICES = (2, 4, 8)
"""Those that a machine usually has."""


@dataclass(frozen=True)
class Change:
    """A call that changes a model: in the reader's code, and as a function of the model."""

    code: str
    apply: Callable


@dataclass(frozen=True)
class Way:
    """A way to make a step fit: the ``code`` that does it, on how many ``devices``, and the `StepPlan` of each."""

    code: str
    devices: int
    plan: StepPlan


def cheapest_way(model: keras.Model, batch: tuple, room: float, seconds: float) -> Way | None:
    """Return the first way in which a step on a ``batch`` takes at most ``room`` bytes of a device; None if none does.

    They are tried in the order of what they cost: micro-batches alone (no operation more), attention in chunks (its
    scores once more), blocks that are recomputed (up to a third more operations), both, and at last 2, 4 and 8 devices
    with `fully_shard`, or with `shard_optimizer` where no layers repeat. Each goes with as few micro-batches as do. The
    model is as it was afterwards. After ``seconds`` no plan begins, and it is None too.
    """
    until = time.monotonic() + seconds
    blocks = repeated_layers(model)
    in_chunks = Change(f"bt.chunk_attention(model, chunks={CHUNKS})", partial(chunk_attention, chunks=CHUNKS))
    computed_again = Change(f'bt.recompute(model, r"{blocks}")', partial(recompute, layers=blocks))
    trials = [([], {}), ([in_chunks], {})]
    if blocks:
        trials += [([computed_again], {}), ([computed_again, in_chunks], {})]
    for devices in DEVICES:
        shards = {"fully_shard": blocks} if blocks else {"shard_optimizer": True}
        trials.append(([], {"devices": devices, **shards}))
    for changes, settings in trials:
        with _only_for_plans(model):
            try:
                for change in changes:
                    change.apply(model)
                plan = _with_fewest_micro_batches(model, batch, room, until, settings)
            except (TypeError, ValueError):  # no attention, a layer that cannot be recomputed or sharded
                continue
        if plan is not None:
            count, found = plan
            return Way(_code(changes, count, settings), settings.get("devices", 1), found)
        if time.monotonic() > until:
            return None
    return None


def repeated_layers(model: keras.Model) -> str:
    """Return a regular expression for the names of the layers that repeat and hold most weights; "" if none repeat.

    Names are alike but for the number at their end. Of blocks and what is within them the blocks come first.
    """
    groups = {}
    for layer in layers_within(model)[1:]:
        if layer.weights:
            groups.setdefault(re.sub(r"_?\d+$", "", layer.name), []).append(layer)
    sizes = {name: sum(layer.count_params() for layer in layers) for name, layers in groups.items() if len(layers) > 1}
    return rf"{re.escape(max(sizes, key=sizes.get))}(_?\d+)?" if sizes else ""


def _with_fewest_micro_batches(model, batch, room, until, settings):
    """Return (how many, the plan) with as few micro-batches, by doubling, as fit; None if slices of one are too large.

    ``until``: after that no plan begins.
    """
    examples = keras.tree.flatten(batch)[0].shape[0] // settings.get("devices", 1)
    if examples < 1 or time.monotonic() > until:
        return None
    smallest = plan_step(model, batch, micro_batches=examples, **settings)
    if smallest.peak > room:
        return None
    count = 1
    while count < examples and time.monotonic() < until:
        plan = plan_step(model, batch, micro_batches=count, **settings)
        if plan.peak <= room:
            return count, plan
        count *= 2
    return examples, smallest


def _code(changes, micro_batches, settings):
    """Return what to write for it."""
    given = {"micro_batches": micro_batches} if micro_batches > 1 else {}
    given |= {name: value for name, value in settings.items() if name != "devices"}
    words = ", ".join(
        f'{name}=r"{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in given.items()
    )
    return "; ".join([*[change.code for change in changes], *([f"bt.Model.of(model, {words})"] if words else [])])


@contextmanager
def _only_for_plans(model):
    """Undo in the end what `recompute` and `chunk_attention` change in layers: their class, and what they note."""
    noted = ("chunks", "_known_updates")
    before = []
    for layer in layers_within(model):
        before.append((layer, type(layer), {name: vars(layer)[name] for name in noted if name in vars(layer)}))
    try:
        yield
    finally:
        for layer, kind, values in before:
            layer.__class__ = kind
            for name in noted:
                vars(layer).pop(name, None)
            vars(layer).update(values)
