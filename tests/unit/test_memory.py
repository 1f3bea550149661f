"""Peak memory in a separate process: what it counts, and its messages.

tests/workers/test_launch_leftovers.py tests that the process ends with the one that started it.
"""

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import cloudpickle
import psutil
import pytest

from bigtrain_nb.advanced.watch import peak_memory as memory
from bigtrain_nb.advanced.watch.peak_memory import peak_memory
from bigtrain_nb.common.quiet import tf

MIB = 2**20
more_ends = pytest.mark.more("a process that loads TensorFlow for one more way in which it ends")


def raises(kind, sent):
    print("a word on the way")
    raise KeyError(f"the {kind} is gone")


def dies():
    os.kill(os.getpid(), signal.SIGKILL)


def exits_like_a_job_whose_timeout_has_passed():
    sys.exit(124)


def waits():
    time.sleep(600)


def test_what_a_closure_of_a_notebook_cell_holds_at_its_peak_is_counted():
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "cells = ['import bigtrain_nb as bt, numpy\\nmany = 2**17',\n"
        "         'def sized(mib):\\n    return lambda: numpy.ones(mib * many).size',\n"
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
    answer, _ = json.loads(capsys.readouterr().out.partition(memory.ANSWER)[2])
    return memory.Peak(**answer)


def test_with_a_gpu_the_number_is_its_peak_and_the_hosts_is_said_too(monkeypatch, capsys):
    infos = [{"current": 5 * MIB, "peak": 0}, {"current": 0, "peak": 25 * MIB}]
    peak = told(monkeypatch, capsys, ["GPU:0"], infos)
    assert peak == peak.device == 20 and 20 < peak.host < 40
    assert (peak + 1, pickle.loads(pickle.dumps(peak)).host) == (21, peak.host)
    peak = told(monkeypatch, capsys, [], [])
    assert peak == peak.host and 20 < peak < 40 and peak.device is None


def test_where_no_peak_is_reset_there_is_a_warning(monkeypatch):
    monkeypatch.setattr(memory, "CODE", "from bigtrain_nb.advanced.watch import peak_memory as memory\n{packed!r}\n")
    report = 'print(memory.ANSWER + \'[{{"host": 5, "device": null}}, false]\')'
    monkeypatch.setattr(memory, "CODE", memory.CODE + report)
    with pytest.warns(UserWarning, match="of list may be too high.*loading TensorFlow"):
        assert peak_memory(list) == 5


def test_what_it_raises_is_shown_with_its_lines():
    with pytest.raises(RuntimeError, match="the process of raises: exited with 1") as caught:
        peak_memory(raises, kind="key", sent="x" * 10**6)
    said = str(caught.value)
    assert said.endswith("KeyError: 'the key is gone'") and 'raise KeyError(f"the {kind} is gone")' in said
    assert len(said.splitlines()) <= 1 + memory.TRACEBACK_LINES and len(said) < 10_000


@more_ends
def test_a_process_that_dies_is_told():
    with pytest.raises(RuntimeError, match="the process of dies: killed by SIGKILL .*memory runs out"):
        peak_memory(dies)
    with pytest.raises(RuntimeError, match="exited with 124"):
        peak_memory(exits_like_a_job_whose_timeout_has_passed)


@more_ends
def test_a_process_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(memory, "TIMEOUT_SECONDS", 1)
    with pytest.raises(TimeoutError, match="waits did not finish within 1 s and was stopped"):
        peak_memory(waits)
