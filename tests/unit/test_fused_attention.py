"""Fused attention: the operands that XLA gets for each mask, and their equivalence to the layer.

Without a GPU the kernel is emulated from its operands (fused_emulated.py); tests/gpu runs it on a GPU.
"""

import json
import re
from itertools import product

import hub_models
import numpy as np
import pytest
from equal_models import precision
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.advanced.parallel import cudnn
from bigtrain_nb.advanced.parallel.masks import meaning_of
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers


def attention(length=48, batch=2, dtype="mixed_bfloat16", heads=2, size=8, **settings):
    inputs = keras.Input((length, heads * size), batch_size=batch, dtype="float32")
    layer = layers.MultiHeadAttention(heads, size, dtype=dtype)
    return keras.Model(inputs, layer(inputs, inputs, **settings))


def calls_in(model, *inputs):
    """Return (target, settings) of each fused attention in a training step's HLO, and the HLO."""

    @tf.function(jit_compile=True, autograph=False)
    def gradients(*inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(model(inputs[0] if len(inputs) == 1 else inputs), "float32"))
        return tape.gradient(loss, [weight.value for weight in model.trainable_variables])

    hlo = gradients.experimental_get_compiler_ir(*inputs)(stage="hlo")
    found = []
    for line in hlo.splitlines():
        if "custom-call(" in line and "fmha" in line:
            config = re.search(r'backend_config=("?)(\{.*\})\1', line)[2].replace('\\"', '"')
            target = re.search(r'custom_call_target="([^"]+)"', line)[1]
            found.append((target, json.loads(config)["cudnn_fmha_backend_config"]))
    return found, hlo


def has_scores(hlo, length):
    """Find scores of this shape; booleans are ignored: Keras creates an unused mask."""
    return re.search(rf"(f32|bf16|f16)\[[\d,]*{length},{length}\]", hlo)


FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"


@pytest.mark.parametrize("causal", [False, True])
def test_one_call_forward_and_one_back(as_on_a_gpu, causal):
    model = bt.fuse_attention(attention(use_causal_mask=causal))
    found, hlo = calls_in(model, tf.ones([2, 48, 16]))
    assert [target for target, _ in found] == [FORWARD, BACKWARD]
    for _, settings in found:
        assert settings["mask_type"] == ("CAUSAL" if causal else "NO_MASK")
        assert settings["fmha_scale"] == pytest.approx(8**-0.5)
        assert settings["sliding_window_length"] == 0
        assert settings["intermediate_tensor_shape"]["dimensions"] == ["2", "2", "48", "48"]
        assert settings["intermediate_tensor_shape"]["element_type"] == "BF16"
    assert not has_scores(hlo, 48)


def test_a_sliding_window_is_a_number(as_on_a_gpu):
    inputs = keras.Input((48, 16), batch_size=2)
    layer = layers.GroupQueryAttention(8, 4, 2, sliding_window=5, dtype="mixed_float16")
    model = bt.fuse_attention(keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True)))
    found, _ = calls_in(model, tf.ones([2, 48, 16]))
    assert [(s["mask_type"], s["sliding_window_length"]) for _, s in found] == [("CAUSAL", 5)] * 2
    assert found[0][1]["intermediate_tensor_shape"]["element_type"] == "F16"


def test_a_table_is_a_bias(as_on_a_gpu):
    inputs, table = keras.Input((48, 16), batch_size=2), keras.Input((48, 48), batch_size=2, dtype="bool")
    out = layers.MultiHeadAttention(2, 8, dtype="mixed_bfloat16")(inputs, inputs, attention_mask=table)
    model = bt.fuse_attention(keras.Model([inputs, table], out))
    found, _ = calls_in(model, tf.ones([2, 48, 16]), tf.ones([2, 48, 48], "bool"))
    assert [target for target, _ in found] == ["__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"]


def packed_model(length=48, most=3, batch=2, dtype="mixed_bfloat16"):
    segments, x = keras.Input((length,), batch, dtype="int32"), keras.Input((length, 16), batch)
    mask = bt.segment_mask(segments, most)
    layer = layers.MultiHeadAttention(2, 8, dtype=dtype)
    return keras.Model([x, segments], layer(x, x, attention_mask=mask, use_causal_mask=True))


def test_packed_rows_have_no_table(as_on_a_gpu):
    model = bt.fuse_attention(packed_model())
    found, hlo = calls_in(model, tf.ones([2, 48, 16]), tf.ones([2, 48], "int32"))
    assert [(s["mask_type"], s["max_seg_per_batch"]) for _, s in found] == [("PADDING_CAUSAL", 3)] * 2
    assert not has_scores(hlo, 48)


