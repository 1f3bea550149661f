"""The two small models: shapes, learning in 16 bits, causality."""

import numpy as np
import pytest
from equal_models import precision

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.small_models import conv_net, gpt


def small(kind, **settings):
    if kind == "conv_net":
        return conv_net(**{"classes": 4, "image_size": 16, "width": 8, "blocks": 2, **settings})
    return gpt(**{"vocabulary": 16, "length": 12, "width": 16, "layers": 1, "heads": 2, **settings})


def examples(kind, count=48):
    """Return learnable inputs and targets: brightness, or the token before last."""
    random = np.random.default_rng(0)
    if kind == "conv_net":
        classes = random.integers(0, 4, count)
        noise = random.normal(0, 0.1, (count, 16, 16, 3))
        return (noise + classes[:, None, None, None] / 2 - 0.75).astype("float32"), classes
    tokens = np.cumsum(np.ones((count, 13), int), 1) + random.integers(0, 16, (count, 1))
    return (tokens[:, :-1] % 16).astype("int32"), tokens[:, 1:] % 16


def losses(model, kind, epochs=6, **settings):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, **settings)
    data = tf.data.Dataset.from_tensor_slices(examples(kind)).batch(16)
    return model.fit(data, epochs=epochs, shuffle=False, verbose=0).history["loss"]


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(1)


def test_the_default_models_have_the_shapes_and_sizes_they_promise():
    net, language = conv_net(), gpt()
    assert (net.input_shape, net.output_shape) == ((None, 64, 64, 3), (None, 8))
    assert (language.input_shape, language.output_shape) == ((None, 128), (None, 128, 256))
    assert (net.input.dtype, language.input.dtype) == ("float32", "int32")
    assert f"{net.count_params():,} weights" in conv_net.__doc__
    assert f"{language.count_params():,} weights" in gpt.__doc__


@pytest.mark.parametrize(("kind", "policy"), [("conv_net", "mixed_float16"), ("gpt", "mixed_bfloat16")])
def test_they_learn_in_16_bits_in_micro_batches(kind, policy):
    with precision(policy):
        model = small(kind, micro_batches=3)
    assert model.micro_batches == 3 and model.output.dtype == "float32"
    assert all(weight.dtype == "float32" for weight in model.trainable_weights)
    got = losses(model, kind)
    assert got[-1] < 0.8 * got[0]


def test_a_place_sees_no_later_token_and_every_earlier_one():
    model = small("gpt", layers=2)
    tokens, _ = examples("gpt", 1)
    changed = tokens.copy()
    changed[0, 5] = (changed[0, 5] + 1) % 16
    differs = np.abs(np.subtract(model(tokens), model(changed)))[0].max(axis=-1) > 1e-7
    assert list(differs) == [False] * 5 + [True] * 7
