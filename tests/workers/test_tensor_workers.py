"""Two worker processes train a model that is cut over them as one process trains the whole one."""

import json

import numpy as np
import pytest
import tensor_worker

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

SECONDS = 240
pytestmark = pytest.mark.slow


def test_two_workers_with_a_half_each_are_one(tmp_path):
    on_cpus = {"CUDA_VISIBLE_DEVICES": "-1"}
    job = bt.run_workers(tensor_worker.__file__, 2, arguments=[tmp_path], env=on_cpus, timeout=SECONDS)
    try:
        codes = job.wait(show=False)
    finally:
        job.stop()
    assert codes == [0, 0], "\n".join(job.logs(index)[-3000:] for index in range(2))

    with tf.device("CPU:0"):
        model = tensor_worker.new_model(tf.distribute.get_strategy(), 1)
        expected = tensor_worker.train(model)
        for worker in range(2):
            found = json.loads((tmp_path / f"{worker}.json").read_text(encoding="utf-8"))
            for name, values in expected["history"].items():
                assert found["history"][name] == pytest.approx(values, rel=1e-5)
            np.testing.assert_allclose(found["predictions"], expected["predictions"], atol=1e-5)

            loaded = keras.models.load_model(tmp_path / f"{worker}.keras")
            for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)

            # Two forward and two backward in each block
            assert found["reductions"]["2"] - found["reductions"]["1"] == 4