def with_heads_of_8(name):
    """The kernel needs head dimensions in multiples of 8; two of the small models have 4."""
    models = hub_models.keras_hub()
    if name == "Llama":
        return models.LlamaBackbone(64, 1, 4, 32, 32, 2)
    if name == "Qwen with LoRA":
        return models.QwenBackbone(64, 1, 4, 2, 32, 32)
    build, _ = hub_models.TASKS[name]
    return build()


NAMES = ["GPT-2", "Llama", "Gemma", "Qwen with LoRA", "BERT, classes", "BART", "ViT"]
DIFFERENT = ["GPT-2", "Gemma", "Qwen with LoRA", "BART"]
SIMILAR = pytest.mark.more("KerasHub's other models, whose attention is similar")


@pytest.mark.parametrize("name", in_two_tiers(NAMES, DIFFERENT, SIMILAR))
def test_each_layer_of_keras_hub_is_called_once(as_on_a_gpu, name):
    _, data = hub_models.TASKS[name]
    with precision("mixed_bfloat16"):
        model = with_heads_of_8(name)
    x, _, _ = data()
    x = keras.tree.map_structure(lambda array: tf.constant(array[:2]), x)
    count = sum(hasattr(layer, "_compute_attention") for layer in model._flatten_layers())
    found, hlo = calls_in(bt.fuse_attention(model), x)
    targets = [target for target, _ in found]
    assert targets.count(FORWARD) == targets.count(BACKWARD) == count > 0
    if name in ("GPT-2", "Llama", "Qwen with LoRA"):
        assert not has_scores(hlo, 12)


# Equivalence to the layer


def outputs_and_gradients(model, x, weight):
    with tf.GradientTape() as tape:
        y = model(x)
        loss = tf.reduce_sum(weight * tf.cast(tf.sin(3 * y), "float32"))
    values = [one.value for one in model.trainable_variables]
    found = tape.gradient(loss, values, unconnected_gradients="zero")
    return y.numpy(), np.concatenate([np.ravel(tf.convert_to_tensor(one)) for one in found])


def padding_of(kind, batch=4, length=12):
    real = np.arange(length) < np.array([[length], [7], [1], [10]])[:batch]
    if kind == "left":
        return real[:, ::-1].copy()
    if kind == "holes":
        real[0, 3:5] = real[3, :2] = False
    return real


PADDED = [*product(["GPT-2"], ["right", "left"]), *product(DIFFERENT, ["holes"])]


@pytest.mark.parametrize(("name", "padding"), PADDED)
def test_equal_to_stock_at_all_places_that_are_real(emulated, name, padding):
    _, data = hub_models.TASKS[name]
    keras.utils.set_random_seed(0)
    model = with_heads_of_8(name)
    model = getattr(model, "backbone", model)
    x, _, _ = data()
    real = padding_of(padding)
    x = {key: tf.constant(real.astype("int32") if "padding" in key else value[:4]) for key, value in x.items()}

    outputs = model.output
    if isinstance(outputs, dict):
        outputs = outputs["decoder_sequence_output" if name == "BART" else "sequence_output"]
    wrapped = keras.Model(model.inputs, outputs)
    weight = real[:, :, None].astype("float32")
    y, gradient = outputs_and_gradients(wrapped, x, weight)
    bt.fuse_attention(model)
    fused_y, fused_gradient = outputs_and_gradients(wrapped, x, weight)
    np.testing.assert_allclose(fused_y[real], y[real], atol=1e-5)
    assert np.abs(fused_gradient - gradient).max() < 1e-5 * max(1, np.abs(gradient).max())


def test_equal_to_stock_with_a_window(emulated):
    models = hub_models.keras_hub()
    keras.utils.set_random_seed(0)
    model = models.MistralBackbone(64, 1, 4, 32, 32, 2, sliding_window=4)
    x = {"token_ids": np.arange(48).reshape(4, 12), "padding_mask": padding_of("right").astype("int32")}
    real, weight = padding_of("right"), padding_of("right")[:, :, None].astype("float32")
    y, gradient = outputs_and_gradients(model, x, weight)
    fused_y, fused_gradient = outputs_and_gradients(bt.fuse_attention(model), x, weight)
    np.testing.assert_allclose(fused_y[real], y[real], atol=1e-5)
    assert np.abs(fused_gradient - gradient).max() < 1e-5 * np.abs(gradient).max()
    holes = {**x, "padding_mask": padding_of("holes").astype("int32")}
    is_nan = np.isnan(model(holes).numpy()).any(axis=(1, 2))
    assert is_nan.tolist() == [True, False, False, False]  # only with a gap between tokens


def segments_of(batch=3, length=24, most=4, seed=0):
    random = np.random.default_rng(seed)
    segments = np.zeros((batch, length), "int32")
    for row in range(batch):
        at = random.integers(0, 3)
        for number in range(1, random.integers(0, most + 1) + 1):
            end = at + random.integers(1, 7)
            if end > length:
                break
            segments[row, at:end] = number
            at = end
    return segments


