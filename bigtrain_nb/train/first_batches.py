"""Check that a resumed epoch begins with the same batches as before the restart.

Shuffle seeds are in the dataset's graph. Any other order, as from NumPy or a generator, is visible only in the batches:
a checkpoint keeps a numeric summary of the first few of each epoch.
"""

import math
import warnings
import zlib
from collections import Counter
from itertools import chain, zip_longest

import numpy as np

from bigtrain_nb.common.passes import global_seed, read_apart, recording_first, tensors_of, traits_of
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import cause

BATCHES = 4
ROWS = 16
"""Most rows of a batch to examine."""
COLUMNS = 65_536
"""Most values of each row to examine."""
BITS = 8
"""Least entropy of a part that distinguishes orders: two agree at random once in 2 ** 8 times."""
LARGEST = 1e100
"""Larger values are clipped to this, because their squares would overflow."""
CLOSE = 0.05
"""Rows of floats are equal if they differ by less than this share of their deviation: CPUs round differently."""
NOISE = 10
"""Random noise differs equally between all readings of a dataset: a difference this many times larger is a change."""
AN_ORDER = (
    "its order must depend only on the epoch number, as with dataset.shuffle(buffer, seed=epoch),"
    " np.random.default_rng(epoch).permutation(examples), or a generator seeded with epoch"
)


class FirstBatches:
    """Notes the first batches of an epoch as they are read: ``found`` has one number for each batch, part and row."""

    def __init__(self):
        self.forget()

    @property
    def found(self):
        noted = dict(self._noted)  # other threads may still be reading
        return [noted[number] for number in range(BATCHES) if set(range(number + 1)) <= set(noted)]

    def forget(self):
        self._noted = {}  # by batch number: a dataset may be opened more than once

    def noting(self, dataset):
        """Return the same dataset, and forget the batches of an earlier one."""
        self.forget()
        noted = self._noted

        def note(number, *parts):
            noted[number] = [_numbers(part) for part in parts]

        return recording_first(dataset, BATCHES, note)


def refuse_another_order(dataset, epoch, step, before, seed_before):
    """Raise ValueError if an epoch with ``step`` completed batches does not begin as it did ``before``.

    Raise it also for another global seed (`refuse_another_seed`). The dataset is read for this.
    """
    refuse_another_seed(dataset, epoch, seed_before)
    if step and before and _differ(before, _first_of(dataset), dataset):
        _refuse(epoch, step)


def refuse_another_seed(dataset, epoch, seed_before):
    """Raise ValueError if an order depends on TensorFlow's global seed, and that has changed.

    ``seed_before`` is None if it does not matter, and in checkpoints of earlier versions.
    """
    seed = global_seed()
    seeds = traits_of(dataset).seeds
    if seed_before not in (None, seed) and (seeds is None or seed in {first for first, _ in seeds}):
        depends = "may depend" if seeds is None else "depends"
        raise ValueError(
            f"the order of epoch {epoch} {depends} on TensorFlow's global seed, which was {seed_before} before the"
            f" restart and is now {seed}, so the order could change: call"
            f" keras.utils.set_random_seed({seed_before}) or tf.random.set_seed({seed_before}) before the dataset is"
            " made, as in the first run"
        )


def refuse_other_batches(dataset, epoch, step, before, now):
    """Raise ValueError as `refuse_another_order`, for batches read ``now`` of a dataset that must not be read again."""
    count = min(step, len(before))
    if count and now and _differ(before[:count], now, dataset, is_read_once=True):
        _refuse(epoch, step)


def _refuse(epoch, step):
    raise ValueError(
        f"this dataset of epoch {epoch} does not begin with the same batches as before the restart, when {step} batches"
        f" had been trained, so some examples would be trained twice and others never: {AN_ORDER}; the examples and"
        " the batch size must be the same too. If that order cannot be reproduced, save the restored model with"
        " model.save, and continue training it in another folder"
    )


def refuse_changing_order(dataset, make, epoch):
    """Raise ValueError if another call of ``make(epoch)`` begins with other batches than ``dataset``, from the first.

    With a shuffle, which would have to fill its buffer, only its seeds are checked.
    """
    if traits_of(dataset).shuffles:
        return
    first, second = _first_of(dataset), _first_of(make(epoch))
    if len(first) != len(second) or _differ(first, second, dataset, lambda: _first_of_the_next(make, epoch)):
        raise ValueError(
            f"make_epoch({epoch}) returns different batches, or a different order, each time it is called, so"
            f" after a restart some examples would be trained twice in an epoch and others never: {AN_ORDER};"
            " sample_from_datasets needs a seed"
        )


