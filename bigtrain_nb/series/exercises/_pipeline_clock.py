"""The orders of a pipeline's stages, run on a clock: when does the step end, and what does each stage hold?"""

from bigtrain_nb.workbook.exercises import Wrong

TAKES = {"forward": 1, "backward": 2, "inputs": 1, "weights": 1}
WAITS_FOR_STAGE = {"forward": -1, "backward": 1, "inputs": 1}  # before it, or behind it
WAITS_FOR_PASS = {"backward": "forward", "inputs": "forward", "weights": "inputs"}  # of the same stage
LETS_GO = ("backward", "weights")


def simulate(orders):
    """Return when the last pass ends, and the most micro-batches that each stage holds.

    Raises `Wrong` if the pipeline hangs, and for a pass before the one of the same stage that it needs.
    """
    stages = len(orders)
    waiting = [list(map(tuple, one)) for one in orders]
    ended = {}
    free = [0.0] * stages
    held, most = [0] * stages, [0] * stages
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
            free[stage] = ended[stage, kind, number] = start + TAKES[kind]
            held[stage] += (kind == "forward") - (kind in LETS_GO)
            most[stage] = max(most[stage], held[stage])
            waiting[stage].pop(0)
            moved = True
        if not moved:
            stuck = {stage: one[0] for stage, one in enumerate(waiting) if one}
            raise Wrong(f"with {stages} stages the pipeline hangs: each waits for another, before {stuck}")
    return max(free), most
