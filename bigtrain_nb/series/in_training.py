"""A layer that shows whether a model is called for training, for checks that must not depend on chance."""

from bigtrain_nb.common.quiet import keras

FORGOTTEN = "Is the model called with training=True? Without it, dropout and batch normalization do not train."


class LouderInTraining(keras.layers.Layer):
    """Multiplies by 1.5 in training and by 1 otherwise, as dropout does one thing in training and another after it."""

    def call(self, x, training=False):
        return 1.5 * x if training else x
