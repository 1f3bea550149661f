"""Let several workers read the same batches in the same order, each keeping its share."""

import math
import warnings
import zlib
from collections import Counter

import numpy as np

from bigtrain_nb.common.keras_compat import datasets_within
from bigtrain_nb.common.passes import recording_first, traits_of
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import all_gather

_POLICIES = tf.data.experimental.AutoShardPolicy
_UNEQUAL_ORDERS = (
    "so the workers' orders differ: an epoch would use some examples twice, and others never. Give shuffle a"
    " seed, dataset.shuffle(n, seed=1), and a generator the same seed on all workers; with NumPy arrays and"
    " shuffle=True call keras.utils.set_random_seed(1) before fit. A map that changes all parts needs seeds, too"
)


class SharedDataOrder:
    """Lets each worker of a strategy read all of a dataset and keep its share of every batch.

    By default, TensorFlow shards by files if there are any: global batches have other examples, and workers run out of
    data. Unseeded shuffles are refused, and the workers' first batches compared. A dataset with an explicit
    AutoShardPolicy (FILE, HINT or OFF) is left unchanged.
    """

    def __init__(self, strategy):
        self._strategy = strategy
        self._gather = all_gather(strategy, tf.identity)
        self._first = [0]  # checksums of the first batch's parts
        self._is_changed = False  # by random operations in a `map`, which may be different on each worker

    def refuse_unlike_orders(self):
        """Raise ValueError if the workers have read different first batches. All must call it."""
        firsts = self._gather(tf.constant(np.resize(self._first, 64), tf.int64))  # as many on all, even without a batch
        is_equal = (firsts == firsts[0]).all(axis=0)  # of each part
        if not is_equal.all() and not (self._is_changed and (is_equal & (firsts[0] > 0)).any()):
            found = len(np.unique(firsts, axis=0))
            raise ValueError(f"{len(firsts)} replicas read {found} different first batches, {_UNEQUAL_ORDERS}")

    def by_batches(self, dataset):
        self._first, self._is_changed = [0], False
        if dataset.options().experimental_distribute.auto_shard_policy not in (_POLICIES.AUTO, _POLICIES.DATA):
            return dataset
        first = next((one.first_epoch for one in datasets_within(dataset) if hasattr(one, "first_epoch")), None)
        if first is None:  # otherwise `EpochByEpoch` has checked it
            _refuse_random_order(traits_of(dataset))
        self._is_changed = bool(traits_of(first or dataset).changes_examples)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = _POLICIES.DATA
        return recording_first(dataset, 1, self._note).with_options(options)

    def _note(self, _, *parts):
        self._first = [_checksum(np.atleast_1d(part)) for part in parts]


def _checksum(part):
    """Return a checksum, negative if chance makes two orders of these rows equal more than once in 256 times."""
    rows = part.reshape(max(len(part), 1), -1)
    rows = [b"\0".join(row.tolist()) if part.dtype == object else row.tobytes() for row in rows]
    orders = math.lgamma(len(rows) + 1) - sum(math.lgamma(count + 1) for count in Counter(rows).values())
    return zlib.crc32(b"".join(rows)) * (1 if orders > math.log(256) else -1)


def _refuse_random_order(traits):
    """Raise ValueError if the workers' orders would differ; warn if that cannot be determined."""
    if traits.keeps_order is False:
        raise ValueError(
            "this dataset has deterministic=False and yields elements in nondeterministic order, so workers disagree:"
            " an epoch would use some examples twice, and others never. Leave out deterministic, or let each worker"
            " read its own files with AutoShardPolicy.FILE"
        )
    if any(seeds == (0, 0) for seeds, _ in traits.shuffles or ()):
        raise ValueError(f"this dataset shuffles without a seed, {_UNEQUAL_ORDERS}")
    if traits.unknown:
        warnings.warn(
            "could not check that all workers read this dataset in the same order, because its graph cannot be"
            f" serialized ({traits.unknown}); only the first batch is compared. Give shuffle a seed, and do not set"
            " deterministic=False",
            stacklevel=2,
        )
