"""A layer that reveals whether a model is called in training mode, for deterministic checks."""

from bigtrain_nb.common.quiet import keras

FORGOTTEN = "Is the model called with training=True? Without it, dropout and batch normalization do not train."


class LouderInTraining(keras.layers.Layer):
    """Multiplies by 1.5 in training and by 1 otherwise: like dropout it depends on the mode, but it is not random."""

    def call(self, x, training=False):
        return 1.5 * x if training else x
