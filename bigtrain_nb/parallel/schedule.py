"""In which order the stages of a pipeline compute: pure Python, on a clock that is not the machine's."""

from dataclasses import dataclass
from operator import attrgetter

from bigtrain_nb.common.checks import one_of, positive, whole_number

FORWARD = "forward"
BACKWARD = "backward"


@dataclass(frozen=True)
class Pass:
    """The way of one micro-batch through one stage, forward or backward, from ``start`` to ``end`` on the clock."""

    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float


def pipeline_schedule(
    schedule: str, stages: int, micro_batches: int, forward: float = 1.0, backward: float = 2.0
) -> list[Pass]:
    """Return the passes of one training step, a list of `Pass` in the order in which they start.

    "gpipe" (Huang et al. 2019): every stage runs all micro-batches forward, then all backward, and so holds the
    activations of all. "1f1b" (PipeDream-Flush; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training
    on GPU Clusters", figure 4): after ``stages - stage - 1`` forward passes a stage takes turns, one forward and one
    backward, and so holds ``stages - stage`` micro-batches at most, however many there are.

    A forward pass takes ``forward`` on the clock, a backward pass ``backward``; handing over takes nothing. A pass
    starts as soon as its stage is free and the stage before it, or behind it on the way back, has handed over. With
    equal stages each is idle for (p - 1) / (m + p - 1) of the time, in both schedules.

    Raises ValueError for another schedule, and for counts below 1.

    Example::

        for each in bt.pipeline_schedule("1f1b", stages=2, micro_batches=4):
            print(each.stage, each.kind, each.micro_batch, each.start, each.end)
    """
    one_of("schedule", schedule, _ORDERS)
    stages = whole_number("stages", stages, 1)
    micro_batches = whole_number("micro_batches", micro_batches, 1)
    seconds = {FORWARD: positive("forward", forward), BACKWARD: positive("backward", backward)}
    waiting = [_ORDERS[schedule](stage, stages, micro_batches) for stage in range(stages)]
    free_at = [0.0] * stages
    passes = {}
    while any(waiting):
        for stage, order in enumerate(waiting):
            if not order:
                continue
            kind, micro_batch = order[0]
            start = free_at[stage]
            sender = stage - 1 if kind == FORWARD else stage + 1
            if 0 <= sender < stages:
                handed_over = passes.get((sender, kind, micro_batch))
                if handed_over is None:
                    continue
                start = max(start, handed_over.end)
            free_at[stage] = start + seconds[kind]
            passes[stage, kind, micro_batch] = Pass(stage, kind, micro_batch, start, free_at[stage])
            order.pop(0)
    return sorted(passes.values(), key=attrgetter("start"))


def _gpipe(stage, stages, micro_batches):
    forwards = [(FORWARD, number) for number in range(micro_batches)]
    backwards = [(BACKWARD, number) for number in range(micro_batches)]
    return forwards + backwards


def _one_forward_one_backward(stage, stages, micro_batches):
    ahead = min(stages - stage - 1, micro_batches)
    order = [(FORWARD, number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append((FORWARD, ahead + number))
        order.append((BACKWARD, number))
    return order


_ORDERS = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward}
