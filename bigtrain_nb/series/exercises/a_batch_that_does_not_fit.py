"""Exercises of notebook 05, "A batch that does not fit"; its three faulty loops are in `a_batch_in_slices`."""

from functools import cache

import numpy as np

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.series.in_training import FORGOTTEN, LouderInTraining
from bigtrain_nb.workbook.exercises import Wrong, exercise


def one_update(model, optimizer, x, y, mask, size, limit):
    weights = model.trainable_variables
    tokens = tf.reduce_sum(mask)
    sums = [tf.zeros_like(weight) for weight in weights]
    for start in range(0, len(x), size):
        end = start + size
        with tf.GradientTape() as tape:
            logits = model(x[start:end], training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y[start:end], logits, from_logits=True)
            loss = tf.reduce_sum(mask[start:end] * losses) / tokens
        part = tape.gradient(loss, weights)
        sums = [total + gradient for total, gradient in zip(sums, part, strict=True)]

    clipped, _ = tf.clip_by_global_norm(sums, limit)
    optimizer.apply_gradients(zip(clipped, weights, strict=True))


LINES, SIZE, NO_LIMIT = 10, 4, 1000.0


class _CountLines(keras.layers.Identity):
    """Records the largest number of lines in one call."""

    most = 0

    def call(self, inputs):
        self.most = max(self.most, inputs.shape[0] or 0)
        return inputs


def _lines():
    """Return 10 lines [6 positions, 5 features]; labels; a mask. The first four are short, two are all padding."""
    random = np.random.default_rng(4)
    x = random.normal(size=(LINES, 6, 5)).astype("float32")
    y = random.integers(4, size=(LINES, 6))
    lengths = np.array([1, 1, 2, 1, 6, 5, 6, 6, 0, 0])
    mask = np.arange(6) < lengths[:, None]
    return tf.constant(x), tf.constant(y), tf.constant(mask, tf.float32)


def _net():
    inputs = keras.Input((6, 5))
    start = keras.initializers.GlorotUniform
    hidden = keras.layers.Dense(8, "tanh", kernel_initializer=start(seed=1))(_CountLines(name="count")(inputs))
    hidden = LouderInTraining()(hidden)
    return keras.Model(inputs, keras.layers.Dense(4, kernel_initializer=start(seed=2))(hidden))


def _flat(tensors):
    return np.concatenate([np.ravel(tensor) for tensor in tensors])


def _gradient(lines, weigh, training=True):
    """Return the gradient of the sum of `weigh(mask)` times the losses of some lines, as a vector."""
    x, y, mask = (tensor[lines] for tensor in _lines())
    model = _net()
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=training), from_logits=True)
        loss = tf.reduce_sum(weigh(mask) * losses)
    return _flat(tape.gradient(loss, model.trainable_variables))


def _mean_over_tokens(mask):
    return mask / max(1, tf.reduce_sum(mask))


def _shorten(gradient, limit):
    return gradient * min(1, limit / np.linalg.norm(gradient))


@exercise(
    one_update,
    takes=(
        "a model; an optimizer; x [10, 6, 5]; y [10, 6]; a mask [10, 6] of 0 and 1; lines per micro-batch; largest norm"
    ),
    returns="nothing; the model has made one update",
    minutes=20,
    difficulty=4,
)
def _check_one_update(answer):
    """By what must you divide the loss of each micro-batch, so that you only need to sum the gradients? And which
    operation needs the gradient of the full batch, and so must wait for the last micro-batch?"""
    _, whole = _gradients_of_slices()
    for limit in (NO_LIMIT, 0.05):
        applied = _applied(answer, limit)
        apart = np.abs(applied - _shorten(whole, limit)).max()
        if apart < 1e-5:
            continue
        what = "without clipping" if limit == NO_LIMIT else f"with the gradient clipped to {limit}"
        reason = "is each micro-batch clipped separately, or is there one update per micro-batch?"
        if limit == NO_LIMIT:
            reason = "is each micro-batch divided by the tokens of the full batch, and is there one update?"
        if np.isnan(apart):
            reason = "does a micro-batch of nothing but padding divide by its 0 tokens?"
        for words, fault in _faults(limit).items():
            if np.allclose(applied, fault, atol=1e-5):
                reason = words
        told = f"one update, {what}: expected that of the full batch within 1e-5, got a difference of {apart:.1g}"
        raise Wrong(f"{told}: {reason}")


