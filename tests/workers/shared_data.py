"""Record the examples that each of two workers trains on, by kind of data; `two_workers.py` runs it."""

import json

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

ROWS = [40, 8, 8, 8]  # per file
EXAMPLES, BATCH = 64, 16


def write(folder):
    for index, numbers in enumerate(np.split(np.arange(EXAMPLES), np.cumsum(ROWS)[:-1])):
        (folder / f"{index}.txt").write_text("\n".join(map(str, numbers)), encoding="utf-8")


def numbered(numbers):
    return numbers.map(lambda number: (tf.cast(number, tf.float32)[None], tf.constant([1.0])))


def in_files(folder):
    lines = tf.data.TextLineDataset([str(folder / f"{index}.txt") for index in range(len(ROWS))])
    return numbered(lines.map(lambda line: tf.strings.to_number(line, tf.int64))).batch(BATCH)


def shuffled(**seed):
    return lambda folder: numbered(tf.data.Dataset.range(EXAMPLES).shuffle(EXAMPLES, **seed)).batch(BATCH)


def ready_first(folder):
    return numbered(tf.data.Dataset.range(EXAMPLES).map(abs, 2, deterministic=False)).batch(BATCH)


def from_generator(folder):
    def examples():
        for number in np.random.default_rng().permutation(EXAMPLES):
            yield np.array([number], "float32"), np.array([1.0], "float32")

    kinds = (tf.TensorSpec((1,)), tf.TensorSpec((1,)))
    return tf.data.Dataset.from_generator(examples, output_signature=kinds).batch(BATCH)


def arrays(folder):
    return np.arange(EXAMPLES, dtype="float32")[:, None], np.ones((EXAMPLES, 1), "float32")


KINDS = {
    "in files": in_files,
    "shuffled by a seed": shuffled(seed=3),
    "shuffled": shuffled(),
    "what is ready first": ready_first,
    "generator": from_generator,
    "arrays": arrays,
    "arrays, seeded": arrays,
}


class Noting(bt.Model):
    def train_step(self, data):
        tf.numpy_function(lambda numbers: self.seen.append(numbers.ravel().tolist()), [data[0]], [])
        return super().train_step(data)


def trained_by_kind(strategy, folder):
    """Return {kind of data: this worker's examples of each step, or the error}, with data in the folder.

    No seed may be set before: the order of a shuffle without one would depend on it.
    """
    with strategy.scope():
        inputs = keras.Input((1,))
        model = Noting(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(1e-6), "mse")
    found = {}
    for kind, make in KINDS.items():
        model.seen = []
        if kind == "arrays, seeded":
            keras.utils.set_random_seed(1)
        data = make(folder)
        given = {"x": data[0], "y": data[1], "batch_size": BATCH} if isinstance(data, tuple) else {"x": data}
        try:
            model.fit(**given, verbose=0)
            found[kind] = model.seen
        except ValueError as error:
            found[kind] = str(error)
    try:
        backup = keras.callbacks.BackupAndRestore(f"{folder}/backup")
        model.fit(in_files(folder), None, None, 1, 0, [backup])  # the sixth argument is callbacks
    except ValueError as error:
        found["one folder for all backups"] = str(error)
    worker = strategy.cluster_resolver.task_id
    own = folder / f"backup-{worker}"
    own.mkdir()
    (own / "training_metadata.json").write_text(json.dumps({"epoch": worker, "batch": 0}))
    try:
        model.fit(in_files(folder), verbose=0, callbacks=keras.callbacks.BackupAndRestore(own))
    except ValueError as error:
        found["backups of different epochs"] = str(error)
    return found
