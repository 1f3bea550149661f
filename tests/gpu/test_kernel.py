"""cuDNN's fused attention on a GPU, compared with float32 single operations: outputs and gradients, every mask."""

import numpy as np
import pytest

import bigtrain_nb as bt
from bigtrain_nb.advanced.parallel import cudnn
from bigtrain_nb.advanced.parallel.masks import MaskMeaning
from bigtrain_nb.common.quiet import keras, tf

BATCH, LENGTH = 3, 256


def padding(kind, length=LENGTH):
    real = np.arange(length) < np.array([[length], [length // 2 + 3], [1]])
    if kind == "left":
        return real[:, ::-1].copy()
    if kind == "holes":
        real[0, 30:50] = real[1, :7] = False
    return real


def segments_of(length=LENGTH, most=5):
    random = np.random.default_rng(0)
    segments = np.zeros((BATCH, length), "int32")
    for row in range(BATCH):
        at = 3 * row
        for number in range(1, most + 1 - row):
            end = min(length, at + int(random.integers(20, 60)))
            segments[row, at:end] = number
            at = end
    return segments


def table_of(meaning, queries, keys):
    """Return which keys each query sees, [batch or 1, queries, keys], from the mask's definition alone."""
    row, column = np.arange(queries)[:, None], np.arange(keys)
    seen = np.ones((1, queries, keys), bool)
    if meaning.is_causal:
        seen = seen & (column <= row)
    if meaning.window is not None:
        seen = seen & (row - column < meaning.window)
    if meaning.keys is not None:
        seen = seen & np.asarray(meaning.keys)[:, None, :]
    if meaning.segments is not None:
        segments = np.asarray(meaning.segments)
        seen = seen & (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)
    if meaning.table is not None:
        seen = seen & np.asarray(meaning.table)
    return seen


def single_operations(query, key, value, scale, table):
    groups = query.shape[2] // key.shape[2]
    key, value = tf.repeat(key, groups, axis=2), tf.repeat(value, groups, axis=2)
    scores = tf.einsum("btnh,bsnh->bnts", query, key) * tf.cast(scale, query.dtype)
    scores = tf.where(table[:, None], scores, tf.constant(-3e4, scores.dtype))
    return tf.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores), value)


def both_passes(attend, inputs, upstream, dtype):
    @tf.function(jit_compile=True, autograph=False)
    def run(*inputs):
        inputs = [tf.cast(one, dtype) for one in inputs]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            out = attend(*inputs)
        return out, *tape.gradient(out, inputs, tf.cast(upstream, out.dtype))

    return [tf.cast(one, "float32").numpy() for one in run(*inputs)]


def error(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


CASES = {
    "full": {},
    "causal": {"meaning": MaskMeaning(is_causal=True)},
    "causal, float16": {"meaning": MaskMeaning(is_causal=True), "dtype": "float16"},
    "heads of 128": {"meaning": MaskMeaning(is_causal=True), "size": 128},
    "heads of 40": {"meaning": MaskMeaning(is_causal=True), "size": 40},
    "grouped": {"meaning": MaskMeaning(is_causal=True), "heads": 8, "groups": 2},
    "another scale": {"meaning": MaskMeaning(is_causal=True), "scale": 0.3},
    "odd length": {"meaning": MaskMeaning(is_causal=True), "length": 201},
    "window": {"meaning": MaskMeaning(is_causal=True, window=37)},
    "longer keys": {"keys": 384},
    "longer keys, padded": {"meaning": MaskMeaning(keys=padding("right", 384)), "keys": 384},
    "table": {"meaning": MaskMeaning(table=np.random.default_rng(1).uniform(size=(BATCH, LENGTH, LENGTH)) > 0.4)},
    "causal table": {
        "meaning": MaskMeaning(is_causal=True, table=np.random.default_rng(1).uniform(size=(1, LENGTH, LENGTH)) > 0.4)
    },
    "table, padded": {
        "meaning": MaskMeaning(
            keys=padding("holes"), table=np.random.default_rng(1).uniform(size=(1, LENGTH, LENGTH)) > 0.4
        )
    },
    "one segment": {"meaning": MaskMeaning(is_causal=True, segments=padding("right").astype("int32"), max_segments=1)},
    "window, padded right": {"meaning": MaskMeaning(is_causal=True, window=37, keys=padding("right"))},
    "window, padded left": {"meaning": MaskMeaning(is_causal=True, window=37, keys=padding("left"))},
    "packed": {"meaning": MaskMeaning(is_causal=True, segments=segments_of(), max_segments=5)},
    "packed, more room": {"meaning": MaskMeaning(is_causal=True, segments=segments_of(), max_segments=9)},
    "packed, full": {"meaning": MaskMeaning(segments=segments_of(), max_segments=5)},
    "packed, grouped": {
        "meaning": MaskMeaning(is_causal=True, segments=segments_of(), max_segments=5),
        "heads": 8,
        "groups": 2,
    },
    "packed, heads of 128": {
        "meaning": MaskMeaning(is_causal=True, segments=segments_of(), max_segments=5),
        "size": 128,
    },
    **{
        f"padded {kind}{words}": {"meaning": MaskMeaning(is_causal=causal, keys=padding(kind))}
        for kind in ("right", "left", "holes")
        for causal, words in ((False, ""), (True, ", causal"))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_right_in_both_passes(name):
    case = {"meaning": MaskMeaning(), "dtype": "bfloat16", "heads": 4, "size": 64, "length": LENGTH} | CASES[name]
    groups, keys = case.get("groups", case["heads"]), case.get("keys", case["length"])
    meaning, size, dtype = case["meaning"], case["size"], case["dtype"]
    scale = case.get("scale", size**-0.5)
    random = np.random.default_rng(0)
    shapes = [(case["length"], case["heads"]), (keys, groups), (keys, groups)]
    inputs = [tf.constant(random.normal(size=(BATCH, places, n, size)), dtype) for places, n in shapes]
    table = table_of(meaning, case["length"], keys)
    matters = np.broadcast_to(table.any(axis=-1), (BATCH, case["length"])).copy()  # queries that see a key
    if meaning.keys is not None and case["length"] == keys:
        matters &= np.asarray(meaning.keys)
    matters = matters[:, :, None, None]
    upstream = tf.constant(random.normal(size=inputs[0].shape) * matters, dtype)
    as_tensors = MaskMeaning(
        meaning.is_causal,
        *(None if one is None else tf.constant(one) for one in (meaning.keys,)),
        meaning.window,
        None if meaning.segments is None else tf.constant(meaning.segments),
        meaning.max_segments,
        None if meaning.table is None else tf.constant(meaning.table),
    )

    expected = both_passes(lambda *qkv: single_operations(*qkv, scale, tf.constant(table)), inputs, upstream, "float32")
    stock = both_passes(lambda *qkv: single_operations(*qkv, scale, tf.constant(table)), inputs, upstream, dtype)
    found = both_passes(lambda *qkv: cudnn.attention(*qkv, scale, as_tensors), inputs, upstream, dtype)
    for values in (expected, stock, found):
        values[0] = np.where(matters, values[0], 0)
    errors = [error(*pair) for pair in zip(found, expected, strict=True)]
    of_stock = [error(*pair) for pair in zip(stock, expected, strict=True)]
    print(name, "kernel", *(f"{one:.1e}" for one in errors), "single", *(f"{one:.1e}" for one in of_stock), flush=True)
    assert max(errors) < 1e-2
    assert all(ours < 1.5 * others + 1e-4 for ours, others in zip(errors, of_stock, strict=True))


def gpt2(length=64):
    import keras_hub

    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(128, 2, 2, 128, 256, dropout=0.0, max_sequence_length=length)
    return keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)


def trained(change, jit_compile, steps=1):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = change(gpt2())
    finally:
        keras.config.set_dtype_policy("float32")
    tokens = np.random.default_rng(0).integers(0, 128, (32, 65)).astype("int32")
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((32, 64), "int32")}
    data = tf.data.Dataset.from_tensor_slices((x, tokens[:, 1:])).batch(4, drop_remainder=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=jit_compile, steps_per_execution=steps)
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    return losses, np.concatenate([np.ravel(weight) for weight in model.get_weights()])


WAYS = {
    "XLA": (bt.fuse_attention, True, 1),
    "no XLA": (bt.fuse_attention, False, 1),
    "bt.Model, micro-batches": (lambda model: bt.Model.of(bt.fuse_attention(model), micro_batches=2), True, 1),
    "bt.Model, no XLA": (lambda model: bt.Model.of(bt.fuse_attention(model)), False, 1),
    "four steps": (lambda model: bt.Model.of(bt.fuse_attention(model)), True, 4),
    "recomputed": (lambda model: bt.recompute(bt.fuse_attention(model), r"transformer_layer_\d+"), True, 1),
}


@pytest.mark.parametrize("name", WAYS)
def test_trains_as_stock_keras_does(name, recwarn):
    losses, weights = trained(lambda model: model, True)
    fused_losses, fused_weights = trained(*WAYS[name])
    assert not [str(one.message) for one in recwarn if "chunks of rows" in str(one.message)]
    apart = error(fused_weights, weights)
    print(name, "losses", losses, fused_losses, "weights apart", f"{apart:.1e}", flush=True)
    np.testing.assert_allclose(fused_losses, losses, rtol=1e-2)
    assert apart < 1e-2
