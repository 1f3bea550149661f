"""The cheapest way to make a step fit is the first that does, in the order of what they cost; nothing is changed."""

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.fitting import cheapest_way, repeated_layers

SECONDS = 120


def attentive(length=256, blocks=1):
    inputs = x = keras.Input((length, 16))
    for number in range(blocks):
        x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(4, 4, name=f"attention_{number}")(x, x)])
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    return model


def deep(blocks=4, width=64):
    hidden = [keras.layers.Dense(width, "gelu", name=f"block_{number}") for number in range(blocks)]
    model = keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(1, name="last")])
    model.compile("adam", "mse")
    return model


def batch(examples, *shape):
    return tf.ones([examples, *shape]), tf.ones([examples, *shape[:-1], 1]), None


def test_layers_that_repeat_are_those_with_most_weights():
    assert repeated_layers(deep()) == r"block(_?\d+)?"
    assert repeated_layers(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])) == ""


def test_micro_batches_come_first_and_as_few_as_do():
    model, data = deep(), batch(4096, 64)
    whole = bt.plan_step(model, data).peak
    way = cheapest_way(model, data, 0.6 * whole, SECONDS)
    count = int(way.code.removeprefix("bt.Model.of(model, micro_batches=").removesuffix(")"))
    assert count >= 2 and way.devices == 1 and way.plan.peak <= 0.6 * whole
    assert bt.plan_step(model, data, micro_batches=count // 2).peak > 0.6 * whole


def test_where_one_example_is_too_large_attention_goes_in_chunks_or_layers_are_recomputed():
    model, data = attentive(), batch(1, 256, 16)
    kinds = [type(layer) for layer in model.layers]
    whole = bt.plan_step(model, data).peak
    way = cheapest_way(model, data, 0.6 * whole, SECONDS)
    assert way.code == "bt.chunk_attention(model, chunks=8)" and way.plan.peak <= 0.6 * whole
    assert [type(layer) for layer in model.layers] == kinds and bt.plan_step(model, data).peak == whole


def test_where_the_weights_are_too_large_they_are_shared_out():
    model, data = deep(width=512), batch(8, 512)
    whole = bt.plan_step(model, data, micro_batches=8).peak
    way = cheapest_way(model, data, 0.7 * whole, SECONDS)
    assert way.devices > 1 and "fully_shard" in way.code and way.plan.peak <= 0.7 * whole


@pytest.mark.parametrize("seconds", [SECONDS, 1e-9])
def test_none_where_nothing_fits_or_the_time_is_over(seconds):
    assert cheapest_way(deep(blocks=2), batch(4, 64), 1000, seconds) is None
