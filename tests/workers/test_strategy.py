"""bt.strategy(): the right choice for one device, several devices and workers, with clear errors."""

import json
import os
import re
import socket
import subprocess
import sys
from textwrap import dedent

import pytest
import slurm_train
from launching import ON_CPUS, run

import bigtrain_nb as bt
from bigtrain_nb.launch.supervisor import free_ports

in_processes = pytest.mark.more("processes that load TensorFlow for one sentence, or for what test_two_workers.py does")

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
    """Return a function: the error that `bt.strategy` raises before TensorFlow starts, without any output."""

    def error(timeout, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            bt.strategy(timeout=timeout)
        assert capsys.readouterr().out == ""
        return f"{caught.typename}: {caught.value}"

    return error


def one_of_two(peer, index=0, port=None):
    """Return the environment of one of two workers; the other has the address ``peer``."""
    mine = f"127.0.0.1:{port or free_ports(1)[0]}"
    addresses = [mine, peer] if index == 0 else [peer, mine]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


@in_processes
def test_one_device_needs_none():
    code = "import bigtrain_nb as bt; print(bt.strategy().num_replicas_in_sync)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | ON_CPUS, capture_output=True, text=True)
    assert done.stdout == "No strategy is needed: one CPU, and no variables of several workers\n1\n", done


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


def test_who_does_not_come_or_answer_is_named(refused):
    peer = f"127.0.0.1:{free_ports(1)[0]}"
    error = refused(0.3, **one_of_two(peer))
    assert error.startswith(f"RuntimeError: worker 1 ({peer}) did not come within 0.3 s"), error
    error = refused(0.3, **one_of_two(peer, 1))
    assert error.startswith(f"RuntimeError: the chief, {peer}, did not answer within 0.3 s ("), error


def test_a_port_that_is_taken_is_named(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        error = refused(60, **one_of_two("127.0.0.1:1", port=port))
    assert error.startswith(f"RuntimeError: port {port} of this task (TF_CONFIG) cannot be used: "), error


@in_processes
def test_workers_with_other_arguments_are_refused_before_they_train(watch):
    code = """
    import bigtrain_nb as bt
    sys.argv += ["folder", "--rate", str(0.1 * (index + 1)), "--log-dir", f"logs/{index}"]
    bt.strategy(may_differ=["--log-dir"])
    print("training")
    """
    job = run(code, env=ON_CPUS, grace_period=60)
    sentence = r"worker 1 \(127.0.0.1:\d+\): argument --rate is '0.2', the chief's is '0.1'\n"
    assert job.codes == [1, 1]
    for index in range(2):
        assert re.search(rf"RuntimeError: the tasks' runs differ: {sentence}", job.logs(index) + "\n")
        assert "training" not in job.logs(index)
    watch.nothing_left()


@in_processes
def test_it_must_come_first():
    code = "from bigtrain_nb import tf\ntf.constant(1) + 1\nimport bigtrain_nb as bt\nbt.strategy(timeout=200)"
    job = run(code, env=ON_CPUS, grace_period=60)
    assert "must be configured at program startup" in job.logs(job.failed)


@in_processes
def test_the_workers_own_mistake_is_shown_not_its_peers_complaint(watch, capsys):
    code = """
    for number in range(10**9):
        sum_of_all(number)
        if number == 5 and index == 1: raise ValueError('the planted one')
    """
    job = run(TRAIN + dedent(code), env=ON_CPUS, show=True)
    shown = capsys.readouterr().out
    assert job.failed == 1 and job.codes[1] == 1 and job.codes[0] != 0
    errors = [line for line in shown.splitlines() if "Error: " in line]
    assert errors[0] == "worker 1 | ValueError: the planted one"
    assert shown.count("ValueError: the planted one") == 1
    watch.nothing_left()


@in_processes
def test_a_slurm_job_whose_script_forgot_srun_is_told_that_it_trains_alone():
    code = "import bigtrain_nb as bt; bt.strategy()"
    in_slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | ON_CPUS | in_slurm, capture_output=True, text=True
    )
    assert done.stdout.startswith("Warning: this process trains alone. This SLURM job has 4 tasks, but srun did"), done


@in_processes
def test_a_whole_training_by_what_slurm_tells(tmp_path, trained_here):
    workers = []
    try:
        for rank in range(2):
            told = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}
            told |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(rank)}
            command = [sys.executable, slurm_train.__file__, tmp_path]
            with open(tmp_path / f"{rank}.log", "w", encoding="utf-8") as log:
                workers.append(subprocess.Popen(command, env=os.environ | ON_CPUS | told, stdout=log, stderr=log))
        codes = [worker.wait(200) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    logs = [(tmp_path / f"{rank}.log").read_text(encoding="utf-8") for rank in range(2)]
    assert codes == [0, 0], "\n".join(logs)
    assert all("because of SLURM's variables\n" in log for log in logs)
    assert slurm_train.weights_in(tmp_path) == pytest.approx(trained_here, rel=1e-5, abs=1e-6)
