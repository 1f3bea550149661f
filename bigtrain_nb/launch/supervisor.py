"""The process between a job and its workers: it starts them, passes on what they print, and ends them all.

A kernel can be killed at any moment, and its workers must not outlast it. So they are this process's children: it sees
its parent go, however that went, and ends them. On Linux they also die with this process, should it be killed itself.

It needs the standard library only, so that it starts at once. Standard input brings an order, a line of JSON; whatever
comes after it, be it the end of the input, means that all shall end. Events go to standard output as lines of JSON.
Each worker has two threads, one for its lines and one for its end; the main thread decides.
"""

import ctypes
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

TICK_SECONDS = 0.02
TERM_SECONDS = 5.0
LATELY_SECONDS = 5.0
SETTLE_SECONDS = 0.5
LAST_WORDS_SECONDS = 3.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Client:
    """The process that wants the workers. Events go to it; `stopped` once it wants their end, or has ended itself."""

    def __init__(self):
        self.parent = os.getppid()
        self.order = json.loads(sys.stdin.buffer.readline())
        self.stopped = False
        self.lock = threading.Lock()

    def tell(self, **event):
        """Send an event; one at a time, and none to a pipe that only a forked child keeps open."""
        if os.getppid() == self.parent:
            with self.lock, suppress(BrokenPipeError):
                print(json.dumps(event), flush=True)

    def look(self):
        """Note whether all shall end, after a moment in which that may be said."""
        readable, _, _ = select.select([] if self.stopped else [0], [], [], TICK_SECONDS)
        if readable or os.getppid() != self.parent:
            self.stopped = True

    def stop(self, *_):
        self.stopped = True


class Worker:
    """One worker: a process that leads a group of its own."""

    def __init__(self, index, command, environment, alone, restart):
        self.index = index
        self.command = command
        self.environment = environment
        self.alone = alone  # whether it is started again without the others
        self.start(restart)

    def start(self, restart):
        """Start its process, also anew: on the same port then."""
        self.code = None
        self.raised = 0.0  # when it last printed a traceback
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment | {"BIGTRAIN_RESTART": str(restart)},
            start_new_session=True,
            preexec_fn=_end_with_supervisor if LIBC else None,
        )

    def follow(self, source, client):
        """Give it its source on standard input; from now on tell what it prints, and note its end."""
        reader = threading.Thread(target=self._read, args=(source, client), daemon=True)
        reader.start()
        threading.Thread(target=self._wait, args=(reader,), daemon=True).start()

    def signal(self, number):
        """Send a signal to it, and to what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def began_to_fail(self):
        """Return when it printed its last traceback, if it ended soon after that, or else when it ended."""
        return self.raised if self.raised > self.ended - LATELY_SECONDS else self.ended

    def _read(self, source, client):
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(source.encode())
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip("\r\n")
            if text.startswith("Traceback"):
                self.raised = time.monotonic()
            client.tell(worker=self.index, text=text)

    def _wait(self, reader):
        code = self.process.wait()
        self.ended = time.monotonic()
        self.signal(signal.SIGKILL)  # what it has started and left behind
        reader.join(LAST_WORDS_SECONDS)
        self.code = code


def _end_with_supervisor():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    client = Client()
    signal.signal(signal.SIGTERM, client.stop)
    supervise(client.order, client)
    if client.order["scratch"]:
        shutil.rmtree(client.order["scratch"], ignore_errors=True)
    os._exit(0)  # without a look at threads that still stand at a pipe


class Restarts:
    """How often something was started again, and how often it still may be."""

    def __init__(self, most):
        self.done = 0
        self.left = most

    def count(self):
        self.done += 1
        self.left -= 1


def supervise(order, client):
    """Run the workers, again after a failure as often as the order allows."""
    deadline = math.inf if order["timeout"] is None else time.monotonic() + order["timeout"]
    restarts = Restarts(order["restarts"])
    while True:
        workers = []
        try:
            addresses = start(workers, order, restarts.done)
            pids = [worker.process.pid for worker in workers]
            client.tell(restarted=restarts.done, addresses=addresses, pids=pids, codes=[None] * len(pids), failed=None)
            for worker in workers:
                worker.follow(order["source"], client)
            failed = watch(workers, client, order, restarts, deadline)
        finally:
            signal_all(workers, signal.SIGKILL)
        if time.monotonic() >= deadline:
            client.tell(timed_out=True)
            break
        if failed is None or client.stopped or not restarts.left:
            break
        restarts.count()


def start(workers, order, restart):
    """Fill ``workers`` with new ones on free loopback ports; return their addresses."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(order["tasks"]))]
    cluster = {}
    for task, address in zip(order["tasks"], addresses, strict=True):
        cluster.setdefault(task["kind"], []).append(address)
    for index, (task, environment) in enumerate(zip(order["tasks"], order["environments"], strict=True)):
        kind = task["kind"]
        config = {"cluster": cluster, "task": {"type": kind, "index": cluster[kind].index(addresses[index])}}
        environment = environment | {"TF_CONFIG": json.dumps(config)}
        workers.append(Worker(index, order["command"], environment, task["alone"], restart))
    return addresses


