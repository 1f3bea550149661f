"""Simulate pipeline schedules: the order and times of each stage's passes. Pure Python, for notebook 09's figures."""

from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True)
class Pass:
    """One micro-batch's pass through one stage, from ``start`` to ``end``; ``kind`` is "forward" or "backward".

    ``run``: the index, from 0, of the virtual stage within its stage.
    """

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float
    run: int = 0


def one_or_two(each):
    """A forward pass takes 1, a backward pass 2."""
    return 1.0 if each.kind == "forward" else 2.0


def passes_of(schedule, stages, micro_batches, seconds=one_or_two, runs=1):
    """Return the passes of one training step, in the order in which they start.

    "gpipe": every stage runs all micro-batches forward, then all backward. "1f1b" (Narayanan et al. 2021, figure 4):
    after ``stages - stage - 1`` forward passes, a stage alternates forward and backward. A pass takes
    ``seconds(pass)``; it starts once its stage is free and its input has arrived from the neighboring stage.

    ``runs``: virtual stages per stage, v. This needs "1f1b" and a multiple of ``stages`` micro-batches. Stage i of p
    has the virtual stages i, p + i, 2p + i, ... of p x v, in Megatron-LM's order; a pass takes 1/v of its seconds.
    """
    waiting = [_order(schedule, stage, stages, micro_batches, runs) for stage in range(stages)]
    free_at = [0.0] * stages
    passes = {}
    while any(waiting):
        for stage, order in enumerate(waiting):
            if not order:
                continue
            kind, micro_batch, run = order[0]
            start = free_at[stage]
            sender = _sender(kind, stage, run, stages, runs)
            if sender is not None:
                handed_over = passes.get((*sender, kind, micro_batch))
                if handed_over is None:
                    continue
                start = max(start, handed_over.end)
            takes = seconds(Pass(stage, kind, micro_batch, start, start, run)) / runs
            free_at[stage] = start + takes
            passes[stage, run, kind, micro_batch] = Pass(stage, kind, micro_batch, start, free_at[stage], run)
            order.pop(0)
    return sorted(passes.values(), key=attrgetter("start"))


def _sender(kind, stage, run, stages, runs):
    """Return the (stage, run) that sends to this one; None at the ends of the model."""
    place = run * stages + stage  # among all virtual stages, in layer order
    sender = place - 1 if kind == "forward" else place + 1
    if not 0 <= sender < stages * runs:
        return None
    return sender % stages, sender // stages


def _order(schedule, stage, stages, micro_batches, runs):
    """Return the passes of a stage in order: a list of (kind, micro_batch, run)."""
    forwards, backwards = _in_turn(stages, micro_batches, runs)
    if schedule == "gpipe":
        return forwards + backwards
    ahead = stages - stage - 1
    if runs > 1:
        ahead = 2 * ahead + (runs - 1) * stages
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for number, backward in enumerate(backwards):
        order += forwards[ahead + number : ahead + number + 1]
        order.append(backward)
    return order


def _in_turn(stages, micro_batches, runs):
    """Return a stage's forward passes and its backward passes: groups of ``stages`` micro-batches pass through one
    run after another, backward from the last run to the first.
    """
    forwards, backwards = [], []
    for first in range(0, micro_batches, stages):
        group = range(first, min(first + stages, micro_batches))
        for run in range(runs):
            forwards += [("forward", micro_batch, run) for micro_batch in group]
            backwards += [("backward", micro_batch, runs - 1 - run) for micro_batch in group]
    return forwards, backwards
