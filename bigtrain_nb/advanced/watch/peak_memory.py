"""Measure the peak memory of a function, in a separate process, so that nothing else is counted."""

import base64
import json
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import cloudpickle
import psutil

from bigtrain_nb.advanced.shared.resident_memory import peak_resident, reset_peak
from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.words import first_sentence
from bigtrain_nb.launch.jobs import in_words, run_workers

TIMEOUT_SECONDS = 600
TRACEBACK_LINES = 12
LONGEST_LINE = 500
MIB = 2**20
ANSWER = "bigtrain_nb.peak_memory: "
CODE = "from bigtrain_nb.advanced.watch.peak_memory import measure; measure({packed!r})"


class Peak(float):
    """A function's peak memory in MiB, on the device that ran it. Returned by `peak_memory`.

    ``host`` is the peak of host memory, ``device`` that of the first GPU, None without one. The value itself is
    ``device`` if there is a GPU, else ``host``.
    """

    host: float
    device: float | None

    def __new__(cls, host, device):
        peak = super().__new__(cls, host if device is None else device)
        peak.host, peak.device = host, device
        return peak

    def __getnewargs__(self):
        return self.host, self.device


def peak_memory(function: Callable, /, **arguments: Any) -> Peak:
    """Run ``function(**arguments)`` in a new Python process and return its peak memory in MiB.

    Function and arguments are sent by cloudpickle, with the function's closure and, from a notebook, the globals that
    it uses; the return value is discarded. On the CPU: the peak of resident memory, minus the process's memory after
    loading TensorFlow, running one operation and receiving the function. Where TensorFlow sees GPUs: the peak of its
    allocator on the first one; the result's ``host`` is then the host's peak, with the arrays of pipelines and NumPy.

    The function sees one device, so `bt.mirrored` cannot be measured. XLA plans memory differently from TensorFlow, and
    Keras enables it automatically on a GPU: compile with ``jit_compile=False`` to compare with `plan_step`, or across
    machines.

    On the CPU, building and compiling a small model is included: 40 to 200 MiB at any batch size. Repetitions of one
    step or a short `fit` of `conv_net` on two busy cores agreed within 3 MiB, except for 1 of 30, 40 MiB higher. It
    warns where the system cannot reset a process's peak (only Linux can): loading TensorFlow is then included.

    Raises TypeError if the function cannot be called with these arguments or cloudpickle cannot send them, RuntimeError
    with the end of its output if the function raises or its process dies, TimeoutError after 10 minutes.

    Example::

        def work(size):
            return tf.reduce_sum(tf.ones([size]))

        print(bt.peak_memory(work, size=25_000_000))  # about 95 MiB
    """
    name = getattr(function, "__name__", repr(function))
    if not callable(function) or not takes(function, **arguments):
        given = ", ".join(arguments) or "no arguments"
        raise TypeError(f"function={function!r:.99} must be a function that can be called with {given}")
    try:
        packed = base64.b64encode(cloudpickle.dumps((function, arguments))).decode()
    except Exception as error:  # TensorFlow has its own
        raise TypeError(
            f"{name} cannot be sent to another process ({first_sentence(error)}): build datasets, iterators and models"
            " inside the function"
        ) from None
    paths = os.pathsep.join(filter(None, sys.path))
    code, env = CODE.format(packed=packed), {"PYTHONPATH": paths}
    job = run_workers(code, 1, gpus_per_worker=1, env=env, timeout=TIMEOUT_SECONDS)
    (code,) = job.wait(show=False)
    lines = job.logs(0).splitlines()
    for line in lines:
        if line.startswith(ANSWER):
            peak, was_reset = json.loads(line.removeprefix(ANSWER))
            if not was_reset:
                warnings.warn(
                    f"the peak of host memory of {name} may be too high: this system does not reset it, so it contains"
                    " that of loading TensorFlow and the function. Measure on Linux",
                    stacklevel=2,
                )
            return Peak(**peak)
    if job.timed_out:
        raise TimeoutError(f"{name} did not finish within {TIMEOUT_SECONDS} s and was stopped")
    how = in_words(code)
    if code == -signal.SIGKILL:
        how += " (the system does this when memory runs out)"
    if any("the CPU can no longer be split" in line for line in lines):
        raise RuntimeError(
            f"{name} asks for several devices, but peak_memory provides one, so it cannot measure replicas: leave"
            " out bt.mirrored and bt.devices, or use bt.plan_step and bt.plan_cluster"
        )
    last = [line[:LONGEST_LINE] for line in lines[-TRACEBACK_LINES:]]  # one line has all the packed data
    raise RuntimeError("\n".join([f"the process of {name}: {how}", *last]))


def measure(packed):
    """In the separate process: run the function, and print the increase in peak memory."""
    os.environ.pop("TF_CONFIG", None)  # it is not a worker
    from bigtrain_nb.common.quiet import tf  # before the function's own import of TensorFlow

    function, arguments = pickle.loads(base64.b64decode(packed))
    tf.reduce_sum(tf.ones([8])).numpy()
    on_gpu = bool(tf.config.list_logical_devices("GPU"))
    if on_gpu:
        tf.config.experimental.reset_memory_stats("GPU:0")
        before_on_gpu = tf.config.experimental.get_memory_info("GPU:0")["current"]
    was_reset = reset_peak()
    before = psutil.Process().memory_info().rss
    function(**arguments)
    peak = {"host": max(0, peak_resident() - before) / MIB, "device": None}
    if on_gpu:
        highest = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        peak["device"] = max(0, highest - before_on_gpu) / MIB
    print(f"\n{ANSWER}{json.dumps([peak, was_reset])}", flush=True)
