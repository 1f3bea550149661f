"""Attention computed for a block of query rows at a time, so that the full attention matrix is never stored."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.advanced.parallel.layers import layers_chosen, scopes_of_call, within_scopes
from bigtrain_nb.common.checks import integer, of_kind
from bigtrain_nb.common.keras_compat import layers_within
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import at_least_32_bits
from bigtrain_nb.train.in_place import become, own_class

_ROW_OFFSETS = ("cache_update_index", "start_index")
"""Arguments that give the position of the first query row in the sequence."""

_UNDERSTOOD = {"attention_mask", "training", "return_attention_scores", "use_causal_mask", *_ROW_OFFSETS}

_SEED_STEP = 1_000_003
"""The seed grows by this much from chunk to chunk. (Within a seed, Keras counts the draws.)"""


def chunk_attention(model: Any, layers: str | Callable | Sequence | None = None, *, chunks: int) -> Any:
    """Compute attention layers of a model in ``chunks`` blocks of query rows, one after the other; return ``model``.

    Attention over a sequence of length L computes [batch, heads, L, L] scores, which the backward pass needs again. In
    chunks, only [batch, heads, L / chunks, L] of them exist at a time, and the backward pass recomputes them. For a
    fixed chunk size, memory then grows linearly with L instead of quadratically (Rabe & Staats 2021, "Self-attention
    Does Not Need O(n²) Memory"). The scores are computed twice. Outputs and gradients match those of the unchunked
    layer within rounding; attention dropout draws a different mask for each chunk, the same in both passes.

    With ``chunks=1`` the attention matrix is full, but only one layer's exists at a time: selective recomputation
    (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models").

    ``layers``: as in `bigtrain_nb.recompute`; default: all attention layers of ``model``, which may itself be one. They
    are changed in place and remain instances of their class; call this before the first `fit`. Supported are Keras'
    `MultiHeadAttention` and `GroupQueryAttention`, and KerasHub layers that compute attention by a similar method.
    Keras' causal masks are also made by rows; KerasHub's decoders make boolean masks [batch, L, L] themselves.

    `fuse_attention` saves the same memory and, on a GPU, most of the time, but does not support attention dropout.

    Raises ValueError if ``chunks`` is not a positive integer, for a model without attention and, by name, for layers
    that are not supported or already use `fuse_attention`; at call time, if attention scores are requested. TypeError
    as `recompute`.

    Example::

        model = bt.gpt(length=64, width=32, layers=1)
        bt.chunk_attention(model, chunks=8)
    """
    of_kind("model", model, keras.layers.Layer, "a Keras model or layer")
    chunks = integer("chunks", chunks, 1)
    chosen = attention_layers(model) if layers is None else layers_chosen(model, layers)
    refuse(model, chosen)
    for layer in chosen:
        refuse_twice(layer, "chunks")
    for layer in chosen:
        become(layer, ChunkedAttention, chunks=chunks)
    return model


class ChunkedAttention:
    """Mixin for the layers that `chunk_attention` changes."""

    way = "chunks"
    kept_in_copies = ("chunks",)

    def chunk_rows(self, length):
        """Return the rows per chunk for ``length`` queries; both may be tensors."""
        return -(-length // self.chunks)  # rounded up

    def _compute_attention_mask(self, *args, use_causal_mask=False, **kwargs):
        """Return Keras' mask, with causality as a flag: Keras only passes this object on."""
        mask = super()._compute_attention_mask(*args, use_causal_mask=False, **kwargs)
        return RowwiseMask(mask, use_causal_mask)

    def _compute_attention(self, *args, **kwargs):
        own = super()._compute_attention
        given = inspect.signature(own).bind(*args, **kwargs)
        given.apply_defaults()
        _refuse_call(self, given.arguments)
        return _ChunkedCall(self, own, given.arguments).outputs()


@dataclass
class RowwiseMask:
    """Which keys a query sees: ``given``, [..., L or 1, keys] booleans or an additive mask; if causal, none later."""

    given: object
    is_causal: bool

    def of_rows(self, places, keys):
        mask = self.given
        if mask is not None and mask.shape[-2] != 1:
            mask = tf.gather(mask, places, axis=mask.shape.rank - 2)
        if not self.is_causal:
            return mask
        causal = places[None, :, None] >= tf.range(keys)
        return causal if mask is None else tf.cast(mask, "bool") & causal


class _ChunkedCall:
    """One call of a layer's ``own`` attention method, computed for a block of query rows at a time.

    ``arguments``: by name; the first three are query, key and value, [batch, positions, heads, size].
    """

    def __init__(self, layer, own, arguments):
        self._own = own
        self._arguments = arguments
        self._names = list(arguments)[:3]
        query, key, _ = (arguments[name] for name in self._names)
        self._keys = key.shape[1] or tf.shape(key)[1]
        self._mask = arguments.get("attention_mask")
        if not isinstance(self._mask, RowwiseMask):
            self._mask = RowwiseMask(self._mask, arguments.get("use_causal_mask", False))

        # Python integers where lengths are static
        self._length = query.shape[1] or tf.shape(query)[1]
        self._count = -(-self._length // layer.chunk_rows(self._length))
        self._size = -(-self._length // self._count)  # equal chunks: the last two may overlap

        self._scopes = scopes_of_call()
        self._seeds = _seeds(layer)
        self._states = [tf.identity(seed.value) for seed in self._seeds]  # before the call
        self._returns_scores = None  # known after tracing a chunk

    def outputs(self):
        """Return the result of the layer's own method, without scores."""

        @tf.custom_gradient
        def run(query, key, value):
            def gradient(upstream, *_, variables=()):
                of_inputs, of_weights = self._backward(upstream, query, key, value, list(variables))
                return (of_inputs, of_weights) if variables else of_inputs

            outputs, draws = self._forward(query, key, value)
            return (outputs, *draws), gradient

        outputs, *draws = run(*(self._arguments[name] for name in self._names))
        for seed, state, drawn in zip(self._seeds, self._states, draws, strict=True):
            seed.assign(state + drawn)  # once, as if there had been one chunk
        return (outputs, None) if self._returns_scores else outputs

    def _forward(self, query, key, value):
        """Return the outputs for all rows, and how far one chunk advances the state of each seed."""

        def add_chunk(number, chunks, *_):
            outputs, draws = self._attend(tf.gather(query, self._places(number), axis=1), key, value, number)
            return number + 1, chunks.write(number, tf.cast(outputs, query.dtype)), *draws

        chunks = tf.TensorArray(query.dtype, self._count)
        _, chunks, *draws = _loop(self._count, add_chunk, chunks, *self._states)
        return self._joined(chunks, query), draws

    def _backward(self, upstream, query, key, value, weights):
        """Return the gradients of query, key and value, and of the ``weights`` that the attention method uses.

        Query gradients are concatenated like the outputs; all others are summed over the chunks in at least 32 bits.
        """
        # Wait for the upstream gradient: the first chunk needs only these tensors and would run in the forward pass
        with tf.control_dependencies([upstream]):
            query, key, value = tf.identity(query), tf.identity(key), tf.identity(value)
        summed = [key, value, *weights]

        def add_chunk(number, chunks, *sums):
            places = self._places(number)
            rows = tf.gather(query, places, axis=1)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([rows, *summed])
                outputs, _ = self._attend(rows, key, value, number)
            of_outputs = tf.cast(tf.gather(upstream, places, axis=1), outputs.dtype)
            is_new = tf.reshape(places >= number * self._size, [-1, *[1] * (of_outputs.shape.rank - 2)])
            of_outputs = tf.where(is_new, of_outputs, tf.zeros_like(of_outputs))
            of_rows, *found = tape.gradient(outputs, [rows, *summed], of_outputs, tf.UnconnectedGradients.ZERO)
            sums = [total + tf.cast(one, total.dtype) for total, one in zip(sums, found, strict=True)]
            return number + 1, chunks.write(number, of_rows), *sums

        chunks = tf.TensorArray(query.dtype, self._count)
        zeros = [tf.zeros_like(one, at_least_32_bits(one.dtype)) for one in summed]
        _, chunks, *sums = _loop(self._count, add_chunk, chunks, *zeros)
        of_summed = [tf.cast(total, one.dtype) for total, one in zip(sums, summed, strict=True)]
        return [self._joined(chunks, query), *of_summed[:2]], of_summed[2:]

    def _start(self, number):
        """Return the first query row of chunk ``number``; the last chunk may begin within the one before."""
        return tf.minimum(number * self._size, self._length - self._size)

    def _places(self, number):
        return self._start(number) + tf.range(self._size)

    def _attend(self, query, key, value, number):
        """Return the outputs for the query rows of chunk ``number``, and how far its seeds advanced."""
        start = self._start(number)
        now = {**self._arguments, **dict(zip(self._names, (query, key, value), strict=True))}
        if "attention_mask" in now:
            now["attention_mask"] = self._mask.of_rows(self._places(number), self._keys)
        if "use_causal_mask" in now:
            now["use_causal_mask"] = False  # included in the mask of the rows
        for name in _ROW_OFFSETS:
            if name in now:
                now[name] = start if now[name] is None else start + now[name]

        states = [state + tf.stack([tf.cast(number, state.dtype) * _SEED_STEP, 0]) for state in self._states]
        values = list(zip(self._seeds, states, strict=True))
        with within_scopes(self._scopes), keras.StatelessScope(values) as scope:
            outputs = self._own(**now)
        draws = [scope.get_current_value(seed) - state for seed, state in values]
        self._returns_scores = isinstance(outputs, tuple)
        return outputs[0] if isinstance(outputs, tuple) else outputs, draws

    def _joined(self, chunks, query):
        """Return outputs [batch, positions, ...] from chunks, a `tf.TensorArray` of [batch, rows of a chunk, ...]."""
        stacked = chunks.stack()  # [chunks, batch, rows, ...]
        moved = tf.transpose(stacked, [1, 0, *range(2, stacked.shape.rank)])
        rows = self._count * self._size
        joined = tf.reshape(moved, [query.shape[0] or tf.shape(query)[0], rows, *stacked.shape[3:]])
        if isinstance(rows, int) and rows == self._length:
            return joined
        begun = rows - self._size
        return tf.concat([joined[:, :begun], joined[:, rows - (self._length - begun) :]], 1)


def _loop(count, body, *start):
    return tf.while_loop(lambda number, *_: number < count, body, (0, *start), parallel_iterations=1)


def _seeds(layer):
    """Return the states of a layer's random generators: its variables that are not weights, int64 [2]."""
    weights = {id(variable) for variable in layer.weights}
    return [variable for variable in layer.variables if id(variable) not in weights]


# Unsupported layers and calls


def attention_layers(model):
    """Return the layers within a model that compute attention, supported or not."""
    return [layer for layer in layers_within(model) if hasattr(layer, "_compute_attention") or _is_written_out(layer)]


def _is_written_out(layer):
    """Return whether a layer computes attention inline, out of reach, as Bloom's and Falcon's in KerasHub do."""
    looks_like_it = "Attention" in own_class(layer).__name__ and isinstance(layer, keras.layers.Layer)
    return looks_like_it and not any(hasattr(inner, "_compute_attention") for inner in layers_within(layer))


def refuse(model, chosen):
    """Raise ValueError if no layer is chosen, or one whose attention cannot be replaced."""
    if not chosen:
        raise ValueError(f"{model.name} has no attention layer")
    for layer in chosen:
        kind = own_class(layer).__name__
        if not hasattr(layer, "_compute_attention"):
            raise ValueError(
                f"{layer.name} ({kind}) has no attention that can be replaced, so it cannot be computed"
                " in chunks: leave it out with layers=, a function, a regular expression or a list"
            )
        parameters = inspect.signature(own_class(layer)._compute_attention).parameters.values()
        others = list(parameters)[4:]  # after self, query, key and value
        unknown = [one.name for one in others if one.name not in _UNDERSTOOD and one.kind != one.VAR_KEYWORD]
        if unknown:
            raise ValueError(
                f"{layer.name} ({kind}) also computes attention from {', '.join(unknown)}, which may depend on the"
                " row's position, so it cannot be computed in chunks: leave it out with layers="
            )


def refuse_twice(layer, way):
    """Raise ValueError for a layer that already computes its attention in another ``way``."""
    if isinstance(layer, ChunkedAttention) and layer.way != way:
        raise ValueError(
            f"{layer.name} already computes its attention by {layer.way}, and cannot use {way} too: leave it out with"
            " layers=, or call only one of bt.chunk_attention and bt.fuse_attention, which uses chunks of 512 rows"
            " where there is no kernel"
        )


def asks_for_scores(layer, arguments):
    return arguments.get("return_attention_scores") or getattr(layer, "_return_attention_scores", False)


def _refuse_call(layer, arguments):
    query = next(iter(arguments.values()))
    if asks_for_scores(layer, arguments):
        raise ValueError(f"{layer.name}: chunked attention never holds all scores, so it cannot return them")
    if query.shape.rank != 4:
        raise ValueError(
            f"{layer.name}: chunked attention needs queries of shape [batch, positions, heads, size], but these have"
            f" the shape {query.shape}: leave the layer out with layers="
        )
