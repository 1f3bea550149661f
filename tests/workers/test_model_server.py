"""Notebook 14's model server as a process: its answers, its refusals, and leftovers of a kill.

unit/test_served_models.py tests which requests the model behind it accepts.
"""

import json
import os
import signal
import time
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from leftovers import eventually

import bigtrain_nb as bt
from bigtrain_nb import tf

predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
from tensorflow_serving.apis import prediction_service_pb2_grpc  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "notebooks" / "scripts" / "model_server.py"
ROWS = np.arange(8, dtype="float32").reshape(2, 4)


@pytest.fixture
def served(tmp_path, watch):
    """A job that serves the model "doubles", and its port."""
    folder = tmp_path / "models" / "doubles" / "1"
    signature = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    tf.saved_model.save(tf.Module(), os.fspath(folder), signatures={"serving_default": signature})
    job = bt.run_workers(SCRIPT, 1, arguments=[folder], timeout=200)
    eventually(lambda: '{"port"' in job.logs(0) or job.exit_code is not None)
    (line,) = [line for line in job.logs(0).splitlines() if line.startswith('{"port"')]
    yield job, json.loads(line)["port"]
    job.stop()


def ask(port, rows, model="doubles"):
    request = predict_pb2.PredictRequest(model_spec={"name": model})
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(rows))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return tf.make_ndarray(stub.Predict(request, timeout=30).outputs["y"])


def test_it_answers_refuses_and_is_missed_at_once(served, watch):
    job, port = served
    np.testing.assert_array_equal(ask(port, ROWS), 2 * ROWS)
    for rows, model, code in [
        (ROWS[:, :2], "doubles", grpc.StatusCode.INVALID_ARGUMENT),
        (ROWS, "nobody", grpc.StatusCode.NOT_FOUND),
        (np.zeros([300_000, 4], "float32"), "doubles", grpc.StatusCode.RESOURCE_EXHAUSTED),  # above gRPC's 4 MiB
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            ask(port, rows, model)
        assert refused.value.code() == code
    np.testing.assert_array_equal(ask(port, ROWS), 2 * ROWS)

    listening = [end.laddr for end in psutil.Process(job.pids[0]).net_connections() if end.status == "LISTEN"]
    assert {address.port for address in listening} == {port}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}

    os.kill(job.pids[0], signal.SIGKILL)
    assert job.wait(show=False) == [-signal.SIGKILL]
    began = time.monotonic()
    with pytest.raises(grpc.RpcError):
        ask(port, ROWS)
    assert time.monotonic() - began < 30
    eventually(lambda: not watch.processes())
