"""Worker processes on this machine, as one job: started together, heard together, ended together."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from bigtrain_nb.common import cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.common.hardware import nvidia_gpus
from bigtrain_nb.launch import supervisor, worker_main
from bigtrain_nb.launch.record import Record, in_words

TICK_SECONDS = 0.01


def run_workers(script_or_code, workers=2, *, arguments=(), env=None, timeout=None, restarts=0, patience=2.0):
    """Start ``workers`` processes that train together, and return their `Job` at once.

    ``script_or_code`` is a script, given as a path or a string that ends in ".py", and run with ``arguments`` in the
    current folder; or Python code as a string. Each worker finds TF_CONFIG in its environment, with free loopback
    ports, so that `bigtrain_nb.strategy` or `tf.distribute.MultiWorkerMirroredStrategy` brings them together; worker 0
    is the chief. ``env`` adds variables.

    A worker fails if it exits with another code than 0. The others then have ``patience`` seconds to see it and end by
    themselves, then SIGTERM ends them, and SIGKILL 5 s later. After that all are started again, at most ``restarts``
    times, with BIGTRAIN_RESTART=1, 2, ... in their environment: a script that resumes from its last checkpoint goes on.
    ``timeout`` ends the whole job after so many seconds. The job also ends when it is dropped, or this process ends.

    GPUs are divided evenly; where there are fewer than workers, all run on the CPU.

    Raises FileNotFoundError for a script that is not there, ValueError for other bad settings, OSError on Windows.
    """
    if os.name != "posix":
        raise OSError("worker processes need Linux or macOS; on Windows, use WSL")
    count = whole_number("workers", workers, 1)
    restarts = whole_number("restarts", restarts, 0)
    patience = not_negative("patience", patience, "seconds")
    if timeout is not None:
        positive("timeout", timeout, "seconds")
    if isinstance(arguments, str):
        raise ValueError(f"arguments={arguments!r} must be a list: each word apart")
    script, source = _script(script_or_code)
    added = {str(name): str(value) for name, value in (env or {}).items()}
    environments = []
    for devices in _devices(count):
        environment = {"TF_CPP_MIN_LOG_LEVEL": "2"} | dict(os.environ) | {"PYTHONUNBUFFERED": "1"}
        environments.append(environment | devices | added)
    order = {
        "command": [sys.executable, script, *map(str, arguments)],
        "source": source,
        "environments": environments,
        "timeout": timeout,
        "restarts": restarts,
        "patience": patience,
    }
    return Job(order)


def _script(script_or_code):
    """Return the script that each worker runs, and the code that it finds on standard input."""
    is_code = isinstance(script_or_code, str) and ("\n" in script_or_code or not script_or_code.endswith(".py"))
    if is_code:
        return worker_main.__file__, script_or_code
    if not Path(script_or_code).is_file():
        raise FileNotFoundError(f"there is no script {str(script_or_code)!r} in {Path.cwd()}")
    return str(script_or_code), ""


def _devices(workers):
    """Return for each worker the variables that say which GPUs are its own."""
    gpus = nvidia_gpus()
    if not gpus:
        return [{}] * workers
    each = len(gpus) // workers
    shares = [gpus[index * each : (index + 1) * each] for index in range(workers)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share) or "-1"} for share in shares]


class Job(Shown):
    """Workers that run together. Made by `run_workers`; shows itself as a table in a notebook."""

    def __init__(self, order):
        self._record = Record(len(order["environments"]), order["restarts"])
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt of this process is not theirs
        )
        self._end = weakref.finalize(self, _end, process.stdin)
        threading.Thread(target=_listen, args=(process, self._record), daemon=True).start()
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        while not self.pids and self.exit_code is None:
            time.sleep(TICK_SECONDS)
        if not self.pids:
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
        return self._record.exit_code

    def wait(self, timeout=None, show=True):
        """Print the workers' lines as they come, unless not ``show``; return the exit codes once all have ended.

        Once a worker has failed only its lines are printed, so that the others' complaints do not bury the reason;
        `logs` has them all. An interrupt ends the job. Raises TimeoutError if it still runs after ``timeout`` seconds.
        """
        record = self._record
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while True:
                done = self.exit_code is not None  # asked first: no line comes after it
                lines = [record.unshown.popleft() for _ in range(len(record.unshown))]
                if show and lines:
                    print("\n".join(lines), flush=True)
                if done:
                    return self.codes
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"the workers still run after {timeout} s; job.stop() ends them")
                time.sleep(TICK_SECONDS)
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise

    def logs(self, worker):
        """Return what a worker has printed so far, standard output and error together, over all starts."""
        return "".join(f"{line}\n" for line in list(self._record.lines[worker]))

    def kill(self, worker):
        """Send SIGKILL to a worker, as `kill -9` does; nothing happens if it has ended."""
        if self.codes[worker] is None:
            _kill(self.pids[worker])

    def stop(self):
        """End all workers, by SIGTERM and if need be by SIGKILL 5 s later; return their exit codes."""
        self._end()
        while self.exit_code is None:
            time.sleep(TICK_SECONDS)
        return self.codes

    def _card(self):
        rows = []
        for index, (pid, code) in enumerate(zip(self.pids, self.codes, strict=True)):
            said = self.logs(index).strip()
            rows.append([f"worker {index}", str(pid), in_words(code), said.rpartition("\n")[2]])
        return cards.table(self._record.summary(), ["", "process", "state", "last line"], rows)


def _kill(pid):
    """Send SIGKILL to a worker and to what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _end(stdin):
    """End the job, with a word too: a child that this process has forked may keep the pipe open."""
    with suppress(BrokenPipeError), stdin:
        stdin.write(b"stop")


def _listen(process, record):
    """Note the supervisor's events until it ends. Holds no job, so that one that is dropped can end."""
    with suppress(ValueError), process.stdout as events:  # half a line, if the supervisor was killed
        for event in events:
            record.note(json.loads(event))
    process.wait()
    for index, code in enumerate(record.codes):
        if code is None and record.pids:  # nobody has told its end
            _kill(record.pids[index])
            record.codes[index] = -signal.SIGKILL
    record.finish()
