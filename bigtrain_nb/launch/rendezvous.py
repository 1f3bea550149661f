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

CHIEF = "the chief: "  # before all it says: the server of a TensorFlow that still runs may have its port
GO = "go"
PAUSE_SECONDS = 0.2
TALK_SECONDS = 5.0
LEAVE_SECONDS = 20.0  # on a busy machine the others may be that late

to_the_chief = []  # this worker's connection, open until the process ends


def meet(spec, seconds):
    """Return once all workers have come; ``spec`` is this worker's `ClusterSpec`.

    Raises RuntimeError after ``seconds``, naming those that are missing, and if workers have been told of different
    clusters; OSError if the chief's port is taken.
    """
    deadline = time.monotonic() + seconds
    if spec.rank > 0:
        to_the_chief.append(_report(spec, seconds, deadline))
        return
    guests = {}
    complaint = _gather(guests, spec, seconds, deadline)
    for guest in guests.values():
        with suppress(OSError):
            guest.sendall(f"{CHIEF}{complaint or GO}\n".encode())
    if complaint:
        raise RuntimeError(complaint)
    atexit.register(_leave_last, guests)


def _gather(guests, spec, seconds, deadline):
    """Fill ``guests`` with a connection for the rank of each other worker; return a complaint if that cannot be."""
    others = range(1, len(spec.addresses))
    with socket.create_server(("", spec.port), backlog=len(others)) as server:
        while True:
            missing = [rank for rank in others if rank not in guests or _has_hung_up(guests[rank])]
            if not missing:
                return None
            server.settimeout(_seconds_to(deadline))
            try:
                guest, _ = server.accept()
            except TimeoutError:
                names = ", ".join(f"worker {rank} ({spec.addresses[rank]})" for rank in missing)
                here = spec.addresses[0]
                return f"{names} did not come within {seconds:g} s. Was it started, and can it reach {here}?"
            rank, cluster = _hear(guest)
            if rank in others:
                guests[rank] = guest  # in place of an earlier one, if it was started again
                if cluster != spec.addresses:
                    here = ", ".join(spec.addresses)
                    return f"worker {rank} was told of another cluster than the chief, {here}"


def _seconds_to(deadline):
    return max(0.001, deadline - time.monotonic())


def _has_hung_up(guest):
    readable, _, _ = select.select([guest], [], [], 0)
    return bool(readable)  # a worker says nothing more, so that only the end can be read


def _hear(guest):
    """Return the rank and the cluster that a guest gives; (None, None) for one that is no worker."""
    guest.settimeout(TALK_SECONDS)
    try:
        told = json.loads(guest.makefile("rb").readline())
        return told["rank"], told["cluster"]
    except (OSError, ValueError, TypeError, KeyError):
        return None, None


def _leave_last(guests):
    """Wait until the others have ended, unless an error ends this worker: they may wait for it then."""
    if hasattr(sys, "last_value"):
        return
    for guest in guests.values():
        guest.settimeout(LEAVE_SECONDS)
        with suppress(OSError):
            guest.recv(1)


def _report(spec, seconds, deadline):
    """As another worker: return the connection to the chief, once it says that all have come."""
    while True:
        try:
            chief, word = _ask_the_chief(spec, deadline)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            if word == CHIEF + GO:
                return chief
            if word.startswith(CHIEF):
                raise RuntimeError(word.removeprefix(CHIEF))
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
    chief.sendall(json.dumps({"rank": spec.rank, "cluster": spec.addresses}).encode() + b"\n")
    chief.settimeout(_seconds_to(deadline) + TALK_SECONDS)  # it may say who else is missing
    word = chief.makefile("rb").readline().decode(errors="replace")
    return chief, word.strip()
