"""cuDNN's fused attention as a TensorFlow operation: a custom call that XLA compiles on NVIDIA GPUs.

TensorFlow's wheel contains the kernel, but no operation calls it (keras issue 19418, tensorflow issues 62661 and
62666). XLA passes custom calls with this target to cuDNN; the settings are its message ``CudnnfMHABackendConfig`` as
JSON. The order of operands and results is that of JAX (jax/_src/cudnn/fused_attention_stablehlo.py).
"""

import json
import math
from dataclasses import dataclass

from bigtrain_nb.advanced.shared.custom_calls import compiled_custom_call
from bigtrain_nb.common.quiet import tf

TYPES = {"bfloat16": "BF16", "float16": "F16"}
"""The types that the kernel supports, with XLA's names for them."""

LARGEST_HEAD = 128
SMALLEST_CAPABILITY = (8, 0)

_NOT_SEEN = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}
"""Added to masked scores by a bias: finite, because the kernel subtracts such values from each other."""


def attention(query, key, value, scale, meaning):
    """Return softmax(scale * query · key) · value, shaped like ``query``, over the keys that ``meaning`` allows.

    Query is [batch, queries, heads, size], key and value [batch, keys, groups, size], in bfloat16 or float16; all
    shapes are static. The scores are never stored. Outputs of queries that see no key are undefined. Padding between
    tokens with a ``window``, and a batch with a row of more than ``max_segments``, are not supported and give NaN.
    """
    batch, length = query.shape[:2]
    window = meaning.window if meaning.window is not None and meaning.window < key.shape[1] else 0
    settings = Settings(scale, meaning.is_causal, window)
    operands, undo = [], None
    keys, table = meaning.keys, meaning.table
    if keys is not None:
        keys = tf.broadcast_to(keys, [batch, key.shape[1]])
    if meaning.max_segments == 1:
        keys = meaning.segments > 0
    if table is not None and keys is not None:  # its columns would have to move with the keys
        keys, table = None, tf.cast(table, "bool") & keys[:, None]

    if meaning.segments is not None and meaning.max_segments > 1:
        settings.max_segments = meaning.max_segments
        # The kernel leaves positions outside segments uninitialized, in results and gradients
        is_real = (meaning.segments > 0)[:, :, None, None]
        query, key, value = (tf.where(is_real, one, tf.zeros_like(one)) for one in (query, key, value))
        operands = packed_operands(meaning.segments, meaning.max_segments, query.shape, key.shape)
    elif keys is not None:
        # Padding keys move to the end; the others keep their order. Under a causal mask, queries move along
        order = tf.argsort(tf.cast(~keys, "int32"), axis=1, stable=True)
        back = tf.argsort(order, axis=1)
        key, value = _in_order(key, order, back), _in_order(value, order, back)
        if meaning.is_causal:
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
    if meaning.segments is not None:
        out = tf.where((meaning.segments > 0)[:, :, None, None], out, tf.zeros_like(out))
        out = _nan_unless(tf.reduce_max(meaning.segments) <= meaning.max_segments, out)
    return out


@dataclass
class Settings:
    """The settings in the JSON of a call. Only tests set a dropout rate: `fuse_attention` refuses it."""

    scale: float
    is_causal: bool
    window: int
    max_segments: int = 1
    is_padded: bool = False
    dropout_rate: float = 0.0
    seed: int = 42

    @property
    def mask_type(self):
        words = [word for word, holds in (("PADDING", self.is_padded), ("CAUSAL", self.is_causal)) if holds]
        return "_".join(words) or "NO_MASK"


