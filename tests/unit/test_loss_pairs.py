"""The targets and outputs of each loss of `compile`: Keras' own pairing, for any tensors."""

import pytest

from bigtrain_nb.advanced.shared.loss_pairs import loss_pairs
from bigtrain_nb.common.quiet import keras, tf


def model_of(outputs):
    inputs = keras.Input((2,))
    made = [keras.layers.Dense(1, name=name)(inputs) for name in ("one", "two")]
    return keras.Model(inputs, {"none": made[0], "list": made, "dict": {"one": made[0], "two": made[1]}}[outputs])


ONE, TWO = tf.zeros([3, 1]), tf.ones([3, 1])


@pytest.mark.parametrize(
    ("outputs", "losses", "y", "weights", "expected"),
    [
        ("none", "mse", ONE, None, [("mean_squared_error", ONE, None)]),
        ("none", ["mse"], [ONE], TWO, [("mean_squared_error", ONE, TWO)]),
        ("list", "mse", [ONE, TWO], None, [("mean_squared_error", ONE, None), ("mean_squared_error", TWO, None)]),
        (
            "list",
            {"two": "mae", "one": "mse"},
            (TWO, ONE),
            None,
            [("mean_squared_error", TWO), ("mean_absolute_error", ONE)],
        ),
        ("list", "mse", {"two": TWO, "one": ONE}, None, [("mean_squared_error", ONE), ("mean_squared_error", TWO)]),
        (
            "dict",
            {"two": "mae"},
            {"one": ONE, "two": TWO},
            {"one": ONE, "two": TWO},
            [("mean_absolute_error", TWO, TWO)],
        ),
        ("list", [None, "mae"], [ONE, TWO], None, [("mean_absolute_error", TWO, None)]),
    ],
)
def test_each_loss_gets_what_keras_gives_it(outputs, losses, y, weights, expected):
    model = model_of(outputs)
    given = model(tf.ones([3, 2]))
    found = loss_pairs(model, losses, y, given, weights)
    for (loss, target, output, weight), (name, *tensors) in zip(found, expected, strict=True):
        assert loss.__name__ == name and target is tensors[0] and weight is (tensors[1] if tensors[1:] else None)
        assert any(output is one for one in keras.tree.flatten(given))
    model.compile("sgd", losses)
    model.compute_loss(None, y, given, weights)
    assert len(found) == len(model._compile_loss._flat_losses)


def test_what_does_not_belong_together_is_refused_as_in_fit():
    with pytest.raises(ValueError, match="Expected keys"):
        loss_pairs(model_of("none"), {"typo": "mse"}, ONE, ONE)
    with pytest.raises(KeyError, match="typo"):
        loss_pairs(model_of("dict"), {"typo": "mse"}, {"one": ONE, "two": TWO}, {"one": ONE, "two": TWO})