def _differ(before, now, dataset, of_another_epoch=None, is_read_once=False):
    """Return whether a dataset begins differently ``now`` than ``before``; None if random changes make that unclear.

    All parts of the batches must be equal, except that where a `map` or Python may change them, parts that differ as
    much between two readings of the same dataset are ignored. A dataset whose graph cannot be written may call Python.
    """
    if len(now) < len(before):
        return True
    parts = _by_part(before, now)
    same = _same_parts(before, now)
    if all(same):
        return False
    traits = traits_of(dataset)
    is_changed, is_python = bool(traits.changes_examples), traits.calls_python is not False
    if not (is_changed or is_python):
        return True
    tells = [_bits(part) >= BITS for part, _ in parts]
    if is_python and is_read_once:
        return None if is_changed or any(map(all, zip(same, tells, strict=True))) else True
    read, read_again = _first_of(dataset), _first_of(dataset)
    if not read_again:  # a generator that can be read only once
        return True
    for part, reread, is_same in zip(parts, _by_part(read, read_again), same, strict=True):
        if not is_same and _distance(*part) > NOISE * _distance(*reread):
            return True
    if is_changed:
        return None
    # A generator changes examples, or their order, at random: parts equal in all epochs do not show which.
    lasts = _same_parts(read, read_again)
    fixed = _same_parts(now, of_another_epoch()) if of_another_epoch else []
    fixed += [False] * (len(parts) - len(fixed))
    of_epoch = [each and tell and not is_fixed for each, tell, is_fixed in zip(lasts, tells, fixed, strict=True)]
    return None if any(of_epoch) else True


def _first_of(dataset):
    """Return the notes on the first batches, if possible without advancing the dataset's shuffles."""
    if any(memory is not None for _, memory in traits_of(dataset).shuffles or ()):
        dataset = read_apart(dataset)
    return [[_numbers(part.numpy()) for part in tensors_of(batch)] for batch in dataset.take(BATCHES)]


def _first_of_the_next(make, epoch):
    try:
        return _first_of(make(epoch + 1))
    except Exception as error:  # there may be no such epoch
        warnings.warn(
            f"make_epoch({epoch}) changes some parts of its batches at each call; could not check that their order is"
            f" the same, because make_epoch({epoch + 1}), needed for comparison, raises {cause(error)}",
            stacklevel=2,
        )
        return []


def _by_part(before, now):
    """Return pairs of each part of the batches, before and now, over the batches that both have."""
    count = min(len(before), len(now))
    return list(zip(zip(*before[:count], strict=False), zip(*now[:count], strict=False), strict=False))


def _numbers(part):
    """Return a number for each of some rows: a weighted sum of floats, a checksum of anything else."""
    part = np.asarray(part)
    if part.size == 0:
        return []
    rows = part.reshape(len(part) if part.ndim else 1, -1)
    rows = rows[:: math.ceil(rows.shape[0] / ROWS), :: math.ceil(rows.shape[1] / COLUMNS)]
    if part.dtype == object:
        return [zlib.crc32(b"\0".join(row.tolist())) for row in rows]
    if not tf.as_dtype(part.dtype).is_floating:
        return [zlib.crc32(row.tobytes()) for row in rows]
    weights = np.random.default_rng(0).normal(size=rows.shape[1])
    rows = np.clip(np.nan_to_num(rows.astype("float64"), nan=2.0, posinf=1.0, neginf=-1.0), -LARGEST, LARGEST)
    return [float(f"{number:.9g}") for number in rows @ weights]


def _same_parts(before, now):
    return [_distance(one, other) <= _width(list(chain(*one))) for one, other in _by_part(before, now)]


def _distance(one, other):
    """Return the largest difference between the two: infinity if lengths or checksums differ."""
    if [len(numbers) for numbers in one] != [len(numbers) for numbers in other]:
        return math.inf
    one, other = list(chain(*one)), list(chain(*other))
    if _are_checksums(one):
        return 0.0 if one == other else math.inf
    return max(abs(number - again) for number, again in zip(one, other, strict=True))


def _width(numbers):
    """Return the tolerance for numbers: 0 for checksums."""
    if _are_checksums(numbers):
        return 0.0
    return float(max(CLOSE * np.std(numbers), 1e-5 * np.max(np.abs(numbers))))


def _are_checksums(numbers):
    return all(isinstance(number, int) for number in numbers)


def _bits(part):
    """Return the entropy of this part over batches, in bits: 0 if all batches are the same, like positions."""
    width = _width(list(chain(*part)))
    bits = 0.0
    for numbers in zip_longest(*part):  # of one row, in each batch
        there = [number if width == 0 else round(number / width) for number in numbers if number is not None]
        bits -= sum(count * math.log2(count / len(there)) for count in Counter(there).values())
    return bits
