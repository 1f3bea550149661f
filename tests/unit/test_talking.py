"""Less communication between replicas: gradients reduced in 16 bits."""

from functools import partial

import numpy as np
import pytest
from equal_models import batches, distance, examples, replicas_agree, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

BATCH, STEPS = 8, 5
X, Y = examples(BATCH * STEPS)
DATA = batches([BATCH] * STEPS, X, Y)


def normalized_net(**options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="tanh")(inputs))
    return bt.Model(inputs, keras.layers.Dense(1)(x), **options)


def after_one_step(**options):
    build = partial(normalized_net, micro_batches=3, **options)
    return trained(build, DATA.take(1), partial(keras.optimizers.SGD, 1.0), 3)


@pytest.mark.usefixtures("each_reduction")
def test_only_gradients_are_rounded_to_16_bits_and_only_on_their_way(monkeypatch):
    """By a ring, because NCCL does not sum bfloat16."""
    asked = set()
    all_reduce = tf.distribute.ReplicaContext.all_reduce

    def note(self, operation, tensors, options=None):
        asked.update((tensor.dtype.name, options and options.implementation.name) for tensor in tensors)
        return all_reduce(self, operation, tensors, options)

    with monkeypatch.context() as patch:
        patch.setattr(tf.distribute.ReplicaContext, "all_reduce", note)
        sent = after_one_step(reduce_dtype="bfloat16")
    assert asked == {("bfloat16", "RING"), ("float32", None)}
    exact = after_one_step()
    start = normalized_net().get_weights()
    for variable, mine, other, before in zip(sent.weights, sent.get_weights(), exact.get_weights(), start, strict=True):
        largest = 2**-6 * np.abs(other - before).max() if variable.trainable else 0.0
        np.testing.assert_allclose(mine, other, rtol=0, atol=largest + 1e-7)
    assert distance(sent, exact) > 1e-5
    assert sent.history.history == exact.history.history
    assert replicas_agree(sent)
