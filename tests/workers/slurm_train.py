"""Train a small model, started again from its last checkpoint as often as need be; each worker writes its weights.

The same lines run under SLURM and between two hosts.
"""

import argparse
import json
import os
import time
from pathlib import Path

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

BATCH, STEPS, EPOCHS = 8, 12, 3


class Slow(keras.callbacks.Callback):
    """Prints every step, and pauses after it until the second restart, to leave time to interrupt."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds if int(os.environ.get("BIGTRAIN_RESTART", "0")) < 2 else 0

    def on_train_batch_end(self, batch, logs=None):
        print(f"step {int(self.model.optimizer.iterations.numpy())}", flush=True)
        time.sleep(self.seconds)


def new_model(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((6,))
        x = keras.layers.Dense(8, activation="tanh")(inputs)
        model = bt.Model(inputs, keras.layers.Dense(1)(x))
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def batches(epoch):
    x = tf.random.stateless_normal((BATCH * STEPS, 6), (1, epoch))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, tf.sin(tf.reduce_sum(x, 1)))).batch(BATCH).with_options(options)


def train(folder, epochs, pause):
    model = new_model(bt.strategy(timeout=120))
    resume = bt.Resume(folder / "checkpoints", model, every=None)
    run = {"initial_epoch": resume.epoch, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(resume.data(batches), callbacks=[Slow(pause), resume], **run)
    worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    (folder / f"{worker}.json").write_text(json.dumps(numbers(model)), encoding="utf-8")


def numbers(model):
    return [float(value) for weight in model.get_weights() for value in weight.ravel()]


def trained_in_one_process():
    """Return the expected final weights of every way to run this."""
    model = new_model(tf.distribute.get_strategy())
    for epoch in range(EPOCHS):
        model.fit(batches(epoch), shuffle=False, verbose=0)
    return numbers(model)


def weights_in(folder):
    """Return the weights that both workers wrote to the folder, which must be equal."""
    first, second = (json.loads((folder / f"{index}.json").read_text(encoding="utf-8")) for index in range(2))
    assert first == second
    return first


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--pause", type=float, default=0.0)
    train(**vars(parser.parse_args()))
