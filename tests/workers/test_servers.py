"""Scripts of notebooks 12 and 01 in cases that these do not cover: no answer, a lost server, and Keras' `fit`."""

import socket
from pathlib import Path

import pytest
from launching import ON_CPUS
from leftovers import eventually
from scripts import data_service, on_servers

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import tf

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"
five_processes = pytest.mark.more("five processes each: notebook 12 trains with servers, and loses a worker")
FIT = f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
import on_servers
from on_servers import keras, tf

class Fits(tf.distribute.coordinator.ClusterCoordinator):
    def __init__(self, strategy):
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        try:
            model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=4, verbose=0)
        except Exception:
            raise ValueError("fit raises")

tf.distribute.coordinator.ClusterCoordinator = Fits
sys.argv = ["on_servers.py"]
on_servers.main()
"""


def started(script_or_code):
    return bt.run_workers(script_or_code, 5, env=ON_CPUS, grace_period=60, timeout=400)


@five_processes
def test_a_lost_server_is_an_error_in_the_chief_and_nothing_is_left(watch):
    job = started(SCRIPTS / "on_servers.py")
    eventually(lambda: '"loss"' in job.logs(0) or job.exit_code is not None, 200)
    job.kill(4)
    eventually(lambda: job.codes[0] is not None, 100)
    assert "UnavailableError" in job.logs(0)
    job.stop()
    assert job.failed == 4
    watch.nothing_left(job.addresses)


@five_processes
def test_keras_fit_raises(watch):
    """Once it works, say so in notebook 12, which writes the step by hand."""
    job = started(FIT)
    eventually(lambda: job.codes[0] is not None, 200)
    job.stop()
    assert job.codes[0] == 1 and "ValueError: fit raises" in job.logs(0)
    watch.nothing_left(job.addresses)


@pytest.mark.parametrize(
    ("shape", "shards"), [((on_servers.USERS, 16), [2, 1]), ((2000, 1000), [1, 1]), ((2**20,), [1])]
)
def test_of_the_variables_only_the_table_is_split(shape, shards):
    assert on_servers.partitioner(shape=tf.TensorShape(shape), dtype=tf.float32) == shards


@pytest.mark.parametrize(
    ("script", "number", "said"),
    [
        (on_servers, 0, r"no answer within 0.5 s from worker 1 at {silent}, server 1 at {silent}: read its log"),
        (data_service, 1, r"no answer within 0.5 s from process 0 at {silent}: read its log, and start it again"),
    ],
    ids=["servers", "service"],
)
def test_who_does_not_answer_is_named_and_the_process_ends(monkeypatch, script, number, said):
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # reserves a port without listening
        here, silent = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listening, bound))
        addresses = [silent, here, silent, here, silent]
        monkeypatch.setattr(script, "WAIT_SECONDS", 0.5)
        monkeypatch.setattr("sys.argv", ["", ",".join(addresses), str(number)])
        monkeypatch.setenv("GRPC_FAIL_FAST", "as it was")
        with pytest.raises(SystemExit, match=said.format(silent=silent)):
            script.main()
