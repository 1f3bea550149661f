"""Worker processes on this machine, as one job: started together, heard together, ended together."""

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
from bigtrain_nb.common.checks import integer, not_negative, of_kind, positive
from bigtrain_nb.common.hardware import nvidia_gpus
from bigtrain_nb.launch import supervisor, worker_main

TICK_SECONDS = 0.01
MOST_PROCESSES = 256  # of a kind, on one machine
KEPT_LINES = 10_000  # the first and the last so many of each worker
TIMED_OUT = 124
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

    ``script_or_code`` is a script, given as a path or a string that ends in ".py", and run with ``arguments`` in the
    current folder; or Python code as a string. Each worker finds TF_CONFIG in its environment, with free loopback
    ports, so that `bigtrain_nb.strategy` or `tf.distribute.MultiWorkerMirroredStrategy` brings them together; worker 0
    is the chief. ``env`` adds variables.

    A worker fails if it exits with another code than 0. The others then have ``grace_period`` seconds to see it and end
    by themselves, then SIGTERM ends them, and SIGKILL 5 s later. After that all are started again, at most ``restarts``
    times, with BIGTRAIN_RESTART=1, 2, ... in their environment: a script that resumes from its last checkpoint goes on.
    If they fail again within a minute, the next start waits 1 s, then 2, 4, ..., 30 s.

    With fewer workers a script goes on too, when it is started anew: a `bigtrain_nb.Model` divides the batch of a step
    among all workers, however many, and the result is the same up to rounding, as `bigtrain_nb.Resume` says.

    ``timeout`` ends the whole job after so many seconds. The job also ends when it is dropped, or this process ends.
    What the workers have started ends with them, on Linux in sessions of its own too.

    TensorFlow listens on all addresses of this machine, and asks for no password: whoever reaches its port can read and
    write the files that you can.

    GPUs are divided evenly among the workers, or each gets ``gpus_per_worker`` of them, 0 for none. Where there are too
    few, as on a machine without any, all run on the CPU; the job's card says who has which.

    Raises FileNotFoundError for a script that is not there, ValueError or TypeError for other bad settings, OSError
    with the system's reason for a process that cannot be started.

    Example::

        job = bt.run_workers("import os; print(os.environ['TF_CONFIG'])", workers=2)
        print(job.wait())  # [0, 0]
    """
    restarts = integer("restarts", restarts, 0)
    if isinstance(workers, list | tuple):
        raise ValueError(f"workers={workers!r} must be one number: to go on with fewer, call run_workers again")
    workers = integer("workers", workers, 1, MOST_PROCESSES)
    not_negative("grace_period", grace_period, "seconds")
    if timeout is not None:
        positive("timeout", timeout, "seconds")
    of_kind("script_or_code", script_or_code, str | os.PathLike, "the path of a script, or Python code as a string")
    of_kind("arguments", arguments, list | tuple, 'a list, like ["--steps", 100]')
    of_kind("env", env, Mapping | None, "a dictionary {name of a variable: value}")
    if gpus_per_worker is not None:
        integer("gpus_per_worker", gpus_per_worker, 0)
    script, source = _script(script_or_code)
    shares, gpus_in_words = _shares_of_gpus(workers, gpus_per_worker)
    tasks = [{"name": f"worker {index}", "environment": dict(shares[index])} for index in range(workers)]
    for each in tasks:
        each["environment"] |= {name: str(value) for name, value in (env or {}).items()}
    order = {
        "tasks": tasks,
        "command": [sys.executable, script, *map(str, arguments)],
        "source": source,
        "timeout": timeout,
        "restarts": restarts,
        "grace_period": grace_period,
    }
    return Job(order, gpus_in_words)


def _script(script_or_code):
    """Return the script that each worker runs, and the code that it finds on standard input."""
    is_code = isinstance(script_or_code, str) and ("\n" in script_or_code or not script_or_code.endswith(".py"))
    if is_code:
        return worker_main.__file__, script_or_code
    if not Path(script_or_code).is_file():
        remedy = beside.remedy_for(script_or_code)
        raise FileNotFoundError(f"there is no script {str(script_or_code)!r} in {Path.cwd()}{remedy}")
    return str(script_or_code), ""


def _shares_of_gpus(workers, gpus_per_worker):
    """Return for each worker the variables that say which GPUs are its own, and a sentence on it, "" without GPUs."""
    gpus = nvidia_gpus()
    if not gpus:
        return [{}] * workers, ""
    each = len(gpus) // workers if gpus_per_worker is None else gpus_per_worker
    if each * workers > len(gpus) or each == 0:
        asked = "" if gpus_per_worker is None else f", {gpus_per_worker} for each"
        words = f"All workers run on the CPU: {len(gpus)} GPUs are here for {workers} workers{asked}."
        return [NO_GPU] * workers, words
    shares = [",".join(gpus[index * each : (index + 1) * each]) for index in range(workers)]
    idle = len(gpus) - each * workers
    words = f"Of {len(gpus)} GPUs each worker has {each}" + (f", and {idle} are idle." if idle else ".")
    return [{"CUDA_VISIBLE_DEVICES": share} for share in shares], words


class Lines:
    """The first and the last lines of all that were added, with a note where lines between them are left out.

    While it ``keeps_all``, none is: somebody takes them at once.
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
        """Return all, and begin anew."""
        with self._lock:
            lines = self.all()
            self._first, self._left_out = [], 0
            self._last.clear()
            return lines

    def newest(self):
        with self._lock:
            return (self._last or self._first or [""])[-1]


