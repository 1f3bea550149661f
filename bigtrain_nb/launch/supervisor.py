"""The small process between a job and its workers: starts them, passes on what they print, and ends them all.

A kernel can be killed at any moment, and its workers must not outlast it. So they are this process's children: it sees
its parent go, however that went, and ends them. On Linux they also die with this process, should it be killed itself.

It needs the standard library only, so that it starts at once. On standard input it reads an order as a line of JSON,
then commands; "stop", or the end of the input, means that all shall end. On standard output it writes events as lines
of JSON.
"""

import ctypes
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

TICK_SECONDS = 0.05
TERM_SECONDS = 5.0
LATELY_SECONDS = 5.0
SETTLE_SECONDS = 0.5
CHUNK = 2**16
LONGEST_LINE = 2**24
CHUNKS_LEFT = 64  # more than a pipe holds
MOST_UNSENT = 2**20
PR_SET_PDEATHSIG = 1


class Lines:
    """What comes from a file descriptor, in whole lines, without ever waiting for it."""

    def __init__(self, descriptor):
        os.set_blocking(descriptor, False)
        self.descriptor, self.rest, self.ended = descriptor, b"", False

    def take(self):
        """Return the lines that came with the next chunk, None if nothing is there."""
        try:
            chunk = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return None
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.ended = not chunk
        if len(self.rest) >= LONGEST_LINE:
            lines += self._last()
        return [line.decode(errors="replace") for line in lines]

    def last(self):
        """Return what stands behind the last line's end: one line or none."""
        return [line.decode(errors="replace") for line in self._last()]

    def _last(self):
        rest, self.rest = self.rest, b""
        return [rest] if rest else []


