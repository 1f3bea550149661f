"""What a comparison cannot see by itself, said in sentences: where its intervals hold less than they promise."""

import math

import numpy as np

from bigtrain_nb.measure.intervals import mean_interval, neighbours_alike

SPEEDING_UP = 0.02
ALIKE = 0.4
BLOCKS_TO_SEE = 6
"""With fewer, stalls and blocks that resemble each other cannot be told from luck."""
LOST = 0.03


def notes_of(blocks):
    """Return the sentences about these `Blocks`."""
    notes = [
        _few_blocks(blocks),
        _one_instance(blocks),
        _still_speeding_up(blocks),
        _stalls(blocks),
        _blocks_alike(blocks),
        _lost_time(blocks),
    ]
    return tuple(note for note in notes if note)


def _few_blocks(blocks):
    if blocks.done in (2, 3):
        return f"few instances: {blocks.done} of each were built, so the intervals are wide"


def _one_instance(blocks):
    names = [entrant.name for entrant in blocks.entrants if entrant.is_one_instance]
    if names:
        return (
            f"always the same instance of {_listed(names)}: how lucky it is cannot be seen, let the function build one"
        )


def _still_speeding_up(blocks):
    """Return visits are faster than first ones. In a source that is warm, this is so in about half of the blocks."""
    names = []
    for entrant in blocks.entrants:
        if len(entrant.blocks) >= 3 and len(entrant.blocks[0]) == 2:
            gains = [math.log(back / there) for there, back in entrant.blocks]
            _, low, _ = mean_interval(gains, error=0.01)
            if low > SPEEDING_UP:
                names.append(entrant.name)
    if names and len(names) < len(blocks.entrants):  # all of them: the machine
        return f"faster and faster after the warm-up: {_listed(names)}; let what builds it warm it up longer"


def _stalls(blocks):
    """Seldom, one source is much slower than it mostly is: Student's interval for its mean then misses more often."""
    logs = {entrant.name: np.log(entrant.rounds) for entrant in blocks.entrants if len(entrant.rounds) >= BLOCKS_TO_SEE}
    spreads = {name: values.std() for name, values in logs.items()}
    names = []
    for name, values in logs.items():
        is_wide = spreads[name] > 3 * min(spreads.values())
        if is_wide and _skewness(values) < -1:
            names.append(name)
    if names:
        return f"stalls now and then in {_listed(names)}: such an interval may miss twice as often, take 60 s or more"


def _blocks_alike(blocks):
    first, *others = blocks.entrants
    names = []
    for entrant in others:
        shared = min(len(first.rounds), len(entrant.rounds))
        if shared >= BLOCKS_TO_SEE:
            log_ratios = np.log(entrant.rounds[:shared]) - np.log(first.rounds[:shared])
            if neighbours_alike(log_ratios) > max(ALIKE, 2 / math.sqrt(shared)):
                names.append(entrant.name)
    if names:
        return (
            f"blocks of {_listed(names)} resemble their neighbours, so they tell less than their number: measure longer"
        )


def _lost_time(blocks):
    if blocks.lost_share > LOST:
        lost = f"{100 * blocks.lost_share:.0f} % of the cores' time"
        return f"{lost} went to others or was taken by a limit: wait, or measure longer"


def _skewness(values):
    away = values - values.mean()
    return (away**3).mean() / ((away**2).mean() ** 1.5 or 1)


def _listed(names):
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
