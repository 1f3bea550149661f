"""What a mask of attention says in words. A table of [batch, queries, keys] booleans does not say that it is causal.

Layers that make such a table know. They hang what they know on it, as Keras hangs ``_keras_mask`` on a tensor, and the
layers that read the table ask here.
"""

import inspect
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.common.checks import integer
from bigtrain_nb.common.in_place import become, own_class
from bigtrain_nb.common.keras_compat import layers_within, mask_of
from bigtrain_nb.common.quiet import keras, tf

_SAID = "_bigtrain_said"


@dataclass(frozen=True)
class Said:
    """Which keys a query sees: those that all of this allows.

    ``is_causal``: none later. ``keys``: those that are true, [batch, keys]. ``window``: of these the last so many, the
    query's own place included. ``segments``: those of the query's own, int32 [batch, places], from 1 in each row, 0 for
    none, at most ``max_segments`` in a row. ``table``: what is known by its numbers only, [batch or 1, queries, keys].
    """

    is_causal: bool = False
    keys: Any = None
    window: int | None = None
    segments: Any = None
    max_segments: int | None = None
    table: Any = None


KERAS_OWN_WAY = object()
"""Said by a mask for attention over a cache of keys, in `generate`."""


def tell(mask, said):
    """Return the same mask, which tells `said_by` what it says."""
    if mask is not None:
        setattr(mask, _SAID, said)
    return mask


def said_by(mask):
    """Return what a mask [batch, queries or 1, keys], or none, says."""
    if mask is None:
        return Said()
    if (said := getattr(mask, _SAID, None)) is not None:
        return said
    if mask.shape.rank == 3 and mask.shape[1] == 1:
        return Said(keys=tf.cast(mask[:, 0], "bool"))
    return Said(table=mask)


def all_of(*masks):
    """Return booleans that are true where all masks are that are not None; None if there are none."""
    masks = [tf.cast(mask, "bool") for mask in masks if mask is not None]
    return None if not masks else masks[0] if len(masks) == 1 else tf.reduce_all(tf.stack(masks), axis=0)


def let_masks_tell(model):
    """Let the decoders within a model hang what they know on the masks that they make."""
    for layer in layers_within(model):
        if hasattr(layer, "_compute_self_attention_mask"):
            become(layer, DecoderThatTells)
        elif own_class(layer).__name__ == "GemmaDecoderBlock":
            become(layer, GemmaBlockThatTells)


class DecoderThatTells:
    """What KerasHub's decoders of GPT-2's, BART's, Llama's, Mistral's and Qwen's kind become."""

    def state_in_place(self):
        return {}

    def _compute_self_attention_mask(self, *args, **kwargs):
        own = super()._compute_self_attention_mask
        mask = own(*args, **kwargs)
        given = inspect.signature(own).bind(*args, **kwargs).arguments
        if given.get("self_attention_cache") is not None:
            return tell(mask, KERAS_OWN_WAY)
        inner = said_by(given.get("decoder_attention_mask"))
        padding = given.get("decoder_padding_mask")
        if padding is None:
            padding = mask_of(given["decoder_sequence"])
        said = Said(
            is_causal=given.get("use_causal_mask", True),
            keys=all_of(padding, inner.keys),
            window=getattr(self, "sliding_window", None),
            segments=inner.segments,
            max_segments=inner.max_segments,
            table=inner.table,
        )
        return tell(mask, said)


class GemmaBlockThatTells:
    """What the blocks of Gemma become."""

    def state_in_place(self):
        return {}

    def _compute_attention_mask(self, x, padding_mask, cache, cache_update_index):
        mask = super()._compute_attention_mask(x, padding_mask, cache, cache_update_index)
        if cache is not None:
            return tell(mask, KERAS_OWN_WAY)
        padding = mask_of(x) if padding_mask is None else padding_mask
        return tell(mask, Said(is_causal=True, keys=all_of(padding)))


def segment_mask(segments: Any, most: int | None = None) -> Any:
    """Return the mask that lets the places of packed rows see those of their own segment only.

    ``segments`` are int32 [batch, places] as `TokenRows` gives them: from 1 in each row, one after the other, 0 where
    there is no token. The mask is [batch, places, places] booleans, for ``attention_mask`` of Keras' layers and
    ``decoder_attention_mask`` of KerasHub's.

    With ``most``, the largest number of segments in a row (`TokenRows.max_segments`), the kernel of `fuse_attention`
    takes the segments themselves, and the table is never made; its work space grows with ``most``. A batch with a row
    of more comes out as NaN. Without it the kernel takes the table.

    Raises ValueError for ``most`` that is not an integer of at least 1.

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
        return table if self.most is None else tell(table, Said(segments=segments, max_segments=self.most))

    def get_config(self):
        return {**super().get_config(), "most": self.most}
