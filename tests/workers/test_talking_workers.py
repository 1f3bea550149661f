"""Two worker processes that take steps apart, or send their gradients in 16 bits."""

import json

import numpy as np
import pytest
import talking_worker
from local_training import by_hand
from talking_worker import BATCH, EVERY, STEPS
from worker import net, weights

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

SECONDS = 240  # a net under workers that wait for each other
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two workers found."""
    folder = tmp_path_factory.mktemp("workers")
    on_cpus = {"CUDA_VISIBLE_DEVICES": "-1"}
    workers = bt.run_workers(talking_worker.__file__, 2, arguments=[folder], env=on_cpus, timeout=SECONDS)
    try:
        codes = workers.wait(show=False)
    finally:
        workers.stop()
    assert codes == [0, 0], "\n".join(workers.logs(index)[-3000:] for index in range(2))
    return [json.loads((folder / f"{index}.json").read_text(encoding="utf-8")) for index in range(2)]


def test_steps_apart_wait_for_nobody_and_equal_those_by_hand(found):
    first, second = [result["apart"] for result in found]
    assert first == second
    x, y = talking_worker.examples()
    half = BATCH // 2
    shares = []
    for start in (0, half):
        shares.append([(x[at : at + half], y[at : at + half]) for at in range(start, STEPS * BATCH, BATCH)])
    with tf.device("CPU:0"):
        here = tf.distribute.get_strategy()
        models = [net(here, "float32", talking_worker.sgd, keras.Model) for _ in range(2)]
        _, losses = by_hand(models, shares, EVERY, epochs=2)
    np.testing.assert_allclose(first["weights"], weights(models[0]), rtol=1e-4, atol=1e-6)
    assert first["loss"] == pytest.approx(losses, rel=1e-5)


def test_an_inf_on_one_worker_is_its_own_matter(found):
    first, second = [result["both"] for result in found]
    assert first["weights"] == second["weights"]
    assert np.isfinite(first["weights"]).all()
    assert first["scales"] == [2.0**15] * STEPS
    assert second["scales"] == [2.0**15] + [2.0**14] * (STEPS - 1)


def test_gradients_in_16_bits_lead_to_the_same_weights_within_their_rounding(found):
    first, second = [result["short"] for result in found]
    assert first == second
    assert 0 < np.abs(np.subtract(first["bfloat16"], first["float32"])).max() < 0.02
