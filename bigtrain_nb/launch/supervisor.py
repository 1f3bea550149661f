"""The process between a job and its workers: it starts them, passes on what they print, and ends them all.

A kernel can be killed at any moment, and its workers must not outlast it. So they are this process's children: it sees
its parent go, however that went, and ends them. On Linux they also die with this process, should it be killed itself.

It needs the standard library only, so that it starts at once. Standard input brings an order, a line of JSON; whatever
comes after it, be it the end of the input, means that all shall end. Events go to standard output as lines of JSON.
Each worker has two threads, one for its lines and one for its end. The main thread looks, asks `next_step` what to do,
and does it.
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
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 0.02
TERM_SECONDS = 5.0
LATELY_SECONDS = 5.0
LAST_WORDS_SECONDS = 3.0
STEADY_SECONDS = 60.0  # who has run that long before it failed is started again at once
LONGEST_PAUSE_SECONDS = 30.0
LEAST_PORT, MOST_PORT = 10_000, 65_535
CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the system gives these ports to whoever connects
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class State:
    """What is known of a worker: its exit code, and some times."""

    code: int | None = None  # None while it runs
    began: float = 0.0
    ended: float = 0.0
    raised: float = 0.0  # when it last printed a traceback

    def was_steady(self):
        """Return whether it had run for a while before it ended."""
        return self.ended - self.began >= STEADY_SECONDS

    def began_to_fail(self):
        """Return when it printed its last traceback, if it ended soon after that, or else when it ended."""
        return self.raised if self.raised > self.ended - LATELY_SECONDS else self.ended


@dataclass(frozen=True)
class Step:
    """What to do next.

    "wait"; "end", which begins the end for a ``cause``: "success", "failure" of a worker, "stopped" or "timeout";
    "kill" those that still run; "start all" again; "finish".
    """

    what: str
    worker: int | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Known:
    """All that the next step depends on. Times are seconds of one clock, ``pauses`` the restarts in quick succession.

    ``end`` is the step that began the end, and ``end_at`` when that was.
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
    """Return the `Step` that follows from what is `Known`.

    The end begins ``grace_period`` seconds after a failure, at the deadline, or when the client wants it: SIGTERM to
    those that run, and SIGKILL 5 s later. Its cause is what came first. Who ends after that has not failed by itself.
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
    """Return the seconds to wait: 0 at first, then 1, 2, 4, ..., unless the one that failed had run for a while."""
    if known.restarts_in_a_row == 0 or failed.was_steady():
        return 0.0
    doublings = min(known.restarts_in_a_row - 1, 10)
    return min(2.0**doublings, LONGEST_PAUSE_SECONDS)


def first_to_fail(workers, failed):
    """Return which of those that ``failed`` failed first, which need not have ended first.

    One that a signal killed comes first: the others can notice before the system has cleared it away. SIGABRT does not
    count, for TensorFlow ends like that when a peer is gone. Else it is who printed a traceback first: such a worker
    may take long to end, and the others may end before it.
    """
    killed = [index for index in failed if workers[index].code < 0 and workers[index].code != -signal.SIGABRT]
    return min(killed or failed, key=lambda index: workers[index].began_to_fail())


class CannotStart(Exception):
    """A process that the system does not start; says which, and the system's reason."""