@pytest.mark.parametrize("most", [1, 4])
def test_packed_rows_are_those_of_the_table(emulated, most):
    """With one segment a row it is padding."""
    keras.utils.set_random_seed(0)
    model = packed_model(length=24, most=most, batch=3, dtype="float32")
    x = np.random.default_rng(0).normal(size=(3, 24, 16)).astype("float32")
    segments = segments_of() if most > 1 else (np.arange(24) < [[24], [9], [1]]).astype("int32")
    assert (segments.max() > 1) == (most > 1)
    real, weight = segments > 0, (segments > 0)[:, :, None].astype("float32")
    y, gradient = outputs_and_gradients(model, [x, segments], weight)
    bt.fuse_attention(model)
    for trained in (model, bt.recompute(model, lambda layer: isinstance(layer, layers.MultiHeadAttention))):
        fused_y, fused_gradient = outputs_and_gradients(trained, [x, segments], weight)
        np.testing.assert_allclose(fused_y[real], y[real], atol=1e-5)
        assert np.abs(fused_gradient - gradient).max() < 1e-5 * np.abs(gradient).max()
    assert np.isnan(model([x, segments + most])).all()  # more segments than declared


@pytest.mark.parametrize("causal", [False, True])
def test_a_table_and_padding_together(emulated, causal):
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    layer = hub_models.gpt2().backbone.transformer_layers[0]
    x, table = random.normal(size=(4, 12, 16)).astype("float32"), random.uniform(size=(4, 12, 12)) > 0.4
    table |= np.eye(12, dtype=bool)
    real = padding_of("holes")
    given = {"decoder_padding_mask": real, "decoder_attention_mask": table, "use_causal_mask": causal}
    expected = layer(x, **given).numpy()
    found = bt.fuse_attention(layer)(x, **given).numpy()
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def test_segments_and_padding_together_are_computed_in_chunks(emulated):
    layer = hub_models.gpt2().backbone.transformer_layers[0]
    bt.fuse_attention(layer)
    x, segments = tf.ones([2, 12, 16]), tf.ones([2, 12], "int32")
    with pytest.warns(UserWarning, match="segments are untested with padding"):
        layer(x, decoder_padding_mask=segments > 0, decoder_attention_mask=bt.segment_mask(segments, most=2))


