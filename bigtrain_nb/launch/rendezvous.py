"""All tasks meet before TensorFlow starts, so that one that is missing has a name and the wait an end.

TensorFlow's own wait is an hour long and says nothing meanwhile. The chief listens on its port in TF_CONFIG; the others
report there, and go on when it says that all have come. They keep the connection until they end.

Workers that train in step are done then: their chief's TensorFlow uses the same port a moment later. At its end the
chief waits for theirs: it serves them, and TensorFlow prints alarms when it goes first.
"""

import atexit
import json
import os
import select
import socket
import sys
import time
from contextlib import suppress

GO = b"bigtrain_nb: go\n"  # nobody else says that: the server of a TensorFlow that still runs may have the chief's port
PAUSE_SECONDS = 0.2
TALK_SECONDS = 5.0
LEAVE_SECONDS = 20.0  # on a busy machine the others may be that late

to_the_chief = []  # this worker's connection, open until the process ends


def come_together(how, spec, seconds):
    """Return what ``how(spec, seconds)`` gives, `meet` or `lead`; name this task's port if it is taken."""
    os.environ["TF_CONFIG"] = spec.tf_config
    try:
        socket.create_server(("", spec.port)).close()
        return how(spec, seconds)
    except OSError as error:
        raise RuntimeError(
            f"port {spec.port} of this task ({spec.source}) cannot be used: {error.strerror}; end the process that"
            " has it, or choose another port for this task, the same in every task's TF_CONFIG"
        ) from None


def meet(spec, seconds):
    """Return once all workers have come; ``spec`` is this worker's `ClusterSpec`.

    Raises RuntimeError after ``seconds``, naming those that are missing; OSError if the chief's port is taken.
    """
    if spec.rank > 0:
        to_the_chief.append(report(spec, seconds))
        return
    with socket.create_server(("", spec.port)) as server:
        guests = gather(server, spec, seconds)
    atexit.register(_leave_last, guests)


def gather(server, spec, seconds):
    """As the chief: return a connection to each other task, by its rank, once all have come."""
    deadline = time.monotonic() + seconds
    others = range(1, len(spec.addresses))
    guests = {}
    server.settimeout(PAUSE_SECONDS)
    while missing := [rank for rank in others if rank not in guests or _has_hung_up(guests[rank])]:
        if time.monotonic() >= deadline:
            names = ", ".join(map(spec.name, missing))
            raise RuntimeError(
                f"{names} did not come within {seconds:g} s. Was it started, with the same cluster, and can it reach"
                f" {spec.addresses[0]}?"
            )
        with suppress(TimeoutError):
            welcome(server, spec, guests)
    server.settimeout(None)
    for rank in others:
        let_go(guests[rank])
    return guests


def welcome(server, spec, guests):
    """Hear the next guest; return its rank, or None for one that is no task of this cluster."""
    guest, _ = server.accept()
    guest.settimeout(TALK_SECONDS)
    with suppress(OSError, ValueError, TypeError):
        rank, cluster = json.loads(guest.makefile("rb").readline())
        if cluster == spec.addresses:
            guests[rank] = guest  # in place of an earlier one, if it was started again
            return rank


def let_go(guest):
    with suppress(OSError):
        guest.sendall(GO)


def _has_hung_up(guest):
    readable, _, _ = select.select([guest], [], [], 0)
    return bool(readable)  # a task says nothing more, so that only the end can be read


def _leave_last(guests):
    """Wait until the others have ended, unless an error ends this worker: they may wait for it then."""
    if hasattr(sys, "last_value"):
        return
    for guest in guests.values():
        guest.settimeout(LEAVE_SECONDS)
        with suppress(OSError):
            guest.recv(1)


def report(spec, seconds):
    """As another task: return the connection to the chief, once it says that all have come."""
    deadline = time.monotonic() + seconds
    host, _, port = spec.addresses[0].rpartition(":")
    while True:
        try:
            chief = socket.create_connection((host, int(port)), TALK_SECONDS)
            chief.sendall(json.dumps([spec.rank, spec.addresses]).encode() + b"\n")
            chief.settimeout(seconds + TALK_SECONDS)  # so that the chief's wait ends first
            if chief.makefile("rb").readline() == GO:
                return chief
            reason = "it hung up"
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= deadline:
            raise RuntimeError(
                f"the chief, {spec.addresses[0]}, did not answer within {seconds:g} s ({reason}). Was it started, with"
                " the same cluster, and is its port open to this host?"
            )
        time.sleep(PAUSE_SECONDS)
