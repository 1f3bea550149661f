"""bt.strategy(): the right choice for one device, several devices and workers, with clear errors."""

import json
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import pytest
from launching import ON_CPUS, run

import bigtrain_nb as bt
from bigtrain_nb.launch import rendezvous
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.same_run import describe_run
from bigtrain_nb.launch.supervisor import free_ports

in_processes = pytest.mark.more("processes that load TensorFlow for one sentence, or for what test_two_workers.py does")

TRAIN = """
import numpy as np
import bigtrain_nb as bt
from bigtrain_nb import tf

strategy = bt.strategy()
assert bt.strategy() is strategy

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
    """Return a function: the error that `bt.strategy` raises before TensorFlow starts, without any output."""

    def error(timeout, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            bt.strategy(timeout)
        assert capsys.readouterr().out == ""
        return f"{caught.typename}: {caught.value}"

    return error


def one_of_two(peer, index=0, port=None):
    """Return the environment of one of two workers; the other has the address ``peer``."""
    mine = f"127.0.0.1:{port or free_ports(1)[0]}"
    addresses = [mine, peer] if index == 0 else [peer, mine]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def test_one_device_needs_none_and_a_slurm_job_whose_script_forgot_srun_is_warned(monkeypatch, capsys):
    monkeypatch.setattr(bt.tf.config, "get_visible_devices", lambda kind: [])
    assert bt.strategy().num_replicas_in_sync == 1
    alone = "No strategy is needed: one CPU, and no variables of several workers\n"
    assert capsys.readouterr().out == alone
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    bt.strategy()
    said = capsys.readouterr().out
    assert said.startswith("Warning: this process trains alone. This SLURM job has 4 tasks, but srun did")
    assert said.endswith(alone)


@in_processes
def test_workers_come_together_at_different_times_and_the_chief_goes_last():
    code = """
    import socket
    print(sum_of_all(index + 1), strategy.num_replicas_in_sync)
    if index == 1:
        time.sleep(2)
        host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].split(":")
        socket.create_connection((host, int(port))).close()
    """
    job = run("time.sleep(index)\n" + TRAIN + dedent(code), 3, env=ON_CPUS)
    assert job.codes == [0, 0, 0]
    for index in range(3):
        first, second = job.logs(index).splitlines()
        role = f"worker {index} of 3" + (", the chief" if index == 0 else "")
        assert first == f"MultiWorkerMirroredStrategy: {role}, with 0 GPUs, summing by RING, because of TF_CONFIG"
        assert second == "18.0 3"


def test_a_chief_that_does_not_answer_is_named(refused):
    peer = f"127.0.0.1:{free_ports(1)[0]}"
    error = refused(0.3, **one_of_two(peer, 1))
    assert error.startswith(f"RuntimeError: the chief, {peer}, did not answer within 0.3 s ("), error


def test_other_arguments_are_refused(refused, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--rate", "0.1"])
    first, second = free_ports(2)
    worker = cluster_spec(one_of_two(f"127.0.0.1:{first}", 1, second))
    runs = describe_run() | {"argument --rate": "0.2", "the number of GPUs": 0}
    with ThreadPoolExecutor() as pool:
        other = pool.submit(rendezvous.report, worker, runs, rendezvous.Deadline(60))
        error = refused(60, **one_of_two(f"127.0.0.1:{second}", 0, first))
    assert error == f"RuntimeError: {other.exception()}"
    assert error.endswith(f"differ: worker 1 (127.0.0.1:{second}): argument --rate is '0.2', the chief's is '0.1'")


@in_processes
def test_it_must_come_first():
    code = "from bigtrain_nb import tf\ntf.constant(1) + 1\nimport bigtrain_nb as bt\nbt.strategy(timeout=200)"
    job = run(code, env=ON_CPUS, grace_period=60)
    assert "must be configured at program startup" in job.logs(job.failed)
