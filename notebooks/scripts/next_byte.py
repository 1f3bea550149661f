"""What is searched for: the settings of a small net that reads 8 bytes of source code and names the next one."""

import json
import time
from pathlib import Path

import numpy as np
import yaml

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

SPACE = yaml.safe_load(Path(__file__).with_name("space.yaml").read_text())
LENGTH, BATCH = 8, 128
EPOCHS, STEPS = 6, 20  # an epoch is what is trained between two looks at the loss
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def windows(split, count, seed):
    """Return int32 (bytes [count, LENGTH], the byte that follows [count]) from random places of a text."""
    text = bt.source_text(megabytes=1).array(split)
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, count)
    cut = text[starts[:, None] + np.arange(LENGTH + 1)].astype("int32")
    return cut[:, :-1], cut[:, -1]


def batches(seed):
    data = tf.data.Dataset.from_tensor_slices(windows("train", EPOCHS * STEPS * BATCH, seed))
    return data.batch(BATCH, drop_remainder=True).repeat()


def new_net(width, dropout):
    layers = [
        keras.layers.Embedding(256, 16),
        keras.layers.Flatten(),
        keras.layers.Dense(width, "relu"),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(256),
    ]
    return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *layers])


def compiled(rate, width, dropout, decay):
    """Return a net with these settings; `rate` is a number or a schedule of Keras."""
    net = new_net(width, dropout)
    net.compile(keras.optimizers.AdamW(rate, weight_decay=decay), LOSS, steps_per_execution=5)
    net.optimizer.build(net.trainable_variables)
    return net


def objective(settings, report):
    """Train with these settings; return the loss on text that was held out. Stop early if `report` says so."""

    def look(epoch, logs):
        net.stop_training = report(epoch, logs["val_loss"])

    keras.utils.set_random_seed(0)
    net = compiled(**settings)
    looks = keras.callbacks.LambdaCallback(on_epoch_end=look)
    told = {"validation_data": windows("test", 2048, seed=1), "validation_batch_size": 2048, "callbacks": [looks]}
    past = net.fit(batches(seed=0), epochs=EPOCHS, steps_per_epoch=STEPS, shuffle=False, verbose=0, **told)
    return past.history["val_loss"][-1]


def renew(net, optimizer, start):
    """Give a net new weights, as the seed that was set has them, and its optimizer the state from before it began."""
    net.set_weights(keras.models.clone_model(net).get_weights())
    for variable, value in zip(optimizer.variables, start, strict=True):
        variable.assign(value)


def repeat(net, seeds):
    """Train a compiled net from anew with each of the seeds, on windows of its own; return the losses on new text."""
    start = [variable.numpy() for variable in net.optimizer.variables]
    new_text = windows("test", 4096, seed=2)
    losses = []
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        renew(net, net.optimizer, start)
        net.fit(batches(seed), epochs=1, steps_per_epoch=EPOCHS * STEPS, shuffle=False, verbose=0)
        losses.append(net.evaluate(*new_text, batch_size=4096, verbose=0))
    return losses


def tell(**values):
    print(json.dumps(values | {"clock": time.time()}), flush=True)
