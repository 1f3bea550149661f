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

    def __init__(self, index, command, environment):
        self.index = index
        self.code = None
        self.raised = -math.inf  # when it last printed a traceback
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
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
    os._exit(0)  # without a look at threads that still stand at a pipe


def supervise(order, client):
    """Run the workers, again after a failure as often as the order allows."""
    deadline = math.inf if order["timeout"] is None else time.monotonic() + order["timeout"]
    for restart in range(order["restarts"] + 1):
        workers = []
        try:
            start(workers, order, restart)
            pids = [worker.process.pid for worker in workers]
            client.tell(restarted=restart, pids=pids, codes=[None] * len(pids), failed=None)
            for worker in workers:
                worker.follow(order["source"], client)
            failed = watch(workers, client, order["patience"], deadline)
        finally:
            signal_all(workers, signal.SIGKILL)
        if time.monotonic() >= deadline:
            client.tell(timed_out=True)
            break
        if failed is None or client.stopped:
            break


def start(workers, order, restart):
    """Fill ``workers`` with new ones on free loopback ports."""
    environments = order["environments"]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(len(environments))]}
    for index, environment in enumerate(environments):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        own = {"TF_CONFIG": json.dumps(config), "BIGTRAIN_RESTART": str(restart)}
        workers.append(Worker(index, order["command"], environment | own))


def free_ports(count):
    """Return ports that nobody listens on; they are asked for together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def watch(workers, client, patience, deadline):
    """Return the worker that failed first, or None, once all have ended.

    The end begins ``patience`` seconds after a failure, at the deadline, or when the client wants it: SIGTERM to those
    that run, and SIGKILL 5 s later. Who ends after that has not failed by itself.
    """
    first = None
    end_at = deadline
    terminated = False
    told = [None] * len(workers)
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
        if failed and first is None:
            failed.sort(key=lambda worker: worker.ended)
            end_at = min(end_at, failed[0].ended + patience)
            suspect = first_to_fail(workers, failed)
            settled = suspect.code is not None and now >= failed[0].ended + SETTLE_SECONDS
            if settled or now >= end_at or None not in codes:
                first = suspect if suspect in failed else failed[0]
                client.tell(failed=first.index)

        if now >= end_at and not terminated:
            signal_all(workers, signal.SIGTERM)
            terminated = True
        if now >= end_at + TERM_SECONDS:
            signal_all(workers, signal.SIGKILL)
    return first


def first_to_fail(workers, failed):
    """Return the worker that failed first, which may still be about to end; ``failed`` are in the order of their ends.

    One that a signal killed comes first: the others can notice before the system has cleared it away. SIGABRT does not
    count, for TensorFlow ends like that when a peer is gone. Else it is who printed a traceback before the first end:
    such a worker may take long to end, and the others may end before it.
    """
    for worker in failed:
        if worker.code < 0 and worker.code != -signal.SIGABRT:
            return worker
    first, moment = failed[0], failed[0].ended
    for worker in workers:
        if failed[0].ended - LATELY_SECONDS < worker.raised < moment:
            first, moment = worker, worker.raised
    return first


def signal_all(workers, number):
    for worker in workers:
        if worker.code is None:
            worker.signal(number)


if __name__ == "__main__":
    main()
