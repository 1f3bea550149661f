"""The objective of a hyperparameter search: a small network predicts the next byte of source code from 8 bytes."""

import json
import time
from pathlib import Path

import numpy as np
import yaml

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

SPACE = yaml.safe_load(Path(__file__).with_name("space.yaml").read_text())
LENGTH, BATCH = 8, 128
EPOCHS, STEPS = 6, 10  # an epoch: the steps between two evaluations of the loss
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def text_of(part):
    """Return the bytes of one part: "train", "choose" (validation, to choose hyperparameters), or "judge" (test).

    The last two are the halves of the held-out text: the choice must be tested on data that it did not use.
    """
    source = bt.source_text(megabytes=1)
    if part == "train":
        return source.array("train")
    held_out = source.array("test")
    half = len(held_out) // 2
    return {"choose": held_out[:half], "judge": held_out[half:]}[part]


def windows(part, count, seed):
    """Return int32 (bytes [count, LENGTH], the next byte [count]) from random positions in a part of the text."""
    text = text_of(part)
    starts = np.random.default_rng(seed).integers(0, len(text) - LENGTH, count)
    cut = text[starts[:, None] + np.arange(LENGTH + 1)].astype("int32")
    return cut[:, :-1], cut[:, -1]


def batches(seed):
    data = tf.data.Dataset.from_tensor_slices(windows("train", EPOCHS * STEPS * BATCH, seed))
    return data.batch(BATCH)


def new_net(width, dropout):
    layers = [
        keras.layers.Embedding(256, 16),
        keras.layers.Flatten(),
        keras.layers.Dense(width, "relu"),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(256),
    ]
    return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *layers])


def learner(rate, width, dropout, decay):
    """Return a network with these hyperparameters, its optimizer, and the function that trains it on one batch.

    `rate`: the learning rate, a number or a Keras schedule.
    """
    net = new_net(width, dropout)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=decay)
    optimizer.build(net.trainable_variables)

    @tf.function
    def step(windows, wanted):
        with tf.GradientTape() as tape:
            loss = LOSS(wanted, net(windows, training=True))
        optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

    return net, optimizer, step


def loss_of(net, windows, wanted):
    return float(LOSS(wanted, net(windows)))


def objective(settings, report):
    """Train with these hyperparameters; return the validation loss. Stop early if `report` returns True."""
    keras.utils.set_random_seed(0)
    net, _, step = learner(**settings)
    for number, batch in enumerate(batches(seed=0)):
        step(*batch)
        if number % STEPS == STEPS - 1:
            loss = loss_of(net, *windows("choose", 2048, seed=1))
            if report(number // STEPS, loss):
                break
    return loss


def renew(net, optimizer, start):
    """Reinitialize a network's weights from the current seed, and reset its optimizer's state."""
    net.set_weights(keras.models.clone_model(net).get_weights())
    for variable, value in zip(optimizer.variables, start, strict=True):
        variable.assign(value)


def repeat(settings, seeds):
    """Train with these hyperparameters once per seed, each on its own windows.

    Return {part: losses}: "judge" on test text, and "choose" on the validation windows of the search.
    """
    net, optimizer, step = learner(**settings)
    start = [variable.numpy() for variable in optimizer.variables]
    losses = {"judge": [], "choose": []}
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        renew(net, optimizer, start)
        for batch in batches(seed):
            step(*batch)
        losses["judge"].append(loss_of(net, *windows("judge", 4096, seed=2)))
        losses["choose"].append(loss_of(net, *windows("choose", 2048, seed=1)))
    return losses


def tell(**values):
    print(json.dumps(values | {"clock": time.time()}), flush=True)
