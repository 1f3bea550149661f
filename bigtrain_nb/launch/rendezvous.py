"""All tasks meet before TensorFlow starts: who is missing, differs, or cannot be reached has a name then.

TensorFlow's own wait is an hour long and says nothing meanwhile, and it trains with whoever comes. The chief listens on
its port in TF_CONFIG; each other task reports there, says what it runs, and then tries whether it reaches all the
others. The chief lets all go, or refuses all with one sentence. They keep the connection until they end.

Workers that train in step are done then: their chief's TensorFlow uses the same port a moment later. At its end the
chief waits for theirs: it serves them, and TensorFlow prints alarms when it goes first.
"""

import atexit
import errno
import json
import os
import queue
import select
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from bigtrain_nb.common.addresses import host_and_port
from bigtrain_nb.launch.same_run import differences

GREETING = "bigtrain_nb"  # begins each message: the server of a TensorFlow that still runs may have the chief's port
LONGEST_MESSAGE = 2**20  # bytes
BACKLOG = 4096  # each task may be tried by all others at once
PAUSE_SECONDS = 0.2
TALK_SECONDS = 5.0
TELL_SECONDS = 30.0
LEAVE_SECONDS = 20.0  # on a busy machine the others may be that late

to_the_chief = []  # this worker's connection, open until the process ends


def come_together(how, spec, runs, seconds):
    """Return what ``how(spec, runs, patience)`` gives, `meet` or `lead`; name this task's port if it is taken.

    ``runs`` is what this task runs, by `what_runs`; the `Patience` lasts for ``seconds``.
    """
    os.environ["TF_CONFIG"] = spec.tf_config
    try:
        socket.create_server(("", spec.port)).close()  # where TensorFlow will listen
        return how(spec, runs, Patience(seconds))
    except OSError as error:
        raise RuntimeError(
            f"port {spec.port} of this task ({spec.source}) cannot be used: {error.strerror}; end the process that"
            " has it, or choose another port for this task, the same in every task's TF_CONFIG"
        ) from None


def meet(spec, runs, patience):
    """Return once all workers have come; ``spec`` is this worker's `ClusterSpec`.

    Raises RuntimeError when the patience is over, naming those that are missing, that run something else, or that
    cannot be reached; OSError if this task's port is taken.
    """
    with listening(spec, patience) as server:  # so that the others can try whether they reach this task
        if spec.rank > 0:
            to_the_chief.append(report(spec, runs, patience))
        else:
            atexit.register(_leave_last, gather(server, spec, runs, patience))


def listening(spec, patience):
    """Return a server on this task's own address, once its name resolves, which may take a new host some time."""
    host, port = host_and_port(spec.addresses[spec.rank])
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            break
        except socket.gaierror as error:
            if patience.is_over():
                raise RuntimeError(
                    f"the name of this task's own host, {host} ({spec.source}), does not resolve: {error.strerror}"
                ) from None
            patience.tell(f"{spec.name(spec.rank)} waits for its own name to resolve ({error.strerror})")
            time.sleep(PAUSE_SECONDS)
    hosts = {host_and_port(one)[0] for one in spec.addresses}
    is_loopback = address[0].startswith("127.") or address[0] == "::1"
    if len(hosts) > 1 and is_loopback:  # as some systems have it in /etc/hosts; others cannot reach it there
        return socket.create_server(("", port), backlog=BACKLOG)
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), backlog=BACKLOG)  # behind a translation of addresses


def gather(server, spec, runs, patience):
    """As the chief: return a connection to each other task, by its rank, once all have come and run the same.

    Raises RuntimeError, here and in all that have come, for one that is missing at the end of the patience, that runs
    something else, or that cannot be reached.
    """
    guests, runs_of = _all_guests(server, spec, patience)
    problems = []
    for rank, other in sorted(runs_of.items()):
        problems += [f"{spec.name(rank)}: {each}" for each in differences(other, runs)]
    if problems:
        raise refusal(guests.values(), "the tasks do not run the same: " + "; ".join(problems))
    problems = _unreachable(spec, patience) + _unreachable_from_guests(guests, spec, patience)
    if problems:
        raise refusal(guests.values(), "; ".join(problems) + ". The port of each task must be open to all others")
    for guest in guests.values():
        send(guest, go=True)
    return guests


def _all_guests(server, spec, patience):
    """Return a connection to each other task, and what each runs, by rank, once all have come."""
    guests, runs_of = {}, {}
    came = queue.Queue()
    server.settimeout(PAUSE_SECONDS)
    while True:
        missing = [rank for rank in range(1, len(spec.addresses)) if rank not in guests or _has_hung_up(guests[rank])]
        if not missing:
            server.settimeout(None)
            return guests, runs_of
        names = ", ".join(map(spec.name, missing))
        if patience.is_over():
            raise refusal(
                guests.values(),
                f"{names} did not come within {patience.seconds:g} s. Was it started, with the same cluster, and can"
                f" it reach {spec.addresses[0]}?",
            )
        patience.tell(f"{spec.name(0)} waits for {names}")
        with suppress(TimeoutError):
            guest, _ = server.accept()
            # in a thread of its own: one that is slow to say who it is holds up nobody
            threading.Thread(target=lambda guest: came.put(hear(guest, spec)), args=(guest,), daemon=True).start()
        while not came.empty():
            if heard_of := came.get():
                rank, guest, what = heard_of
                guests[rank], runs_of[rank] = guest, what  # in place of an earlier one, if it was started again


