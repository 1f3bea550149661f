"""Chunked attention: same outputs and gradients, less memory, same dropout in both passes."""

import inspect
from functools import cache, partial
from itertools import product

import hub_models
import numpy as np
import pytest
from equal_models import apart_of_weights, precision

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
LENGTH, WIDTH = 10, 8
X = np.random.default_rng(0).normal(size=(6, LENGTH, WIDTH)).astype("float32")
Y = np.random.default_rng(1).normal(size=(6, LENGTH, 1)).astype("float32")
MASK = np.random.default_rng(2).uniform(size=(6, LENGTH, LENGTH)) > 0.3
MASK[:, :, 0] = True


def self_attention(x, dropout=0.0, **settings):
    return layers.MultiHeadAttention(2, 4, dropout=dropout)(x, x, **settings)


def grouped(x):
    return layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)


def sliding(x):
    if "sliding_window" not in inspect.signature(layers.MultiHeadAttention).parameters:
        pytest.skip("attention has no sliding window in this Keras")
    return layers.MultiHeadAttention(2, 4, sliding_window=3)(x, x, use_causal_mask=True)


def of_longer(x):
    """Cross-attention with twice as many keys as queries."""
    return layers.MultiHeadAttention(2, 4)(x, layers.Concatenate(axis=1)([x, x]))


def of_words(x):
    """A mask from the inputs, combined with the causal mask."""
    words = layers.Masking()(x)
    return layers.MultiHeadAttention(2, 4)(words, words, use_causal_mask=True)


KINDS = {
    "plain": self_attention,
    "causal": partial(self_attention, use_causal_mask=True),
    "causal, written out": partial(self_attention, use_causal_mask=True, dropout=1e-9),
    "grouped": grouped,
    "sliding": sliding,
    "cross": of_longer,
    "masked": of_words,
}


def model_of(kind, length=LENGTH, make=bt.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((length, WIDTH))
    return make(inputs, layers.Dense(1, dtype="float32")(KINDS.get(kind, kind)(inputs)))


def trained(model, **compiled):
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **compiled)
    x = X.copy()
    x[1, 6:] = 0  # masked, if the model has a mask
    model.fit(x, Y, batch_size=3, shuffle=False, verbose=0)
    return model


@cache
def whole(kind):
    """Return a model of this kind, trained without chunks; no test changes it."""
    return trained(model_of(kind))


@pytest.mark.parametrize(("kind", "chunks"), [*product(KINDS, [3]), *product(["causal"], [1, 5, 40])])
def test_a_training_ends_at_the_same_weights(kind, chunks):
    chunked = trained(bt.chunk_attention(model_of(kind), chunks=chunks))
    assert apart_of_weights(chunked, whole(kind)) < 1e-6


def test_lengths_that_are_not_known_beforehand_and_xla():
    for settings in ({"length": None}, {}):
        chunked = bt.chunk_attention(model_of("causal", **settings), chunks=3)
        trained(chunked, jit_compile=not settings)
        assert apart_of_weights(chunked, whole("causal")) < 1e-5


def test_a_mask_of_the_callers_is_cut_by_rows():
    layer = layers.MultiHeadAttention(2, 4)
    expected = layer(X, X, attention_mask=MASK)
    assert bt.chunk_attention(layer, chunks=4) is layer
    np.testing.assert_allclose(layer(X, X, attention_mask=MASK), expected, atol=1e-6)


def test_mixed_precision_stays_near():
    with precision("mixed_bfloat16"):
        in_one_piece = trained(model_of("causal"))
        chunked = trained(bt.chunk_attention(model_of("causal"), chunks=3))
    assert apart_of_weights(chunked, in_one_piece) < 0.02