@cache
def _gradients_of_slices():
    """Return the gradients of three micro-batches, each the mean over its own tokens, and that of the full batch."""
    slices = [slice(0, 4), slice(4, 8), slice(8, 10)]
    parts = [_gradient(lines, _mean_over_tokens) for lines in slices]
    return parts, _gradient(slice(0, LINES), _mean_over_tokens)


@cache
def _faults(limit):
    """Return {typical mistake: the gradient that it applies}."""
    parts, whole = _gradients_of_slices()
    by_lines = (4 * parts[0] + 4 * parts[1] + 2 * parts[2]) / LINES
    with_padding = _gradient(slice(0, LINES), lambda mask: np.ones(mask.shape, "float32") / (6 * LINES))
    return {
        "all micro-batches have equal weight, although they have 5, 23 and 0 tokens": _shorten(sum(parts) / 3, limit),
        "micro-batches are weighted by their lines, not by their tokens": _shorten(by_lines, limit),
        "padding is counted as tokens": _shorten(with_padding, limit),
        "nothing was clipped": whole,
        FORGOTTEN: _shorten(_gradient(slice(0, LINES), _mean_over_tokens, training=False), limit),
        "the weights did not move": 0 * whole,
    }


def _applied(answer, limit):
    """Return the gradient that the answer applied, as a vector."""
    model = _net()
    before = _flat(model.trainable_variables)
    answer(model, keras.optimizers.SGD(1.0), *_lines(), SIZE, limit)
    most = model.get_layer("count").most
    if most > SIZE:
        raise Wrong(f"lines passed to the model at once: expected at most {SIZE}, got {most}")
    return before - _flat(model.trainable_variables)


def _with_slices(model, optimizer, x, y, mask, size, limit, weigh, clip_each=False):
    """Apply the sum over micro-batches of `weigh(mask)` times the losses."""
    weights = model.trainable_variables
    sums = [tf.zeros_like(weight) for weight in weights]
    for start in range(0, len(x), size):
        end = start + size
        with tf.GradientTape() as tape:
            logits = model(x[start:end], training=True)
            losses = keras.losses.sparse_categorical_crossentropy(y[start:end], logits, from_logits=True)
            loss = tf.reduce_sum(weigh(mask[start:end]) * losses)
        part = tape.gradient(loss, weights)
        if clip_each:
            part, _ = tf.clip_by_global_norm(part, limit)
        sums = [total + gradient for total, gradient in zip(sums, part, strict=True)]
    clipped, _ = tf.clip_by_global_norm(sums, NO_LIMIT if clip_each else limit)
    optimizer.apply_gradients(zip(clipped, weights, strict=True))


@_check_one_update.refuses("lines passed to the model at once: expected at most 4, got 10")
def _takes_the_whole_batch(model, optimizer, x, y, mask, size, limit):
    one_update(model, optimizer, x, y, mask, len(x), limit)


@_check_one_update.refuses("all micro-batches have equal weight, although they have 5, 23 and 0 tokens")
def _votes(*given):
    _with_slices(*given, lambda mask: _mean_over_tokens(mask) / 3)


@_check_one_update.refuses("does a micro-batch of nothing but padding divide by its 0 tokens?")
def _divides_by_no_token(*given):
    _with_slices(*given, lambda mask: mask / tf.reduce_sum(mask) / 3)


@_check_one_update.refuses("is each micro-batch divided by the tokens of the full batch, and is there one update?")
def _adds_the_means(*given):
    _with_slices(*given, _mean_over_tokens)


@_check_one_update.refuses("micro-batches are weighted by their lines, not by their tokens")
def _counts_lines(*given):
    _with_slices(*given, lambda mask: _mean_over_tokens(mask) * len(mask) / LINES)


@_check_one_update.refuses("padding is counted as tokens")
def _forgets_the_mask(*given):
    _with_slices(*given, lambda mask: tf.ones_like(mask) / (6 * LINES))


@_check_one_update.refuses("is each micro-batch clipped separately")
def _clips_slices(*given):
    _with_slices(*given, lambda mask: mask / 28, clip_each=True)


@_check_one_update.refuses("nothing was clipped")
def _clips_nothing(model, optimizer, x, y, mask, size, limit):
    one_update(model, optimizer, x, y, mask, size, NO_LIMIT)
