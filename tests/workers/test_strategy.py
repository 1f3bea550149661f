"""bt.strategy(): right by itself on one device, on several and among workers, and clear about what is wrong."""

import json
import os
import socket
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest
import worker
from launching import run

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.supervisor import free_ports

SECONDS = 240  # a net: the machine may be busy
ON_CPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
pytestmark = pytest.mark.slow

TRAIN = """
import numpy as np
import bigtrain_nb as bt
from bigtrain_nb import tf

strategy = bt.strategy()

def sum_over_workers(x):
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(x))

@tf.function
def step(x):
    total = tf.zeros([])
    for _ in tf.range(3):  # AutoGraph reads the source of this cell
        total += strategy.run(sum_over_workers, args=(x,))
    return total

def sum_of_all(value):
    return float(step(tf.constant(float(value))))
"""


@pytest.fixture
def refused(monkeypatch, capsys):
    """Return a function that returns the error that `bt.strategy` raises before TensorFlow starts, without a word."""

    def error(timeout, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            bt.strategy(timeout=timeout)
        assert capsys.readouterr().out == ""
        return f"{caught.typename}: {caught.value}"

    return error


def one_of_two(peer, index=0, port=None):
    """Return the environment of one of two workers, whose other one has the address ``peer``."""
    mine = f"127.0.0.1:{port or free_ports(1)[0]}"
    addresses = [mine, peer] if index == 0 else [peer, mine]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def test_one_device_needs_none():
    code = "import bigtrain_nb as bt; print(bt.strategy().num_replicas_in_sync)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | ON_CPUS, capture_output=True, text=True)
    assert done.stdout == "No strategy is needed: one CPU, and neither TF_CONFIG nor SLURM's tasks\n1\n", done


def test_devices_of_a_single_worker_are_mirrored():
    code = "import bigtrain_nb as bt; print(bt.strategy().num_replicas_in_sync)"
    job = run(code, workers=1, devices_per_worker=2, env=ON_CPUS)
    assert job.logs(0) == "MirroredStrategy over 2 parts of the CPU, because devices_per_worker=2\n2\n"


def test_workers_come_together_at_different_times_and_the_chief_goes_last():
    code = """
    import socket
    print(sum_of_all(index + 1), strategy.num_replicas_in_sync)
    if index == 1:
        time.sleep(4)
        host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].split(":")
        socket.create_connection((host, int(port))).close()
    """
    job = run("time.sleep(2 * index)\n" + TRAIN + dedent(code), 3, env=ON_CPUS)
    assert job.codes == [0, 0, 0]
    for index in range(3):
        first, second = job.logs(index).splitlines()
        role = f"worker {index} of 3" + (", the chief" if index == 0 else "")
        assert first == f"MultiWorkerMirroredStrategy: {role}, one CPU device each, because of TF_CONFIG"
        assert second == "18.0 3"


@pytest.mark.parametrize("peer", ["127.0.0.1:{port}", "no-such-host.invalid:2222"])
def test_who_does_not_come_or_answer_is_named(peer, refused):
    peer = peer.format(port=free_ports(1)[0])
    error = refused(1, **one_of_two(peer))
    assert error.startswith(f"RuntimeError: worker 1 ({peer}) did not come within 1 s"), error
    error = refused(1, **one_of_two(peer, 1))
    assert error.startswith(f"RuntimeError: the chief, {peer}, did not answer within 1 s ("), error


def test_a_port_that_is_taken_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        error = refused(60, **one_of_two("127.0.0.1:1", port=port))
    assert error.startswith(f"RuntimeError: port {port} of this worker (TF_CONFIG) cannot be used: "), error


def test_bad_settings_are_told_at_once(refused):
    assert refused(600, TF_CONFIG="{").startswith("ValueError: TF_CONFIG must be JSON like")
    error = refused(600, **one_of_two("127.0.0.1:1"), BIGTRAIN_DEVICES_PER_WORKER="64")
    assert error.startswith("ValueError: devices_per_worker=64: this worker has ")
    for timeout in (0, None, "long"):
        assert f"timeout={timeout!r} must be a positive, finite number of seconds" in refused(timeout)


def test_it_must_come_first():
    code = "from bigtrain_nb import tf\ntf.constant(1) + 1\nimport bigtrain_nb as bt\nbt.strategy(timeout=200)"
    job = run(code, env=ON_CPUS, patience=60)
    assert "RuntimeError: bt.strategy() must come before TensorFlow runs anything else" in job.logs(job.failed)


def test_three_workers_train_as_one_process(tmp_path):
    job = bt.run_workers(worker.__file__, 3, arguments=["train", tmp_path], env=ON_CPUS, timeout=SECONDS)
    with tf.device("CPU:0"):
        alone = worker.train(tf.distribute.get_strategy())
    assert job.wait(show=False) == [0, 0, 0], job.logs(job.failed or 0)[-3000:]
    results = [json.loads((tmp_path / f"{index}.json").read_text(encoding="utf-8")) for index in range(3)]
    for case, one in alone.items():
        near = {"rtol": 1e-5, "atol": 1e-6} if case.startswith("float32") else {"rtol": 5e-3, "atol": 2e-3}
        for result in results:
            np.testing.assert_allclose(result[case]["weights"], one["weights"], **near)
            np.testing.assert_allclose(result[case]["predictions"], one["predictions"], **near)
            assert result[case]["history"] == pytest.approx(one["history"], rel=near["rtol"])
            assert result[case]["evaluation"] == pytest.approx(one["evaluation"], rel=near["rtol"])
        assert results[0][case]["weights"] == results[1][case]["weights"] == results[2][case]["weights"]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_workers_own_mistake_is_shown_not_its_peers_complaint(rank, watch, capsys):
    code = f"""
    for number in range(10**9):
        sum_of_all(number)
        if number == 5 and index == {rank}: raise ValueError('the planted one')
    """
    job = run(TRAIN + dedent(code), env=ON_CPUS, show=True)
    shown = capsys.readouterr().out
    assert job.failed == rank and job.codes[rank] == 1 and job.codes[1 - rank] != 0
    errors = [line for line in shown.splitlines() if "Error: " in line]
    assert errors[0] == f"worker {rank} | ValueError: the planted one"
    assert shown.count("ValueError: the planted one") == 1
    watch.nothing_left()


@pytest.mark.parametrize("rank", [0, 1])
def test_kill_9_in_the_middle_of_training_and_a_restart(rank, watch, capsys):
    code = f"""
    first = os.environ["BIGTRAIN_RESTART"] == "0"
    for number in range(6):
        if first and index == {rank} and number == 3: os.kill(os.getpid(), signal.SIGKILL)
        print(number, sum_of_all(number))
    """
    job = run(TRAIN + dedent(code), env=ON_CPUS, restarts=1, show=True)
    assert job.codes == [0, 0] and job.restarted == 1
    assert f"worker {rank} failed: killed by SIGKILL" in capsys.readouterr().out
    for index in range(2):
        assert job.logs(index).splitlines()[-6:] == [f"{number} {6.0 * number}" for number in range(6)]
    watch.nothing_left()
