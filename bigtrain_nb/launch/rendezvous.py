"""All workers meet before TensorFlow starts, so that one that is missing has a name and the wait an end.

TensorFlow's own wait is an hour long and says nothing meanwhile. The chief listens on the port that its TensorFlow will
use a moment later; the others report there, and go on when it says that all have come. They keep the connection until
they end, and a chief that is done waits for that: it serves them, and TensorFlow prints alarms when it goes first.
"""

import atexit
import json
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


def meet(spec, seconds):
    """Return once all workers have come; ``spec`` is this worker's `ClusterSpec`.

    Raises RuntimeError after ``seconds``, naming those that are missing; OSError if the chief's port is taken.
    """
    deadline = time.monotonic() + seconds
    if spec.rank > 0:
        to_the_chief.append(report(spec, seconds, deadline))
        return
    guests, missing = _gather(spec, deadline)
    if missing:
        names = ", ".join(f"worker {rank} ({spec.addresses[rank]})" for rank in missing)
        raise RuntimeError(
            f"{names} did not come within {seconds:g} s. Was it started, with the same cluster, and can it reach"
            f" {spec.addresses[0]}?"
        )
    for guest in guests.values():
        with suppress(OSError):
            guest.sendall(GO)
    atexit.register(_leave_last, guests)


def _gather(spec, deadline):
    """Return a connection to each other worker that has come, by its rank, and the ranks of those that are missing."""
    others = range(1, len(spec.addresses))
    guests = {}
    with socket.create_server(("", spec.port), backlog=len(others)) as server:
        while True:
            missing = [rank for rank in others if rank not in guests or _has_hung_up(guests[rank])]
            if not missing or time.monotonic() >= deadline:
                return guests, missing
            server.settimeout(_seconds_to(deadline))
            with suppress(TimeoutError):
                guest, _ = server.accept()
                rank = hear(guest, spec)
                if rank in others:
                    guests[rank] = guest  # in place of an earlier one, if it was started again


def _seconds_to(deadline):
    return max(0.001, deadline - time.monotonic())


def _has_hung_up(guest):
    readable, _, _ = select.select([guest], [], [], 0)
    return bool(readable)  # a worker says nothing more, so that only the end can be read


def hear(guest, spec):
    """Return the rank that a guest gives; None for one that is no worker of this cluster."""
    guest.settimeout(TALK_SECONDS)
    try:
        rank, cluster = json.loads(guest.makefile("rb").readline())
    except (OSError, ValueError, TypeError):
        return None
    return rank if cluster == spec.addresses else None


def _leave_last(guests):
    """Wait until the others have ended, unless an error ends this worker: they may wait for it then."""
    if hasattr(sys, "last_value"):
        return
    for guest in guests.values():
        guest.settimeout(LEAVE_SECONDS)
        with suppress(OSError):
            guest.recv(1)


def report(spec, seconds, deadline):
    """As another worker: return the connection to the chief, once it says that all have come."""
    while True:
        try:
            chief, word = _ask_the_chief(spec, deadline)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            if word == GO:
                return chief
            reason = "it hung up"
        if time.monotonic() >= deadline:
            raise RuntimeError(
                f"the chief, {spec.addresses[0]}, did not answer within {seconds:g} s ({reason}). Was it started, with"
                " the same cluster, and is its port open to this host?"
            )
        time.sleep(PAUSE_SECONDS)


def _ask_the_chief(spec, deadline):
    """Tell the chief that this worker is there; return the connection and the line that comes back."""
    host, _, port = spec.addresses[0].rpartition(":")
    chief = socket.create_connection((host, int(port)), TALK_SECONDS)
    chief.sendall(json.dumps([spec.rank, spec.addresses]).encode() + b"\n")
    chief.settimeout(_seconds_to(deadline) + TALK_SECONDS)  # so that the chief's wait ends first
    return chief, chief.makefile("rb").readline()