def free_ports(count):
    """Return ports that nobody listens on; they are asked for together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def watch(workers, client, order, restarts, deadline):
    """Return the worker that failed first, or None, once all have ended.

    The end begins ``patience`` seconds after a failure, at the deadline, or when the client wants it: SIGTERM to those
    that run, and SIGKILL 5 s later. Who ends after that has not failed by itself. A worker that is started again alone
    has not failed while there are restarts left, and is not waited for once the others have ended well.
    """
    first = None
    end_at = deadline
    terminated = False
    told = [None] * len(workers)
    needed = [worker for worker in workers if not worker.alone]
    while None in told:
        client.look()
        now = time.monotonic()
        if client.stopped:
            end_at = min(end_at, now)

        codes = [worker.code for worker in workers]
        if codes != told:
            client.tell(codes=codes)
            told = codes
        failed = [worker for worker in workers if worker.code and worker.ended <= end_at]
        is_over = needed and all(worker.code == 0 for worker in needed)
        if is_over:
            end_at = min(end_at, now + order["patience"])
        elif failed and end_at == deadline and restarts.left and all(worker.alone for worker in failed):
            if now >= failed[0].ended + SETTLE_SECONDS:  # else it may be a consequence of another's failure
                start_alone(failed[0], workers, client, order, restarts)
                told = [None] * len(workers)
        elif failed and first is None:
            first_end = min(worker.ended for worker in failed)
            end_at = min(end_at, first_end + order["patience"])
            is_ending = any(worker.raised and worker.code is None for worker in workers)
            settled = not is_ending and now >= first_end + SETTLE_SECONDS
            if settled or now >= end_at or None not in codes:
                first = first_to_fail(failed)
                client.tell(failed=first.index)

        if now >= end_at and not terminated:
            signal_all(workers, signal.SIGTERM)
            terminated = True
        if now >= end_at + TERM_SECONDS:
            signal_all(workers, signal.SIGKILL)
    return first


def start_alone(worker, workers, client, order, restarts):
    """Start one worker again, where it was, while the others run."""
    restarts.count()
    worker.start(restarts.done)
    pids = [worker.process.pid for worker in workers]
    client.tell(restarted=restarts.done, alone=worker.index, pids=pids, codes=[worker.code for worker in workers])
    worker.follow(order["source"], client)


def first_to_fail(failed):
    """Return the worker that failed first, which need not have ended first.

    One that a signal killed comes first: the others can notice before the system has cleared it away. SIGABRT does not
    count, for TensorFlow ends like that when a peer is gone. Else it is who printed a traceback first: such a worker
    may take long to end, and the others may end before it.
    """
    killed = [worker for worker in failed if worker.code < 0 and worker.code != -signal.SIGABRT]
    return min(killed or failed, key=Worker.began_to_fail)


def signal_all(workers, number):
    for worker in workers:
        if worker.code is None:
            worker.signal(number)


if __name__ == "__main__":
    main()
