"""A failed worker ends the job, and the reader sees its cause first; all workers can be restarted."""

import sys

import psutil
import pytest
from launching import ended, run, start, waiting
from leftovers import eventually, runs

import bigtrain_nb as bt
from bigtrain_nb.launch.jobs import Job

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to the process between")


def test_the_failing_workers_traceback_is_shown_once_and_first(capsys, tmp_path):
    code = """
    def complain(*_):
        raise OSError("a later complaint")

    signal.signal(signal.SIGTERM, complain)
    open(f"{sys.argv[1]}/{index}", "w").close()
    if index == 1:
        while not os.path.exists(f"{sys.argv[1]}/0"): time.sleep(0.01)
        raise ValueError("the planted one")
    while True:
        print("all is well"); time.sleep(0.01)
    """
    job = run(code, show=True, grace_period=0.3, arguments=[tmp_path])
    shown = capsys.readouterr().out
    assert job.failed == 1 and job.codes[0] not in (None, 0) and job.codes[1] == 1
    assert shown.count("Traceback") == shown.count("worker 1 | ValueError: the planted one") == 1
    assert "a later complaint" not in shown and "OSError: a later complaint" in job.logs(0)
    (told,) = [line for line in shown.splitlines() if "worker 1 failed" in line and "exited with 1" in line]
    assert shown.index("the planted one") < shown.index(told) and "worker 0" not in shown[shown.index(told) :]


def test_the_worker_that_failed_first_is_named_though_the_others_end_before_it():
    code = """
    import atexit, socket

    def end():
        time.sleep(1)
        for one in others:
            one.close()
        time.sleep(0.3)

    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    host, port = addresses[2].split(":")
    if index == 2:
        server = socket.create_server((host, int(port)))
        others = [server.accept()[0] for _ in addresses[1:]]
        atexit.register(end)
        raise ValueError("the planted one")
    while True:
        try:
            peer = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.01)
    peer.recv(1)
    raise OSError("the peer is gone")
    """
    job = run(code, workers=3, grace_period=60)
    assert (job.failed, job.exit_code) == (2, 1), job.codes


def test_kill_9_of_a_worker(watch, capsys):
    job, addresses = waiting("grandchild", workers=3, grace_period=0)
    job.kill(2)
    assert job.wait() == [-15, -15, -9]
    assert job.failed == 2 and job.exit_code == 137
    assert "worker 2 failed: killed by SIGKILL" in capsys.readouterr().out
    job.kill("worker 2")  # has no effect any more
    watch.nothing_left(addresses)


@on_linux
def test_a_signal_without_a_name(capsys):
    job = run("os.kill(os.getpid(), 35)", workers=1, show=True)
    assert job.codes == [-35] and "killed by signal 35" in repr(job)
    assert "worker 0 failed: killed by signal 35" in capsys.readouterr().out


@on_linux
def test_what_workers_start_in_sessions_of_its_own_ends_with_the_job_and_before_a_restart(watch, tmp_path):
    code = """
    import subprocess
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # its output is not waited for
    if os.path.exists(sys.argv[1]):
        try:
            print(open(f"/proc/{open(sys.argv[1]).read()}/stat").read().rpartition(") ")[2][0])
        except OSError:
            print("gone")
    own = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True, **silent)
    open(sys.argv[1], "w").write(str(own.pid))
    sys.exit(3)
    """
    job = run(code, workers=1, restarts=1, arguments=[tmp_path / "pid"])
    assert job.logs(0) in ("gone\n", "Z\n") and job.exit_code == 3
    assert job.restarted == 1 and job.failed == 0  # restarts are used up
    assert not runs(int((tmp_path / "pid").read_text()))
    watch.nothing_left()


@on_linux
def test_what_a_worker_leaves_behind_is_cleared_away_while_it_runs():
    code = """
    import subprocess
    print(subprocess.check_output(["sh", "-c", "sleep 0.1 > /dev/null & echo $!"], text=True), end="", flush=True)
    time.sleep(600)
    """
    job = start(code, workers=1)
    pid = int(eventually(lambda: job.logs(0)))
    eventually(lambda: not psutil.pid_exists(pid))  # not even as a zombie
    assert job.stop() == [-15]


def test_workers_that_cannot_be_started_again_end_the_job_with_the_reason(tmp_path, watch, capsys):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    order = {
        "environments": [{}],
        "command": [str(python), "-c", "import os, sys; os.remove(sys.argv[1]); sys.exit(3)", str(python)],
        "source": "",
        "timeout": 100,
        "restarts": 5,
        "grace_period": 0,
    }
    job = ended(Job(order), show=True)
    assert job.exit_code == 3 and job.restarted == 0
    assert "-- worker 0 could not be started: No such file or directory; stopping the job" in capsys.readouterr().out


def test_a_restart_mends_what_fails_once(capsys, tmp_path):
    code = """
    print("round", os.environ["BIGTRAIN_RESTART"])
    open(f"{sys.argv[1]}/{index}", "w").close()
    if os.environ["BIGTRAIN_RESTART"] == "0":
        while not os.path.exists(f"{sys.argv[1]}/0"): time.sleep(0.01)
        if index == 1: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    """
    job = run(code, restarts=3, grace_period=0.2, show=True, arguments=[tmp_path])
    assert job.codes == [0, 0] and job.restarted == 1 and job.failed is None and job.exit_code == 0
    assert job.logs(0) == job.logs(1) == "round 0\nround 1\n"
    shown = capsys.readouterr().out
    assert "restarts: 1" in repr(job)
    assert shown.index("worker 1 failed") < shown.index("all workers are restarted") < shown.index("worker 1 | round 1")


def test_a_script_that_fails_over_and_over_can_be_stopped(watch, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("x = 1\nif x = 2:\n    pass\n")
    job = bt.run_workers(script, restarts=1000)
    eventually(lambda: job.restarted >= 2)
    job.stop()
    assert job.restarted < 1000
    said = job.logs(0)
    assert "broken.py" in said and "line 2" in said and "SyntaxError" in said
    watch.nothing_left()
