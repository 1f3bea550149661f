"""Peak memory in a separate process: what it counts, its messages, and that nothing is left behind."""

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import psutil
import pytest

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch import peak_memory as memory
from bigtrain_nb.launch.peak_memory import peak_memory

MANY = 2**17  # float64 values in a MiB
MIB = 2**20
more_ends = pytest.mark.more("a process that loads TensorFlow for one more way in which it ends")


def holds_starts_and_drops(mib, path):
    import numpy

    held = numpy.ones(mib * MANY)
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(path, "w") as file:
        file.write(str(left.pid))
    del held


def raises(kind):
    print("a word on the way")
    raise KeyError(f"the {kind} is gone")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def writes_its_id_and_waits(path):
    with open(path + ".making", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".making", path)
    time.sleep(600)


def test_a_closure_of_a_notebook_cell_works_with_its_globals():
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "cells = ['import bigtrain_nb as bt, numpy\\nmany = 2**17',\n"
        "         'def sized(mib):\\n    return lambda: numpy.ones(mib * many)',\n"
        "         'print(\"it took\", round(bt.peak_memory(sized(100)).host, -1))']\n"
        "for cell in cells:\n"
        "    shell.run_cell(cell, store_history=True).raise_error()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "it took 100.0" in done.stdout and not done.stderr, done


def told(monkeypatch, capsys, gpus, infos):
    """Return a process's report for a function that allocates nothing, if TensorFlow sees these GPUs."""
    infos = iter(infos)
    monkeypatch.setattr(memory, "peak_resident", lambda: psutil.Process().memory_info().rss + 30 * MIB)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: next(infos))
    memory.measure(base64.b64encode(cloudpickle.dumps((list, {}))).decode())
    return memory.Peak(**json.loads(capsys.readouterr().out.partition(memory.ANSWER)[2]))


def test_with_a_gpu_the_number_is_its_peak_and_the_hosts_is_said_too(monkeypatch, capsys):
    infos = [{"current": 5 * MIB, "peak": 0}, {"current": 0, "peak": 25 * MIB}]
    peak = told(monkeypatch, capsys, ["GPU:0"], infos)
    assert peak == peak.device == 20 and 20 < peak.host < 40
    assert (peak + 1, pickle.loads(pickle.dumps(peak)).host) == (21, peak.host)
    peak = told(monkeypatch, capsys, [], [])
    assert peak == peak.host and 20 < peak < 40 and peak.device is None


def is_gone(pid, limit=60):
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_it_counts_what_the_function_holds_at_its_peak_and_what_it_started_ends_with_it(tmp_path):
    path = tmp_path / "pid"
    assert 190 < peak_memory(holds_starts_and_drops, mib=200, path=str(path)).host < 230
    assert is_gone(int(path.read_text()))


def test_what_it_raises_is_shown_with_its_lines():
    with pytest.raises(RuntimeError, match="the process of raises: exited with 1") as caught:
        peak_memory(raises, kind="key")
    said = str(caught.value)
    assert said.endswith("KeyError: 'the key is gone'") and 'raise KeyError(f"the {kind} is gone")' in said
    assert len(said.splitlines()) <= 1 + memory.TRACEBACK_LINES


@more_ends
def test_what_was_sent_there_is_not_in_the_error():
    with pytest.raises(RuntimeError, match="KeyError") as caught:
        peak_memory(raises, kind="x" * 10**6)
    assert len(str(caught.value)) < 10_000


def test_what_cannot_be_sent_there_is_refused():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
        peak_memory(lambda: lock.locked())


def test_a_process_that_dies_is_told():
    with pytest.raises(RuntimeError, match="the process of dies: killed by SIGKILL .*memory runs out"):
        peak_memory(dies)


def id_of_child(path, limit=120):
    until = time.monotonic() + limit
    while not path.exists():
        assert time.monotonic() < until, "the child has not begun"
        time.sleep(0.05)
    return int(path.read_text())


@more_ends
def test_an_interrupt_ends_the_process(tmp_path):
    path, found = tmp_path / "pid", []

    def interrupt():
        found.append(id_of_child(path))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            peak_memory(writes_its_id_and_waits, path=str(path))
    finally:
        signal.signal(signal.SIGINT, before)
    thread.join()
    assert is_gone(found[0])


@more_ends
def test_a_process_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "TIMEOUT_SECONDS", 1)
    with pytest.raises(TimeoutError, match="writes_its_id_and_waits did not finish within 1 s and was stopped"):
        peak_memory(writes_its_id_and_waits, path=str(tmp_path / "pid"))


def test_the_process_ends_with_a_killed_notebook(tmp_path):
    path = tmp_path / "pid"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_memory as t\n"
        "t.peak_memory(t.writes_its_id_and_waits, path=sys.argv[2])"
    )
    with subprocess.Popen([sys.executable, "-c", code, os.path.dirname(__file__), str(path)]) as parent:
        pid = id_of_child(path)
        parent.kill()
    assert is_gone(pid)
