"""One all-reduce for each step, and a step that no replica takes if one of them has met an inf."""

import numpy as np
import pytest
from equal_models import batches, examples, net, on, precision, replicas_agree, trained

from bigtrain_nb.common.quiet import keras, tf

STEPS, BATCH = 7, 12
POISONED = {1: 0, 3: 5, 5: 11}  # step: which of its examples holds an inf, so every replica and slice is hit once


@pytest.mark.parametrize("micro_batches", [1, 3, 40])
def test_gradients_are_reduced_once_in_a_step(micro_batches, monkeypatch):
    reduced = []
    batch_reduce = tf.distribute.CrossDeviceOps.batch_reduce
    monkeypatch.setattr(
        tf.distribute.CrossDeviceOps,
        "batch_reduce",
        lambda *args, **options: reduced.append(len(args[2])) or batch_reduce(*args, **options),
    )
    model = trained(lambda: net(micro_batches=micro_batches), batches([12], *examples(12)), keras.optimizers.SGD, 2)
    gradients, loss, weight = len(model.trainable_variables), 1, 1
    assert reduced == [gradients + loss + weight]


class Record(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.weights, self.scale, self.steps, self.agree = [], [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(np.concatenate([w.ravel() for w in self.model.get_weights()]))
        self.scale.append(self.model.loss_scale)
        self.steps.append(self.model.optimizer.iterations.numpy())
        self.agree.append(replicas_agree(self.model))


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_an_inf_anywhere_skips_the_step_everywhere(replicas, micro_batches):
    x, y = examples(STEPS * BATCH)
    for step, example in POISONED.items():
        x[step * BATCH + example, 0] = np.inf
    record = Record()
    with precision("mixed_float16"), on(replicas):
        model = net(micro_batches=micro_batches)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        assert model.loss_scale == 2**15
        model.fit(batches([BATCH] * STEPS, x, y), verbose=0, shuffle=False, callbacks=[record])
    skipped = [i in POISONED for i in range(STEPS)]
    assert record.scale == [2.0 ** (15 - n) for n in np.cumsum(skipped)]
    assert record.steps == [i + 1 - n for i, n in enumerate(np.cumsum(skipped))]
    assert all(record.agree)
    moved = [not np.array_equal(a, b) for a, b in zip(record.weights, record.weights[1:], strict=False)]
    assert moved == [not skip for skip in skipped[1:]]
    assert np.isfinite(record.weights[-1]).all()


def test_the_loss_scale_is_none_without_loss_scaling():
    model = net()
    assert model.loss_scale is None
    model.compile("sgd", "mse")
    assert model.loss_scale is None


def test_a_loss_scale_of_ones_own_choice_is_kept():
    with precision("mixed_float16"):
        model = net(micro_batches=2)
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 2.0**10, dynamic_growth_steps=3)
        model.compile(scaling, "mse")
    model.fit(batches([8] * 3, *examples(24)), verbose=0, shuffle=False)
    assert model.loss_scale == 2**11
