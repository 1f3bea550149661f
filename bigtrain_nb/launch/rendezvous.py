"""All tasks meet before TensorFlow starts: who is missing, or differs, has a name then.

TensorFlow's own wait is an hour long and says nothing meanwhile, and it trains with whoever comes. The chief listens on
its port in TF_CONFIG; each other task reports there and says what it runs. The chief lets all go, or refuses all with
one sentence. They keep the connection until they end.

SLURM does not say where all are: under it they meet once before that, on the first node. Each holds a free port, and
tells the chief its rank and that port; the chief sees from which address it came, and tells all.

Workers that train in step are done then: their chief's TensorFlow uses the same port a moment later. At its end the
chief waits for theirs: it serves them, and TensorFlow prints alarms when it goes first.
"""

import atexit
import errno
import ipaddress
import json
import os
import queue
import select
import socket
import sys
import threading
import time
from contextlib import suppress

from bigtrain_nb.common.addresses import host_and_port
from bigtrain_nb.launch.cluster_spec import ClusterSpec, Place
from bigtrain_nb.launch.same_run import differences
from bigtrain_nb.launch.supervisor import free_ports

GREETING = "bigtrain_nb"  # begins each message: the server of a TensorFlow that still runs may have the chief's port
LONGEST_MESSAGE = 2**20  # bytes
BACKLOG = 4096  # all others may come at once
PAUSE_SECONDS = 0.2
TALK_SECONDS = 5.0
TELL_SECONDS = 30.0
LEAVE_SECONDS = 20.0  # on a busy machine the others may be that late
ALL_ADDRESSES = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}

to_the_chief = []  # this worker's connection, open until the process ends


def come_together(how, found, runs, seconds):
    """Return the `ClusterSpec` of all tasks, and what ``how(spec, runs, deadline)`` gives, such as `meet`.

    ``found`` is this task's `ClusterSpec` or `Place`, ``runs`` what it runs, by `what_runs`; the `Deadline` lasts for
    ``seconds``. Sets TF_CONFIG. Raises RuntimeError that names this task's port if it is taken.
    """
    deadline = Deadline(seconds)
    spec = locate(found, deadline) if isinstance(found, Place) else found
    os.environ["TF_CONFIG"] = spec.tf_config
    try:
        socket.create_server(("", spec.port)).close()  # where TensorFlow will listen
        return spec, how(spec, runs, deadline)
    except OSError as error:
        raise RuntimeError(
            f"port {spec.port} of this task ({spec.source}) cannot be used: {error.strerror}; end the process that"
            " has it, or choose another port for this task, the same in every task's TF_CONFIG"
        ) from None


def locate(place, deadline):
    """Return the `ClusterSpec` of all tasks, each of which calls this with its `Place`: they tell where they are.

    Raises RuntimeError when the deadline is over, naming those that are missing.
    """
    with _held_port() as held:
        port = held.getsockname()[1]
        if place.rank == 0:
            addresses = _gather_addresses(place, port, deadline)
        else:
            chief, answer = report(place, {"port": port}, deadline)
            chief.close()
            addresses = answer["addresses"]
    return ClusterSpec(addresses, place.rank, False, place.source)


def _gather_addresses(place, port, deadline):
    """As the chief, whose TensorFlow will listen on this port: return the address of each task, and tell all.

    Those that came by this host's loopback are on it too; they, and the chief, get the address at which others reached
    the chief, or its name.
    """
    with _server_at(place) as server:
        guests, said = _all_guests(server, place, deadline)
        reached_at = [_host(guest.getsockname()) for guest in guests.values()]
        here = next((host for host in reached_at if not _is_loopback(host)), host_and_port(place.chief)[0])
        addresses = [_address(here, port)]
        for rank, guest in sorted(guests.items()):
            host = _host(guest.getpeername())
            addresses.append(_address(here if _is_loopback(host) else host, said[rank]["port"]))
        for guest in guests.values():
            send(guest, go=True, addresses=addresses)
            guest.close()
    return addresses


def _server_at(place):
    """Return a server where the chief was told to wait for the others."""
    host, port = host_and_port(place.chief)
    try:
        if host == "localhost" or _is_loopback(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        return socket.create_server(("", port), **ALL_ADDRESSES, backlog=BACKLOG)
    except OSError as error:
        raise RuntimeError(
            f"the tasks cannot meet at {place.chief} (because of {place.source}): {error.strerror}. End the process"
            " that listens there, or name another port"
        ) from None


def _held_port():
    """Return a server on a free port of all addresses, outside those that the system gives to clients."""
    while True:
        with suppress(OSError):  # taken on another address
            return socket.create_server(("", free_ports(1)[0]), **ALL_ADDRESSES)


def _address(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(address):
    """Return a socket's host; an IPv4 address in IPv6's clothes as IPv4."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    return str(getattr(host, "ipv4_mapped", None) or host)


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def meet(spec, runs, deadline):
    """Return once all workers have come; ``spec`` is this worker's `ClusterSpec`.

    Raises RuntimeError when the deadline is over, naming those that are missing or that run something else; OSError if
    this task's port is taken.
    """
    if spec.rank > 0:
        chief, _ = report(spec, runs, deadline)
        to_the_chief.append(chief)
    else:
        with listening(spec, deadline) as server:
            atexit.register(_leave_last, gather(server, spec, runs, deadline))


def listening(spec, deadline):
    """Return a server on this task's own address, once its name resolves, which may take a new host some time."""
    host, port = host_and_port(spec.addresses[spec.rank])
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            break
        except socket.gaierror as error:
            if deadline.is_over():
                raise RuntimeError(
                    f"the name of this task's own host, {host} ({spec.source}), does not resolve: {error.strerror}"
                ) from None
            deadline.tell(f"{spec.name(spec.rank)} waits for its own name to resolve ({error.strerror})")
            time.sleep(PAUSE_SECONDS)
    # Some systems have their own name as a loopback address in /etc/hosts: other hosts cannot reach it there.
    has_other_hosts = len({host_and_port(one)[0] for one in spec.addresses}) > 1
    if has_other_hosts and _is_loopback(address[0]):
        return socket.create_server(("", port), **ALL_ADDRESSES, backlog=BACKLOG)
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), **ALL_ADDRESSES, backlog=BACKLOG)  # behind a translation of addresses


