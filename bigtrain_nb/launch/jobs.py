"""Worker processes on this machine, as one job: started together, heard together, ended together."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.common.hardware import nvidia_gpus
from bigtrain_nb.launch import supervisor
from bigtrain_nb.launch import worker_main as cell
from bigtrain_nb.launch.record import Record, in_words

START_SECONDS = 30
END_SECONDS = supervisor.TERM_SECONDS + 5


def run_workers(
    script_or_code,
    workers=2,
    *,
    arguments=(),
    env=None,
    timeout=None,
    devices_per_worker=None,
    restarts=0,
    patience=2.0,
):
    """Start ``workers`` processes that train together, and return their `Job` at once.

    ``script_or_code`` is a script, given as a path or a string that ends in ".py", and run with ``arguments`` in the
    current folder; or Python code as a string. Each worker finds TF_CONFIG in its environment, with free loopback
    ports, so that `bigtrain_nb.strategy` or `tf.distribute.MultiWorkerMirroredStrategy` brings them together; worker 0
    is the chief. ``env`` adds variables.

    A worker fails if it exits with another code than 0. The others then have ``patience`` seconds to see it and end by
    themselves, then SIGTERM ends them, and SIGKILL 5 s later. After that all are started again, at most ``restarts``
    times, with BIGTRAIN_RESTART=1, 2, ... in their environment: a script that resumes from its last checkpoint goes on.
    ``timeout`` ends the whole job after so many seconds. The job also ends when it is dropped, or this process ends.

    GPUs are divided evenly, or ``devices_per_worker`` to each; where there are fewer, workers run on the CPU.

    Raises FileNotFoundError for a script that is not there, ValueError for other bad settings, OSError on Windows.
    """
    if os.name != "posix":
        raise OSError("worker processes need Linux or macOS; on Windows, use WSL")
    count = whole_number("workers", workers, 1)
    if timeout is not None:
        positive("timeout", timeout, "seconds")
    command, source = _command(script_or_code, arguments)
    order = {
        "command": command,
        "source": source,
        "environments": [_environment(env, share) for share in _shares(count, devices_per_worker)],
        "timeout": timeout,
        "restarts": whole_number("restarts", restarts, 0),
        "patience": not_negative("patience", patience, "seconds"),
    }
    return Job(order)


class Job(Shown):
    """Workers that run together. Made by `run_workers`; shows itself as a table in a notebook."""

    def __init__(self, order):
        self._record = Record(len(order["environments"]), order["restarts"])
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt of this process is not theirs
        )
        self._end = weakref.finalize(self, _close, self._process.stdin, os.getpid())
        threading.Thread(target=_listen, args=(self._process, self._record), daemon=True).start()
        self._send(order)
        self._record.wait_for(lambda: self._record.pids or self._record.done, START_SECONDS)
        if not self._record.pids:
            self._end()
            raise RuntimeError("the workers could not be started; the reason stands where this process writes errors")

    @property
    def pids(self):
        """The workers' process ids, those of the last start."""
        return list(self._record.pids)

    @property
    def codes(self):
        """The workers' exit codes so far: None while one runs, -9 if SIGKILL ended it."""
        return list(self._record.codes)

    @property
    def failed(self):
        """The index of the worker that failed first since the last start, or None."""
        return self._record.failed

    @property
    def restarted(self):
        """How many times all workers were started again."""
        return self._record.restarted

    @property
    def exit_code(self):
        """What a shell would see: 0, the first failure's code, 128 + n for signal n, 124 after the timeout."""
        return self._record.exit_code()

    def wait(self, timeout=None, show=True):
        """Print the workers' lines as they come, unless not ``show``; return the exit codes once all have ended.

        Once a worker has failed only its lines are printed, so that the others' complaints do not bury the reason;
        `logs` has them all. An interrupt ends the job. Raises TimeoutError if it still runs after ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + positive("timeout", timeout, "seconds")
        try:
            while True:
                lines, done = self._record.news(until)
                if show and lines:
                    print("\n".join(lines), flush=True)
                if done:
                    return self.codes
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(f"the workers still run after {timeout} s; job.stop() ends them")
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise

    def logs(self, worker):
        """Return what a worker has printed so far, standard output and error together, over all starts."""
        return self._record.text_of(self._index(worker))

    def kill(self, worker):
        """Send SIGKILL to a worker, as `kill -9` does; nothing happens if it has ended."""
        index = self._index(worker)
        if not self._record.done:
            self._send({"kill": index})

    def stop(self):
        """End all workers, by SIGTERM and if need be by SIGKILL 5 s later; return their exit codes."""
        self._end()
        self._record.wait_for(lambda: self._record.done, END_SECONDS)
        return self.codes

    def _index(self, worker):
        return whole_number("worker", worker, 0, len(self._record.codes) - 1)

    def _send(self, message):
        with suppress(BrokenPipeError, ValueError):  # it has ended, or is about to
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _card(self):
        from bigtrain_nb.common import cards

        record = self._record
        rows = [
            [f"worker {index}", str(pid), in_words(code), record.last_line(index)]
            for index, (pid, code) in enumerate(zip(record.pids, record.codes, strict=False))
        ]
        return cards.table(record.summary(), ["", "process", "state", "last line"], rows)


def _listen(process, record):
    """Note the supervisor's events until it ends. Holds no job, so that one that is dropped can end."""
    try:
        with process.stdout as events:
            for event in events:
                record.note(json.loads(event))
    finally:
        process.wait()
        for pid in record.finish():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # the supervisor was killed; what the workers started is left


