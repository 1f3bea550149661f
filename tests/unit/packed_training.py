"""Train on packed rows read by index: `python packed_training.py FOLDER STEP` kills itself in a step."""

import os
import signal
import sys

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

LENGTH, BATCH, STEPS, EVERY = 16, 4, 10, 3


def packed():
    random = np.random.default_rng(0)
    lengths = random.integers(2, LENGTH, 120)
    return bt.TokenRows(random.integers(1, 32, lengths.sum()), lengths, LENGTH)


def train(folder, kill_at=None, steps_read=None):
    """Train one epoch with a checkpoint every three steps; return the weights."""
    rows = packed()
    order = np.random.default_rng(1).permutation(len(rows))

    def arrays_of(step):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if steps_read is not None:
            steps_read.append(int(step))
        batch = rows[order[step * BATCH : (step + 1) * BATCH]]
        return batch["tokens"], batch["segments"], batch["positions"]

    def read(step):
        arrays = tf.numpy_function(arrays_of, [step], [tf.int32] * 3)
        names = ("tokens", "segments", "positions")
        inputs = {name: tf.ensure_shape(array, (BATCH, LENGTH)) for name, array in zip(names, arrays, strict=True)}
        return inputs, tf.roll(inputs["tokens"], -1, axis=1)

    keras.utils.set_random_seed(1)
    model = bt.gpt(32, LENGTH, width=16, layers=1, heads=2, dropout=0.1, packed=True)
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    resume = bt.Resume(folder, model, every=EVERY)
    batches = resume.data(lambda epoch: tf.data.Dataset.range(STEPS).map(read))
    model.fit(batches, initial_epoch=resume.epoch, epochs=1, shuffle=False, verbose=0, callbacks=[resume])
    return model.get_weights()


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
