"""cuDNN's fused attention as an operation of TensorFlow: a custom call that XLA compiles on NVIDIA GPUs.

The kernel is in the wheel of TensorFlow, but no operation calls it (keras issue 19418, tensorflow issues 62661 and
62666). XLA hands a call of this target on to cuDNN; the settings are its message ``CudnnfMHABackendConfig`` as JSON. So
does JAX (jax/_src/cudnn/fused_attention_stablehlo.py), from which the order of operands and results is known.
"""

import json
import math
from dataclasses import dataclass

from bigtrain_nb.common.keras_compat import custom_call, traced_for_each_shape
from bigtrain_nb.common.quiet import tf

TYPES = {"bfloat16": "BF16", "float16": "F16"}
"""The types that the kernel takes, by the names that XLA has for them."""

LARGEST_HEAD = 128
SMALLEST_CAPABILITY = (8, 0)

_NOT_SEEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}
"""What is added to scores in a bias: finite, for the kernel subtracts such numbers from each other."""


def attention(query, key, value, scale, said):
    """Return softmax(scale * query · key) · value like ``query``, of the keys that `masks.Said` allows, and no table.

    Query is [batch, queries, heads, size], key and value [batch, keys, groups, size], in bfloat16 or float16; all
    shapes are known. Where a query sees no key its output means nothing. Padding between tokens together with a
    ``window`` is not computed, nor is a batch with a row of more than ``max_segments``: it comes out as NaN.
    """
    batch, length = query.shape[:2]
    window = said.window if said.window is not None and said.window < key.shape[1] else 0
    settings = Settings(scale, said.is_causal, window)
    operands, undo = [], None
    keys, table = said.keys, said.table
    if keys is not None:
        keys = tf.broadcast_to(keys, [batch, key.shape[1]])
    if said.max_segments == 1:
        keys = said.segments > 0
    if table is not None and keys is not None:  # whose columns would have to move with the keys
        keys, table = None, tf.cast(table, "bool") & keys[:, None]

    if said.segments is not None and said.max_segments > 1:
        settings.max_segments = said.max_segments
        # The kernel leaves places of no segment as they are in memory, in results and in gradients
        is_real = (said.segments > 0)[:, :, None, None]
        query, key, value = (tf.where(is_real, one, tf.zeros_like(one)) for one in (query, key, value))
        operands = packed_operands(said.segments, said.max_segments, query.shape, key.shape)
    elif keys is not None:
        # Keys that are none go to the end, wherever they were; the others stay in their order, with their queries
        order = tf.argsort(tf.cast(~keys, "int32"), axis=1, stable=True)
        back = tf.argsort(order, axis=1)
        key, value = _in_order(key, order, back), _in_order(value, order, back)
        if said.is_causal:
            query = _in_order(query, order, back)
            undo = back, order
        operands = [tf.fill([batch], length), tf.maximum(tf.reduce_sum(tf.cast(keys, "int32"), axis=1), 1)]
    settings.is_padded = bool(operands)
    bias = None if table is None else _bias(table, query.dtype)

    out = kernel(query, key, value, bias, operands, settings)
    if undo:
        out = _in_order(out, *undo)
    if keys is not None and window:
        out = _nan_unless(_is_one_piece(keys)[:, None, None, None], out)
    if said.segments is not None:
        out = tf.where((said.segments > 0)[:, :, None, None], out, tf.zeros_like(out))
        out = _nan_unless(tf.reduce_max(said.segments) <= said.max_segments, out)
    return out


@dataclass
class Settings:
    """What stands in the JSON of a call."""

    scale: float
    is_causal: bool
    window: int
    max_segments: int = 1
    is_padded: bool = False

    @property
    def is_packed(self):
        return self.max_segments > 1

    @property
    def mask_type(self):
        words = [word for word, holds in (("PADDING", self.is_padded), ("CAUSAL", self.is_causal)) if holds]
        return "_".join(words) or "NO_MASK"


def kernel(query, key, value, bias, operands, settings):
    """Return attention like ``query`` [batch, queries, heads, size]; forward and backward are one call each.

    ``bias`` is [batch or 1, 1, queries, keys] and has no gradient; ``operands`` are int32: the lengths of queries and
    keys, for packed rows also where the segments begin.
    """
    has_bias = bias is not None
    biases = [bias] if has_bias else []
    batch, length, heads, _ = query.shape

    # Packed rows are found by their offsets in all tensors alike, and results have their heads before their places
    heads_first = settings.is_packed
    swap = _swapped if heads_first else tf.identity

    @tf.custom_gradient
    def attend(query, key, value):
        query, key, value = swap(query), swap(key), swap(value)
        out, statistics = _call(
            "__cudnn$fmhaScaleBiasSoftmax" if has_bias else "__cudnn$fmhaSoftmax",
            [query, key, value, *biases, *operands],
            [of_query, tf.TensorSpec([batch * settings.max_segments, heads, length], tf.float32)],
            backend_config(settings, query.dtype, scores, heads_first, backward=False),
        )
        given = out if heads_first else _swapped(out)

        def gradient(upstream):
            upstream = swap(tf.cast(upstream, query.dtype))
            found = _call(
                "__cudnn$fmhaScaleBiasSoftmaxBackward" if has_bias else "__cudnn$fmhaSoftmaxBackward",
                [query, key, value, statistics, upstream, *biases, given, *operands],
                [of_query, of_key, of_key],
                backend_config(settings, query.dtype, scores, heads_first, backward=True),
            )
            return [_swapped(one) for one in found]

        return _swapped(out), gradient

    scores = [batch, heads, length, key.shape[1]]
    of_query, of_key = (tf.TensorSpec(_swapped_shape(one), one.dtype) for one in (query, key))
    return attend(query, key, value)


