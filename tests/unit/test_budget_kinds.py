"""Steps of models that are not a plain stack: several outputs, shapes that only the run knows, no gradients."""

from functools import partial

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.plans import plan_step

layers = keras.layers
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TARGETS = 8 * 8 + 8 * 4  # int64 classes and float32 numbers of 8 examples


def two_outputs(loss, as_dict=False):
    inputs = keras.Input((4,))
    outputs = {"z": layers.Dense(3, name="z")(inputs), "a": layers.Dense(1, name="a")(inputs)}
    model = keras.Model(inputs, outputs if as_dict else [outputs["z"], outputs["a"]])
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("loss", [{"z": CLASSES, "a": "mse"}, {"a": "mse", "z": CLASSES}])
def test_losses_by_name_go_to_the_outputs_of_that_name(loss, as_dict):
    assert plan_step(two_outputs(loss, as_dict), 8).memory["input"] == 2 * (8 * 4 * 4 + TARGETS)


def test_losses_by_place():
    assert plan_step(two_outputs([CLASSES, "mse"]), 8).memory["input"] == 2 * (8 * 4 * 4 + TARGETS)


def test_an_output_without_a_loss_does_not_train():
    both, one = (plan_step(two_outputs(loss), 8) for loss in ({"z": CLASSES, "a": "mse"}, {"z": CLASSES}))
    assert one.flops["z"] == both.flops["z"] and "a" in both.flops.parts and "a" not in one.flops.parts


def test_more_losses_than_outputs_are_refused():
    with pytest.raises(ValueError, match="loss: expected one, or one for each of the 2 outputs, not 3"):
        plan_step(two_outputs(None), 8, loss=["mse", "mse", "mse"])


def test_a_loss_that_depends_on_no_weight_is_refused():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    with pytest.raises(ValueError, match="the loss depends on no weight"):
        plan_step(model, 8, loss=lambda y, made: tf.reduce_sum(y))


class Chosen(keras.layers.Layer):
    """Rows of which only the run knows how many there are."""

    def call(self, x):
        return tf.boolean_mask(x, x[:, 0] > 0)


def test_what_only_the_run_knows_counts_nothing():
    inputs = keras.Input((4,))
    found = layers.Dense(3, name="known")(inputs)
    rows = layers.Dense(5, name="unknown")(Chosen()(inputs))
    model = keras.Model(inputs, [found, rows])
    y = [tf.zeros([8]), tf.zeros([8])]
    plan = plan_step(model, (tf.zeros([8, 4]), y), loss=[CLASSES, lambda y, made: tf.reduce_sum(made)])
    assert plan.flops["known"] >= 2 * 8 * 4 * 3 and plan.peak > 0


@pytest.mark.parametrize(("name", "policy"), [("T4", "mixed_float16"), ("TPU v5e", "mixed_bfloat16")])
def test_models_with_float32_logits_are_planned_on_any_accelerator(name, policy):
    assert plan_step(partial(bt.gpt, length=8, width=8, layers=1), 8, on=name, policy=policy).seconds > 0


def test_accelerators_without_bfloat16_say_so():
    with pytest.raises(ValueError, match="T4 has no bfloat16"):
        plan_step(bt.gpt, 8, on="T4", policy="mixed_bfloat16")
