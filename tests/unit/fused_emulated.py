"""Emulate cuDNN's attention kernel by single operations, from its operands alone, without a GPU."""

import pytest

from bigtrain_nb.advanced.parallel import cudnn, fused
from bigtrain_nb.common.quiet import tf


def kernel(query, key, value, bias, operands, settings):
    batch, length, heads, size = query.shape
    keys = key.shape[1]
    row, column = tf.range(length)[:, None], tf.range(keys)
    allowed = tf.ones([batch, 1, length, keys], "bool")
    if settings.is_causal:
        allowed &= row >= column
    if settings.window:
        allowed &= row - column < settings.window
    real = tf.ones([batch, length], "bool")
    if settings.max_segments > 1:
        of = segment_of_each_place(operands[0], operands[2], [batch, heads, length, size])
        of_keys = segment_of_each_place(operands[1], operands[3], [batch, key.shape[2], keys, size])
        real = of >= 0
        allowed &= (of[:, :, None] == of_keys[:, None, :])[:, None]
    elif settings.is_padded:
        allowed &= (column < operands[1][:, None])[:, None, None, :]
        real = tf.range(length) < operands[0][:, None]
    key, value = (tf.repeat(one, heads // key.shape[2], axis=2) for one in (key, value))
    scores = tf.cast(tf.einsum("btnh,bsnh->bnts", query, key), "float32") * settings.scale
    if bias is not None:
        scores += tf.cast(bias, "float32")
    weights = tf.nn.softmax(tf.where(allowed, scores, -1e30), axis=-1)
    out = tf.einsum("bnts,bsnh->btnh", tf.cast(weights, value.dtype), value)
    return tf.where(real[:, :, None, None], out, tf.zeros_like(out))


def segment_of_each_place(lengths, offsets, shape):
    """Return each position's segment [batch, positions], -1 for none, computed as the kernel does."""
    batch, heads, places, size = shape
    lengths, starts = tf.reshape(lengths, [-1]), tf.reshape(offsets, [-1])[: tf.size(lengths)]
    rows, within = starts // (heads * places * size), starts % (heads * places * size) // size
    starts = rows * places + within
    flat = tf.range(batch * places)[:, None]
    inside = (flat >= starts) & (flat < starts + lengths)
    of = tf.where(tf.reduce_any(inside, 1), tf.argmax(tf.cast(inside, "int32"), 1, output_type="int32"), -1)
    return tf.reshape(of, [batch, places])


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """All checks before using the kernel pass; the custom call is emitted, but cannot run."""
    monkeypatch.setattr(fused, "machine_problem", lambda: None)
    monkeypatch.setattr(fused, "_device_problem", lambda query: None)


@pytest.fixture
def emulated(as_on_a_gpu, monkeypatch):
    """The kernel is emulated by single operations, in float32 too."""
    monkeypatch.setattr(cudnn, "kernel", kernel)
    monkeypatch.setattr(cudnn, "TYPES", {**cudnn.TYPES, "float32": "F32"})
    monkeypatch.setitem(cudnn._NOT_SEEN, "float32", -1e30)