def _swapped(tensor):
    return tf.transpose(tensor, [0, 2, 1, 3])


def _swapped_shape(tensor):
    batch, places, heads, size = tensor.shape
    return [batch, heads, places, size]


def _call(target, operands, results, config):
    """Emit one custom call, within a function that XLA compiles also where nothing around it is compiled."""

    @traced_for_each_shape
    def run(*operands):
        room = tf.TensorSpec([0], tf.uint8)  # for the kernel's own work: XLA fills in the size
        return custom_call(target, operands, [*results, room], config)[:-1]

    return run(*operands)


_PRODUCTS = {
    False: {
        "bmm1_dot_dimension_numbers": (3, 3),
        "bmm2_dot_dimension_numbers": (3, "places"),
    },
    True: {
        "bmm1_grad_gemm1_dot_dimension_numbers": (2, "places"),
        "bmm1_grad_gemm2_dot_dimension_numbers": (3, "places"),
        "bmm2_grad_gemm1_dot_dimension_numbers": (2, "places"),
        "bmm2_grad_gemm2_dot_dimension_numbers": (3, 3),
    },
}
"""Forward and backward: over which axes each product sums. Where the right one is "places", the left factor is scores
[batch, heads, queries, keys]; else both factors are like queries, and the sum is over their size."""


def _axes_of_product(left, right, heads_first):
    of_tensors = [0, 1] if heads_first else [0, 2]
    return {
        "lhs_contracting_dimensions": [left],
        "rhs_contracting_dimensions": [(2 if heads_first else 1) if right == "places" else right],
        "lhs_batch_dimensions": [0, 1] if right == "places" else of_tensors,
        "rhs_batch_dimensions": of_tensors,
    }


def backend_config(settings, dtype, scores, heads_first, backward):
    """Return the settings of a call as XLA reads them, for ``scores`` of [batch, heads, queries, keys]."""
    products = {}
    for name, (left, right) in _PRODUCTS[backward].items():
        axes = _axes_of_product(left, right, heads_first)
        products[name] = {key: [*map(str, value)] for key, value in axes.items()}  # 64 bits are strings in such JSON
    scores = {
        "element_type": TYPES[dtype.name],
        "dimensions": [*map(str, scores)],
        "layout": {"minor_to_major": ["3", "2", "1", "0"]},
        "is_dynamic_dimension": [False] * 4,
    }
    attention = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": settings.scale,
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": settings.window,
        "max_seg_per_batch": settings.max_segments,
        "is_paged_attention": False,
        "intermediate_tensor_shape": scores,
        "is_flash_attention": True,
        "mask_type": settings.mask_type,
        **products,
    }
    return json.dumps(
        {"operation_queue_id": "0", "wait_on_operation_queues": [], "cudnn_fmha_backend_config": attention}
    )


# Padding and tables


def _in_order(tensor, order, back):
    """Return [batch, places, heads, size] with the places of each example in another order; ``back`` undoes it."""

    @tf.custom_gradient
    def reorder(tensor):
        moved = tf.gather(tensor, order, axis=1, batch_dims=1)
        return moved, lambda upstream: tf.gather(upstream, back, axis=1, batch_dims=1)  # TensorFlow's own adds up

    return reorder(tensor)


def _is_one_piece(keys):
    """Return for each example whether its real keys follow each other: when they move, their distances stay."""
    edges = tf.reduce_sum(tf.cast(keys[:, 1:] != keys[:, :-1], "int32"), axis=1)
    return (edges <= 1) | ((edges == 2) & ~keys[:, 0])


def _nan_unless(holds, out):
    return tf.where(holds, out, tf.constant(math.nan, out.dtype))


def _bias(table, dtype):
    bias = tf.where(tf.cast(table, "bool"), tf.constant(0, dtype), tf.constant(_NOT_SEEN[dtype.name], dtype))
    return bias[:, None]


# Packed rows


def packed_operands(segments, most, query_shape, key_shape):
    """Return the operands for rows of segments: [query lengths, key lengths, query offsets, key offsets], int32.

    ``segments`` [batch, places] are from 1 in each row, one after the other, 0 where there is none, anywhere; at most
    ``most`` in a row. Lengths [batch, most] are those of all segments of all rows, one after the other, then 0. Offsets
    [batch, most + 1] say where they begin, in numbers from the start of the tensor [batch, heads, places, size], then
    its end.
    """
    batch, places = segments.shape
    numbers = tf.range(1, most + 1, dtype=segments.dtype)
    is_member = tf.cast(segments[:, None, :] == numbers[None, :, None], "int32")  # [batch, most, places]
    lengths = tf.reshape(tf.reduce_sum(is_member, axis=2), [-1])
    starts = tf.argmax(is_member, axis=2, output_type="int32")  # the first place, 0 for none

    # Segments that exist come to the front, in their order: the place of each is how many there are before it
    exists = tf.cast(lengths > 0, "int32")
    place = tf.where(exists > 0, tf.cumsum(exists, exclusive=True), -1)
    onto = tf.one_hot(place, batch * (most + 1), axis=0, dtype="int32")  # nowhere for one that does not exist
    is_filled = tf.range(batch * (most + 1)) < tf.reduce_sum(exists)
    lengths = tf.reduce_sum(onto * lengths, axis=1)[: batch * most]

    def offsets(shape):
        row = math.prod(shape[1:])
        begin = tf.reshape(row * tf.range(batch)[:, None] + shape[3] * starts, [-1])
        begin = tf.where(is_filled, tf.reduce_sum(onto * begin, axis=1), batch * row)
        return tf.reshape(begin, [batch, most + 1])

    lengths = tf.reshape(lengths, [batch, most])
    return [lengths, lengths, offsets(query_shape), offsets(key_shape)]