class Job(Shown):
    """Workers that run together. Made by `run_workers`; shows itself as a table in a notebook.

    ``names`` says what each is: "worker 0", "worker 1", ... ``addresses`` are theirs, "host:port"; ``pids`` their
    process ids; ``codes`` their exit codes, None while one runs, -9 if SIGKILL ended it: all three of the last start.
    ``failed`` is the index of the one that failed first since then, or None. ``restarted`` says how many times all
    were started again. ``exit_code`` is what a shell would see: None while the job runs, 0, the first failure's code,
    128 + n for signal n, 124 after the timeout.
    """

    def __init__(self, order, gpus_in_words=""):
        tasks = order["tasks"]
        self._gpus_in_words = gpus_in_words
        self.names: list[str] = [task["name"] for task in tasks]
        self.addresses: list[str] = []
        self.pids: list[int] = []
        self.codes: list[int | None] = [None] * len(tasks)
        self.failed: int | None = None
        self.restarted = 0
        self.timed_out = False
        self.exit_code: int | None = None
        self._how = "run"
        self._logs = [Lines() for _ in tasks]
        self._unprinted = Lines()  # what `wait` is to print
        self._cannot_start = None
        self._began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # an interrupt of this process is not theirs
        )
        self._end = weakref.finalize(self, _end, process.stdin)
        threading.Thread(target=_listen, args=(process, weakref.ref(self)), daemon=True).start()
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            while not self.pids and self.exit_code is None:
                time.sleep(TICK_SECONDS)
        except BaseException:  # an interrupt: nobody will have this job to stop it
            self.stop()
            raise
        if not self.pids:
            raise OSError(self._cannot_start or "the process that starts the workers has ended")

    def wait(self, show: bool = True) -> list[int | None]:
        """Print the workers' lines as they come, unless not ``show``; return the exit codes once all have ended.

        Once a worker has failed only its lines are printed, so that the others' complaints do not bury the reason;
        `logs` has those of the others. An interrupt ends the job.
        """
        self._unprinted.keeps_all = True
        try:
            while True:
                done = self.exit_code is not None  # asked first: no line comes after it
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
        """Return what a worker, given by index or name, has printed: output and errors together, over all starts.

        Of more than 20,000 lines the first and the last 10,000 are kept; a line between them says how many are not.
        """
        return "".join(f"{line}\n" for line in self._logs[self._index(worker)].all())

    def kill(self, worker: int | str) -> None:
        """Send SIGKILL to a worker, given by index or name, and what it has started; nothing if it has ended."""
        worker = self._index(worker)
        if self.codes[worker] is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pids[worker], signal.SIGKILL)

    def stop(self) -> list[int | None]:
        """End all workers, by SIGTERM and if need be by SIGKILL 5 s later; return their exit codes."""
        self._end()
        while self.exit_code is None:
            time.sleep(TICK_SECONDS)
        return self.codes

    def _index(self, worker):
        return self.names.index(worker) if isinstance(worker, str) else worker

    def _card(self):
        caption = f"{len(self.names)} workers {self._how}"
        if self.restarted:
            caption += f", restarts: {self.restarted}"
        rows = []
        for name, pid, code, lines in zip(self.names, self.pids, self.codes, self._logs, strict=False):
            rows.append([name, str(pid), in_words(code), lines.newest()])
        closing = "\n".join(filter(None, [self._gpus_in_words, self._who_can_reach_it()]))
        return cards.table(caption, ["", "process", "state", "last line"], rows, closing)

    def _who_can_reach_it(self):
        if self.exit_code is not None:
            return ""
        ports = [address.rpartition(":")[2] for address in self.addresses]
        return (
            f"Anyone who reaches this machine reaches the ports of TensorFlow ({', '.join(ports)}), without a password,"
            " and through them your files."
        )

    def _note(self, event):
        """Take in a worker's line or end, or new values of the attributes."""
        if "text" in event:
            self._hear(event["worker"], event["text"])
        elif "code" in event:
            self.codes[event["worker"]] = event["code"]
        elif "cannot_start" in event:
            self._cannot_start = event["cannot_start"]
            self._say(f"-- {self._cannot_start}; the job is ended")
        elif "over" in event:
            self._finish()
        else:
            vars(self).update(event)
            if event.get("restarted"):
                self._say("-- all are started again")
            if event.get("failed") is not None:
                self._say(f"-- {self._failure(self.failed)}; the others are ended")
            if self.timed_out:
                self._say("-- the job's timeout is over; all workers are ended")

    def _hear(self, worker, text):
        self._logs[worker].add(text)
        if self.failed in (None, worker):
            self._say(f"{self.names[worker]} | {text}")

    def _say(self, line):
        self._unprinted.add(line)

    def _failure(self, worker):
        return f"{self.names[worker]} failed: {in_words(self.codes[worker])}"

    def _finish(self):
        """Note that nothing more will come."""
        for index, code in enumerate(self.codes):
            if code is None:  # nobody has told its end
                if self.pids:
                    self.kill(index)
                self.codes[index] = -signal.SIGKILL
        if self.timed_out:
            code, how = TIMED_OUT, "were ended by the job's timeout"
        elif self.failed is not None:
            code, how = self.codes[self.failed], f"ended because {self.names[self.failed]} failed"
        elif self._cannot_start:
            code, how = 1, f"ended: {self._cannot_start}"
        else:
            code = max(self.codes, key=abs, default=0)
            how = "were stopped" if code else "ended well"
        self._how = f"{how} after {time.monotonic() - self._began:.1f} s"
        self.exit_code = code if code >= 0 else 128 - code


def in_words(code):
    if code is None:
        return "runs"
    if code >= 0:
        return f"exited with {code}"
    return f"killed by {signal.Signals(-code).name}"


def _end(stdin):
    """End the job, with a word too: a child that this process has forked may keep the pipe open."""
    with suppress(BrokenPipeError), stdin:
        stdin.write(b"stop")


def _listen(process, reference):
    """Tell a job of its supervisor's events. ``reference`` is a weak one, so that a job that is dropped can end."""
    with suppress(ValueError), process.stdout as events:  # half a line, if the supervisor was killed
        for event in events:
            _tell(reference, json.loads(event))
    process.wait()
    _tell(reference, {"over": True})


def _tell(reference, event):
    job = reference()
    if job is not None:
        job._note(event)
