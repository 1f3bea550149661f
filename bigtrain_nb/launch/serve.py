"""Tasks that only serve: their TensorFlow runs what the chief sends it, and they end when the chief ends.

A task reports to the chief once its server runs. The last word on that connection is the code to end with; an end
without a word means that the chief was lost. The chief goes on to listen there, so that a task that is started again
finds it, and that one that stands still can be told from one that runs; its own TensorFlow uses another port.
"""

import atexit
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch import silence
from bigtrain_nb.launch.rendezvous import gather, hear, listening, refusal, report, send
from bigtrain_nb.launch.same_run import differences
from bigtrain_nb.launch.supervisor import free_ports

KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds, seconds, times; on Linux

guests = {}  # in the chief: a connection to each other task, by its rank


def lead(spec, runs, patience):
    """Wait until all other tasks serve; return the `tf.train.ClusterSpec` by which to reach them. In the chief.

    It differs from TF_CONFIG in the chief's own port. When this process ends, so do the others, in which this does not
    return: it runs a TensorFlow server until the chief has ended.

    Raises RuntimeError when the `Patience` is over, naming the tasks that are missing, that run something else, or that
    cannot be reached; OSError if the chief's port is taken.
    """
    os.environ["GRPC_FAIL_FAST"] = "use_caller"  # TensorFlow raises when a task is gone; else it waits for it
    if spec.rank > 0:
        print(f"{spec.name(spec.rank)} serves the chief, because of {spec.source}", flush=True)
        _serve(spec, runs, patience)
    server = listening(spec, patience)
    guests.update(gather(server, spec, runs, patience))
    threading.Thread(target=_welcome_again, args=(server, spec, runs), daemon=True).start()
    atexit.register(_dismiss)
    addresses = list(spec.addresses)
    addresses[0] = f"{addresses[0].rpartition(':')[0]}:{free_ports(1)[0]}"
    return tf.train.ClusterSpec(replace(spec, addresses=addresses).cluster)


def end_all(code):
    """As the chief: end the other tasks and this process with this code, at once.

    An end in order would take long: TensorFlow would still talk to the servers that are gone.
    """
    _say(b"%d" % code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(spec, runs, patience):
    """Run a TensorFlow server until the chief has ended, then end this process.

    The exit code is the chief's last word: 0, or 75 if it was told to end and has saved; 1 if it was lost. SIGTERM is
    ignored meanwhile: the chief may be saving what stands here.
    """
    task = spec.tasks[spec.rank]
    _ = tf.distribute.Server(spec.cluster, task["type"], task["index"], protocol="grpc")
    chief, _ = report(spec, runs, patience)
    _notice_a_lost_host(chief)
    silence.say([f"the chief ({spec.addresses[0]})"], spec.addresses[:1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    word = _last_word(chief)
    if not word:
        print(f"the chief ({spec.addresses[0]}) is gone without a word", flush=True)
    os._exit(int(word or 1))  # at once: TensorFlow's server cannot be ended


def _last_word(chief):
    """Return what the chief says in the end, b"" if it is gone."""
    chief.settimeout(None)
    with suppress(OSError):
        return chief.recv(16)
    return b""


def _welcome_again(server, spec, runs):
    """Hear every task that is started again."""
    while True:
        guest, _ = server.accept()
        if heard_of := hear(guest, spec):
            rank, guest, other = heard_of
            if problems := differences(other, runs):
                refusal([guest], f"{spec.name(rank)}, started again, does not run the same: {'; '.join(problems)}")
            else:
                send(guest, go=True)
                guests[rank] = guest


def _dismiss():
    """Let the other tasks end, unless an error ends this process: they see that it is gone."""
    if not hasattr(sys, "last_value"):
        _say(b"0")


def _say(word):
    for guest in list(guests.values()):
        with suppress(OSError):
            guest.sendall(word)


def _notice_a_lost_host(connection):
    """Let the connection end too when the other side's machine is gone, which cannot say so."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
