"""The head, loss and metrics of a language model computed for some rows at a time, without full logits."""

import warnings
from functools import partial
from typing import Any

from bigtrain_nb.advanced.parallel.model_head import Head
from bigtrain_nb.advanced.parallel.row_by_row import RowByRow, metrics_by_rows
from bigtrain_nb.advanced.parallel.sharded_weights import infers_shapes
from bigtrain_nb.common.checks import integer, of_kind, takes
from bigtrain_nb.common.keras_compat import WatchedLoss, mask_of, patched_method, with_mask
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import become
from bigtrain_nb.train.loss_reduction import in_thread
from bigtrain_nb.train.own_step import in_own_step, is_in_own_step


def chunk_head(model: Any, rows: int | bool | None = None) -> Any:
    """Train a language model without full logits, on about ``rows`` of them at a time; return ``model``.

    Logits are [batch, length, vocabulary]: 1.6 GB in float32 for 8 x 1,024 tokens of GPT-2, and a step keeps several of
    that size. `fit` and `evaluate` run the head on some rows, each a position in a sequence, compute their losses,
    metrics and gradients, and continue with the next rows (as in Hsu et al. 2024, "Liger Kernel"). Results match those
    of full logits within rounding. ``rows`` defaults to 512 without a GPU, else 2,048: each chunk accumulates a
    gradient of all head weights. ``rows=False`` restores full logits.

    The head is the last layer with weights, such as a Dense, ReversibleEmbedding or MaskedLMHead, and all that
    follows. ``model`` is changed in place: functional or Sequential, a KerasHub task, a `bigtrain_nb.Model`. `predict`,
    `generate`, ``model(x)`` and saved files are unchanged. It combines with LoRA and whatever `recompute` combines
    with. Code that reads ``y_pred`` in a step, such as a custom `compute_loss`, gets full logits and a warning.

    Raises ValueError, by name, for a model with a custom `call` or several outputs, and for a head that mixes rows, is
    quantized or is sharded; in a step, for losses and metrics that change with chunking on random data: a loss that
    compares rows, a metric of a maximum. TypeError if ``model`` is not a Keras model.

    Example::

        model = bt.chunk_head(bt.gpt(length=64, width=32, layers=1), rows=256)
    """
    of_kind("model", model, keras.Model, "a Keras model")
    if rows is None:
        rows = 2048 if tf.config.list_physical_devices("GPU") else 512
    if rows is not False:
        rows = integer("rows", rows, 1)
        Head(model).refuse_rows_together()
    become(model, ChunkedHead, rows_of_logits=rows)
    model.train_function = model.test_function = None
    return model


