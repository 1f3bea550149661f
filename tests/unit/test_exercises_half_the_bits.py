"""Exercises of notebook 04: Keras agrees with the solutions."""

import math

import numpy as np
import pytest
from workbook.exercises import half_the_bits

from bigtrain_nb.common.quiet import keras, tf


@pytest.mark.parametrize("gradient", [1e-6, 0.02, 1.0, 300.0, 40_000.0])
def test_the_largest_scale_just_fits_into_float16(gradient):
    scale = half_the_bits.largest_scale(gradient)
    assert np.isfinite(np.float16(scale * gradient))
    with np.errstate(over="ignore"):
        assert 2 * scale * gradient > 65504 and np.isinf(np.float16(2.01 * scale * gradient))


def test_updates_follow_keras():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 1024.0, dynamic_growth_steps=3)
    weight, ours, state = keras.Variable(0.0), 0.0, (1024.0, 0)
    for scaled in [5.0, 6.0, math.inf, 1.0, 2.0, 3.0, math.nan, 4.0]:
        optimizer.apply([tf.constant(scaled)], [weight])
        gradients, *state = half_the_bits.update([scaled], *state, 3)
        ours -= gradients[0] if gradients else 0.0
        assert state == [float(optimizer.dynamic_scale), int(optimizer.step_counter)]
        assert float(weight) == pytest.approx(ours)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_tensors_have_the_dtypes_that_the_solution_says(policy):
    layer = keras.layers.Dense(2, dtype=policy)
    optimizer = keras.optimizers.AdamW()
    with tf.GradientTape() as tape:
        activation = layer(tf.ones([3, 4]))
        loss = keras.losses.MeanSquaredError()(tf.zeros([3, 2]), activation)
    (gradient, _) = tape.gradient(loss, layer.trainable_variables)
    optimizer.build(layer.trainable_variables)
    tensors = {"weight": layer.kernel, "activation": activation, "loss": loss}
    tensors |= {"gradient of a weight": gradient, "optimizer state": optimizer.variables[-1]}
    for name, tensor in tensors.items():
        assert keras.backend.standardize_dtype(tensor.dtype) == half_the_bits.dtype_of(policy, name), name
