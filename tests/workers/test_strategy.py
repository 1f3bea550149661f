"""bt.strategy(): right by itself on one device, on several and among workers, and clear about what is wrong."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import worker
from launching import run
from leftovers import eventually

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import tf

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


def alone(code, **environment):
    """Run code with TensorFlow in a process of its own; return what it printed."""
    command = [sys.executable, "-c", f"import bigtrain_nb as bt\n{code}"]
    variables = {**os.environ, **ON_CPUS, **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


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
    mine = f"127.0.0.1:{port or free_port()}"
    addresses = [mine, peer] if index == 0 else [peer, mine]
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(config)}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


KIND = "made = bt.strategy(); print(type(made).__name__, made.num_replicas_in_sync)"


def test_one_device_needs_none():
    assert alone(KIND).splitlines() == [
        "No strategy is needed: one CPU, and neither TF_CONFIG nor SLURM's tasks",
        "_DefaultDistributionStrategy 1",
    ]


def test_two_devices_are_mirrored():
    first, second = alone(KIND, BIGTRAIN_DEVICES_PER_WORKER="2").splitlines()
    assert first == "MirroredStrategy over 2 parts of the CPU, because devices_per_worker=2"
    assert second == "MirroredStrategy 2"


def test_devices_of_a_single_worker():
    job = run(f"import bigtrain_nb as bt\n{KIND}", workers=1, devices_per_worker=2, env=ON_CPUS)
    assert job.logs(0).endswith("MirroredStrategy 2\n")


def test_several_workers_with_several_parts_of_a_cpu_are_refused():
    job = run("import bigtrain_nb as bt\nbt.strategy()", devices_per_worker=2, env=ON_CPUS, patience=60)
    for index in range(2):
        assert "ValueError: devices_per_worker=2: this worker has 0 GPUs" in job.logs(index)


def test_code_in_workers_comes_together():
    job = run(TRAIN + "print(sum_of_all(index + 1), strategy.num_replicas_in_sync)", 3, env=ON_CPUS)
    for index in range(3):
        first, second = job.logs(index).splitlines()
        role = f"worker {index} of 3" + (", the chief" if index == 0 else "")
        assert first == f"MultiWorkerMirroredStrategy: {role}, one CPU device each, because of TF_CONFIG"
        assert second == "18.0 3"


@pytest.mark.parametrize("peer", ["127.0.0.1:{port}", "no-such-host.invalid:2222"])
def test_a_worker_that_does_not_come_is_named(peer, refused):
    peer = peer.format(port=free_port())
    error = refused(3, **one_of_two(peer))
    assert error.startswith(f"RuntimeError: worker 1 ({peer}) did not come within 3 s"), error


@pytest.mark.parametrize("peer", ["127.0.0.1:{port}", "no-such-host.invalid:2222", "192.0.2.1:2222"])
def test_a_chief_that_does_not_answer_is_named(peer, refused):
    peer = peer.format(port=free_port())
    error = refused(3, **one_of_two(peer, 1))
    assert error.startswith(f"RuntimeError: the chief, {peer}, did not answer within 3 s ("), error


def test_a_chief_that_says_nothing_is_not_waited_for(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = f"127.0.0.1:{server.getsockname()[1]}"
        error = refused(3, **one_of_two(peer, 1))
    assert error.startswith(f"RuntimeError: the chief, {peer}, did not answer within 3 s (timed out)"), error


def test_all_who_came_hear_who_is_missing():
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(4)]
    code = f"""
    config = {{"cluster": {{"worker": {addresses}}}, "task": {{"type": "worker", "index": 2 * index}}}}
    os.environ["TF_CONFIG"] = json.dumps(config)
    import bigtrain_nb as bt
    bt.strategy(timeout=20)
    """
    job = run(code, env=ON_CPUS, patience=60)
    said = f"RuntimeError: worker 1 ({addresses[1]}), worker 3 ({addresses[3]}) did not come within 20 s"
    assert job.codes == [1, 1] and all(said in job.logs(index) for index in range(2))


def test_workers_of_different_clusters_say_so():
    code = f"""
    config = json.loads(os.environ["TF_CONFIG"])
    if index == 1:
        config["cluster"]["worker"].append("127.0.0.1:{free_port()}")
    os.environ["TF_CONFIG"] = json.dumps(config)
    import bigtrain_nb as bt
    bt.strategy(timeout=60)
    """
    job = run(code, env=ON_CPUS, patience=60)
    assert job.codes[0] == 1 and "RuntimeError: worker 1 was told of another cluster than the chief" in job.logs(0)
    assert job.codes[1] == 1


def test_a_stranger_at_the_chiefs_port_does_no_harm():
    code = """
    import bigtrain_nb as bt
    if index == 1:
        import socket
        host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].split(":")
        for words in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", b"[]\\n", b'{"rank": 7, "cluster": ""}\\n', b"\\0" * 9000):
            while True:
                try:
                    socket.create_connection((host, int(port))).sendall(words)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.1)
    print(bt.strategy(timeout=100).num_replicas_in_sync)
    """
    job = run(code, env=ON_CPUS)
    assert job.codes == [0, 0] and all(job.logs(index).endswith("\n2\n") for index in range(2))


def test_workers_may_come_at_different_times():
    code = "time.sleep(8 * index)\nimport bigtrain_nb as bt\nprint(bt.strategy(timeout=200).num_replicas_in_sync)"
    job = run(code, env=ON_CPUS)
    assert job.codes == [0, 0] and all(job.logs(index).endswith("\n2\n") for index in range(2))


def test_the_chief_goes_last():
    code = """
    import bigtrain_nb as bt, socket
    bt.strategy(timeout=100)
    if index == 1:
        time.sleep(8)
        host, port = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0].split(":")
        socket.create_connection((host, int(port))).close()
    """
    job = run(code, env=ON_CPUS)
    assert job.codes == [0, 0] and "Error" not in job.logs(1)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_that_is_taken_is_named(host, refused):
    with socket.create_server((host, 0)) as server:
        port = server.getsockname()[1]
        error = refused(60, **one_of_two(f"127.0.0.1:{free_port()}", port=port))
    assert error.startswith(f"RuntimeError: port {port} of this worker (TF_CONFIG) cannot be used: "), error


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("TF_CONFIG", "{", "TF_CONFIG is not JSON"),
        ("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}', "TF_CONFIG must be like"),
        (
            "TF_CONFIG",
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
            "TF_CONFIG's task index 2 must be from 0 to 1",
        ),
        ("BIGTRAIN_DEVICES_PER_WORKER", "two", "BIGTRAIN_DEVICES_PER_WORKER='two' must be a whole number"),
    ],
)
def test_a_bad_variable_is_told_at_once(name, text, message, refused):
    assert refused(600, **{name: text}).startswith(f"ValueError: {message}")


def test_it_must_come_first():
    code = "from bigtrain_nb import tf\ntf.constant(1) + 1\nimport bigtrain_nb as bt\nbt.strategy(timeout=200)"
    job = run(code, env=ON_CPUS, patience=60)
    assert "RuntimeError: bt.strategy() must come before TensorFlow runs anything else" in job.logs(job.failed)


@pytest.mark.parametrize("timeout", ["0", "-1", "None", "float('inf')", "'long'"])
def test_a_bad_timeout_is_refused(timeout):
    with pytest.raises(ValueError, match="timeout=.* must be a positive, finite number of seconds"):
        bt.strategy(timeout=eval(timeout))


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


ENDLESS = (
    TRAIN
    + """
