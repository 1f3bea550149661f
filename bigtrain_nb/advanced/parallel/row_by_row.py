"""Loss, gradients and metrics of logits that exist for some rows at a time, and checks that this is correct."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from bigtrain_nb.advanced.shared.layers import with_attached
from bigtrain_nb.common.keras_compat import WatchedLoss, mask_of, with_mask
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import at_least_32_bits
from bigtrain_nb.common.words import first_sentence

METRIC_PARTS, LEAST_PART = 8, 32
"""Metrics see a chunk in at most so many parts of at least so many rows: Keras' argmax copies its input twice."""


@dataclass
class RowByRow:
    """One pass over the logits of a batch, for its loss, gradients and metrics.

    ``logits``: a `Deferred`. ``metrics``: triples of a metric, whether it is weighted, and whether an example counts 1
    (a position 1/positions). ``scale``: the factor by which the gradients are multiplied.
    """

    logits: Any
    loss: Any
    y: Any
    sample_weight: Any = None
    metrics: Sequence = ()
    scale: Any = 1.0
    takes_gradients: bool = True

    def __post_init__(self):
        self._head, hidden = self.logits.head, self.logits.hidden
        self._leading = tf.shape(hidden)[:-1]
        self._count = hidden.shape[:-1].num_elements() or tf.reduce_prod(self._leading)
        chunks = -(-self._count // self.logits.rows)
        self._chunks = max(1, chunks) if isinstance(chunks, int) else tf.maximum(1, chunks)
        self._parts = max(1, min(METRIC_PARTS, self.logits.rows // LEAST_PART))
        self._size = -(-self._count // (self._chunks * self._parts)) * self._parts  # equal sizes: little padding

    def run(self):
        """Return the loss, and the values of the metrics' variables after the batch."""

        @tf.custom_gradient
        def by_chunks(*sources):
            values, gradients, states = self._loop(*sources)

            def backward(upstream, *_):
                factor = upstream / tf.cast(self.scale, upstream.dtype)
                return [None if one is None else tf.cast(factor, one.dtype) * one for one in gradients]

            return (self._reduced(values), *states), backward

        loss, *states = by_chunks(self._padded(self.logits.hidden, self._head.row), *self.logits.weights)
        return loss, states

    def _loop(self, flat, *weights):
        """Return the loss of each row, the gradients of rows and weights, and the states of the metrics."""
        one = self._head.row[:-1]
        y = self._padded(self.y, [*one, *self.y.shape[self.logits.shape.rank - 1 :]])
        mask = mask_of(self.logits)
        mask = None if mask is None else self._padded(mask, one)
        counts = [
            self._padded(_places(self._leading, self.sample_weight if is_weighted else None, shares), one)
            for _, is_weighted, shares in self.metrics
        ]
        trained = [one.trainable and self.takes_gradients for one in self._head.variables]
        upstream = self._upstream()

        def chunk(number, losses, gradients, sums, states):
            of = partial(_rows, number * self._size, self._size)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                rows = with_mask(of(flat), None if mask is None else of(mask))
                tape.watch([rows, *compress(weights, trained)])
                logits = self._head(rows, self.logits.training, weights)
                with tape.stop_recording():
                    states = self._updated(states, of(y), logits, *map(of, counts))
                with tf.control_dependencies(states):  # last, so that gradients are written over logits
                    values = _losses(self.loss, of(y), logits)
                values = tf.reshape(values, [-1])
            if self.takes_gradients:
                of_rows, *of_weights = tape.gradient(values, [rows, *weights], of(upstream))
                gradients = gradients.write(number, of_rows)
                pairs = zip(sums, of_weights, strict=True)
                sums = [total if one is None else total + tf.cast(one, total.dtype) for total, one in pairs]
            return number + 1, losses.write(number, values), gradients, sums, states

        arrays = [tf.TensorArray(dtype, self._chunks) for dtype in (self.loss.dtype, flat.dtype)]
        states = [tf.convert_to_tensor(each.value) for metric, *_ in self.metrics for each in metric.variables]
        zero = tf.compat.v1.placeholder_with_default(0.0, [])  # Grappler would keep zeros of a known size for good
        pairs = [*zip(weights, trained, strict=True)]
        sums = [tf.fill(one.shape if asked else [], tf.cast(zero, at_least_32_bits(one.dtype))) for one, asked in pairs]
        _, losses, gradients, sums, states = tf.while_loop(
            lambda number, *_: number < self._chunks, chunk, (0, *arrays, sums, states), parallel_iterations=1
        )
        of_rows = tf.reshape(gradients.stack(), tf.shape(flat)) if self.takes_gradients else None
        of_weights = [tf.cast(s, one.dtype) if asked else None for s, (one, asked) in zip(sums, pairs, strict=True)]
        return tf.reshape(losses.stack(), [-1]), [of_rows, *of_weights], states

    def _updated(self, states, y, logits, *counts):
        """Return the states of all metrics after these rows, shown in parts, each after the last."""
        size = self._size // self._parts
        for part in range(self._parts):
            with tf.control_dependencies(states):  # only what is made here waits, so the copy of a part is made here
                its_y, its_logits, *its_counts = [_rows(part * size, size, one) for one in (y, logits, *counts)]
                with_attached(its_logits, logits, partial(_rows, part * size, size))
            for (metric, *_), counted in zip(self.metrics, its_counts, strict=True):
                many = len(metric.variables)  # move to the end, so that each metric finds its own in front
                updated = metric.stateless_update_state(states[:many], its_y, its_logits, counted)
                states = [*states[many:], *updated]
        return states

    def _padded(self, values, row):
        values = tf.reshape(values, [-1, *row])
        return tf.pad(values, [[0, self._chunks * self._size - self._count]] + [[0, 0]] * len(row))

    def left(self):
        """Return which positions a loss does not skip by its ``ignore_class``, or None if it has none."""
        ignored = getattr(self.loss, "ignore_class", None)
        return None if ignored is None else tf.reshape(self.y != tf.cast(ignored, self.y.dtype), self._leading)

    def _reduced(self, values):
        """Return Keras' own reduction of the losses of all rows, with weights and masks."""
        of_places = with_mask(tf.reshape(values[: self._count], self._leading), self.left())
        reduction = object.__new__(type(self.loss))  # of the same settings
        vars(reduction).update(vars(self.loss), call=lambda *_: of_places)
        nothing = with_mask(tf.zeros([]), mask_of(self.logits))
        return reduction(nothing, nothing, self.sample_weight)

    def _upstream(self):
        """Return the scaled gradient of the loss with respect to each row's loss: Keras' reduction is linear."""
        zeros = tf.zeros([self._chunks * self._size], self.loss.dtype)
        with tf.GradientTape() as tape:
            tape.watch(zeros)
            loss = self._reduced(zeros)
        return tape.gradient(loss, zeros) * tf.cast(self.scale, self.loss.dtype)


def _rows(first, count, values):
    return tf.slice(values, [first] + [0] * len(values.shape[1:]), [count, *values.shape[1:]])


def _losses(loss, y, y_pred):
    """Return the loss of each row, by the class's own ``call``: that of the object may be watched."""
    values = type(loss).call(loss, tf.cast(y, loss.dtype), tf.cast(y_pred, loss.dtype))
    if mask_of(values) is not None and getattr(loss, "ignore_class", None) is None:
        raise ValueError("it masks its own values: use SparseCategoricalCrossentropy(ignore_class=...)")
    return values


def _places(leading, weight, shares):
    """Return the weight of each position in a metric, [batch, positions]."""
    places = tf.ones([leading[0], tf.reduce_prod(leading[1:])])
    if weight is not None:
        places *= tf.reshape(tf.cast(weight, tf.float32), [leading[0], -1])
    return places / tf.cast(tf.shape(places)[1], tf.float32) if shares else places


def metrics_by_rows(model, given):
    """Return the metrics of a `RowByRow` that has pairs of a metric and whether it is weighted, with how they count.

    Raises ValueError for a loss or metric that is not a sum over rows: both are computed on random data for six
    positions, in full and in chunks of two rows, which must be outside of graphs and strategies.
    """
    y, logits, mask, weight = _drawn(given)
    whole, leading = with_mask(logits, mask), logits.shape[:-1]

    def in_chunks(tensor, *row):
        return tf.split(tf.reshape(tensor, [6, *[1] * (len(leading) - 1), *row]), 3)

    masks = [None] * 3 if mask is None else in_chunks(mask)
    rows = map(with_mask, in_chunks(logits, logits.shape[-1]), masks)
    chunks = list(zip(in_chunks(y, *y.shape[len(leading) :]), rows, strict=True))

    def losses_by_rows():
        return [tf.reshape(tf.concat([_losses(loss, *chunk) for chunk in chunks], 0), leading)]

    loss = given.loss
    if WatchedLoss(loss).reduces:
        why = "it overrides __call__, and with it Keras' own reduction"
    elif loss.reduction in (None, "none"):
        why = "it has reduction=None"
    else:
        why = _difference(lambda: [_losses(loss, y, whole)], losses_by_rows)
    if why:
        raise ValueError(
            f"{model}: the loss {WatchedLoss(loss).name} cannot be computed row by row: {why}. A head in chunks needs"
            " one whose call returns a value per position, independent of others, like SparseCategoricalCrossentropy;"
            " or compute full logits with bt.chunk_head(model, rows=False)"
        )
    found = []
    for metric, is_weighted in given.metrics:
        counted = weight if is_weighted else None
        in_full, why = [(y, whole, counted) if is_weighted else (y, whole)], {}
        for shares in (True, False):
            places = in_chunks(_places(leading, counted, shares))
            by_rows = [(*chunk, counts) for chunk, counts in zip(chunks, places, strict=True)]
            why[shares] = _difference(partial(_states_after, metric, in_full), partial(_states_after, metric, by_rows))
        if all(why.values()):
            raise ValueError(
                f"{model}: the metric {metric.name} does not add up row by row: {why[False]}. A head in chunks needs"
                " metrics whose variables are sums over positions and that take a sample_weight, like Keras' own:"
                " leave it out, or compute full logits with bt.chunk_head(model, rows=False)"
            )
        found.append((metric, is_weighted, why[True] is None))
    return found


def _states_after(metric, batches):
    """Return the values of a metric's variables after batches, from zeros on."""
    states = [tf.zeros(each.shape, each.dtype) for each in metric.variables]
    for batch in batches:
        states = metric.stateless_update_state(states, *batch)
    return states


def _difference(whole, by_rows):
    """Return in words how results differ; None if they agree."""
    try:
        for one, other in zip(map(np.asarray, whole()), map(np.asarray, by_rows()), strict=True):
            largest = max(1, np.abs(one).max(initial=0))  # some metrics subtract cumulative sums
            if one.shape != other.shape or not np.allclose(one, other, 1e-4, 1e-6 * largest, equal_nan=True):
                return f"on random data {one.sum():.6g} becomes {other.sum():.6g} in chunks"
    except Exception as error:  # a custom function, which may reject random data
        return f"it could not be computed on random data ({first_sentence(error)})"
    return None


def _drawn(given):
    """Return random targets, logits, mask and sample weights like those of a `RowByRow`, for six positions.

    Half of the targets are the argmax of the logits, so that accuracy is not 0.
    """
    shape, dtype = given.logits.shape, given.logits.dtype
    random, rank, vocabulary = np.random.default_rng(1), shape.rank, shape[-1]
    places = [6] if rank == 2 else [2, 3, *[1] * (rank - 3)]
    logits = random.uniform(0.1, 0.9, [*places, vocabulary])
    labels = np.where(np.arange(6).reshape(places) % 2, logits.argmax(-1), random.integers(0, vocabulary, places))
    ignored = getattr(given.loss, "ignore_class", None)
    if ignored is not None:
        labels.flat[0] = ignored
    of_place = given.y.shape[rank - 1 :]
    is_one_hot = of_place == [vocabulary] and vocabulary > 1
    y = labels[..., None] == np.arange(vocabulary) if is_one_hot else labels.reshape([*places, *of_place])
    mask = None if mask_of(given.logits) is None else tf.constant(np.arange(6).reshape(places) != 2)
    weight = None if given.sample_weight is None else tf.constant(random.uniform(0.5, 2.0, places), tf.float32)
    return tf.cast(tf.constant(y), given.y.dtype), tf.constant(logits, dtype), mask, weight