def _close(stream, owner):
    """End the job, with a word too: a child that this process forked may keep the pipe open. The child ends nothing."""
    with suppress(BrokenPipeError), stream:
        if os.getpid() == owner:
            stream.write(b'{"stop": true}\n')


def _command(script_or_code, arguments):
    """Return the command of each worker and what it finds on standard input."""
    if isinstance(arguments, str) or not isinstance(arguments, Iterable):
        raise ValueError(f"arguments={arguments!r} must be a list: each word apart")
    words = list(map(str, arguments))
    _check_no_nul("arguments", words, words)
    is_name = isinstance(script_or_code, str) and script_or_code.endswith(".py") and "\n" not in script_or_code
    if is_name or isinstance(script_or_code, os.PathLike):
        if not Path(script_or_code).is_file():
            raise FileNotFoundError(f"there is no script {str(script_or_code)!r} in {Path.cwd()}")
        return [sys.executable, str(script_or_code), *words], None
    if not isinstance(script_or_code, str):
        raise ValueError(f"script_or_code={script_or_code!r} must be a path or Python code as a string")
    return [sys.executable, cell.__file__, *words], script_or_code


def _environment(env, share):
    added = {} if env is None else env
    if not isinstance(added, Mapping) or any("=" in str(name) or not str(name) for name in added):
        raise ValueError(f"env={env!r} must be a dictionary; a variable's name has at least one character and no '='")
    added = {str(name): str(value) for name, value in added.items()}
    _check_no_nul("env", added, [*added, *added.values()])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2"} | dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
    return quiet | share | added


def _check_no_nul(name, value, words):
    if "\0" in "".join(words):
        raise ValueError(f"{name}={value!r} must have no NUL character, which no process can be given")


def _shares(workers, devices):
    """Return for each worker the variables that say which devices are its own."""
    own = {}
    if devices is not None:
        own["BIGTRAIN_DEVICES_PER_WORKER"] = str(whole_number("devices_per_worker", devices, 1))
    gpus = nvidia_gpus()
    each = devices or max(1, len(gpus) // workers)
    if not gpus:
        return [own] * workers
    if len(gpus) < each * workers:
        return [own | {"CUDA_VISIBLE_DEVICES": "-1"}] * workers
    return [own | {"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])} for i in range(workers)]
