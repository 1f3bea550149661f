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


class Worker:
    """One worker: a process that leads a group of its own. The supervisor tells what it prints, and its end."""

    def __init__(self, supervisor, index, environment):
        self.supervisor = supervisor
        self.index = index
        self.environment = environment
        self.alone = supervisor.order["tasks"][index]["alone"]  # whether it is started again without the others

    def start(self):
        """Start its process, also anew: on the same port then."""
        self.code = None
        self.raised = 0.0  # when it last printed a traceback
        self.process = subprocess.Popen(
            self.supervisor.order["command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment | {"BIGTRAIN_RESTART": str(self.supervisor.restarts)},
            start_new_session=True,
            preexec_fn=_end_with_supervisor if LIBC else None,
        )

    def follow(self):
        """Give it its source on standard input; from now on tell what it prints, and note its end."""
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        threading.Thread(target=self._wait, args=(reader,), daemon=True).start()

    def signal(self, number):
        """Send a signal to it, and to what it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def began_to_fail(self):
        """Return when it printed its last traceback, if it ended soon after that, or else when it ended."""
        return self.raised if self.raised > self.ended - LATELY_SECONDS else self.ended

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


class Supervisor:
    """Carries out an order: runs the workers, again after a failure as often as the order allows.

    Events go to the process that wants the workers. All are ended once it says so, or has ended itself.
    """

    def __init__(self, order):
        self.parent = os.getppid()
        self.order = order
        self.deadline = math.inf
        if order["timeout"] is not None:
            self.deadline = time.monotonic() + order["timeout"]
        self.restarts = 0
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
        while True:
            self.workers = []
            try:
                self.start()
                failed = self.watch()
            finally:
                self.signal(signal.SIGKILL)
            if time.monotonic() >= self.deadline:
                return self.tell(timed_out=True)
            if not failed or self.stopped or self.restarts == self.order["restarts"]:
                return
            self.restarts += 1

    def start(self):
        """Start all workers, on free loopback ports."""
        tasks = self.order["tasks"]
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(tasks))]
        cluster = {}
        for task, address in zip(tasks, addresses, strict=True):
            cluster.setdefault(task["type"], []).append(address)
        for index, task in enumerate(tasks):
            config = {"cluster": cluster, "task": {"type": task["type"], "index": task["index"]}}
            environment = os.environ | task["environment"] | {"TF_CONFIG": json.dumps(config)}
            self.workers.append(Worker(self, index, environment))
            self.workers[index].start()
        self.tell(addresses=addresses, failed=None, **self.state())
        for worker in self.workers:
            worker.follow()

    def start_alone(self, worker):
        """Start one worker again, where it was, while the others run."""
        self.restarts += 1
        worker.start()
        self.tell(alone=worker.index, **self.state())
        worker.follow()

    def state(self):
        pids = [worker.process.pid for worker in self.workers]
        return {"restarted": self.restarts, "pids": pids, "codes": [worker.code for worker in self.workers]}

    def watch(self):
        """Return whether a worker failed, once all have ended.

        The end begins ``patience`` seconds after a failure, at the deadline, or when the client wants it: SIGTERM to
        those that run, and SIGKILL 5 s later. Who ends after that has not failed by itself. A worker that is started
        again alone has not failed while there are restarts left, and is not waited for once the others have ended well.
        """
        patience = self.order["patience"]
        needed = [worker for worker in self.workers if not worker.alone]
        end_at = self.deadline
        has_failed = is_ending = False
        while True:
            self.look()
            now = time.monotonic()
            running = [worker for worker in self.workers if worker.code is None]
            failed = [worker for worker in self.workers if worker.code and worker.ended <= end_at]
            is_over = needed and all(worker.code == 0 for worker in needed)
            if self.stopped:
                end_at = min(end_at, now)
            elif is_over:
                end_at = min(end_at, now + patience)
            elif failed and self.restarts < self.order["restarts"] and all(worker.alone for worker in failed):
                if now >= failed[0].ended + SETTLE_SECONDS:  # else it may be a consequence of another's failure
                    self.start_alone(failed[0])
            elif failed:
                end_at = min(end_at, failed[0].ended + patience)

            if not is_ending and (now >= end_at or not running):
                is_ending = True
                has_failed = bool(failed) and not is_over
                if has_failed:
                    self.tell(failed=first_to_fail(failed).index)
                self.signal(signal.SIGTERM)
            if now >= end_at + TERM_SECONDS:
                self.signal(signal.SIGKILL)
            if not running:
                return has_failed

    def look(self):
        """Note whether all shall end, after a moment in which that may be said."""
        readable, _, _ = select.select([] if self.stopped else [0], [], [], TICK_SECONDS)
        if readable or os.getppid() != self.parent:
            self.stopped = True

    def signal(self, number):
        for worker in self.workers:
            if worker.code is None:
                worker.signal(number)


def free_ports(count):
    """Return ports that nobody listens on; they are asked for together, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def first_to_fail(failed):
    """Return the worker that failed first, which need not have ended first.

    One that a signal killed comes first: the others can notice before the system has cleared it away. SIGABRT does not
    count, for TensorFlow ends like that when a peer is gone. Else it is who printed a traceback first: such a worker
    may take long to end, and the others may end before it.
    """
    killed = [worker for worker in failed if worker.code < 0 and worker.code != -signal.SIGABRT]
    return min(killed or failed, key=Worker.began_to_fail)


def main():
    supervisor = Supervisor(json.loads(sys.stdin.buffer.readline()))
    signal.signal(signal.SIGTERM, supervisor.stop)
    supervisor.run()
    if supervisor.order["scratch"]:
        shutil.rmtree(supervisor.order["scratch"], ignore_errors=True)
    os._exit(0)  # without a look at threads that still stand at a pipe


if __name__ == "__main__":
    main()
