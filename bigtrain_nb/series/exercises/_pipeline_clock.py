"""The orders of a pipeline's stages, run on a clock: when does the step end, and what does each stage hold?"""

from collections import Counter

from bigtrain_nb.workbook.exercises import Wrong

TAKES = {"forward": 1, "backward": 2, "inputs": 1, "weights": 1}
WAITS_FOR_STAGE = {"forward": -1, "backward": 1, "inputs": 1}  # before it, or behind it
WAITS_FOR_PASS = {"backward": "forward", "inputs": "forward", "weights": "inputs"}  # of the same stage
LETS_GO = ("backward", "weights")


def expect_each_once(got, kinds, micro_batches, told):
    """Raise `Wrong` unless a stage does one pass of each of the kinds with each micro-batch, and no others."""
    wanted = [(kind, number) for number in range(micro_batches) for kind in kinds]
    times = Counter(map(tuple, got))
    for each in wanted:
        if times[each] != 1:
            raise Wrong(f"{told}: {each} stands {times[each]} times in the list, once is right")
    for each in times:
        if each not in wanted:
            raise Wrong(f"{told}: {each} stands in the list, and there is no such pass")


def simulate(orders):
    """Return when the last pass ends, the most micro-batches that each stage holds, and a list of when each waits.

    A stage waits from the end of one of its passes to the start of the next: a list of (from, until).

    Raises `Wrong` if the pipeline hangs, and for a pass before the one of the same stage that it needs.
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
                told = f"the {kind} pass of {number} stands before its {needed} pass"
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
            raise Wrong(f"with {stages} stages the pipeline hangs: each waits for another, before {stuck}")
    return max(free), most, waits
