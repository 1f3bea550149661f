"""Eight faulty trainings of notebook 11. Each returns a compiled model and its batches, and says what is wrong."""

import numpy as np

from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers


def batches(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def table():
    """Return inputs [128, 8] and the class of each, which follows from them: 0, 1 or 2."""
    x = np.random.default_rng(0).normal(size=(128, 8)).astype("float32")
    return x, x[:, :3].argmax(1).astype("int32")


def perceptron(last, loss="sparse_categorical_crossentropy", rate=0.02):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), last])
    model.compile(keras.optimizers.Adam(rate), loss)
    return model


def rows_of_tokens():
    """Return tokens [64, 13], 1 to 19, in which the next follows from the last."""
    first = np.random.default_rng(0).integers(1, 20, (64, 1))
    return ((first + 3 * np.arange(13)) % 19 + 1).astype("int32")


def language_model(causal=True, mask_zero=False):
    inputs = keras.Input((12,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=mask_zero)(inputs)
    x = x + layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=causal)
    model = keras.Model(inputs, layers.Dense(20)(x))
    model.compile(keras.optimizers.Adam(0.03), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def labels_from_one():
    """The classes are 1, 2 and 3; the model has outputs for 0, 1 and 2."""
    x, y = table()
    return perceptron(layers.Dense(3, "softmax")), batches(x, y + 1)


def softmax_missing():
    """The last layer has no softmax, and the loss takes its outputs for probabilities and clips them."""
    return perceptron(layers.Dense(3)), batches(*table())


def raw_pixels():
    """The inputs are bytes from 0 to 255, as they came from the files."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 64).astype("int32")
    x = random.integers(0, 120, (64, 8, 8, 3)) + 130 * y[:, None, None, None]
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batches(x.astype("uint8"), y)


def sees_its_answer():
    """A language model whose attention is not causal: at each place it sees the token that it is to predict."""
    tokens = rows_of_tokens()
    return language_model(causal=False), batches(tokens[:, :-1], tokens[:, 1:])


def padding_trained():
    """Rows are padded with 0, the embedding makes a mask, and a residual sum loses it."""
    tokens = rows_of_tokens()
    for row, end in zip(tokens, np.random.default_rng(1).integers(4, 13, len(tokens)), strict=True):
        row[end:] = 0
    return language_model(mask_zero=True), batches(tokens[:, :-1], tokens[:, 1:])


class Centred(layers.Layer):
    """Subtracts the mean over the batch, also where nothing trains."""

    def call(self, x):
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def examples_mixed():
    """A layer subtracts the mean of the batch: what one example gets depends on the others."""
    x, y = table()
    model = keras.Sequential([keras.Input((8,)), Centred(), layers.Dense(16, "relu"), layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    return model, batches(x, y)


def rate_too_large():
    """The learning rate is 3, for plain SGD on a regression."""
    x, _ = table()
    model = perceptron(layers.Dense(1), "mse")
    model.compile(keras.optimizers.SGD(3.0), "mse")
    return model, batches(x, x[:, :1])


def labels_shuffled():
    """Somebody has sorted the table of labels by another column: each label is that of another example."""
    x, y = table()
    return perceptron(layers.Dense(3, "softmax")), batches(x, np.random.default_rng(2).permutation(y))


FAULTY = {
    "labels from 1": (labels_from_one, "targets"),
    "softmax missing": (softmax_missing, "outputs and loss"),
    "raw pixels": (raw_pixels, "start"),
    "sees its answer": (sees_its_answer, "label leakage"),
    "padding trained": (padding_trained, "padding"),
    "examples mixed": (examples_mixed, "cross-example leakage"),
    "rate too large": (rate_too_large, "overfit one batch"),
    "labels shuffled": (labels_shuffled, None),
}
"""{what is wrong: (the training, the check of `bt.preflight` that is to say so, None where none can)}."""
