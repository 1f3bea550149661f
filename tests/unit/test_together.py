"""The table in bigtrain_nb/parallel: pairs of arguments of which neither has a test file that tries the other."""

import numpy as np
import pytest
from equal_models import batches, examples, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

X, Y = examples(32)
DATA = batches([8] * 4, X, Y)
SHORT = {"reduce_dtype": "bfloat16"}


def net(recompute=False, **options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, name="rows")(keras.layers.Dense(8, "tanh", name="columns")(inputs))
    block = keras.Model(inputs, hidden)
    x = bt.recompute(block)(inputs) if recompute else hidden
    return bt.Model(inputs, keras.layers.Dense(1)(x), **options)


def weights(**options):
    with on(2):
        model = net(**options)
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-4), "mse")
    model.fit(DATA, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.usefixtures("each_reduction")
def test_the_others_change_nothing():
    for one, other in zip(weights(shard_optimizer=True, recompute=True, **SHORT), weights(**SHORT), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
