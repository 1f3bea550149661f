"""Does an epoch that is resumed begin with the batches that it began with before the restart?

Seeds of shuffles are in the graph of a dataset. An order that comes from elsewhere, as from NumPy or a generator, shows
in the batches alone: the first few of each epoch are summed up in numbers, which a checkpoint keeps.
"""

import math
import zlib
from collections import Counter
from itertools import zip_longest

import numpy as np

from bigtrain_nb.common.passes import changes_examples, global_seed, shuffles_of, uses_seed
from bigtrain_nb.common.quiet import tf

BATCHES = 4
ROWS = 16
"""So many of a batch are looked at."""
COLUMNS = 65_536
"""And so many numbers of each."""
BITS = 8
"""What a part must have at least to tell orders apart: two agree by chance once in 2 ** 8 times."""
CLOSE = 0.05
"""Rows of real numbers are the same if they differ by less than this share of what rows differ by: what is rounded on
the way may be another number on another CPU."""
AN_ORDER = (
    "its order must come from the number of the epoch alone, as that of dataset.shuffle(buffer, seed=epoch), of"
    " np.random.default_rng(epoch).permutation(examples), or of a generator that is seeded so"
)


class FirstBatches:
    """Notes the first batches of an epoch while they are read: ``found`` has of each batch, and of each part of it, a
    number for each row."""

    def __init__(self):
        self.found = []

    def noting(self, dataset):
        """Return the same dataset; each time it is opened, what was found begins anew."""
        return dataset.enumerate().map(self._note_the_first)

    def _note_the_first(self, number, batch):
        tensors = _tensors_of(batch)

        def note():
            return tf.numpy_function(self._note, [number, *tensors], tf.int64)

        noted = tf.cond(number < BATCHES, note, lambda: number)
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(
                lambda part: part if part is None else tf.identity(part), batch, expand_composites=True
            )

    def _note(self, number, *parts):
        if number == 0:
            self.found = []
        self.found.append([_numbers(part) for part in parts])
        return number


def refuse_another_order(dataset, epoch, step, before, seed_before):
    """Raise ValueError if an epoch of which ``step`` batches are done does not begin as it did ``before``.

    Also if its order depends on TensorFlow's global seed, and that is another one; where the seed was not noted, as in
    checkpoints of earlier versions, it is None.
    """
    seed = global_seed()
    if seed_before not in (None, seed) and uses_seed(dataset, seed):
        raise ValueError(
            f"the order of epoch {epoch} depends on TensorFlow's global seed, which is another one than before the"
            f" restart, {seed} and not {seed_before}, so this would not be that training's order: call"
            f" keras.utils.set_random_seed({seed_before}) or tf.random.set_seed({seed_before}) before make_epoch is"
            " called, as the first start did"
        )
    if not (step and before) or not _differ(before, dataset):
        return
    raise ValueError(
        f"epoch {epoch} does not begin with the batches with which it began before the restart, when {step} of them"
        f" were trained, so some examples would be trained twice and others never: {AN_ORDER}; the examples and the"
        " batch size must be the same too. If that order cannot be had again, save the restored model by model.save,"
        " and train it on in another folder"
    )


def refuse_an_order_of_each_call(make, epoch):
    """Raise ValueError if two calls of ``make(epoch)`` give other first batches.

    Where a shuffle would have to fill its buffer, what its seeds say must do.
    """
    dataset = make(epoch)
    if not shuffles_of(dataset) and _differ(_first_of(dataset), make(epoch)):
        raise ValueError(
            f"make_epoch({epoch}) returns other batches, or another order of them, each time that it is called, so"
            f" after a restart some examples would be trained twice in an epoch and others never: {AN_ORDER};"
            " sample_from_datasets needs a seed"
        )


def _differ(before, dataset):
    """Tell whether a dataset begins otherwise than ``before``: None where chance on the way leaves that open."""
    now = _first_of(dataset)
    if _alike(before, now):
        return False
    if changes_examples(dataset) and _first_of(dataset) != now:
        return None
    return True


def _first_of(dataset):
    batches = dataset.take(BATCHES)
    return [[_numbers(part.numpy()) for part in _tensors_of(batch)] for batch in batches]


def _tensors_of(batch):
    parts = tf.nest.flatten(batch, expand_composites=True)
    return [part for part in parts if part is not None and part.dtype != tf.variant]


def _numbers(part):
    """Return a number for each of some rows: a checksum, or of real numbers a sum with weights."""
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
    return [float(f"{number:.9g}") for number in np.nan_to_num(rows.astype("float64")) @ weights]


def _alike(before, now):
    """Tell whether these are the same batches. One part is enough of those that tell batches apart, as labels do: the
    others may be changed by chance on the way."""
    count = min(len(before), len(now))
    parts = list(zip(zip(*before[:count], strict=False), zip(*now[:count], strict=False), strict=False))
    telling = [(one, other) for one, other in parts if _bits(one) >= BITS]
    if telling:
        return any(_same(one, other) for one, other in telling)
    return all(_same(one, other) for one, other in parts)


def _same(one, other):
    if [len(numbers) for numbers in one] != [len(numbers) for numbers in other]:
        return False
    one, other = np.concatenate([*one, []]), np.concatenate([*other, []])
    return bool(np.all(np.abs(one - other) <= _width(one)))


def _width(numbers):
    """Return by how much numbers may differ: checksums not at all."""
    if np.all(numbers == np.round(numbers)):
        return 0.0
    return float(max(CLOSE * np.std(numbers), 1e-5 * np.max(np.abs(numbers))))


def _bits(part):
    """Return by how many bits batches differ in this part: by none where all are the same, as positions are."""
    width = _width(np.concatenate([*part, []]))
    bits = 0.0
    for numbers in zip_longest(*part):  # those of one row, in each batch
        there = [number if width == 0 else round(number / width) for number in numbers if number is not None]
        bits -= sum(count * math.log2(count / len(there)) for count in Counter(there).values())
    return bits
