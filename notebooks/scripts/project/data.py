"""The data: training batches, in an order that depends only on the epoch's number, and validation batches."""

import numpy as np

from bigtrain_nb import tf

FEATURES, CLASSES = 16, 4


def training_data(epoch, examples, batch):
    """Return the global batches of an epoch: the same in every call, in every worker, after every restart."""
    x, y = _rows(examples, seed=1)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    shuffled = rows.shuffle(examples, seed=epoch, reshuffle_each_iteration=False)
    return _batched(shuffled, batch)


def validation_data(examples, batch):
    """Return validation examples, a quarter as many, none of which are used for training."""
    return _batched(tf.data.Dataset.from_tensor_slices(_rows(examples // 4, seed=2)), batch)


def _rows(count, seed):
    """EDIT HERE: return your own examples. If they are many or large, read them from files, as in notebook 01."""
    random = np.random.default_rng(seed)
    y = random.integers(CLASSES, size=count)
    x = np.eye(CLASSES, FEATURES)[y] + random.normal(scale=0.5, size=(count, FEATURES))
    return x.astype("float32"), y


def _batched(rows, batch):
    """Each worker produces all batches and keeps its part of each: DATA. With many files, FILE reads less."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return rows.batch(batch).prefetch(tf.data.AUTOTUNE).with_options(options)
