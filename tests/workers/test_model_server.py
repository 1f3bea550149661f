"""The model server beside notebook 14: its answers, its refusals, a broken version, and what a kill leaves behind.

What the models behind it load, take and answer is in unit/test_served_models.py.
"""

import http.client
import json
import os
import re
import signal
import time
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from publishing import publish

import bigtrain_nb as bt

pytest.importorskip("tensorflow_serving")
from scripts.model_client import GrpcClient, Refused, RestClient, load  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "notebooks" / "scripts" / "model_server.py"
ROWS = np.arange(8, dtype="float32").reshape(2, 4)
LARGEST = 100_000


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def served(tmp_path, watch):
    """Return the job of a server with one model under two names, its ports, and the folder of the first."""
    for name in ("by-itself", "together"):
        publish(tmp_path / "models" / name, 1, lambda x: 2 * x)
    (tmp_path / "models" / "README").write_text("not a model")
    arguments = [tmp_path / "models", "--batching", "together", "--largest-body", LARGEST]
    job = bt.run_workers(SCRIPT, 1, arguments=arguments, timeout=200)
    until(lambda: '{"rest"' in job.logs(0) or job.exit_code is not None)
    (line,) = [line for line in job.logs(0).splitlines() if line.startswith('{"rest"')]
    yield job, json.loads(line), tmp_path / "models" / "by-itself"
    job.stop()


def ask(port, method, path, body=None):
    """Return status, headers and text of an answer by REST, as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, f"/v1/models/{path}", body)
    response = connection.getresponse()
    return response.status, response.headers, response.read().decode()


def test_it_answers_refuses_takes_a_new_version_and_is_missed_at_once(served, watch):
    job, port, folder = served
    clients = [RestClient(port["rest"], name) for name in ("by-itself", "together")]
    clients += [GrpcClient(port["grpc"], name, input="x") for name in ("by-itself", "together")]
    for client in clients:
        np.testing.assert_allclose(client.predict(ROWS), 2 * ROWS)

    rest, _, by_grpc, _ = clients
    for name, rows, said in [
        ("by-itself", [[1, 2]], "400: .*must have shape"),
        ("together", [["a"] * 4], "400: .*float32"),
        ("nobody", ROWS, "404: .*nobody"),
        ("by-itself/versions/7", ROWS, "404: .*7"),
    ]:
        with pytest.raises(Refused, match=said):
            RestClient(port["rest"], name).predict(rows)
    with pytest.raises(grpc.RpcError) as refused:
        by_grpc.predict(ROWS[:, :2])
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    (folder / "2").mkdir()  # not a SavedModel
    until(lambda: "cannot be loaded" in job.logs(0))
    np.testing.assert_allclose(rest.predict(ROWS), 2 * ROWS)
    publish(folder, 3, lambda x: 5 * x)
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


def test_it_does_nothing_that_was_not_asked_and_listens_on_this_machine_only(served):
    job, port, _ = served
    good = '{"instances": [[1, 2, 3, 4]]'
    predict = "by-itself:predict"
    status, headers, text = ask(port["rest"], "POST", predict, good + ', "signature_name": "serving_default"}')
    assert (status, headers["Model-Version"], json.loads(text)) == (200, "1", {"predictions": [[2, 4, 6, 8]]})
    for method, path, body, refused, said in [
        ("POST", predict, "{", 400, "the body must be JSON"),
        ("POST", predict, "[" * 90_000, 400, "the body must be JSON"),
        ("POST", predict, '{"rows": []}', 400, "must be like"),
        ("POST", predict, good + ', "typo": 1}', 400, "must be like"),
        ("POST", predict, good + ', "signature_name": "typo"}', 400, "serving_default, not 'typo'"),
        ("POST", predict, '{"instances": [[1, 2, 3, null]]}', 400, "input x takes float32 .* not None"),
        ("POST", predict, "[" + "1" * LARGEST + "]", 413, f"allows {LARGEST} bytes"),
        ("POST", predict, iter([b"[" * 1000] * 101), 413, f"allows {LARGEST} bytes"),
        ("POST", predict, b"[" * 64 * 2**20, 413, f"allows {LARGEST} bytes"),
        ("POST", "by-itself", good + "}", 405, "Not Allowed"),
        ("GET", "by-itself/versions/7", None, 404, "has version 1, not 7"),
        ("GET", "README", None, 404, "no model 'README'"),
    ]:
        status, _, text = ask(port["rest"], method, path, body)
        assert status == refused
        assert re.search(said, json.loads(text)["error"])
    with pytest.raises(grpc.RpcError) as refused:
        GrpcClient(port["grpc"], "by-itself", input="x").predict(np.zeros([LARGEST // 16, 4], "float32"))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    np.testing.assert_allclose(RestClient(port["rest"], "together").predict(ROWS), 2 * ROWS)

    listening = [end.laddr for end in psutil.Process(job.pids[0]).net_connections() if end.status == "LISTEN"]
    assert {address.port for address in listening} == {*port.values()}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_load_of_which_a_request_fails_has_no_latencies():
    class Overloaded:
        def __init__(self):
            self.asked = 0

        def predict(self, rows):
            self.asked += 1
            if self.asked == 5:
                raise OSError("timed out")

    assert len(load(Overloaded, [0], rate=1000, requests=3, clients=1)) == 3
    with pytest.raises(OSError, match="timed out"):
        load(Overloaded, [0], rate=1000, requests=10, clients=1)
