"""Train as one of two workers: ``python resume_worker.py FOLDER DATA RESULTS [SIGNAL,RANK,STEPS ...]``.

On the first start, worker RANK sends itself the first SIGNAL after STEPS steps, on the second start the second.
RESULTS gets each worker's final state, and a line per step: the position before it, and this worker's examples of it.
With FOLDER alone, it repeatedly saves a larger model.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train import preemption

EPOCHS, BATCH, FILES, EXAMPLES = 2, 8, 3, 75  # ten batches; the last has three examples, split into two and one
EVERY = 4


def write(folder):
    """Write text files of unequal sizes, with a number per line."""
    numbers = np.split(np.arange(EXAMPLES), [40, 50])
    for index, part in enumerate(numbers):
        (folder / f"{index}.txt").write_text("\n".join(map(str, part)), encoding="utf-8")


def epoch_of(folder, epoch):
    """Return batches of (number, features, target), in a different order for each epoch."""
    files = tf.data.Dataset.list_files(str(folder / "*.txt"), shuffle=False)
    lines = files.interleave(tf.data.TextLineDataset, cycle_length=2)
    numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int64))

    def example(number):
        x = tf.random.stateless_normal([5], [number, 7])
        return {"number": number, "x": x}, tf.sin(tf.reduce_sum(x, keepdims=True))

    numbers = numbers.apply(tf.data.experimental.assert_cardinality(EXAMPLES))
    return numbers.shuffle(EXAMPLES, seed=epoch, reshuffle_each_iteration=False).map(example).batch(BATCH)


def augmented(folder, worker, epoch):
    """Return the batches of ``epoch_of`` with noise that each worker draws by itself."""

    def noisy(x, y):
        return {**x, "x": x["x"] + tf.random.normal(tf.shape(x["x"]), seed=worker + 1)}, y

    return epoch_of(folder, epoch).map(noisy)


class Recording(bt.Model):
    """Records the examples that this worker has trained."""

    def train_step(self, data):
        tf.numpy_function(lambda numbers: self.seen.extend(numbers.tolist()), [data[0]["number"]], [])
        return super().train_step(data)


class Log(keras.callbacks.Callback):
    def __init__(self, resume, path):
        super().__init__()
        self.resume, self.path = resume, path

    def on_train_batch_end(self, batch, logs=None):
        line = {"epoch": self.resume.epoch, "step": self.resume.step, "examples": self.model.seen[:]}
        self.model.seen.clear()
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class End(keras.callbacks.Callback):
    """Sends this process a signal after this many steps."""

    def __init__(self, number, steps):
        super().__init__()
        self.number, self.steps = number, steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if self.steps == 0:
            os.kill(os.getpid(), self.number)


def model_of(strategy):
    keras.utils.set_random_seed(1 + int(os.environ["BIGTRAIN_RESTART"]))
    with strategy.scope():
        inputs = {"number": keras.Input((), dtype="int64", name="number"), "x": keras.Input((5,), name="x")}
        x = keras.layers.Dense(8, activation="tanh")(inputs["x"])
        x = keras.layers.BatchNormalization()(keras.layers.Dropout(0.3)(x))
        model = Recording(inputs, keras.layers.Dense(1)(x), micro_batches=3)
        model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=0.5), "mse")
    model.seen = []
    tf.random.set_seed(0)  # the order of examples depends on it
    return model


def refused(folder, model):
    try:
        bt.Resume(folder, model)
    except (RuntimeError, OSError) as error:
        return str(error)


def main(folder, data, results, *ends):
    preemption.ROUND_SECONDS = 0  # otherwise the fast steps would finish the epoch first
    strategy = bt.strategy()
    me = strategy.cluster_resolver.task_id
    restart, results = int(os.environ["BIGTRAIN_RESTART"]), Path(results)
    resume = bt.Resume(folder, model_of(strategy), every=EVERY)
    with open(results / f"starts{me}", "a", encoding="utf-8") as file:
        file.write(f"{resume.epoch} {resume.step}\n")
    callbacks = [Log(resume, results / f"steps{me}-{restart}")]
    if restart < len(ends):
        number, rank, steps = map(int, ends[restart].split(","))
        if rank == me:
            callbacks.append(End(number, steps))
    batches = resume.data(partial(epoch_of, Path(data)))
    run = {"initial_epoch": resume.epoch, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    resume.model.fit(batches, callbacks=[*callbacks, resume], **run)
    variables = [*resume.model.variables, *resume.model.optimizer.variables]
    np.savez(results / f"state{me}.npz", *[variable.numpy() for variable in variables])
    if not ends:
        print("not shared:", refused([folder, results / "none"][me], resume.model))
        print("no folder:", refused(results / "starts0", resume.model))
        noisy = bt.Resume(results / "augmented", model_of(strategy))
        batches = noisy.data(partial(augmented, Path(data), me))
        noisy.model.fit(batches, epochs=1, shuffle=False, verbose=0, callbacks=[noisy])
        print("augmented:", noisy.epoch, "epoch")


def saving(folder):
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(5000)])
    model.compile("adam", "mse")
    return bt.Resume(folder, model, every=1)


def save_over_and_over(folder):
    resume = saving(folder)
    for _ in resume.epochs(1):
        while True:
            resume.step_done()
            sys.stdout.write(f"saved {resume.step}\n")  # a single write, which a kill cannot split, unlike print's


if __name__ == "__main__":
    if len(sys.argv) == 2:
        save_over_and_over(sys.argv[1])
    else:
        main(*sys.argv[1:])