def test_the_most_segments_are_those_of_the_rows():
    rows = bt.TokenRows(np.arange(30), [7, 3, 9, 4, 1, 1, 5], length=10)
    found = [rows[[number]]["segments"].max() for number in range(len(rows))]
    assert rows.max_segments == max(found)
    table = bt.segment_mask(tf.constant([[1, 1, 2]]))
    assert meaning_of(table).segments is None and table.numpy().tolist() == [[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]


def test_operands_of_packed_rows():
    segments = tf.constant([[1, 1, 2, 0], [0, 0, 0, 0], [0, 1, 2, 2]])
    shapes = tf.TensorShape([3, 4, 2, 5]), tf.TensorShape([3, 4, 1, 5])  # positions, heads, head dimension
    run = tf.function(lambda: cudnn.packed_operands(segments, 2, *shapes), jit_compile=True, autograph=False)
    lengths, _, of_query, of_key = run()
    assert lengths.numpy().tolist() == [[2, 1], [1, 2], [0, 0]]
    assert of_query.numpy().tolist() == [[0, 10, 85], [90, 120, 120], [120, 120, 120]]
    assert of_key.numpy().tolist() == [[0, 10, 45], [50, 60, 60], [60, 60, 60]]


# Elsewhere it falls back to chunks, with a reason


def test_without_a_gpu_it_is_chunks_and_says_so(capsys):
    model = attention(dtype="float32")
    assert bt.fuse_attention(model) is model
    assert "in chunks of rows, for there is no NVIDIA GPU" in capsys.readouterr().out


@pytest.mark.parametrize(("length", "is_known"), [(1023, True), (1023, False), (7, False)])
def test_scores_of_more_than_512_rows_are_never_there(length, is_known, monkeypatch):
    layer = layers.MultiHeadAttention(2, 4)
    x = tf.random.normal([1, length, 8])
    expected = layer(x, x, use_causal_mask=True)
    bt.fuse_attention(layer)
    rows = []

    def noting(query, *args, **kwargs):
        tf.numpy_function(rows.append, [tf.shape(query)[1]], [])
        return keras.ops.dot_product_attention(query, *args, **kwargs)

    monkeypatch.setattr("keras.src.ops.dot_product_attention", noting)

    @tf.function(input_signature=[tf.TensorSpec([1, length if is_known else None, 8])], autograph=False)
    def attend(x):
        return layer(x, x, use_causal_mask=True)

    np.testing.assert_allclose(attend(x), expected, atol=1e-5)
    assert max(rows) == min(512, length) and sum(rows) < length + len(rows)


def test_a_table_of_other_numbers_of_queries_and_keys_is_kept():
    layer = layers.MultiHeadAttention(2, 4)
    x, to = tf.random.normal([2, 4, 8]), tf.random.normal([2, 6, 8])
    table = np.random.default_rng(0).uniform(size=(2, 4, 6)) > 0.3
    expected = layer(x, to, attention_mask=table)
    bt.fuse_attention(layer)
    np.testing.assert_allclose(layer(x, to, attention_mask=table), expected, atol=1e-6)


def test_one_of_kernel_and_chunks_has_to_be_chosen():
    layer = bt.fuse_attention(layers.MultiHeadAttention(2, 4, name="attend"))
    with pytest.raises(
        ValueError, match="attend already computes its attention by one kernel, and cannot use chunks too"
    ):
        bt.chunk_attention(layer, chunks=8)
    assert bt.fuse_attention(layer) is layer
    with pytest.raises(ValueError, match="already computes its attention by chunks, and cannot use one kernel too"):
        bt.fuse_attention(bt.chunk_attention(layers.MultiHeadAttention(2, 4), chunks=8))


@pytest.mark.parametrize(
    "shape, settings, words",
    [
        ((None, 48, 16), {}, "drop_remainder"),
        ((2, 48, 12), {"heads": 1, "size": 12}, "must be a multiple of 8"),
    ],
)
def test_what_a_call_lacks_is_said(as_on_a_gpu, shape, settings, words):
    model = bt.fuse_attention(attention(batch=shape[0], **settings))
    with pytest.warns(UserWarning, match=words):
        tf.function(model).get_concrete_function(tf.TensorSpec(shape, tf.float32))


def test_float32_is_said(as_on_a_gpu, capsys):
    bt.fuse_attention(attention(dtype="float32"))
    assert "mixed_bfloat16" in capsys.readouterr().out


def test_refused_by_name():
    models = hub_models.keras_hub()
    with pytest.raises(ValueError, match="dropout=0.1.*not been verified on a GPU.*dropout=0"):
        bt.fuse_attention(hub_models.gpt2(dropout=0.1))
    gemma2 = models.GemmaBackbone(64, 1, 2, 1, 16, 32, 8, attention_logit_soft_cap=50.0)
    with pytest.raises(ValueError, match="soft cap"):
        bt.fuse_attention(gemma2)


@pytest.mark.parametrize("make", [lambda: layers.MultiHeadAttention(2, 8), lambda: layers.GroupQueryAttention(8, 4, 2)])
def test_scores_that_are_asked_for_are_refused(emulated, make):
    layer, x = make(), tf.ones([2, 6, 16])
    layer(x, x)
    bt.fuse_attention(layer)
    with pytest.raises(ValueError, match="cannot return them"):
        layer(x, x, return_attention_scores=True)


def test_generate_is_keras_own(emulated, monkeypatch):
    monkeypatch.setattr(cudnn, "kernel", None)  # must not be called
    keras.utils.set_random_seed(0)
    model = hub_models.gpt2()
    model.compile(sampler="greedy")
    tokens = {"token_ids": np.array([[5, 6, 7, 0, 0, 0, 0, 0]]), "padding_mask": np.array([[1, 1, 1, 0, 0, 0, 0, 0]])}
    stock = model.generate(tokens, stop_token_ids=None)["token_ids"]
    bt.fuse_attention(model)
    model.compile(sampler="greedy")
    fused = model.generate(tokens, stop_token_ids=None)["token_ids"]
    np.testing.assert_array_equal(fused, stock)


def test_in_training_on_replicas_and_recomputed(emulated):
    x, y, weight = hub_models.next_tokens()
    x, y, weight = keras.tree.map_structure(lambda array: array[:8], (x, y, weight))
    data = tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(8, drop_remainder=True)

    def trained(change):
        keras.utils.set_random_seed(0)
        model = change(hub_models.gpt2())
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(data, verbose=0)
        return model.get_weights()

    def in_micro_batches(model):
        return bt.Model.of(bt.recompute(bt.fuse_attention(model), r"transformer_layer_\d+"), micro_batches=2)

    stock = trained(lambda model: model)
    found = {"recomputed in micro-batches": trained(in_micro_batches)}
    with bt.mirrored(2).scope():
        sharded = {"fully_shard": r"transformer_layer_\d+"}
        found["fully sharded"] = trained(lambda model: bt.Model.of(bt.fuse_attention(model), **sharded))
    for name, weights in found.items():
        assert max(np.abs(a - b).max() for a, b in zip(weights, stock, strict=True)) < 1e-5, name


def test_files_stay_stock(tmp_path):
    model = bt.fuse_attention(hub_models.gpt2())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not any(type(layer).__module__.startswith("bigtrain") for layer in loaded._flatten_layers())
