"""The model server beside notebook 11: its answers, its refusals, a broken version, and what a kill leaves behind."""

import json
import os
import signal
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from scripts.model_client import GrpcClient, Refused, RestClient

import bigtrain_nb as bt
from bigtrain_nb import tf

SCRIPT = Path(__file__).parents[2] / "notebooks" / "scripts" / "model_server.py"
ROWS = np.arange(8, dtype="float32").reshape(2, 4)


def publish(folder, number, factor):
    """Put a version into a model's folder that multiplies by a factor."""

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def times(x):
        return {"y": factor * x}

    module = tf.Module()
    arriving = folder.parent.parent / f"arriving-{number}"
    tf.saved_model.save(module, os.fspath(arriving), signatures={"serving_default": times})
    folder.mkdir(parents=True, exist_ok=True)
    arriving.rename(folder / str(number))


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def served(tmp_path, watch):
    """Return the job of a server with one model under two names, its ports, and the folder of the first."""
    for name in ("apart", "together"):
        publish(tmp_path / "models" / name, 1, 2.0)
    job = bt.run_workers(SCRIPT, 1, arguments=[tmp_path / "models", "--batching", "together"], timeout=200)
    until(lambda: '{"rest"' in job.logs(0) or job.exit_code is not None)
    (line,) = [line for line in job.logs(0).splitlines() if line.startswith('{"rest"')]
    yield job, json.loads(line), tmp_path / "models" / "apart"
    job.stop()


def test_it_answers_refuses_takes_a_new_version_and_is_missed_at_once(served, watch):
    job, port, folder = served
    clients = [RestClient(port["rest"], name) for name in ("apart", "together")]
    clients += [GrpcClient(port["grpc"], name, input="x") for name in ("apart", "together")]
    for client in clients:
        np.testing.assert_allclose(client.predict(ROWS), 2 * ROWS)

    rest, _, by_grpc, _ = clients
    for name, rows, said in [
        ("apart", [[1, 2]], "400: .*must have shape"),
        ("together", [["a"] * 4], "400: .*float32"),
        ("nobody", ROWS, "404: .*nobody"),
        ("apart/versions/7", ROWS, "404: .*7"),
    ]:
        with pytest.raises(Refused, match=said):
            RestClient(port["rest"], name).predict(rows)
    with pytest.raises(Refused, match="400: the body must be JSON"):
        rest._ask("POST", f"{rest.path}:predict", "{")
    with pytest.raises(grpc.RpcError) as refused:
        by_grpc.predict(ROWS[:, :2])
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    (folder / "2").mkdir()  # not a SavedModel
    until(lambda: "cannot be loaded" in job.logs(0))
    np.testing.assert_allclose(rest.predict(ROWS), 2 * ROWS)
    publish(folder, 3, 5.0)
    until(lambda: rest.version() == 3)
    np.testing.assert_allclose(rest.predict(ROWS), 5 * ROWS)
    np.testing.assert_allclose(by_grpc.predict(ROWS), 5 * ROWS)
    assert by_grpc.answered_by == 3

    os.kill(job.pids[0], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(OSError):
        rest.predict(ROWS)
    with pytest.raises(grpc.RpcError):
        by_grpc.predict(ROWS)
    assert time.monotonic() - began < 30
    assert job.wait(show=False) == [-signal.SIGKILL]
    until(lambda: not watch.processes())