def hear(guest, spec):
    """Return a guest's rank, its connection and what it runs; None if it is no task of this cluster."""
    with suppress(OSError, TypeError, LookupError):
        said = heard(guest, time.monotonic() + TALK_SECONDS)
        rank, runs = said["rank"], said["runs"]
        if said["cluster"] == spec.addresses and rank in range(1, len(spec.addresses)) and isinstance(runs, dict):
            return rank, guest, runs
    guest.close()
    return None


def report(spec, runs, patience):
    """As another task: return the connection to the chief, once it says that all have come.

    Raises RuntimeError with the chief's sentence if it refuses, or where it does not answer in time.
    """
    chief_at = spec.addresses[0]
    while True:
        try:
            chief = socket.create_connection(host_and_port(chief_at), TALK_SECONDS)
            send(chief, rank=spec.rank, cluster=spec.addresses, runs=runs)
            if _is_let_go(chief, spec, patience):
                return chief
            reason = "it hung up"
        except OSError as error:
            reason = error.strerror or str(error)
        if patience.is_over():
            raise RuntimeError(
                f"the chief, {chief_at}, did not answer within {patience.seconds:g} s ({reason}). Was it started,"
                " with the same cluster, and is its port open to this host?"
            )
        patience.tell(f"{spec.name(spec.rank)} waits for the chief, {chief_at} ({reason})")
        time.sleep(PAUSE_SECONDS)


def send(connection, **message):
    """Send a message, a line of JSON; one to somebody who has gone is lost."""
    with suppress(OSError):
        connection.sendall(f"{GREETING} {json.dumps(message)}\n".encode())


def heard(connection, until):
    """Return the next message; None if the other side hangs up, says something else, or nothing by ``until``."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < LONGEST_MESSAGE:
        left = until - time.monotonic()
        if left <= 0 or not select.select([connection], [], [], left)[0]:
            return None
        more = b""
        with suppress(ConnectionError):
            more = connection.recv(2**16)  # nothing of a next message: its sender waits for an answer first
        if not more:
            return None
        line += more
    greeting, _, text = line.partition(b" ")
    with suppress(ValueError, RecursionError):
        message = json.loads(text)
        if greeting == GREETING.encode() and isinstance(message, dict):
            return message
    return None


class Patience:
    """How long a task waits for the others; it tells every `TELL_SECONDS` for whom."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.began = self.told = time.monotonic()
        self.until = self.began + seconds

    def is_over(self):
        return time.monotonic() >= self.until

    def tell(self, text):
        now = time.monotonic()
        if now >= self.told + TELL_SECONDS:
            self.told = now
            print(f"{text}, for {now - self.began:.0f} s", flush=True)


def _is_let_go(chief, spec, patience):
    """Do what the chief says until it lets this task go; return False if it hangs up."""
    while said := heard(chief, patience.until + TALK_SECONDS):  # so that the chief's wait ends first
        if "refused" in said:
            raise RuntimeError(said["refused"])
        if "go" in said:
            return True
        send(chief, unreachable=_unreachable(spec, patience))
    return False


def _unreachable_from_guests(guests, spec, patience):
    """Let each guest try the others; return a sentence for each that cannot be reached from another."""
    for guest in guests.values():
        send(guest, reach=True)
    sentences = []
    for rank, guest in sorted(guests.items()):
        answer = heard(guest, patience.until + TALK_SECONDS)
        if answer is None:
            sentences.append(f"{spec.name(rank)} came and hung up again: its own lines say why")
        else:
            sentences += answer["unreachable"]
    return sentences


def _unreachable(spec, patience):
    """Return a sentence for each other task that this one cannot reach; each listens on its port meanwhile."""

    def reason(rank):
        while True:
            try:
                socket.create_connection(host_and_port(spec.addresses[rank]), TALK_SECONDS).close()
                return None
            except socket.gaierror as error:  # a name that other hosts know already
                if patience.is_over():
                    return error.strerror
                patience.tell(f"{spec.name(spec.rank)} waits for the name of {spec.name(rank)} to resolve")
                time.sleep(PAUSE_SECONDS)
            except OSError as error:
                return error.strerror or str(error)

    others = [rank for rank in range(len(spec.addresses)) if rank != spec.rank]
    with ThreadPoolExecutor(16) as pool:
        reasons = list(pool.map(reason, others))
    return [
        f"{spec.name(rank)} cannot be reached from {spec.name(spec.rank)} ({reason})"
        for rank, reason in zip(others, reasons, strict=True)
        if reason
    ]


def refusal(guests, problem):
    """Return the error for a problem, after telling it to all these guests."""
    for guest in guests:
        send(guest, refused=problem)
    return RuntimeError(problem)


def _has_hung_up(guest):
    readable, _, _ = select.select([guest], [], [], 0)
    return bool(readable)  # a task says nothing more, so that only the end can be read


def _leave_last(guests):
    """Wait until the others have ended, unless an error ends this worker: they may wait for it then."""
    if hasattr(sys, "last_value"):
        return
    until = time.monotonic() + LEAVE_SECONDS
    left = list(guests.values())
    while left and (seconds := until - time.monotonic()) > 0:
        ended, _, _ = select.select(left, [], [], seconds)
        left = [guest for guest in left if guest not in ended]
