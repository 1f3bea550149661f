"""The model. EDIT HERE: any Keras model does."""

from data import CLASSES, FEATURES

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras


def new_model(width, layers, micro_batches):
    inputs = x = keras.Input((FEATURES,))
    for _ in range(layers):
        x = keras.layers.Dense(width, activation="relu")(x)
    outputs = keras.layers.Dense(CLASSES, dtype="float32")(x)  # the loss in float32 under any policy
    return bt.Model(inputs, outputs, micro_batches=micro_batches)
