"""The process between a job and its workers: it starts them, forwards their output, and ends them all.

A kernel can be killed at any moment, and its workers must not outlive it. So they are children of this process, which
notices the end of its parent in any case and ends them. On Linux they also die if this process is killed.

It needs only the standard library, so it starts immediately. It reads an order, a line of JSON, from standard input;
any further input, or its end, is the signal to end all workers. Events go to standard output as lines of JSON. Each
worker has two threads, one for its output and one for its end. The main thread polls, calls `next_step`, and acts.
"""

import ctypes
import errno
import json
import math
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

TICK_SECONDS = 0.02
TERM_SECONDS = 5.0
LATELY_SECONDS = 5.0
LAST_WORDS_SECONDS = 3.0
STEADY_SECONDS = 60.0  # a worker that fails after that long is restarted without a pause
LONGEST_PAUSE_SECONDS = 30.0
CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # ephemeral ports
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class State:
    """A worker's exit code, and some times."""

    code: int | None = None  # None while it runs
    began: float = 0.0
    ended: float = 0.0
    raised: float = 0.0  # when it last printed a traceback

    def was_steady(self):
        """Return whether it ran for at least `STEADY_SECONDS`."""
        return self.ended - self.began >= STEADY_SECONDS

    def began_to_fail(self):
        """Return the time of its last traceback, if it ended soon after that, else the time of its end."""
        return self.raised if self.raised > self.ended - LATELY_SECONDS else self.ended


@dataclass(frozen=True)
class Step:
    """The next action.

    "wait"; "end", which begins the shutdown, with a ``cause``: "success", "failure" of a worker, "stopped" or
    "timeout"; "kill" the workers that still run; "start all" again; "finish".
    """

    what: str
    worker: int | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Known:
    """Inputs of `next_step`. Times are in seconds of one clock; ``restarts_in_a_row`` are those in quick succession.

    ``end`` is the step that began the shutdown, and ``end_at`` its time.
    """

    workers: list
    now: float
    grace_period: float = 2.0
    deadline: float = math.inf
    restarts_left: int = 0
    restarts_in_a_row: int = 0
    stopped: bool = False
    end: Step | None = None
    end_at: float = 0.0


def next_step(known):
    """Return the next `Step`.

    The shutdown begins ``grace_period`` seconds after a failure, at the deadline, or at the client's request: SIGTERM
    to the running workers, and SIGKILL 5 s later. The first event is the cause; workers that end later did not fail.
    """
    if known.end is None:
        return _step_before_the_end(known)
    if any(worker.code is None for worker in known.workers):
        return Step("kill" if known.now >= known.end_at + TERM_SECONDS else "wait")
    may_restart = known.restarts_left > 0 and not known.stopped and known.now < known.deadline
    if known.end.cause != "failure" or not may_restart:
        return Step("finish")
    last = max(worker.ended for worker in known.workers)
    pause = pause_before_restart(known, known.workers[known.end.worker])
    return Step("start all" if known.now >= last + pause else "wait")


def _step_before_the_end(known):
    is_running = any(worker.code is None for worker in known.workers)
    failed = [index for index, worker in enumerate(known.workers) if worker.code]
    if failed:
        since = min(known.workers[index].ended for index in failed)
        is_time = known.stopped or not is_running or known.now >= min(since + known.grace_period, known.deadline)
        return Step("end", first_to_fail(known.workers, failed), "failure") if is_time else Step("wait")
    if not is_running:
        return Step("end", cause="success")
    if known.stopped:
        return Step("end", cause="stopped")
    if known.now >= known.deadline:
        return Step("end", cause="timeout")
    return Step("wait")


def pause_before_restart(known, failed):
    """Return the seconds to wait: 0 at first, then 1, 2, 4, ..., and 0 if the failed worker was steady."""
    if known.restarts_in_a_row == 0 or failed.was_steady():
        return 0.0
    doublings = min(known.restarts_in_a_row - 1, 10)
    return min(2.0**doublings, LONGEST_PAUSE_SECONDS)


def after_restart(known):
    """Return what is known once the restart is counted."""
    in_a_row = 1 if known.workers[known.end.worker].was_steady() else known.restarts_in_a_row + 1
    return replace(known, restarts_left=known.restarts_left - 1, restarts_in_a_row=in_a_row, end=None)


def first_to_fail(workers, failed):
    """Return which of the ``failed`` workers failed first, which is not always the first that ended.

    Workers killed by a signal have precedence: the others can notice before the system has reaped them. SIGABRT does
    not count, because TensorFlow aborts when a peer is gone. Otherwise it is the first that printed a traceback: it may
    take long to end, and the others may end before it.
    """
    killed = [index for index in failed if workers[index].code < 0 and workers[index].code != -signal.SIGABRT]
    return min(killed or failed, key=lambda index: workers[index].began_to_fail())


class CannotStart(Exception):
    """A process could not be started; the message has its name and the system's reason."""