class Client:
    """The process that asked: events to it, commands from it. `gone` once it has ended, or asked for the end."""

    def __init__(self):
        self.commands, self.unsent, self.parent, self.gone = Lines(0), bytearray(), os.getppid(), False
        os.set_blocking(1, False)

    def tell(self, **event):
        self.unsent += json.dumps(event).encode() + b"\n"
        self.flush()

    def flush(self):
        try:
            while self.unsent:
                del self.unsent[: os.write(1, self.unsent[:CHUNK])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent.clear()
            self.gone = True

    def finish(self):
        """Wait until all is told, unless nobody listens: a child that the parent forked may keep the pipe open."""
        if os.getppid() == self.parent:
            os.set_blocking(1, True)
            self.flush()

    def next_kills(self):
        """Return the workers to kill, by the commands that have come."""
        self.flush()
        lines = (None if self.gone else self.commands.take()) or []
        commands = [json.loads(line) for line in lines]
        self.gone = self.gone or self.commands.ended or {"stop": True} in commands or os.getppid() != self.parent
        return [command["kill"] for command in commands if "kill" in command]


class Worker:
    """One worker: a process that leads a group of its own, and its output."""

    def __init__(self, index, order, environment):
        with tempfile.TemporaryFile() as source:
            source.write((order["source"] or "").encode())
            source.seek(0)
            self.process = subprocess.Popen(
                order["command"],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_supervisor if LIBC else None,
            )
        self.index, self.code = index, None
        self.raised, self.ended = -math.inf, math.inf
        self.output = Lines(self.process.stdout.fileno())

    def look(self):
        """Note when it ends."""
        if self.process.poll() is not None:
            self.ended = time.monotonic()

    def pass_on(self, client):
        """Tell what it has printed, and its exit code once it has ended; return whether it has just ended."""
        code = self.process.returncode
        if code is None:
            if len(client.unsent) < MOST_UNSENT:
                self._tell(self.output.take(), client)
            return False
        self.signal(signal.SIGKILL)  # what it has started and left behind
        for _ in range(CHUNKS_LEFT):
            if not self._tell(self.output.take(), client):
                break
        self._tell(self.output.last(), client)
        self.process.stdout.close()
        self.code = code
        client.tell(event="ended", worker=self.index, code=code)
        return True

    def _tell(self, lines, client):
        for line in lines or []:
            if line.startswith("Traceback"):
                self.raised = time.monotonic()
            client.tell(event="line", worker=self.index, text=line.removesuffix("\r"))
        return lines is not None and not self.output.ended

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


class Ending:
    """SIGTERM to all workers at a given moment, and `TERM_SECONDS` later SIGKILL to those that are left."""

    def __init__(self):
        self.moment = math.inf
        self.steps = [(0, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)]

    def begin(self, moment):
        self.moment = min(self.moment, moment)

    def go_on(self, running):
        while self.steps and time.monotonic() >= self.moment + self.steps[0][0]:
            _, number = self.steps.pop(0)
            for worker in running:
                worker.signal(number)


def start(workers, order, restart):
    """Fill ``workers`` with new ones on free loopback ports."""
    count = len(order["environments"])
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    for index, environment in enumerate(order["environments"]):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        own = {"TF_CONFIG": json.dumps(config), "BIGTRAIN_RESTART": str(restart)}
        workers.append(Worker(index, order, environment | own))


def free_ports(count):
    """Return ports that nobody listens on; they are asked for together, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def watch(workers, client, patience, until, wake):
    """Return when all workers have ended: the index of the first that failed by itself, or None."""
    failed, ended, ending = None, [], Ending()
    ending.begin(until)
    while running := [worker for worker in workers if worker.code is None]:
        readable = [worker.output.descriptor for worker in running if not worker.output.ended]
        woken = [wake, *(readable if len(client.unsent) < MOST_UNSENT else [])]
        if wake in select.select(woken, [1] if client.unsent else [], [], TICK_SECONDS)[0]:
            os.read(wake, CHUNK)
        for index in client.next_kills():
            if workers[index].code is None:
                workers[index].signal(signal.SIGKILL)
        for worker in running:
            worker.look()  # all before any is heard: what the others say of an end comes after it
        for worker in running:
            if worker.pass_on(client) and worker.code and time.monotonic() < ending.moment:
                ended.append(worker)
                ending.begin(time.monotonic() + patience)
        if ended and failed is None and (first := first_to_fail(workers, ended, ending)):
            failed = first.index
            client.tell(event="failed", worker=failed)
        if client.gone:
            ending.begin(time.monotonic())
        ending.go_on(running)
    return failed


def first_to_fail(workers, ended, ending):
    """Return the worker that failed first, None while that is open; ``ended`` are those that ended by themselves.

    One that a signal killed comes first: the others can notice before the system has cleared it away. Else it is who
    printed a traceback first, if that was lately, or ended first: the others may end before it, after its traceback.
    """
    first, now = ended[0], time.monotonic()

    def order(worker):
        killed = worker in ended and worker.code < 0 and worker.code != -signal.SIGABRT  # TensorFlow's own way out
        lately = worker.raised > first.ended - LATELY_SECONDS
        return not killed, worker.raised if lately and not killed else worker.ended

    suspect = min(workers, key=order)
    undecided = suspect.code is None or now < first.ended + SETTLE_SECONDS
    if undecided and now < ending.moment and any(worker.code is None for worker in workers):
        return None
    return suspect if suspect in ended else first


def ends_of_children():
    """Return a descriptor that is readable once a child has ended: its peers follow soon."""
    wake, end = os.pipe()
    for descriptor in (wake, end):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(end)
    return wake


def supervise(order, client):
    """Run the workers, again after a failure as often as the order allows; tell how it went."""
    until = math.inf if order["timeout"] is None else time.monotonic() + order["timeout"]
    wake = ends_of_children()
    for restart in range(order["restarts"] + 1):
        workers = []
        try:
            start(workers, order, restart)
            client.tell(event="started", restart=restart, pids=[worker.process.pid for worker in workers])
            failed = watch(workers, client, order["patience"], until, wake)
        finally:
            for worker in workers:
                if worker.code is None:
                    worker.signal(signal.SIGKILL)
        if failed is None or client.gone or time.monotonic() >= until:
            break
    client.tell(event="done", timed_out=time.monotonic() >= until, stopped=client.gone)


def main():
    order = json.loads(sys.stdin.buffer.readline())  # commands come only after the first event
    client = Client()
    signal.signal(signal.SIGTERM, lambda *_: setattr(client, "gone", True))
    supervise(order, client)
    client.finish()


def _end_with_supervisor():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

if __name__ == "__main__":
    main()
