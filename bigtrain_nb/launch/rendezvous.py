"""All workers meet before TensorFlow starts, so that one that is missing has a name and the wait an end.

TensorFlow's own wait is an hour long and says nothing meanwhile. The chief listens on the port that its TensorFlow will
use a moment later; the others report there, and go on when it says that all have come. They keep the connection until
they end, and a chief that is done waits for that: it serves them, and TensorFlow prints alarms when it goes first.
"""

import atexit
import json
import socket
import sys
import time
from contextlib import ExitStack, suppress
from multiprocessing import connection

CHIEF = "the chief: "  # before all it says: the server of a TensorFlow that still runs may have its port
GO = "go"
PAUSE_SECONDS = 0.2
TALK_SECONDS = 5.0
LONGEST = 2**20  # thousands of addresses
LEAVE_SECONDS = 20.0  # on a busy machine the others may be that late

to_the_chief = []  # this worker's connection, open until the process ends


def meet(mine, seconds):
    """Return once all workers have come; ``mine`` is this worker's `Place`.

    Raises RuntimeError after ``seconds``, naming those that are missing, and if workers have been told of different
    clusters; OSError if the chief's port is taken.
    """
    until = time.monotonic() + seconds
    if mine.rank:
        to_the_chief.append(_report(mine, seconds, until))
        return
    guests = {}
    try:
        _welcome(mine, seconds, until, guests)
    except RuntimeError as error:
        _answer(guests, str(error))
        raise
    _answer(guests, GO)
    atexit.register(_leave_last, guests)


def _welcome(mine, seconds, until, guests):
    """Fill ``guests`` with a connection for each other worker's rank."""
    with socket.create_server(("", mine.port), backlog=len(mine.addresses)) as server:
        while missing := [rank for rank in range(1, len(mine.addresses)) if rank not in guests] or _drop_gone(guests):
            server.settimeout(max(0.001, until - time.monotonic()))
            try:
                guest, _ = server.accept()
            except TimeoutError:
                names = ", ".join(f"worker {rank} ({mine.addresses[rank]})" for rank in missing)
                raise RuntimeError(
                    f"{names} did not come within {seconds:g} s. Was it started, and can it reach {mine.addresses[0]}?"
                ) from None
            rank, cluster = _hear(guest)
            if rank not in range(1, len(mine.addresses)):
                guest.close()
                continue
            guests[rank] = guest  # in place of an earlier one, if it was started again
            if cluster != mine.addresses:
                others = ", ".join(mine.addresses)
                raise RuntimeError(f"worker {rank} was told of another cluster than the chief, {others}")


def _drop_gone(guests):
    """Drop the guests that have hung up, and return their ranks; the others have no more to say that could be read."""
    gone = [rank for rank, guest in guests.items() if connection.wait([guest], timeout=0)]
    for rank in gone:
        guests.pop(rank).close()
    return gone


def _hear(guest):
    """Return the rank and the cluster that a guest gives; (None, None) for one that is no worker."""
    guest.settimeout(TALK_SECONDS)
    try:
        told = json.loads(guest.makefile("rb").readline(LONGEST))
        return told["rank"], told["cluster"]
    except (OSError, ValueError, TypeError, KeyError):
        return None, None


def _answer(guests, words):
    for guest in guests.values():
        with suppress(OSError):
            guest.sendall(f"{CHIEF}{words}\n".encode())


def _leave_last(guests):
    """Wait until the others have ended, unless an error ends this worker: they may wait for it then."""
    if hasattr(sys, "last_value"):
        return
    until = time.monotonic() + LEAVE_SECONDS
    for guest in guests.values():
        guest.settimeout(max(0.001, until - time.monotonic()))
        with suppress(OSError):
            guest.recv(1)


def _report(mine, seconds, until):
    """Tell the chief that this worker is there, wait for its word, and return the connection."""
    host, _, port = mine.addresses[0].rpartition(":")
    while True:
        reason = "it hung up"
        try:
            with ExitStack() as stack:
                chief = stack.enter_context(socket.create_connection((host, int(port)), TALK_SECONDS))
                chief.sendall(json.dumps({"rank": mine.rank, "cluster": mine.addresses}).encode() + b"\n")
                chief.settimeout(max(0.001, until - time.monotonic()) + TALK_SECONDS)  # it may say who else is missing
                line = chief.makefile("rb").readline(LONGEST).decode(errors="replace").strip()
                if line == CHIEF + GO:
                    stack.pop_all()
                    return chief
            if line.startswith(CHIEF):
                raise RuntimeError(line.removeprefix(CHIEF))
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() >= until:
            raise RuntimeError(
                f"the chief, {mine.addresses[0]}, did not answer within {seconds:g} s ({reason}). Was it started, with"
                " the same cluster, and is its port open to this host?"
            )
        time.sleep(PAUSE_SECONDS)