def kernel(query, key, value, bias, operands, settings):
    """Return attention like ``query`` [batch, queries, heads, size]; forward and backward are one call each.

    ``bias`` is [batch or 1, 1, queries, keys] and has no gradient; ``operands`` are int32: the lengths of queries and
    keys, for packed rows also the offsets of the segments.
    """
    biases = [] if bias is None else [bias]
    target = "__cudnn$fmhaScaleBiasSoftmax" if biases else "__cudnn$fmhaSoftmax"
    if settings.dropout_rate:
        target += "Dropout"
    batch, length, heads, _ = query.shape

    # Segment offsets apply to all tensors alike, and results have heads before positions, so operands must too
    heads_first = settings.max_segments > 1
    swap = _swapped if heads_first else tf.identity

    @tf.custom_gradient
    def attend(query, key, value):
        query, key, value = swap(query), swap(key), swap(value)
        out, statistics = _call(
            target,
            [query, key, value, *biases, *operands],
            [of_query, tf.TensorSpec([batch * settings.max_segments, heads, length], tf.float32)],
            backend_config(settings, query.dtype, scores, heads_first, backward=False),
        )
        given = out if heads_first else _swapped(out)

        def gradient(upstream):
            upstream = swap(tf.cast(upstream, query.dtype))
            found = _call(
                target + "Backward",
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
    room = tf.TensorSpec([0], tf.uint8)  # the kernel's workspace: XLA sets its size
    return compiled_custom_call(target, (*results, room), config)(*operands)[:-1]


_PRODUCTS = {
    False: {"bmm1_dot_dimension_numbers": (3, 3), "bmm2_dot_dimension_numbers": (3, "places")},
    True: {
        "bmm1_grad_gemm1_dot_dimension_numbers": (2, "places"),
        "bmm1_grad_gemm2_dot_dimension_numbers": (3, "places"),
        "bmm2_grad_gemm1_dot_dimension_numbers": (2, "places"),
        "bmm2_grad_gemm2_dot_dimension_numbers": (3, 3),
    },
}
"""The axes that each matmul contracts, forward (False) and backward. Where the right one is "places", the left factor
is scores [batch, heads, queries, keys]; else both factors are shaped like queries and contract the head dimension."""


def _axes_of_product(left, right, heads_first):
    of_tensors = [0, 1] if heads_first else [0, 2]
    return {
        "lhs_contracting_dimensions": [left],
        "rhs_contracting_dimensions": [(2 if heads_first else 1) if right == "places" else right],
        "lhs_batch_dimensions": [0, 1] if right == "places" else of_tensors,
        "rhs_batch_dimensions": of_tensors,
    }


def backend_config(settings, dtype, scores, heads_first, backward):
    """Return the settings of a call as JSON for XLA, for ``scores`` of [batch, heads, queries, keys]."""
    products = {}
    for name, (left, right) in _PRODUCTS[backward].items():
        axes = _axes_of_product(left, right, heads_first)
        products[name] = {key: [*map(str, value)] for key, value in axes.items()}  # protobuf JSON: 64 bits are strings
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
        "dropout_rate": settings.dropout_rate,
        "seed": settings.seed,
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


# Padding and explicit masks


def _in_order(tensor, order, back):
    """Return [batch, positions, heads, size] with the positions of each example reordered; ``back`` undoes it."""

    @tf.custom_gradient
    def reorder(tensor):
        moved = tf.gather(tensor, order, axis=1, batch_dims=1)
        return moved, lambda upstream: tf.gather(upstream, back, axis=1, batch_dims=1)  # TensorFlow's would scatter-add

    return reorder(tensor)


def _is_one_piece(keys):
    """Return for each example whether its real keys are contiguous, so that moving them keeps their distances."""
    edges = tf.reduce_sum(tf.cast(keys[:, 1:] != keys[:, :-1], "int32"), axis=1)
    return (edges <= 1) | ((edges == 2) & ~keys[:, 0])


def _nan_unless(holds, out):
    return tf.where(holds, out, tf.constant(math.nan, out.dtype))


def _bias(table, dtype):
    bias = tf.where(tf.cast(table, "bool"), tf.constant(0, dtype), tf.constant(_NOT_SEEN[dtype.name], dtype))
    return bias[:, None]


# Packed rows


def packed_operands(segments, most, query_shape, key_shape):
    """Return the operands for packed rows: [query lengths, key lengths, query offsets, key offsets], int32.

    ``segments`` [batch, positions]: numbered from 1 in each row, contiguous, 0 outside of segments, anywhere; at most
    ``most`` in a row. Lengths [batch, most]: those of all segments of all rows, one after the other, then 0. Offsets
    [batch, most + 1]: where they begin, in elements from the start of the tensor [batch, heads, positions, size], then
    its end.
    """
    batch, places = segments.shape
    numbers = tf.range(1, most + 1, dtype=segments.dtype)
    is_member = tf.cast(segments[:, None, :] == numbers[None, :, None], "int32")  # [batch, most, places]
    lengths = tf.reshape(tf.reduce_sum(is_member, axis=2), [-1])
    starts = tf.argmax(is_member, axis=2, output_type="int32")  # the first position, 0 for none

    # Existing segments move to the front, in order: the index of each is the number of those before it
    exists = tf.cast(lengths > 0, "int32")
    place = tf.where(exists > 0, tf.cumsum(exists, exclusive=True), -1)
    onto = tf.one_hot(place, batch * (most + 1), axis=0, dtype="int32")  # zeros for a missing one
    is_filled = tf.range(batch * (most + 1)) < tf.reduce_sum(exists)
    lengths = tf.reduce_sum(onto * lengths, axis=1)[: batch * most]

    def offsets(shape):
        row = math.prod(shape[1:])
        begin = tf.reshape(row * tf.range(batch)[:, None] + shape[3] * starts, [-1])
        begin = tf.where(is_filled, tf.reduce_sum(onto * begin, axis=1), batch * row)
        return tf.reshape(begin, [batch, most + 1])

    lengths = tf.reshape(lengths, [batch, most])
    return [lengths, lengths, offsets(query_shape), offsets(key_shape)]
