"""The data: batches of an epoch, in an order that follows from the epoch's number alone, and those for validation."""

import numpy as np

from bigtrain_nb import tf

FEATURES, CLASSES = 16, 4


def training_data(epoch, examples, batch):
    """Return the global batches of an epoch: the same at every call, in every worker, after every restart."""
    x, y = _rows(examples, seed=1)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    shuffled = rows.shuffle(examples, seed=epoch, reshuffle_each_iteration=False)
    return _batched(shuffled, batch)


def validation_data(examples, batch):
    """Return a quarter as many examples, none of which is trained on."""
    return _batched(tf.data.Dataset.from_tensor_slices(_rows(examples // 4, seed=2)), batch)


def _rows(count, seed):
    """EDIT HERE: return your own examples. Many large ones are better read from files, as notebook 01 does."""
    random = np.random.default_rng(seed)
    y = random.integers(CLASSES, size=count)
    x = np.eye(CLASSES, FEATURES)[y] + random.normal(scale=0.5, size=(count, FEATURES))
    return x.astype("float32"), y


def _batched(rows, batch):
    """Each worker makes all batches and keeps its part of each: DATA. With many files FILE reads less."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return rows.batch(batch).prefetch(tf.data.AUTOTUNE).with_options(options)
