"""The meaning of attention masks: a tensor of [batch, queries, keys] booleans does not show that it is causal.

Layers that make the mask know. They attach its meaning to it, as Keras attaches ``_keras_mask`` to a tensor, and the
layers that read the mask look it up here.
"""

import inspect
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.common.checks import integer
from bigtrain_nb.common.keras_compat import layers_within, mask_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import become, own_class

_MEANING_ATTRIBUTE = "_bigtrain_said"


@dataclass(frozen=True)
class MaskMeaning:
    """Which keys a query sees: those that all fields allow.

    ``is_causal``: none later. ``keys``: those that are true, [batch, keys]. ``window``: of these the last ``window``,
    the query's own position included. ``segments``: those in the query's own, int32 [batch, positions], numbered from 1
    in each row, 0 for none, at most ``max_segments`` in a row. ``table``: any other mask, [batch or 1, queries, keys].
    """

    is_causal: bool = False
    keys: Any = None
    window: int | None = None
    segments: Any = None
    max_segments: int | None = None
    table: Any = None


KV_CACHE_MASK = object()
"""Marks a mask for attention over a KV cache, in `generate`."""


def attach_meaning(mask, meaning):
    """Attach ``meaning`` to a mask, for `meaning_of`; return the mask."""
    if mask is not None:
        setattr(mask, _MEANING_ATTRIBUTE, meaning)
    return mask


def meaning_of(mask):
    """Return the meaning of a mask [batch, queries or 1, keys], or of None."""
    if mask is None:
        return MaskMeaning()
    if (meaning := getattr(mask, _MEANING_ATTRIBUTE, None)) is not None:
        return meaning
    if mask.shape.rank == 3 and mask.shape[1] == 1:
        return MaskMeaning(keys=tf.cast(mask[:, 0], "bool"))
    return MaskMeaning(table=mask)


def all_of(*masks):
    """Return the logical AND of the masks that are not None; None if there are none."""
    masks = [tf.cast(mask, "bool") for mask in masks if mask is not None]
    return None if not masks else masks[0] if len(masks) == 1 else tf.reduce_all(tf.stack(masks), axis=0)


def annotate_masks(model):
    """Make the decoders within a model attach the meaning to the masks that they make."""
    for layer in layers_within(model):
        if hasattr(layer, "_compute_self_attention_mask"):
            become(layer, MaskAnnotatingDecoder)
        elif own_class(layer).__name__ == "GemmaDecoderBlock":
            become(layer, MaskAnnotatingGemmaBlock)


class MaskAnnotatingDecoder:
    """Mixin for KerasHub's decoders as in GPT-2, BART, Llama, Mistral and Qwen."""

    def _compute_self_attention_mask(self, *args, **kwargs):
        own = super()._compute_self_attention_mask
        mask = own(*args, **kwargs)
        given = inspect.signature(own).bind(*args, **kwargs).arguments
        if given.get("self_attention_cache") is not None:
            return attach_meaning(mask, KV_CACHE_MASK)
        inner = meaning_of(given.get("decoder_attention_mask"))
        padding = given.get("decoder_padding_mask")
        if padding is None:
            padding = mask_of(given["decoder_sequence"])
        meaning = MaskMeaning(
            is_causal=given.get("use_causal_mask", True),
            keys=all_of(padding, inner.keys),
            window=getattr(self, "sliding_window", None),
            segments=inner.segments,
            max_segments=inner.max_segments,
            table=inner.table,
        )
        return attach_meaning(mask, meaning)


class MaskAnnotatingGemmaBlock:
    """Mixin for the blocks of Gemma."""

    def _compute_attention_mask(self, x, padding_mask, cache, cache_update_index):
        mask = super()._compute_attention_mask(x, padding_mask, cache, cache_update_index)
        if cache is not None:
            return attach_meaning(mask, KV_CACHE_MASK)
        padding = mask_of(x) if padding_mask is None else padding_mask
        return attach_meaning(mask, MaskMeaning(is_causal=True, keys=all_of(padding)))


def segment_mask(segments: Any, most: int | None = None) -> Any:
    """Return the mask that restricts attention in packed rows to positions of the same segment.

    ``segments``: int32 [batch, positions] as from `TokenRows`: numbered from 1 in each row, one after the other, 0
    where there is no token. The mask is [batch, positions, positions] booleans, for ``attention_mask`` of Keras' layers
    and ``decoder_attention_mask`` of KerasHub's.

    With ``most``, the largest number of segments in a row (`TokenRows.max_segments`), the kernel of `fuse_attention`
    uses the segments directly and the mask is never stored; its workspace grows with ``most``. A batch with a row of
    more segments gives NaN. Without ``most`` the kernel uses the mask.

    Raises ValueError if ``most`` is not a positive integer.

    Example::

        segments = keras.Input((64,), dtype="int32")
        x = keras.Input((64, 32))
        mask = bt.segment_mask(segments, most=5)
        y = keras.layers.MultiHeadAttention(2, 16)(x, x, attention_mask=mask, use_causal_mask=True)
    """
    return SegmentMask(None if most is None else integer("most", most, 1))(segments)


@keras.saving.register_keras_serializable("bigtrain_nb")
class SegmentMask(keras.layers.Layer):
    """The layer of `segment_mask`."""

    def __init__(self, most, **kwargs):
        super().__init__(**kwargs)
        self.most = most

    def call(self, segments):
        table = keras.ops.equal(segments[:, :, None], segments[:, None, :])
        return (
            table
            if self.most is None
            else attach_meaning(table, MaskMeaning(segments=segments, max_segments=self.most))
        )

    def get_config(self):
        return {**super().get_config(), "most": self.most}
