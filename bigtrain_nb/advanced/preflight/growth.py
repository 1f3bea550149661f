"""Does memory grow from pass to pass in `fit`, and what causes it?

The model trains for three short passes over the user's data. The first allocates what later ones reuse, so only the
growth in the second and third is compared: tracings, lists that grow with every step, and resident memory.
"""

import gc
from collections import deque
from itertools import pairwise

import psutil

from bigtrain_nb.advanced.preflight.memory import train_function_of
from bigtrain_nb.advanced.preflight.report import Skipped, TrainingRaises, failure, needs, ok, warning
from bigtrain_nb.advanced.preflight.training import never_ends, words_of
from bigtrain_nb.advanced.shared.fit_data import as_tensor, batches_of, passes
from bigtrain_nb.advanced.shared.operations import number_of_bytes
from bigtrain_nb.common.keras_compat import datasets_within
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount

PASSES = 3
MOST_STEPS = 12
LEAST_STEPS = 3
"""Steps in a pass. Lists that happen to grow do so less often."""
SHARE_OF_TIME = 0.2
"""Share of the remaining time for each pass."""
GROWS = 8 * 2**20
"""Bytes that the second and the third pass must both add. In small healthy trainings the second added at most 0.44 MiB
and the third 0.05 MiB (CPU, November 2026); for large ones, allocators keep more, which they may reuse."""
STEADY = 0.5
"""Least ratio of the third pass's growth to the second's: growth that decays is not a leak."""
_KEEPING = list, dict, set, deque
_TRACED = type(tf.function(lambda: None))


@needs("step", "loss")
def growth(training):
    """Do later passes add tracings, list elements, or memory?"""
    source = batches_of(training.data)
    if _caches_without_end(source):
        size = amount(sum(number_of_bytes(part) for part in keras.tree.flatten(training.first)), "bytes")
        return failure(
            f"The cached dataset is infinite: fit keeps every batch, {size} for the first, and never reads one again.",
            "Cache a finite dataset, and repeat it after that: dataset.cache().repeat().",
        )
    seen = _trained_passes(training, source)
    steps = min(each.steps for each in seen)
    if steps < LEAST_STEPS:
        raise Skipped(f"a pass had only {steps} steps")
    return _tracings(seen, steps) or _lists(seen, steps) or _resident(seen, steps)


class _Seen:
    """Memory state after a pass of ``steps`` steps: ``resident`` bytes, number of ``tracings``, and all lists.

    ``resident_now`` includes this object, so that it does not count as growth of the next pass.
    """

    def __init__(self, steps):
        gc.collect()
        self.steps = steps
        self.resident = _resident_now()
        # isinstance would access dead weak proxies
        things = [one for one in gc.get_objects() if issubclass(type(one), (_TRACED, *_KEEPING))]
        self.tracings = sum(one.experimental_get_tracing_count() for one in things if type(one) is _TRACED)
        kept = [one for one in things if issubclass(type(one), _KEEPING) and getattr(one, "maxlen", None) is None]
        self.lists = {id(one): (one, len(one)) for one in kept}
        del things, kept
        self.resident_now = _resident_now()


def _resident_now():
    return psutil.Process().memory_info().rss


def _caches_without_end(source):
    cached = never_ends(source) and type(source.cache())
    return cached and any(isinstance(one, cached) and never_ends(one) for one in datasets_within(source))


def _trained_passes(training, source):
    """Train short passes as `fit` does, and return a `_Seen` for each; an infinite dataset is read on."""
    start = passes(training.data)
    train = train_function_of(training.model)
    seen, batches = [], None
    for _ in range(PASSES):
        training.check_deadline()
        batches = batches if batches and never_ends(source) else start()
        seen.append(_Seen(_steps(training, train, batches)))
    return seen


def _steps(training, train, batches):
    """Train on batches until the limit of steps or time; return the number of steps."""
    until = training.seconds_left * (1 - SHARE_OF_TIME)
    for step in range(MOST_STEPS):
        if step >= LEAST_STEPS and training.seconds_left < until:
            return step
        try:
            train(batches if isinstance(batches, tf.data.Iterator) else _one(next(batches)))
        except (StopIteration, tf.errors.OutOfRangeError):
            return step
        except Exception as error:
            raise TrainingRaises(words_of(error)) from error
    return MOST_STEPS


def _one(batch):
    return iter(tf.data.Dataset.from_tensors(keras.tree.map_structure(as_tensor, batch)))


def _tracings(seen, steps):
    added = [after.tracings - before.tracings for before, after in pairwise(seen)]
    if min(added) <= 0:
        return None
    words = f"The second and the third pass of {steps} steps each retrace functions, {added[0]} and {added[1]} times"
    advice = (
        "Create no tf.function within a step, and pass tensors instead of Python numbers: each new number is"
        " traced again, and all traces are kept."
    )
    if min(added) >= steps:
        return failure(f"{words}: the time of a step and the memory grow with each.", advice, "11")
    return warning(f"{words}.", advice, "11")


def _lists(seen, steps):
    first, second, third = seen
    growing = []
    for key, (one, length) in first.lists.items():
        sizes = [length, *(each.lists.get(key, (one, length))[1] for each in (second, third))]
        if min(sizes[1] - sizes[0], sizes[2] - sizes[1]) >= steps:
            growing.append((sizes[2] - sizes[1], one))
    if not growing:
        return None
    count, one = max(growing, key=lambda pair: pair[0])
    kept = type(next(iter(one.values() if isinstance(one, dict) else one))).__name__
    name = _name_of(one)
    return warning(
        f"A {type(one).__name__}{f' {name!r}' if name else ''} grows by {count / third.steps:.3g} elements per step"
        f" ({kept}) in each pass.",
        "If nothing bounds its length, keep numbers such as float(loss), not tensors, or clear it after each epoch."
        " With run_eagerly=True each tensor in a list stays in memory.",
    )


def _name_of(one):
    """Return the name of a list as an attribute or in its module; "" if none is found."""
    for holder in gc.get_referrers(one):
        if isinstance(holder, dict):
            names = [key for key, value in list(holder.items()) if value is one and isinstance(key, str)]
            if names:
                return names[0]
    return ""


def _resident(seen, steps):
    added = [after.resident - before.resident_now for before, after in pairwise(seen)]
    words = f"Of {PASSES} passes of {steps} steps the second and the third added {' and '.join(map(_signed, added))}"
    words += f" to the {amount(seen[0].resident, 'bytes')} that this process holds"
    if min(added) > GROWS and added[1] > STEADY * added[0]:
        return warning(
            f"{words}, and no Python list was seen to grow with each step.",
            "Look at what Python functions in the dataset, layers and train_step keep, and at cache() of a very long"
            " dataset. Run more steps to see whether the growth ends.",
        )
    return ok(f"{words}; no tracings, and no lists that grow with each step.")


def _signed(size):
    return f"{'-' if size < 0 else ''}{amount(abs(size), 'bytes')}"


CHECKS = {"memory over passes": growth}
