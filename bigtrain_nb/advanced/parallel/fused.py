"""Attention in a fused kernel that never stores the scores, on NVIDIA GPUs; in chunks of rows elsewhere."""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bigtrain_nb.advanced.parallel import cudnn
from bigtrain_nb.advanced.parallel.attention import (
    ChunkedAttention,
    RowwiseMask,
    asks_for_scores,
    attention_layers,
    refuse,
    refuse_twice,
)
from bigtrain_nb.advanced.parallel.layers import layers_chosen
from bigtrain_nb.advanced.parallel.masks import KV_CACHE_MASK, all_of, annotate_masks, attach_meaning, meaning_of
from bigtrain_nb.common.checks import of_kind
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import become, own_class

# isort: split
from tensorflow.python.eager import context

_ROWS = 512
"""Query rows per chunk, where attention is computed in chunks."""


def fuse_attention(model: Any, layers: str | Callable | Sequence | None = None) -> Any:
    """Compute attention layers of a model in a fused kernel, FlashAttention, on NVIDIA GPUs; return ``model``.

    The kernel is cuDNN's. It keeps the scores, [batch, heads, L, L], on the chip (Dao et al. 2022, "FlashAttention"),
    so memory grows linearly with L instead of quadratically, and it is several times as fast for long sequences. It
    supports bfloat16 and float16 and head dimensions of up to 128 in multiples of 8, on GPUs of compute capability 8.0
    (A100) or newer, with or without XLA compilation (Keras' default on a GPU, ``jit_compile="auto"``).

    Elsewhere (a CPU, an older GPU, float32) and for calls that the kernel does not support, attention is computed in
    chunks of 512 rows, as by `chunk_attention`: the same outputs and gradients within rounding, and the same growth
    of memory. The reason is printed here, or given in a warning where only a call can show it.

    ``layers``: as in `chunk_attention`. Supported are Keras' `MultiHeadAttention` and `GroupQueryAttention`, and
    KerasHub's attention as in GPT-2, BERT, BART, ViT, Llama, Mistral, Qwen, Phi-3 and Gemma. Layers are changed in
    place and remain instances of their class; saved files are unchanged. Call this before the first `fit`.

    The kernel gets masks by their meaning: causal, window, padding anywhere, segments (`segment_mask`); any other mask
    is added to the scores. `generate` with its cache still uses Keras' attention. Outputs at padding are undefined.

    A step must know the shape of its batch: use ``batch(..., drop_remainder=True)``, or train a `bigtrain_nb.Model`,
    which compiles each shape separately.

    Raises ValueError for a model without attention and, by name, for layers that are not supported: with attention
    dropout (unverified on a GPU), a soft cap, sinks, a position bias or `chunk_attention`. TypeError as `recompute`.

    Example::

        model = bt.fuse_attention(bt.gpt(length=64, width=32, layers=1))
    """
    of_kind("model", model, keras.layers.Layer, "a Keras model or layer")
    chosen = attention_layers(model) if layers is None else layers_chosen(model, layers)
    refuse(model, chosen)
    for layer in chosen:
        refuse_twice(layer, "one kernel")
        if reason := _layer_problem(layer):
            raise ValueError(
                f"{layer.name} ({own_class(layer).__name__}) cannot be computed by a fused kernel: {reason}. Leave it"
                " out with layers=, a function, a regular expression or a list; bt.chunk_attention saves memory too"
            )
    for layer in chosen:
        become(layer, FusedAttention)
    annotate_masks(model)
    reason = machine_problem() or _dtype_problem(chosen[0].compute_dtype)
    way = f"in chunks of rows, for {reason}" if reason else "by one kernel"
    print(f"Attention is computed {way}", flush=True)
    return model


class FusedAttention(ChunkedAttention):
    """Mixin for the layers that `fuse_attention` changes."""

    way = "one kernel"
    kept_in_copies = ()

    def chunk_rows(self, length):
        return min(_ROWS, length) if isinstance(length, int) else tf.minimum(_ROWS, length)

    def _compute_attention_mask(self, query, value, value_mask=None, key_mask=None, attention_mask=None, **others):
        """Return the mask of Keras' own layers, with its meaning. Query rows at padding do not matter."""
        given = {"value_mask": value_mask, "key_mask": key_mask, "attention_mask": attention_mask}
        mask = super()._compute_attention_mask(query, value, **given, **others)
        inner = meaning_of(attention_mask)
        is_causal = mask.is_causal or inner.is_causal
        return attach_meaning(mask, replace(inner, is_causal=is_causal, keys=all_of(value_mask, key_mask, inner.keys)))

    def _compute_attention(self, *args, **kwargs):
        own = super(ChunkedAttention, self)._compute_attention
        bound = inspect.signature(own).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        query, key, value = list(given.values())[:3]
        meaning = _meaning_for_call(self, given)
        if _may_be_of_a_cache(meaning, given.get("attention_mask"), query, key):
            return own(*args, **kwargs)
        away = machine_problem() or _dtype_problem(query.dtype) or _device_problem(query)
        reason = None if away else _call_problem(query, key, value, meaning)
        if away or reason or asks_for_scores(self, given) or query.shape.rank != 4:
            if reason:
                warnings.warn(
                    f"{self.name} is computed in chunks of rows, not by a fused kernel: {reason}", stacklevel=2
                )
            return super()._compute_attention(*args, **kwargs)
        kind = _kind_of(self)
        out = cudnn.attention(query, key, value, float(kind.scale(self)), meaning)
        return (out, None) if kind.returns_scores else out


def _may_be_of_a_cache(meaning, mask, query, key):
    if isinstance(mask, RowwiseMask):  # of Keras' own layers, which have no cache
        return False
    return meaning is KV_CACHE_MASK or (meaning.table is not None and query.shape[1] != key.shape[1])