class ChunkedHead:
    """Mixin for the models that `chunk_head` changes. Custom steps run inside ours."""

    stands_for_keras = True  # see `keras_compat.overriding`
    kept_in_copies = ("rows_of_logits",)

    def call(self, inputs, training=None, mask=None, **kwargs):
        if not self.rows_of_logits or not is_in_own_step(self) or infers_shapes():
            return super().call(inputs, training=training, mask=mask, **kwargs)
        head = Head(self)
        hidden = head.hidden(inputs, training=training, mask=mask, **kwargs)
        return Deferred(head, hidden, self.rows_of_logits, training)

    def train_step(self, data):
        with in_own_step(self):
            return super().train_step(data)

    def test_step(self, data):
        with in_own_step(self):
            return super().test_step(data)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # private: Keras
        compiled = self._compile_loss
        compute = partial(super().compute_loss, x, y, y_pred, sample_weight)
        if takes(compute, training=training):
            compute = partial(compute, training=training)
        if not isinstance(y_pred, Deferred) or compiled is None:
            return compute()
        for each in (compiled, self._compile_metrics):
            if each is not None and not each.built:
                each.build(y, y_pred)
        training = training and y_pred.training is not False  # Keras leaves it out if the model's own does not take it
        entry, *others = compiled._flat_losses
        if others:
            raise ValueError(
                f"{self.name} has {1 + len(others)} losses for its one output, of which Keras uses only the first:"
                " compile it with one, or compute full logits with bt.chunk_head(model, rows=False)"
            )

        def by_chunks(y, y_pred, sample_weight):
            if not isinstance(y_pred, Deferred):  # computed from full logits by a custom compute_loss
                return entry.loss(y, y_pred, sample_weight)
            return self._loss_by_chunks(entry.loss, tf.convert_to_tensor(y), y_pred, sample_weight, training)

        compiled._flat_losses[0] = entry._replace(loss=by_chunks)
        try:
            return compute()
        finally:
            compiled._flat_losses[0] = entry

    def compute_metrics(self, x, y, y_pred, sample_weight=None):  # private: Keras
        if not isinstance(y_pred, Deferred) or y_pred.states is None or self._compile_metrics is None:
            return super().compute_metrics(x, y, y_pred, sample_weight)

        def assign(*_, **__):
            for variable, value in zip(self._compile_metrics.variables, y_pred.states, strict=True):
                variable.assign(value)

        with patched_method(self._compile_metrics, "update_state", assign):
            return super().compute_metrics(x, y, y_pred, sample_weight)

    def _loss_by_chunks(self, loss, y, y_pred, sample_weight, training):  # private: Keras
        compiled, scale, watcher = self._compile_metrics, tf.ones([]), loss
        if isinstance(watcher, WatchedLoss):
            loss = watcher.loss
        if training and self.optimizer is not None:
            scale = self.optimizer.scale_loss(scale)  # float16 gradients of a mean over many positions would underflow
        pairs = [(compiled._flat_metrics, False), (compiled._flat_weighted_metrics, True)] if compiled else []
        metrics = [(one, weighted) for each, weighted in pairs for some in each if some for one in some.metrics]
        rows = RowByRow(y_pred, loss, y, sample_weight, metrics, scale, training)
        known = vars(self._compile_loss).setdefault("_known_by_rows", {})  # `compile` makes a new one
        kind = repr((y.shape[1:], y.dtype, sample_weight is None, mask_of(y_pred) is None))
        if kind not in known:
            known[kind] = in_thread(metrics_by_rows, self.name, rows)
        rows.metrics = known[kind]
        if watcher is not loss:
            specs = [tf.TensorSpec((None, *one.shape[1:]), loss.dtype) for one in (y, y_pred)]
            watcher.record(specs, rows.left(), sample_weight, mask_of(y_pred))
        value, y_pred.states = rows.run()
        return value


class Deferred:
    """Logits that are not computed. Using them as a tensor computes all of them, with a warning."""

    states = None  # of metrics, after this batch

    def __init__(self, head, hidden, rows, training):
        self.head, self.hidden, self.rows, self.training, mask = head, hidden, rows, training, mask_of(hidden)
        nothing = None if mask is None else tf.zeros([0, *head.row[:-1]], "bool")
        self.weights = head.values()  # from before the update
        logits = head(with_mask(tf.zeros([0, *head.row], hidden.dtype), nothing), training, self.weights)
        self.shape, self.dtype = tf.TensorShape([*hidden.shape[:-1], logits.shape[-1]]), logits.dtype
        self._keras_mask = None if mask_of(logits) is None else mask

    def __tf_tensor__(self, dtype=None, name=None):
        warnings.warn("y_pred is read in a step, so the full logits are computed: chunks save nothing", stacklevel=2)
        logits = self.head(tf.reshape(self.hidden, [-1, *self.head.row]), self.training, self.weights)
        shape = tf.concat([tf.shape(self.hidden)[:-1], self.shape[-1:]], 0)
        return with_mask(tf.cast(tf.reshape(logits, shape), dtype or self.dtype), self._keras_mask)


for name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}:  # a class with `__eq__` has no hash
    setattr(Deferred, name, lambda self, *others, name=name: getattr(tf.convert_to_tensor(self), name)(*others))