def test_dropout_is_the_same_in_both_passes_and_another_in_each_chunk_and_step():
    """For fixed scores the sum of outputs is linear in the values, so its gradient reveals the dropout masks."""
    layer = bt.chunk_attention(layers.MultiHeadAttention(1, 4, dropout=0.5, seed=3), chunks=2)
    layer.build((1, 6, 4), (1, 6, 4))
    (seed,) = (variable for variable in layer.variables if variable.path.endswith("seed_generator_state"))
    x, values = tf.ones([1, 6, 4]), tf.eye(6, 4)[None]

    def drawn(values):
        seed.assign([3, 0])
        return layer(x, values, x, training=True)

    with tf.GradientTape() as tape:
        tape.watch(values)
        total = tf.reduce_sum(drawn(values))
    gradient = tape.gradient(total, values)
    moved = tf.reduce_sum(drawn(values + gradient))
    assert float(moved - total) == pytest.approx(float(tf.reduce_sum(gradient**2)), rel=1e-4)

    first_step = drawn(values)
    np.testing.assert_array_equal(seed.numpy(), [3, 1])  # as with a single chunk
    assert not np.allclose(first_step[0, :3], first_step[0, 3:])
    assert not np.allclose(layer(x, values, x, training=True), first_step)


@pytest.mark.parametrize("name", ["GPT-2", "Gemma", "Qwen with LoRA", "BART"])
def test_keras_hub_in_chunks_equals_in_one_piece(name):
    """The attention of KerasHub's other models is similar: see test_fused_attention.py."""
    build, data = hub_models.TASKS[name]
    x, _, _ = data()

    def gradients(chunks):
        keras.utils.set_random_seed(1)
        model = build()
        if chunks:
            bt.chunk_attention(model, chunks=chunks)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(keras.tree.map_structure(tf.constant, x), training=True)))
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    for one, other in zip(gradients(5), gradients(None), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), atol=1e-6, rtol=1e-4)


def test_what_cannot_be_taken_is_named():
    models = hub_models.keras_hub()
    bloom = models.BloomBackbone(20, 1, 2, 8, 16)
    with pytest.raises(ValueError, match=r"self_attention \(BloomAttention\) has no attention that can be replaced"):
        bt.chunk_attention(bloom, chunks=2)
    deberta = models.DebertaV3Backbone(20, 1, 2, 8, 16, max_sequence_length=8, bucket_size=4)
    with pytest.raises(ValueError, match="also computes attention from rel_embeddings"):
        bt.chunk_attention(deberta, chunks=2)
    with pytest.raises(ValueError, match="chunked attention never holds all scores"):
        bt.chunk_attention(layers.MultiHeadAttention(2, 4), chunks=2)(X, X, return_attention_scores=True)


def test_no_scores_of_the_backward_pass_stand_there_in_the_forward_pass(cpu_memory):
    """Six layers have an attention matrix of 4 MiB each; with recomputation only one exists at a time."""

    def peak_of(model):
        x = tf.ones((1, 512, 16))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(model(x) ** 2)
            return tape.gradient(value, model.trainable_variables)

        step()
        before = cpu_memory()["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        step()
        return cpu_memory()["peak"] - before

    def deep():
        x = inputs = keras.Input((512, 16))
        for _ in range(6):
            x = layers.MultiHeadAttention(4, 4)(x, x)
        return keras.Model(inputs, x)

    assert peak_of(bt.chunk_attention(deep(), chunks=1)) < 0.75 * peak_of(deep())


def test_a_window_that_keras_hub_slices_by_position_is_that_of_each_chunk():
    models = pytest.importorskip("keras_hub").models
    window = {"use_sliding_window_attention": True, "sliding_window_size": 4}
    backbone = models.GemmaBackbone(20, 1, 2, 1, 16, 32, 8, **window)
    x = {"token_ids": np.arange(24).reshape(2, 12) % 19 + 1, "padding_mask": np.ones((2, 12), int)}

    def outputs_and_gradients():
        with tf.GradientTape() as tape:
            outputs = backbone(x)
            loss = tf.reduce_sum(outputs**2 * tf.range(12.0)[:, None])
        return outputs, tape.gradient(loss, backbone.get_layer("decoder_block_0").trainable_variables)

    whole = outputs_and_gradients()
    bt.chunk_attention(backbone, chunks=5)  # of three rows; the last begins within the one before
    for one, other in zip(tf.nest.flatten(outputs_and_gradients()), tf.nest.flatten(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
