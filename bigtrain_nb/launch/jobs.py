"""Run worker processes on this machine as one job, with a common start, output and end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bigtrain_nb.common import beside, cards
from bigtrain_nb.common.cards import Shown
from bigtrain_nb.common.checks import integer, not_negative, of_kind, one_of, positive
from bigtrain_nb.common.hardware import nvidia_gpus
from bigtrain_nb.launch import supervisor, worker_main

TICK_SECONDS = 0.01
MOST_PROCESSES = 256  # workers on one machine
KEPT_LINES = 10_000  # at the start, and as many at the end, for each worker
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}


def run_workers(
    script_or_code: str | os.PathLike,
    workers: int = 2,
    *,
    arguments: Sequence = (),
    env: Mapping | None = None,
    timeout: float | None = None,
    restarts: int = 0,
    grace_period: float = 2.0,
    gpus_per_worker: int | None = None,
) -> "Job":
    """Start ``workers`` processes that train together, and return their `Job` at once.

    ``script_or_code`` is a script (a path, or a string that ends in ".py"), run with ``arguments`` in the current
    folder; or Python code as a string. Each worker's TF_CONFIG has free loopback ports, by which `bigtrain_nb.strategy`
    or `tf.distribute.MultiWorkerMirroredStrategy` connects them; worker 0 is the chief. ``env`` adds variables.

    A worker fails if its exit code is not 0. The others then have ``grace_period`` seconds to exit by themselves before
    SIGTERM, and SIGKILL 5 s later. Then all are restarted, at most ``restarts`` times, with BIGTRAIN_RESTART=1, 2, ...
    in their environment: a script that resumes from its last checkpoint continues. If they fail again within a minute,
    the next start waits 1 s, then 2, 4, ..., 30 s.

    ``timeout`` ends the job after that many seconds. The job also ends when the `Job` is garbage-collected or this
    process ends. The workers' child processes end with them, on Linux even those in other sessions.

    TensorFlow listens on all addresses, without a password: anyone who reaches its port can read and write your files.

    GPUs are divided evenly among the workers, or each gets ``gpus_per_worker`` of them, 0 for none. If there are too
    few, or none, all workers run on the CPU; the job's card shows the assignment.

    Raises FileNotFoundError for a missing script, ValueError or TypeError for other invalid settings, OSError with the
    system's reason if a process cannot be started.

    Example::

        job = bt.run_workers("import os; print(os.environ['TF_CONFIG'])", workers=2)
        print(job.wait())  # [0, 0]
    """
    restarts = integer("restarts", restarts, 0)
    workers = integer("workers", workers, 1, MOST_PROCESSES)
    grace_period = not_negative("grace_period", grace_period, "seconds")
    if timeout is not None:
        timeout = positive("timeout", timeout, "seconds")
    of_kind("script_or_code", script_or_code, str | os.PathLike, "the path of a script, or Python code as a string")
    of_kind("arguments", arguments, list | tuple, 'a list, like ["--steps", 100]')
    of_kind("env", env, Mapping | None, "a dictionary {variable name: value}")
    if env and any(value is None for value in env.values()):
        raise ValueError(f"env={env!r:.99} has None as a value: leave that variable out")
    if gpus_per_worker is not None:
        integer("gpus_per_worker", gpus_per_worker, 0)
    script, source = _script(script_or_code)
    shares, gpus_in_words = _shares_of_gpus(workers, gpus_per_worker)
    added = {name: str(value) for name, value in (env or {}).items()}
    order = {
        "environments": [share | added for share in shares],
        "command": [sys.executable, script, *map(str, arguments)],
        "source": source,
        "timeout": timeout,
        "restarts": restarts,
        "grace_period": grace_period,
    }
    return Job(order, gpus_in_words)


def _script(script_or_code):
    """Return the script that each worker runs, and the code for its standard input."""
    if isinstance(script_or_code, str) and ("\n" in script_or_code or not script_or_code.endswith(".py")):
        return worker_main.__file__, script_or_code
    if not Path(script_or_code).is_file():
        remedy = beside.remedy_for(script_or_code)
        raise FileNotFoundError(f"there is no script {str(script_or_code)!r} in {Path.cwd()}{remedy}")
    return str(script_or_code), ""


def _shares_of_gpus(workers, gpus_per_worker):
    """Return each worker's variables that select its GPUs, and a sentence about them, "" without GPUs."""
    gpus = nvidia_gpus()
    if not gpus:
        return [{}] * workers, ""
    each = len(gpus) // workers if gpus_per_worker is None else gpus_per_worker
    if each * workers > len(gpus) or each == 0:
        asked = "" if gpus_per_worker is None else f", gpus_per_worker={gpus_per_worker}"
        words = f"All workers run on the CPU (GPUs: {len(gpus)}, workers: {workers}{asked})."
        return [NO_GPU] * workers, words
    shares = [",".join(gpus[index * each : (index + 1) * each]) for index in range(workers)]
    idle = len(gpus) - each * workers
    words = f"GPUs per worker: {each} of {len(gpus)}" + (f"; idle: {idle}." if idle else ".")
    return [{"CUDA_VISIBLE_DEVICES": share} for share in shares], words


