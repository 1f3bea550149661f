"""In which order the stages of a pipeline compute: pure Python, on a clock that is not the machine's."""

from dataclasses import dataclass
from operator import attrgetter

from bigtrain_nb.common.checks import one_of, positive, whole_number

FORWARD = "forward"
BACKWARD = "backward"
SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True)
class Pass:
    """The way of one micro-batch through one stage, forward or backward, from ``start`` to ``end`` on the clock.

    ``run``: of a stage that has several runs of layers (``interleave``), which of them, from 0.
    """

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float
    run: int = 0


def pipeline_schedule(
    schedule: str,
    stages: int,
    micro_batches: int,
    forward: float = 1.0,
    backward: float = 2.0,
    interleave: int = 1,
) -> list[Pass]:
    """Return the passes of one training step, a list of `Pass` in the order in which they start.

    "gpipe" (Huang et al. 2019): every stage runs all micro-batches forward, then all backward, and so holds the
    activations of all. "1f1b" (PipeDream-Flush; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training
    on GPU Clusters", figure 4): after ``stages - stage - 1`` forward passes a stage takes turns, one forward and one
    backward, and so holds ``stages - stage`` micro-batches at most, however many there are.

    A forward pass takes ``forward`` on the clock, a backward pass ``backward``; handing over takes nothing. A pass
    starts as soon as its stage is free and the stage before it, or behind it on the way back, has handed over. With
    equal stages each is idle for (p - 1) / (m + p - 1) of the time, in both schedules.

    With ``interleave`` v, of "1f1b" alone, the layers are cut into p x v runs, and stage i has the runs i, p + i, 2p +
    i, ...: each micro-batch goes through the stages v times (Narayanan et al. 2021, section 2.2, in the order of
    Megatron-LM). A pass through a run takes 1/v of the times above. Each stage is idle for (p - 1) / (v m + p - 1).
    `Pipelined` has one run a stage.

    Raises ValueError for another schedule, for counts below 1, for "gpipe" with runs, and with runs for
    ``micro_batches`` that are no multiple of ``stages``.

    Example::

        for each in bt.pipeline_schedule("1f1b", stages=2, micro_batches=4):
            print(each.stage, each.kind, each.micro_batch, each.start, each.end)
    """
    one_of("schedule", schedule, SCHEDULES)
    stages = whole_number("stages", stages, 1)
    micro_batches = whole_number("micro_batches", micro_batches, 1)
    runs = whole_number("interleave", interleave, 1)
    if runs > 1 and schedule != "1f1b":
        raise ValueError(f'interleave={runs} needs schedule="1f1b", not {schedule!r}')
    if runs > 1 and micro_batches % stages:
        raise ValueError(f"micro_batches={micro_batches} must be a multiple of stages={stages} with interleave={runs}")
    seconds = {FORWARD: positive("forward", forward) / runs, BACKWARD: positive("backward", backward) / runs}

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
            free_at[stage] = start + seconds[kind]
            passes[stage, run, kind, micro_batch] = Pass(stage, kind, micro_batch, start, free_at[stage], run)
            order.pop(0)
    return sorted(passes.values(), key=attrgetter("start"))


def _sender(kind, stage, run, stages, runs):
    """Return the stage and the run that hand over to a run of a stage; None at the ends of the model."""
    place = run * stages + stage  # among all runs, in the order of the layers
    sender = place - 1 if kind == FORWARD else place + 1
    if not 0 <= sender < stages * runs:
        return None
    return sender % stages, sender // stages


def _order(schedule, stage, stages, micro_batches, runs):
    """Return what a stage does, in order: a list of (kind, micro_batch, run)."""
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
    """Return all forward and all backward passes of a stage: as many micro-batches as stages go through one run, then
    through the next, the backward passes from the last run to the first.
    """
    forwards, backwards = [], []
    for first in range(0, micro_batches, stages):
        group = range(first, min(first + stages, micro_batches))
        for run in range(runs):
            forwards += [(FORWARD, micro_batch, run) for micro_batch in group]
            backwards += [(BACKWARD, micro_batch, runs - 1 - run) for micro_batch in group]
    return forwards, backwards
