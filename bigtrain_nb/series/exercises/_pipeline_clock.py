"""Simulate pipeline schedules: when does the step end, and how many micro-batches does each stage hold?"""

from collections import Counter

from bigtrain_nb.workbook.exercises import Wrong

TAKES = {"forward": 1, "backward": 2, "inputs": 1, "weights": 1}
WAITS_FOR_STAGE = {"forward": -1, "backward": 1, "inputs": 1}  # the previous or the next stage
WAITS_FOR_PASS = {"backward": "forward", "inputs": "forward", "weights": "inputs"}  # of the same stage
LETS_GO = ("backward", "weights")


def expect_each_once(got, kinds, micro_batches, told):
    """Raise `Wrong` unless a stage does exactly one pass of each kind with each micro-batch."""
    wanted = [(kind, number) for number in range(micro_batches) for kind in kinds]
    times = Counter(map(tuple, got))
    for each in wanted:
        if times[each] != 1:
            raise Wrong(f"{told}: expected {each} once in the list, got it {times[each]} times")
    for each in times:
        if each not in wanted:
            raise Wrong(f"{told}: {each} is in the list, but no such pass exists")


def simulate(orders):
    """Return the end of the last pass, the most micro-batches that each stage holds, and each stage's waits.

    A wait lasts from the end of one pass of a stage to the start of its next: a list of (from, until).

    Raises `Wrong` if the pipeline deadlocks, or if a pass comes before the pass of the same stage that it depends on.
    """
    stages = len(orders)
    waiting = [list(map(tuple, one)) for one in orders]
    ended = {}
    free = [0.0] * stages
    held, most = [0] * stages, [0] * stages
    waits = [[] for _ in orders]
    while any(waiting):
        moved = False
        for stage in range(stages):
            if not waiting[stage]:
                continue
            kind, number = waiting[stage][0]
            needed = WAITS_FOR_PASS.get(kind)
            if (needed, number) in waiting[stage]:
                told = f"the {kind} pass of {number} comes before its {needed} pass"
                raise Wrong(f"stage {stage} of {stages}: {told}")
            start = free[stage]
            sender = stage + WAITS_FOR_STAGE[kind] if kind in WAITS_FOR_STAGE else None
            if sender is not None and 0 <= sender < stages:
                if (sender, kind, number) not in ended:
                    continue
                start = max(start, ended[sender, kind, number])
            if start > free[stage] > 0:
                waits[stage].append((free[stage], start))
            free[stage] = ended[stage, kind, number] = start + TAKES[kind]
            held[stage] += (kind == "forward") - (kind in LETS_GO)
            most[stage] = max(most[stage], held[stage])
            waiting[stage].pop(0)
            moved = True
        if not moved:
            stuck = {stage: one[0] for stage, one in enumerate(waiting) if one}
            raise Wrong(f"with {stages} stages the pipeline deadlocks; each stage waits before {stuck}")
    return max(free), most, waits