def gather(server, spec, runs, deadline):
    """As the chief: return a connection to each other task, by its rank, once all have come and run the same.

    Raises RuntimeError, here and in all that have come, for one that is missing at the end of the deadline, or that
    runs something else.
    """
    guests, runs_of = _all_guests(server, spec, deadline)
    problems = []
    for rank, other in sorted(runs_of.items()):
        problems += [f"{spec.name(rank)}: {each}" for each in differences(other, runs)]
    if problems:
        raise refusal(guests.values(), "the tasks do not run the same: " + "; ".join(problems))
    for guest in guests.values():
        send(guest, go=True)
    return guests


def _all_guests(server, spec, deadline):
    """Return a connection to each other task, and what each runs, by rank, once all have come."""
    guests, runs_of = {}, {}
    came = queue.Queue()
    server.settimeout(PAUSE_SECONDS)
    while True:
        missing = [rank for rank in range(1, spec.count) if rank not in guests or _has_hung_up(guests[rank])]
        if not missing:
            server.settimeout(None)
            return guests, runs_of
        names = ", ".join(map(spec.name, missing))
        if deadline.is_over():
            raise refusal(
                guests.values(),
                f"{names} did not come within {deadline.seconds:g} s. Was it started, with the same cluster, and can"
                f" it reach {spec.chief}?",
            )
        deadline.tell(f"{spec.name(0)} waits for {names}")
        with suppress(TimeoutError):
            guest, _ = server.accept()
            # in a thread of its own: one that is slow to say who it is holds up nobody
            threading.Thread(target=_hear_into, args=(came, guest, spec), daemon=True).start()
        while not came.empty():
            if heard_of := came.get():
                rank, guest, what = heard_of
                guests[rank], runs_of[rank] = guest, what  # in place of an earlier one, if it was started again


def _hear_into(came, guest, spec):
    came.put(hear(guest, spec))


def hear(guest, spec):
    """Return a guest's rank, its connection and what it runs; None if it is no task of this cluster."""
    with suppress(OSError, TypeError, LookupError):
        said = heard(guest, time.monotonic() + TALK_SECONDS)
        rank, runs = said["rank"], said["runs"]
        if said["group"] == spec.group and rank in range(1, spec.count) and isinstance(runs, dict):
            return rank, guest, runs
        send(guest, waits_for=spec.group)
    guest.close()
    return None


def report(spec, runs, deadline):
    """As another task: return the connection to the chief, once it says that all have come, and its message.

    Raises RuntimeError with the chief's sentence if it refuses, or where it does not answer in time.
    """
    while True:
        try:
            chief = socket.create_connection(host_and_port(spec.chief), TALK_SECONDS)
            send(chief, rank=spec.rank, group=spec.group, runs=runs)
            answer = _answer(chief, deadline)
            if "go" in answer:
                return chief, answer
            reason = f"it waits for {answer['waits_for']}" if "waits_for" in answer else "it hung up"
        except OSError as error:
            reason = error.strerror or str(error)
        if deadline.is_over():
            raise RuntimeError(
                f"the chief, {spec.chief}, did not answer within {deadline.seconds:g} s ({reason}). Was it started,"
                " with the same cluster, and is its port open to this host?"
            )
        deadline.tell(f"{spec.name(spec.rank)} waits for the chief, {spec.chief} ({reason})")
        time.sleep(PAUSE_SECONDS)


def send(connection, **message):
    """Send a message, a line of JSON; one to somebody who has gone is lost."""
    with suppress(OSError):
        connection.sendall(f"{GREETING} {json.dumps(message)}\n".encode())


def heard(connection, until):
    """Return the next message; None if the other side hangs up, says something else, or nothing by ``until``."""
    line = bytearray()
    while b"\n" not in line and len(line) < LONGEST_MESSAGE:
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


class Deadline:
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


def _answer(chief, deadline):
    """Return the chief's message, {} if it hangs up; raise RuntimeError with its sentence if it refuses."""
    said = heard(chief, deadline.until + TALK_SECONDS) or {}  # so that the chief's wait ends first
    if "refused" in said:
        raise RuntimeError(said["refused"])
    return said


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