def _meaning_for_call(layer, given):
    meaning = meaning_of(given.get("attention_mask"))
    if meaning is KV_CACHE_MASK:
        return meaning
    window = _kind_of(layer).window(layer)
    return replace(
        meaning,
        is_causal=meaning.is_causal or bool(given.get("use_causal_mask")),
        window=meaning.window if window is None else window,
    )


# Supported layers


@dataclass
class _Kind:
    """How a kind of layer computes attention: functions of the layer."""

    scale: Callable
    dropout: Callable
    window: Callable = lambda layer: None
    refused: Callable = lambda layer: None
    returns_scores: bool = False


_LIKE_LLAMA = {"Llama", "Mistral", "Mixtral", "Qwen", "Qwen3", "Phi3"}


def _kind_of(layer):
    if isinstance(layer, keras.layers.MultiHeadAttention | keras.layers.GroupQueryAttention):
        of_keras = own_class(layer)._compute_attention in (
            keras.layers.MultiHeadAttention._compute_attention,
            keras.layers.GroupQueryAttention._compute_attention,
        )
        return _KERAS if of_keras else None  # else custom, or with its own position encoding
    name = own_class(layer).__name__
    if name == "CachedGemmaAttention":
        return _GEMMA
    if hasattr(layer, "_inv_norm_factor") and name.removesuffix("Attention").removeprefix("Cached") in _LIKE_LLAMA:
        return _LLAMA
    return None


def _scale_of_keras(layer):
    is_multi_head = isinstance(layer, keras.layers.MultiHeadAttention)
    return layer._inverse_sqrt_key_dim if is_multi_head else layer._inverse_sqrt_head_dim  # private: Keras


def _scale_of_gemma(layer):
    size = layer.head_dim if layer.query_head_dim_normalize else layer.hidden_dim // layer.num_query_heads
    return 1 / math.sqrt(size)


_KERAS = _Kind(
    scale=_scale_of_keras,
    dropout=lambda layer: getattr(layer, "_dropout", None) or getattr(layer, "dropout", 0),
    window=lambda layer: getattr(layer, "_sliding_window", None) or getattr(layer, "sliding_window", None),
    returns_scores=True,
)
_GEMMA = _Kind(
    scale=_scale_of_gemma,
    dropout=lambda layer: layer.dropout,
    window=lambda layer: layer.sliding_window_size if layer.use_sliding_window_attention else None,
    refused=lambda layer: layer.logit_soft_cap and f"its scores have a soft cap, logit_soft_cap={layer.logit_soft_cap}",
)
_LLAMA = _Kind(
    scale=lambda layer: layer._inv_norm_factor,
    dropout=lambda layer: 0,  # theirs acts on the outputs, after the replaced method
    refused=lambda layer: (
        getattr(layer, "use_sliding_window_attention", getattr(layer, "sliding_window_size", None))
        and "KerasHub applies its sliding window in only one of its two implementations"
    ),
)


def _layer_problem(layer):
    kind = _kind_of(layer)
    if kind is None:
        return "its attention is not known to be softmax(scale * query · key) · value"
    if dropout := kind.dropout(layer):
        return (
            f"dropout={dropout} applies to its scores, and dropout in the kernel has not been verified on a GPU: masks"
            " must differ between steps and agree between both passes. Build the model with dropout=0"
        )
    return kind.refused(layer) or None


# Why the kernel is not used


def machine_problem():
    """Return the reason in words if this machine cannot run the kernel, or None."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "there is no NVIDIA GPU"
    capability = tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", (0, 0))
    if capability < cudnn.SMALLEST_CAPABILITY:
        return f"the kernel needs compute capability 8.0 or newer, and this GPU has {'.'.join(map(str, capability))}"
    return None


def _dtype_problem(dtype):
    name = tf.as_dtype(dtype).name
    if name in cudnn.TYPES:
        return None
    return f'the kernel needs a 16-bit type, not {name}: call keras.config.set_dtype_policy("mixed_bfloat16")'


def _device_problem(query):  # private: Keras
    """Tensors of a function called within `tf.device` have no device when it is traced; the eager context knows it."""
    device = query.device or context.context().device_name or ""
    return "this runs on a CPU" if "CPU" in device.upper() else None


def _call_problem(query, key, value, meaning):
    if not (query.shape.is_fully_defined() and key.shape.is_fully_defined()):
        return f"its shapes must be known, not {query.shape}: use batch(..., drop_remainder=True) or a bt.Model"
    if key.shape != value.shape or query.shape[3] % 8 or query.shape[3] > cudnn.LARGEST_HEAD:
        return f"its head dimension must be a multiple of 8, at most {cudnn.LARGEST_HEAD}, not {query.shape[3]}"
    if meaning.is_causal and query.shape[1] != key.shape[1]:
        return f"its mask is causal, but there are {query.shape[1]} queries and {key.shape[1]} keys"
    if meaning.window is not None and meaning.window < key.shape[1] and not meaning.is_causal:
        return f"its window of {meaning.window} extends to both sides"
    if meaning.table is not None and query.shape[1] != key.shape[1]:
        return f"an attention mask is untested with {query.shape[1]} queries and {key.shape[1]} keys"
    if meaning.table is not None and (query.shape[1] % 2 or key.shape[1] % 2):
        return f"an attention mask needs even lengths, but these are {query.shape[1]} and {key.shape[1]}"
    if meaning.table is not None and meaning.table.shape.rank != 3:
        return f"an attention mask must be [batch, queries, keys], not {meaning.table.shape}"
    if meaning.segments is not None and (
        meaning.table is not None or meaning.keys is not None or meaning.window is not None
    ):
        return "segments are untested with padding, a window or another mask: give positions outside of segments a 0"
    return None