class Worker:
    """One worker: a process that leads a group of its own. The supervisor tells what it prints, and its end."""

    def __init__(self, supervisor, index, environment):
        self.supervisor = supervisor
        self.index = index
        self.environment = environment
        self.task = supervisor.tasks[index]
        self.code = None
        self.began = self.ended = self.raised = 0.0

    def start(self):
        """Start its process."""
        self.began = time.monotonic()
        try:
            self.process = subprocess.Popen(
                self.supervisor.order["command"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment | {"BIGTRAIN_RESTART": str(self.supervisor.restarts)},
                start_new_session=True,
                preexec_fn=_end_with_supervisor if LIBC else None,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CannotStart(f"{self.task['name']} could not be started: {_reason(error)}") from None

    def follow(self):
        """Give it its source on standard input; from now on tell what it prints, and note its end."""
        reader = threading.Thread(target=self._read, daemon=True)
        try:
            reader.start()
            threading.Thread(target=self._wait, args=(reader,), daemon=True).start()
        except RuntimeError as error:
            raise CannotStart(f"{self.task['name']} could not be started: {error}") from None

    def signal(self, number):
        """Send a signal to it, and to what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def state(self):
        code = self.code  # before its end, which another thread notes first
        return State(code, self.began, self.ended, self.raised)

    def _read(self):
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(self.supervisor.order["source"].encode())
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip("\r\n")
            if text.startswith("Traceback"):
                self.raised = time.monotonic()
            self.supervisor.tell(worker=self.index, text=text)

    def _wait(self, reader):
        code = self.process.wait()
        self.ended = time.monotonic()
        self.signal(signal.SIGKILL)  # what it has started and left behind
        reader.join(LAST_WORDS_SECONDS)
        self.supervisor.tell(worker=self.index, code=code)
        self.code = code


def _end_with_supervisor():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _reason(error):
    return getattr(error, "strerror", None) or str(error)


class Supervisor:
    """Carries out an order: runs the workers, again after a failure as often as the order allows.

    Events go to the process that wants the workers. All are ended once it says so, or has ended itself.
    """

    def __init__(self, order):
        self.parent = os.getppid()
        self.order = order
        self.tasks = order["tasks"]
        self.deadline = math.inf
        if order["timeout"] is not None:
            self.deadline = time.monotonic() + order["timeout"]
        self.workers = []
        self.restarts = self.restarts_in_a_row = 0
        self.end, self.end_at = None, 0.0
        self.stopped = False
        self.lock = threading.Lock()

    def tell(self, **event):
        """Send an event; one at a time, and none to a pipe that only a forked child keeps open."""
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
            self.tell(cannot_start=str(error))
        finally:
            self.signal(signal.SIGKILL)
            self.end_what_is_left()

    def start_all(self):
        """Start all workers, on free loopback ports."""
        try:
            addresses = [f"127.0.0.1:{port}" for port in free_ports(len(self.tasks))]
        except OSError as error:
            raise CannotStart(
                f"there are no {len(self.tasks)} ports of 127.0.0.1 for the workers: {_reason(error)}"
            ) from None
        self.workers, self.end = [], None
        for index, task in enumerate(self.tasks):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = os.environ | task["environment"] | {"TF_CONFIG": json.dumps(config)}
            worker = Worker(self, index, environment)
            worker.start()
            self.workers.append(worker)
        self.tell(addresses=addresses, failed=None, **self.state())
        for worker in self.workers:
            worker.follow()

    def state(self):
        pids = [worker.process.pid for worker in self.workers]
        return {"restarted": self.restarts, "pids": pids, "codes": [worker.code for worker in self.workers]}

    def watch(self):
        """Look, ask what to do next, and do it, until the job is over."""
        while True:
            self.look()
            known = self.known()
            step = next_step(known)
            if step.what == "end":
                self.end, self.end_at = step, known.now
                if step.cause in ("failure", "timeout"):
                    self.tell(failed=step.worker, timed_out=step.cause == "timeout")
                self.signal(signal.SIGTERM)
            elif step.what == "kill":
                self.signal(signal.SIGKILL)
            elif step.what == "start all":
                self.count_restart(known, known.end.worker)
                self.end_what_is_left()
                self.start_all()
            elif step.what == "finish":
                return

    def look(self):
        """Note whether all shall end, after a moment in which that may be said."""
        readable, _, _ = select.select([] if self.stopped else [0], [], [], TICK_SECONDS)
        if readable or os.getppid() != self.parent:
            self.stopped = True
        if LIBC:
            self.bury_an_adopted_one()

    def bury_an_adopted_one(self):
        """Clear away a process that has ended and was left to this one by what a worker had started."""
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended and ended.si_pid not in [worker.process.pid for worker in self.workers]:
                os.waitpid(ended.si_pid, 0)

    def end_what_is_left(self):
        """Kill what the workers have started and left behind, also in sessions of their own. Workers have ended.

        Linux gives such processes to this one; when one ends, its own children follow.
        """
        until = time.monotonic() + LAST_WORDS_SECONDS
        while (pids := children() if LIBC else []) and time.monotonic() < until:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(TICK_SECONDS)

    def known(self):
        return Known(
            workers=[worker.state() for worker in self.workers],
            now=time.monotonic(),
            grace_period=self.order["grace_period"],
            deadline=self.deadline,
            restarts_left=self.order["restarts"] - self.restarts,
            restarts_in_a_row=self.restarts_in_a_row,
            stopped=self.stopped,
            end=self.end,
            end_at=self.end_at,
        )

    def count_restart(self, known, worker):
        self.restarts_in_a_row = 1 if known.workers[worker].was_steady() else self.restarts_in_a_row + 1
        self.restarts += 1

    def signal(self, number):
        for worker in self.workers:
            if worker.code is None:
                worker.signal(number)


def free_ports(count):
    """Return ports of 127.0.0.1 that nobody listens on, drawn at random.

    They are not among those that the system gives to clients, if it tells which these are: it will be seconds until
    TensorFlow takes them.
    """
    candidates = range(LEAST_PORT, MOST_PORT + 1)
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
    """Return the process ids of this process' children that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]  # its name is any bytes
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(stat.parent.name))
    return found


def main():
    supervisor = Supervisor(json.loads(sys.stdin.buffer.readline()))
    signal.signal(signal.SIGTERM, supervisor.stop)
    if LIBC:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor.run()
    os._exit(0)  # without a look at threads that still stand at a pipe


if __name__ == "__main__":
    main()