class Worker:
    """One worker: a process that leads its own group. Its output and end are reported by the supervisor."""

    def __init__(self, supervisor, index, environment):
        self.supervisor = supervisor
        self.index = index
        self.environment = environment
        self.code = None
        self.ended = self.raised = 0.0

    def start(self):
        self.began = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self.supervisor.order["command"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment | {"BIGTRAIN_RESTART": str(self.supervisor.restarts)},
                start_new_session=True,
                preexec_fn=partial(LIBC.prctl, PR_SET_PDEATHSIG, signal.SIGKILL) if LIBC else None,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CannotStart(f"worker {self.index} could not be started: {_reason(error)}") from None

    def follow(self):
        """Send its source to standard input; then report its output and end."""
        reader = threading.Thread(target=self._read, daemon=True)
        try:
            reader.start()
            threading.Thread(target=self._wait, args=(reader,), daemon=True).start()
        except RuntimeError as error:
            raise CannotStart(f"worker {self.index} could not be started: {error}") from None

    def signal(self, number):
        """Send a signal to it and its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def state(self):
        code = self.code  # read before the time of its end, which another thread sets first
        return State(code, self.began, self.ended, self.raised)

    def _read(self):
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(self.supervisor.order["source"].encode())
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip("\r\n")
            if text.startswith("Traceback"):
                self.raised = time.monotonic()
            self.supervisor.send_event(worker=self.index, text=text)

    def _wait(self, reader):
        code = self.process.wait()
        self.ended = time.monotonic()
        self.signal(signal.SIGKILL)  # its remaining children
        reader.join(LAST_WORDS_SECONDS)
        self.supervisor.send_event(worker=self.index, code=code)
        self.code = code


def _reason(error):
    return getattr(error, "strerror", None) or str(error)


class Supervisor:
    """Runs an order's workers, and restarts them after a failure as often as the order allows.

    Events go to the parent process. All workers are ended on its request, or once it has ended.
    """

    def __init__(self, order):
        self.parent = os.getppid()
        self.order = order
        deadline = math.inf if order["timeout"] is None else time.monotonic() + order["timeout"]
        self.known = Known([], 0.0, order["grace_period"], deadline, order["restarts"])
        self.workers = []
        self.stopped = False
        self.lock = threading.Lock()

    @property
    def restarts(self):
        return self.order["restarts"] - self.known.restarts_left

    def send_event(self, **event):
        """Send an event, one at a time; none if the parent has ended and only a forked child keeps the pipe open."""
        if os.getppid() == self.parent:
            with self.lock, suppress(BrokenPipeError):
                print(json.dumps(event), flush=True)

    def stop(self, *_):
        self.stopped = True

    def run(self):
        try:
            self.start_all()
            self.watch()
        except CannotStart as error:
            self.send_event(cannot_start=str(error))
        finally:
            self.signal(signal.SIGKILL)
            self.kill_remaining()

    def start_all(self):
        """Start all workers, on free loopback ports."""
        environments = self.order["environments"]
        try:
            addresses = [f"127.0.0.1:{port}" for port in free_ports(len(environments))]
        except OSError as error:
            raise CannotStart(f"127.0.0.1 has no {len(environments)} ports for the workers: {_reason(error)}") from None
        self.workers = []
        for index, added in enumerate(environments):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            worker = Worker(self, index, os.environ | added | {"TF_CONFIG": json.dumps(config)})
            worker.start()
            self.workers.append(worker)
        pids, codes = [worker.process.pid for worker in self.workers], [None] * len(self.workers)
        self.send_event(addresses=addresses, failed=None, restarted=self.restarts, pids=pids, codes=codes)
        for worker in self.workers:
            worker.follow()

    def watch(self):
        """Poll and carry out the next step, until the job is over."""
        while True:
            self.poll()
            states = [worker.state() for worker in self.workers]
            self.known = replace(self.known, workers=states, now=time.monotonic(), stopped=self.stopped)
            step = next_step(self.known)
            if step.what == "end":
                self.known = replace(self.known, end=step, end_at=self.known.now)
                if step.cause in ("failure", "timeout"):
                    self.send_event(failed=step.worker, timed_out=step.cause == "timeout")
                self.signal(signal.SIGTERM)
            elif step.what == "kill":
                self.signal(signal.SIGKILL)
            elif step.what == "start all":
                self.known = after_restart(self.known)
                self.kill_remaining()
                self.start_all()
            elif step.what == "finish":
                return

    def poll(self):
        """Wait briefly for a request to end all workers, and note it."""
        readable, _, _ = select.select([] if self.stopped else [0], [], [], TICK_SECONDS)
        if readable or os.getppid() != self.parent:
            self.stopped = True
        if LIBC:
            self.reap_orphan()

    def reap_orphan(self):
        """Reap an orphaned descendant of a worker, which this process has adopted."""
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended and ended.si_pid not in [worker.process.pid for worker in self.workers]:
                os.waitpid(ended.si_pid, 0)

    def kill_remaining(self):
        """Kill the remaining descendants of the workers, in other sessions too. The workers have ended.

        On Linux, this process adopts them, and then their children as they end.
        """
        until = time.monotonic() + LAST_WORDS_SECONDS
        while (pids := children() if LIBC else []) and time.monotonic() < until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(TICK_SECONDS)

    def signal(self, number):
        for worker in self.workers:
            if worker.code is None:
                worker.signal(number)


def free_ports(count):
    """Return free ports of 127.0.0.1, drawn at random.

    The system's ephemeral ports, if known, are excluded, because TensorFlow opens the ports only seconds later.
    """
    candidates = range(10_000, 65_536)
    with suppress(OSError):
        first, last = map(int, CLIENTS.read_text().split())
        candidates = [port for port in candidates if not first <= port <= last] or candidates
    sockets = []
    while len(sockets) < count:
        try:
            sockets.append(socket.create_server(("127.0.0.1", random.choice(candidates))))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def children():
    """Return the process ids of this process's children that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]  # names may be any bytes
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(stat.parent.name))
    return found


def main():
    supervisor = Supervisor(json.loads(sys.stdin.buffer.readline()))
    signal.signal(signal.SIGTERM, supervisor.stop)
    if LIBC:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor.run()
    os._exit(0)  # without waiting for threads that are blocked on a pipe


if __name__ == "__main__":
    main()