for number in range(10**9):
    sum_of_all(number)
    if number == 3:
        print("training")
"""
)


def training(job):
    return all("training" in job.logs(index) for index in range(len(job.codes)))


@pytest.mark.parametrize("rank", [0, 1])
def test_kill_9_in_the_middle_of_training(rank, watch):
    job = bt.run_workers("index = 0\n" + ENDLESS, env=ON_CPUS, timeout=SECONDS)
    eventually(lambda: training(job) or job.failed is not None, SECONDS)
    job.kill(rank)
    codes = job.wait(show=False)
    assert codes[rank] == -9 and codes[1 - rank] != 0 and job.failed == rank
    watch.nothing_left()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_workers_own_mistake_is_shown_not_its_peers_complaint(rank, watch, capsys):
    code = ENDLESS + f"    if number == 5 and index == {rank}: raise ValueError('the planted one')\n"
    job = run(code, env=ON_CPUS, show=True)
    shown = capsys.readouterr().out
    assert job.failed == rank and job.codes[rank] == 1 and job.codes[1 - rank] != 0
    assert shown.count(f"worker {rank} | ValueError: the planted one") == 1
    errors = [line for line in shown.splitlines() if "Error: " in line]
    assert errors[0] == f"worker {rank} | ValueError: the planted one"
    watch.nothing_left()


def test_a_restart_brings_real_workers_together_again(watch):
    code = (
        TRAIN
        + """
first = os.environ["BIGTRAIN_RESTART"] == "0"
for number in range(6):
    if first and index == 1 and number == 3: os.kill(os.getpid(), signal.SIGKILL)
    print(number, sum_of_all(number))
"""
    )
    job = run(code, env=ON_CPUS, restarts=1)
    assert job.codes == [0, 0] and job.restarted == 1
    assert job.logs(1).splitlines()[-6:] == [f"{number} {6.0 * number}" for number in range(6)]
    watch.nothing_left()
