"""Tasks that only serve: their TensorFlow runs what the chief sends it, and they end when the chief ends.

A task reports to the chief's address in TF_CONFIG once its server runs, and keeps the connection. The last word on it
is the code to end with; an end without a word means that the chief was lost. The chief goes on to listen there, so that
a task that is started again finds it; its own TensorFlow uses another port.
"""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.rendezvous import GO, hear, report

TICK_SECONDS = 0.05
KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, times; on Linux

guests = {}  # in the chief: a connection to each other task, by its rank


def serve(spec, seconds):
    """As a task other than the chief: run a TensorFlow server until the chief has ended, then end this process.

    ``spec`` is this task's `ClusterSpec`. The exit code is the chief's last word: 0, or 75 if it was told to end and
    has saved; 1 if it was lost. SIGTERM is ignored meanwhile: the chief may be saving what stands here.

    Raises RuntimeError if the chief does not answer within ``seconds``.
    """
    fail_fast()
    task = spec.task
    _ = tf.distribute.Server(spec.cluster, task["type"], task["index"], protocol="grpc")
    chief = report(spec, seconds, time.monotonic() + seconds)
    _notice_a_lost_host(chief)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    chief.settimeout(None)
    word = b""
    with suppress(OSError):
        word = chief.recv(16)
    if not word:
        print(f"the chief ({spec.addresses[0]}) is gone without a word", flush=True)
    os._exit(int(word or 1))  # at once: TensorFlow's server cannot be ended


def lead(spec, seconds):
    """As the chief: wait until all other tasks serve; return the `tf.train.ClusterSpec` by which to reach them.

    It differs from TF_CONFIG in the chief's own port. When this process ends, so do the others.

    Raises RuntimeError after ``seconds``, naming the tasks that are missing; OSError if the chief's port is taken.
    """
    fail_fast()
    others = range(1, len(spec.addresses))
    server = socket.create_server(("", spec.port), backlog=len(others))
    threading.Thread(target=_welcome, args=(server, spec), daemon=True).start()
    atexit.register(_dismiss)
    deadline = time.monotonic() + seconds
    while missing := [rank for rank in others if rank not in guests]:
        if time.monotonic() >= deadline:
            names = ", ".join(map(spec.name, missing))
            raise RuntimeError(
                f"{names} did not come within {seconds:g} s. Was it started, with the same cluster, and can it reach"
                f" {spec.addresses[0]}?"
            )
        time.sleep(TICK_SECONDS)
    return tf.train.ClusterSpec(_with_a_port_for_tensorflow(spec))


def end_all(code):
    """As the chief: end the other tasks and this process with this code, at once.

    An end in order would take long: TensorFlow would still talk to the servers that are gone.
    """
    _say(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fail_fast():
    """Let TensorFlow raise at once when a task is gone; by default it waits for it to come back."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"


def _welcome(server, spec):
    """Hear every task that reports, also one that is started again."""
    while True:
        guest, _ = server.accept()
        rank = hear(guest, spec)
        if rank is None:
            guest.close()
            continue
        with suppress(OSError):
            guest.sendall(GO)
            guests[rank] = guest


def _dismiss():
    """Let the other tasks end, unless an error ends this process: they see that it is gone."""
    if not hasattr(sys, "last_value"):
        _say(0)


def _say(code):
    for guest in guests.values():
        with suppress(OSError):
            guest.sendall(b"%d" % code)


def _with_a_port_for_tensorflow(spec):
    chief = spec.addresses[0]
    host = chief.rpartition(":")[0]
    with socket.create_server(("", 0)) as free:
        mine = f"{host}:{free.getsockname()[1]}"
    cluster = spec.cluster
    cluster[spec.task["type"]][0] = mine
    return cluster


def _notice_a_lost_host(connection):
    """Let the connection end too when the other side's machine is gone, which cannot say so."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
