"""Train a language model on source code: the same script for one device, several, or one of several workers.

FOLDER holds the checkpoints, and all workers must share it. A restarted training continues from the last checkpoint.
"""

import argparse
import json

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

LENGTH, WIDTH = 32, 48  # sequence length in bytes, hidden size
TOGETHER = 8  # steps per call from Python
WARM_UP = 128  # steps; a quarter of a short training
TELL = 16  # steps between two printed lines


def windows(text, count, batch, seed):
    """Return int32 (bytes, the bytes that follow them), [batch, LENGTH] each, from random positions of a text."""
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, count)
    text, places = tf.constant(text), tf.range(LENGTH + 1, dtype=tf.int64)

    def cut(starts):
        window = tf.cast(tf.gather(text, starts[:, None] + places), tf.int32)
        return window[:, :-1], window[:, 1:]

    return tf.data.Dataset.from_tensor_slices(starts).batch(batch).map(cut, tf.data.AUTOTUNE).prefetch(2)


def new_model(strategy, rate, micro_batches=1, policy="float32"):
    """Return the same compiled model in every call and in every worker. Put your own model here."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    alone = strategy.num_replicas_in_sync == 1  # Keras uses no XLA with several: it cannot compile an all-reduce
    how = {"jit_compile": True, "steps_per_execution": TOGETHER} if alone else {}
    with strategy.scope():
        model = bt.gpt(length=LENGTH, width=WIDTH, micro_batches=micro_batches)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate, beta_2=0.95), loss, **how)  # as in GPT-3
    keras.config.set_dtype_policy("float32")
    return model


class Tell(keras.callbacks.Callback):
    """The chief prints the loss of the last steps and the throughput so far, as one line of JSON."""

    def __init__(self, chief, meter):
        super().__init__()
        self.chief, self.meter = chief, meter

    def on_train_begin(self, logs=None):
        self.step = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if step // TELL > self.step // TELL:
            say(self.chief, step=step, loss=float(logs["loss"]), examples_per_second=self.meter.examples_per_second)
            self.step = step
            self.model.reset_metrics()  # Keras' own loss is a mean over the epoch so far


def say(chief, **facts):
    if chief:
        print(json.dumps(facts), flush=True)


def continued(model, start, count=200, seed=1):
    """Return a prompt with the model's continuation, byte by byte; unprintable bytes are shown as dots."""
    run, known = tf.function(model), list(start.encode())
    for place in range(count):
        seen = known[-LENGTH:]
        logits = run(tf.constant([seen + [0] * (LENGTH - len(seen))]))[:, len(seen) - 1]
        known.append(int(tf.random.stateless_categorical(logits / 0.7, 1, (seed, place))[0, 0]))
    return "".join(chr(byte) if byte == 10 or 32 <= byte < 127 else "·" for byte in known)


def train(strategy, folder, text, examples=8192, epochs=1, batch=16, rate=0.005, every=128, **settings):
    """Train up to this number of epochs of random examples, including those already trained; return the model."""
    chief, steps = strategy.extended.should_checkpoint, epochs * -(-examples // batch)
    model = new_model(strategy, bt.warmup_cosine(rate, min(WARM_UP, steps // 4), steps), **settings)
    resume, meter = bt.Resume(folder, model, every=every), bt.Meter()

    def one_epoch(epoch):
        return windows(text.array("train"), examples, batch, seed=epoch)

    how = {"initial_epoch": resume.epoch, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(resume.data(one_epoch), callbacks=[meter, Tell(chief, meter), resume], **how)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--text", help="a folder with text of your own; without it, Python's own source code")
    parser.add_argument("--pattern", default="**/*.py", help="which files of that folder")
    parser.add_argument("--examples", type=int, default=8192, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16, help="of all workers together")
    parser.add_argument("--rate", type=float, default=0.005, help="the highest learning rate")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--policy", default="float32", help="the dtype policy, such as mixed_bfloat16")
    parser.add_argument("--every", type=int, default=128, help="steps from one checkpoint to the next")
    chosen = vars(parser.parse_args())
    own, pattern = chosen.pop("text"), chosen.pop("pattern")
    text = bt.text_folder(own, pattern) if own else bt.source_text(megabytes=4)
    strategy = bt.strategy()
    model = train(strategy, text=text, **chosen)
    loss = model.evaluate(windows(text.array("test"), 512, 64, seed=0), verbose=0)
    say(strategy.extended.should_checkpoint, test_loss=loss)
