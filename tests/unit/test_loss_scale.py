"""The history of the loss scale: all steps, with skipped ones marked, for any Keras model with loss scaling."""

import numpy as np
import pytest

from bigtrain_nb.advanced.watch.loss_scale import LossScaleHistory
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.model import Model

TOO_LARGE = 1e38  # its square is infinite in float32


def trained(inputs, kind=Model, accumulated=None, **settings):
    """Fit y = w x in steps of one example; return the callback's records."""
    history = LossScaleHistory()
    x = keras.Input((1,))
    model = kind(x, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(x))
    sgd = keras.optimizers.SGD(1e-3, gradient_accumulation_steps=accumulated)
    optimizer = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=1024.0)
    model.compile(optimizer, "mse", **settings)
    x = np.array(inputs, np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, 0 * x)).batch(1)
    model.fit(data, shuffle=False, verbose=0, callbacks=[history])
    return history


@pytest.mark.parametrize("kind", [Model, keras.Model])
def test_every_step_has_its_scale_and_skipped_ones_are_marked(kind):
    history = trained([1, TOO_LARGE, 1, 1, TOO_LARGE, TOO_LARGE], kind)
    assert history.scale == [1024, 512, 512, 512, 256, 128]
    assert history.skipped == [False, True, False, False, True, True]
    assert "training step\n3 of 6 skipped" in history.figure().axes[0].get_xlabel()


def test_steps_that_accumulate_are_not_skipped():
    history = trained([1, 1, TOO_LARGE, 1, 1], keras.Model, accumulated=4)
    assert history.skipped == [False, False, True, False, False]


def test_several_steps_in_one_execution_are_one_entry():
    history = trained([1, 1, 1, TOO_LARGE, TOO_LARGE, 1, TOO_LARGE], steps_per_execution=2)
    assert history.scale == [1024, 512, 256, 128]
    assert history.skipped == [False, True, True, True]
    assert "execution of 2 training steps" in history.figure().axes[0].get_xlabel()


def test_a_model_without_loss_scaling_is_refused():
    x = keras.Input((1,))
    model = keras.Model(x, keras.layers.Dense(1)(x), name="plain")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="plain has no loss scaling to watch.*mixed_float16.*LossScaleOptimizer"):
        model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0, callbacks=[LossScaleHistory()])