class Lines:
    """The first and last lines added, with a note in place of omitted ones.

    With ``keeps_all`` none is omitted, because a reader takes them immediately.
    """

    def __init__(self):
        self.keeps_all = False
        self._lock = threading.RLock()
        self._first = []
        self._last = deque(maxlen=KEPT_LINES)
        self._left_out = 0

    def add(self, line):
        with self._lock:
            if not self._last and (self.keeps_all or len(self._first) < KEPT_LINES):
                self._first.append(line)
                return
            if len(self._last) == KEPT_LINES:
                self._left_out += 1
            self._last.append(line)

    def all(self):
        with self._lock:
            note = [f"... {self._left_out:,} lines left out ..."] if self._left_out else []
            return [*self._first, *note, *self._last]

    def take(self):
        """Return all lines and clear them."""
        with self._lock:
            lines = self.all()
            self._first, self._left_out = [], 0
            self._last.clear()
            return lines

    def newest(self):
        with self._lock:
            return (self._last or self._first or [""])[-1]


class Job(Shown):
    """Workers that run together, returned by `run_workers`; displayed as a table in a notebook.

    ``names`` are "worker 0", "worker 1", ... As of the last start, ``addresses`` are the workers' "host:port", ``pids``
    their process ids, ``codes`` their exit codes: None for a running one, -9 after SIGKILL. ``failed`` is the index of
    the first worker that failed since then, or None. ``restarted`` counts the restarts. ``exit_code`` is for a shell:
    None while the job runs, 0, the first failure's code, 128 + n for signal n, 124 after the timeout.
    """

    def __init__(self, order, gpus_in_words=""):
        workers = len(order["environments"])
        self._gpus_in_words = gpus_in_words
        self.names: list[str] = [f"worker {index}" for index in range(workers)]
        self.addresses: list[str] = []
        self.pids: list[int] = []
        self.codes: list[int | None] = [None] * workers
        self.failed: int | None = None
        self.restarted = 0
        self.timed_out = False
        self.exit_code: int | None = None
        self._how = "running"
        self._logs = [Lines() for _ in range(workers)]
        self._unprinted = Lines()  # for `wait` to print
        self._cannot_start = None
        self._began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # an interrupt of this process must not reach them
        )
        self._end = weakref.finalize(self, _end, process.stdin)
        threading.Thread(target=_listen, args=(process, weakref.ref(self)), daemon=True).start()
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            while not self.pids and self.exit_code is None:
                time.sleep(TICK_SECONDS)
        except BaseException:  # an interrupt: the caller has no job to stop
            self.stop()
            raise
        if not self.pids:
            raise OSError(self._cannot_start or "the process that starts the workers has exited")

    def wait(self, show: bool = True) -> list[int | None]:
        """Wait for the end of the job and return the exit codes; meanwhile, with ``show``, print the workers' output.

        After a worker's failure only its lines are printed, so that the others' errors do not hide the cause; `logs`
        has the rest. An interrupt ends the job.
        """
        self._unprinted.keeps_all = True
        try:
            while True:
                done = self.exit_code is not None  # checked first: no line comes after it
                lines = self._unprinted.take()
                if show and lines:
                    print("\n".join(lines), flush=True)
                if done:
                    return self.codes
                time.sleep(TICK_SECONDS)
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise
        finally:
            self._unprinted.keeps_all = False

    def logs(self, worker: int | str) -> str:
        """Return the output and errors of a worker, given by index or name, merged and over all starts.

        Of more than 20,000 lines, the first and last 10,000 are kept, with the number of omitted ones in between.
        """
        return "".join(f"{line}\n" for line in self._logs[self._index(worker)].all())

    def kill(self, worker: int | str) -> None:
        """Send SIGKILL to a worker, given by index or name, and its children, unless it has ended."""
        worker = self._index(worker)
        if self.codes[worker] is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pids[worker], signal.SIGKILL)

    def stop(self) -> list[int | None]:
        """End all workers by SIGTERM and, if necessary, SIGKILL 5 s later; return their exit codes."""
        self._end()
        while self.exit_code is None:
            time.sleep(TICK_SECONDS)
        return self.codes

    def _index(self, worker):
        index = self.names.index(one_of("worker", worker, self.names)) if isinstance(worker, str) else worker
        return integer("worker", index, 0, len(self.names) - 1)

    def _card(self):
        caption = f"{len(self.names)} worker{'s' * (len(self.names) > 1)} {self._how}"
        if self.restarted:
            caption += f", restarts: {self.restarted}"
        rows = []
        for name, pid, code, lines in zip(self.names, self.pids, self.codes, self._logs, strict=False):
            rows.append([name, str(pid), in_words(code), lines.newest()])
        closing = [self._gpus_in_words] if self._gpus_in_words else []
        if self.exit_code is None:
            ports = [address.rpartition(":")[2] for address in self.addresses]
            closing.append(
                f"Anyone who can connect to this machine can use the TensorFlow ports ({', '.join(ports)})"
                " without a password and access your files through them."
            )
        return cards.table(caption, ["", "process", "state", "last line"], rows, "\n".join(closing))

    def _note(self, event):
        """Process an event: a worker's line or exit code, or new values of attributes."""
        say = self._unprinted.add
        if "text" in event:
            worker, text = event["worker"], event["text"]
            self._logs[worker].add(text)
            if self.failed in (None, worker):
                say(f"{self.names[worker]} | {text}")
        elif "code" in event:
            self.codes[event["worker"]] = event["code"]
        elif "cannot_start" in event:
            self._cannot_start = event["cannot_start"]
            say(f"-- {self._cannot_start}; stopping the job")
        else:
            vars(self).update(event)
            if event.get("restarted"):
                say("-- all workers are restarted")
            if event.get("failed") is not None:
                say(f"-- {self.names[self.failed]} failed: {in_words(self.codes[self.failed])}; the others are stopped")
            if self.timed_out:
                say("-- the job's timeout has passed; all workers are stopped")

    def _finish(self):
        """Record the end of the job."""
        for index, code in enumerate(self.codes):
            if code is None:  # its end was never reported
                if self.pids:
                    self.kill(index)
                self.codes[index] = -signal.SIGKILL
        if self.timed_out:
            code, how = 124, "were stopped by the job's timeout"
        elif self.failed is not None:
            code, how = self.codes[self.failed], f"ended because {self.names[self.failed]} failed"
        elif self._cannot_start:
            code, how = 1, f"ended: {self._cannot_start}"
        else:
            code = max(self.codes, key=abs, default=0)
            how = "were stopped" if code else "succeeded"
        self._how = f"{how} after {time.monotonic() - self._began:.1f} s"
        self.exit_code = code if code >= 0 else 128 - code


def in_words(code):
    if code is None:
        return "runs"
    if code >= 0:
        return f"exited with {code}"
    names = {one.value: one.name for one in signal.Signals}  # without most real-time signals
    return f"killed by {names.get(-code, f'signal {-code}')}"


def _end(stdin):
    """End the job by closing the pipe, after a message: a forked child of this process may keep the pipe open."""
    with suppress(BrokenPipeError), stdin:
        stdin.write(b"stop")


def _listen(process, reference):
    """Pass the supervisor's events to a job, by a weak ``reference``, so that an unused job is garbage-collected."""
    with suppress(ValueError), process.stdout as events:  # half a line, if the supervisor was killed
        for event in map(json.loads, events):
            if job := reference():
                job._note(event)
            del job  # while it waits
    process.wait()
    if job := reference():
        job._finish()
