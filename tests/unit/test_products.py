"""Matmuls that are not in the policy's 16 bits, reported by location, with their FLOPs."""

from types import SimpleNamespace

import hub_models
import numpy as np
import pytest

import bigtrain_nb as bt
from bigtrain_nb.advanced.plan.matmul_precision import flops_by_place
from bigtrain_nb.advanced.preflight import updates
from bigtrain_nb.advanced.preflight.report import Skipped
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers


def found(model, x):
    return updates.products(SimpleNamespace(model=model, first=(x, None)))


def test_the_head_of_keras_hub_is_named():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = hub_models.gpt2()
    finally:
        keras.config.set_dtype_policy("float32")
    x = keras.tree.map_structure(lambda array: tf.constant(array[:2]), hub_models.next_tokens()[0])
    line = found(model, x)
    assert line["verdict"] == "warning" and "token_embedding" in line["message"] and "reverse_dtype" in line["advice"]
    model.backbone.token_embedding.reverse_dtype = "bfloat16"
    assert found(model, x)["verdict"] == "ok"


def test_a_small_last_layer_in_float32_is_on_purpose():
    inputs = keras.Input((64,))
    hidden = layers.Dense(64, dtype="mixed_bfloat16")(inputs)
    few = keras.Model(inputs, layers.Dense(2, dtype="float32")(hidden))
    many = keras.Model(inputs, layers.Dense(64, dtype="float32")(hidden))
    x = tf.ones([4, 64])
    assert found(few, x)["verdict"] == "ok"
    assert "50.0%" in found(many, x)["message"]


def test_a_profile_names_them_too(tmp_path):
    inputs = keras.Input((64,))
    outputs = {dtype: layers.Dense(64, dtype="mixed_bfloat16")(inputs) for dtype in ("float32", "mixed_bfloat16")}
    said = {}
    for dtype, hidden in outputs.items():
        model = keras.Model(inputs, layers.Dense(64, dtype=dtype, name="last")(hidden))
        model.compile("sgd", "mse")
        data = tf.data.Dataset.from_tensors((tf.ones((4, 64)), tf.ones((4, 64)))).repeat(4)
        found = bt.profile(model, data, steps=2, folder=tmp_path / dtype)
        said[dtype] = found.products
        assert (said[dtype] in found.words()) == bool(said[dtype])
    assert "last" in said["float32"] and "50.0%" in said["float32"] and said["mixed_bfloat16"] == ""


def test_a_model_with_a_step_of_its_own_is_profiled_without_a_word_on_its_products(tmp_path):
    class Two(keras.Model):
        def __init__(self):
            super().__init__(dtype="mixed_bfloat16")
            self.inside = layers.Dense(64, dtype="mixed_bfloat16")

        def train_step(self, data):
            return {"loss": tf.reduce_mean(self.inside(data[0]))}

    model = Two()
    model.compile("sgd")
    data = tf.data.Dataset.from_tensors((tf.ones((4, 64)), tf.ones((4, 64)))).repeat(4)
    assert bt.profile(model, data, steps=2, folder=tmp_path).products == ""


def test_products_of_loops_count_in_each_round_and_those_of_branches_are_seen():
    class Branching(layers.Layer):
        def build(self, shape):
            self.inside = layers.Dense(64, dtype="float32")
            self.inside.build(shape)

        def call(self, x):
            return tf.cond(tf.reduce_sum(x) > 0, lambda: self.inside(x), lambda: x)

    inputs = keras.Input((9, 64))
    recurrent = layers.SimpleRNN(64, dtype="float32", name="recurrent")(inputs)
    last = layers.Dense(64, dtype="mixed_bfloat16")(Branching(name="branching")(recurrent))
    line = found(keras.Model(inputs, last), tf.ones([4, 9, 64]))
    assert "95.0%" in line["message"] and "recurrent" in line["message"] and "branching" in line["message"]


def test_without_products_nothing_is_said_of_their_bits():
    inputs = keras.Input((4,))
    with pytest.raises(Skipped, match="no matmul"):
        found(keras.Model(inputs, layers.Rescaling(2.0, dtype="mixed_bfloat16")(inputs)), tf.ones([2, 4]))


def test_without_16_bits_there_is_nothing_to_say():
    assert found(keras.Sequential([keras.Input((2,)), layers.Dense(1)]), tf.ones([4, 2])) is None


@pytest.mark.parametrize(
    "function, shapes, flops",
    [
        (tf.matmul, [(2, 3, 5), (2, 5, 7)], 2 * 2 * 3 * 5 * 7),
        (lambda a, b: tf.matmul(a, b, transpose_a=True), [(2, 5, 3), (2, 5, 7)], 2 * 2 * 3 * 5 * 7),
        (lambda a, b: tf.einsum("btnh,bsnh->bnts", a, b), [(2, 3, 4, 5), (2, 7, 4, 5)], 2 * 2 * 4 * 3 * 7 * 5),
        (lambda a, b: tf.einsum("...x,xy->...y", a, b), [(8, 12, 5), (5, 3)], 2 * 8 * 12 * 5 * 3),
        (lambda a, b: tf.einsum("...ij,...jk->...ik", a, b), [(8, 1, 2, 5), (7, 5, 3)], 2 * 8 * 7 * 2 * 5 * 3),
    ],
)
def test_flops_of_a_product(function, shapes, flops):
    given = [tf.constant(np.ones(shape, "float32")) for shape in shapes]
    graph = tf.function(function).get_concrete_function(*given).graph
    assert sum(flops_by_place(graph).values()) == flops
