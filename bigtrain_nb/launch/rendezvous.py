"""Connect all tasks before TensorFlow starts, and name those that are missing or run something else.

TensorFlow itself waits for an hour without a message, and trains with any tasks that come. Here, the chief listens on
its port in TF_CONFIG; each other task connects and reports what it runs. The chief lets them all start, or refuses all
with one message. The connections stay open until the tasks end.

SLURM does not give the tasks' addresses, so they first meet on the first node. Each holds a free port, and sends the
chief its rank and that port; the chief adds the address from which it connected, and sends all addresses to all.

Synchronous workers need no more: their chief's TensorFlow uses the same port a moment later. At its end, the chief
waits for the others to end: it serves them, and TensorFlow prints errors if it exits first.
"""

import atexit
import errno
import ipaddress
import json
import os
import queue
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress

from bigtrain_nb.common.addresses import host_and_port
from bigtrain_nb.launch.cluster_spec import ClusterSpec, Place
from bigtrain_nb.launch.same_run import differences
from bigtrain_nb.launch.supervisor import free_ports

GREETING = "bigtrain_nb"  # begins each message: a TensorFlow server that still runs may have the chief's port
LONGEST_MESSAGE = 2**20  # bytes
BACKLOG = 4096  # all other tasks may connect at once
PAUSE_SECONDS = 0.2
MESSAGE_TIMEOUT_SECONDS = 5.0
REPORT_INTERVAL_SECONDS = 30.0
EXIT_TIMEOUT_SECONDS = 20.0  # on a busy machine the others may end that late
ALL_ADDRESSES = {"family": socket.AF_INET6, "dualstack_ipv6": True} if socket.has_dualstack_ipv6() else {}

to_the_chief = []  # this worker's connection, open until the process ends


def connect_all_tasks(found, runs, seconds):
    """Return the `ClusterSpec` of all tasks, once they have met.

    ``found`` is this task's `ClusterSpec` or `Place`, ``runs`` the result of `describe_run`, ``seconds`` the timeout.
    Sets TF_CONFIG. Raises RuntimeError that names this task's port if it cannot be used.
    """
    deadline = Deadline(seconds)
    spec = locate(found, deadline) if isinstance(found, Place) else found
    os.environ["TF_CONFIG"] = spec.tf_config
    try:
        socket.create_server(("", spec.port)).close()  # where TensorFlow will listen
        meet(spec, runs, deadline)
        return spec
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise RuntimeError(f"{spec.count} tasks need more open files: raise the limit, ulimit -n") from None
        raise RuntimeError(
            f"port {spec.port} of this task ({spec.source}) cannot be used: {error.strerror}; end the process that"
            " has it, or choose another port for this task, the same in every task's TF_CONFIG"
        ) from None


def locate(place, deadline):
    """Return the `ClusterSpec` of all tasks; each calls this with its `Place`, and they exchange addresses.

    Raises RuntimeError after the deadline, naming the missing tasks.
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
    """As the chief, whose TensorFlow will listen on this port: return all tasks' addresses, and send them to all.

    Tasks that connected by loopback are on this host; they and the chief get the address by which others reached the
    chief, or its name.
    """
    with _server_at(place) as server:
        peers, said = _accept_peers(server, place, deadline)
        reached_at = [_host(peer.getsockname()) for peer in peers.values()]
        here = next((host for host in reached_at if not _is_loopback(host)), host_and_port(place.chief)[0])
        addresses = [_address(here, port)]
        for rank, peer in sorted(peers.items()):
            host = _host(peer.getpeername())
            addresses.append(_address(here if _is_loopback(host) else host, said[rank]["port"]))
        for peer in peers.values():
            send(peer, go=True, addresses=addresses)
            peer.close()
    return addresses


def _server_at(place):
    """Return a server at the address where the chief is to wait for the others."""
    host, port = host_and_port(place.chief)
    try:
        if host == "localhost" or _is_loopback(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        return socket.create_server(("", port), **ALL_ADDRESSES, backlog=BACKLOG)
    except OSError as error:
        raise RuntimeError(
            f"the tasks cannot connect at {place.chief} (from {place.source}): {error.strerror}. End the process"
            " that listens there, or choose another port"
        ) from None


def _held_port():
    """Return a server on all addresses, at a free port that is not ephemeral."""
    while True:
        try:
            return socket.create_server(("", free_ports(1)[0]), **ALL_ADDRESSES)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # else taken on another address
                raise


def _address(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(address):
    """Return a socket's host, with IPv4-mapped IPv6 addresses as IPv4."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    return str(getattr(host, "ipv4_mapped", None) or host)


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def meet(spec, runs, deadline):
    """Return once all workers have come; ``spec`` is this worker's `ClusterSpec`.

    Raises RuntimeError, naming the workers that are missing at the deadline or run something else; OSError if this
    task's port is taken.
    """
    if spec.rank > 0:
        chief, _ = report(spec, runs, deadline)
        to_the_chief.append(chief)
        return
    with listening(spec, deadline) as server:
        peers, runs_of = _accept_peers(server, spec, deadline)
    problems = []
    for rank, other in sorted(runs_of.items()):
        problems += [f"{spec.name(rank)}: {each}" for each in differences(other, runs)]
    if problems:
        raise refusal(peers.values(), "the tasks' runs differ: " + "; ".join(problems))
    for peer in peers.values():
        send(peer, go=True)
    atexit.register(_wait_for_peers_to_end, peers.values())


def listening(spec, deadline):
    """Return a server on this task's own address, once its name resolves, which can take a while on a new host."""
    host, port = host_and_port(spec.addresses[spec.rank])
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            break
        except socket.gaierror as error:
            if deadline.is_over():
                raise RuntimeError(
                    f"this task's own host name, {host} ({spec.source}), does not resolve: {error.strerror}"
                ) from None
            deadline.report_waiting(f"{spec.name(spec.rank)} waits for its own name to resolve ({error.strerror})")
            time.sleep(PAUSE_SECONDS)
    # Some systems map their own name to loopback in /etc/hosts, where other hosts cannot reach it.
    has_other_hosts = len({host_and_port(one)[0] for one in spec.addresses}) > 1
    if has_other_hosts and _is_loopback(address[0]):
        return socket.create_server(("", port), **ALL_ADDRESSES, backlog=BACKLOG)
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", port), **ALL_ADDRESSES, backlog=BACKLOG)  # behind NAT


def _accept_peers(server, spec, deadline):
    """As the chief: return, by rank, a connection to each other task and its ``runs``, once all have come."""
    peers, runs_of = {}, {}
    came = queue.Queue()
    server.settimeout(PAUSE_SECONDS)
    while True:
        disconnected = _readable(peers.values(), 0)  # a task sends nothing more, so only the end can be read
        missing = [rank for rank in range(1, spec.count) if peers.get(rank) in (None, *disconnected)]
        if not missing:
            server.settimeout(None)
            return peers, runs_of
        names = ", ".join(map(spec.name, missing))
        if deadline.is_over():
            raise refusal(
                peers.values(),
                f"{names} did not come within {deadline.seconds:g} s. Was it started, with the same cluster, and can"
                f" it reach {spec.chief}?",
            )
        deadline.report_waiting(f"{spec.name(0)} waits for {names}")
        with suppress(TimeoutError):
            peer, _ = server.accept()
            # in a separate thread, so that a slow one does not block the others
            threading.Thread(target=receive_report, args=(came, peer, spec), daemon=True).start()
        while not came.empty():
            rank, peer, runs = came.get()
            peers[rank], runs_of[rank] = peer, runs  # replaces an earlier one, if the task was restarted


def receive_report(came, peer, spec):
    """Put a peer's rank, connection and ``runs`` into the queue ``came``, unless it is not a task of this cluster."""
    with suppress(OSError, TypeError, LookupError):
        said = receive_message(peer, time.monotonic() + MESSAGE_TIMEOUT_SECONDS)
        rank, runs = said["rank"], said["runs"]
        if said["group"] == spec.group and rank in range(1, spec.count) and isinstance(runs, dict):
            came.put((rank, peer, runs))
            return
        send(peer, waits_for=spec.group)
    peer.close()


def report(spec, runs, deadline):
    """As another task: return the connection to the chief, and its message that all have come.

    Raises RuntimeError with the chief's reason if it refuses, or if it does not answer in time.
    """
    while True:
        try:
            chief = socket.create_connection(host_and_port(spec.chief), MESSAGE_TIMEOUT_SECONDS)
            send(chief, rank=spec.rank, group=spec.group, runs=runs)
            until = deadline.until + MESSAGE_TIMEOUT_SECONDS  # so that the chief's wait ends first
            answer = receive_message(chief, until) or {}
            if "refused" in answer:
                raise RuntimeError(answer["refused"])
            if "go" in answer:
                return chief, answer
            reason = f"it waits for {answer['waits_for']}" if "waits_for" in answer else "it closed the connection"
        except OSError as error:
            reason = error.strerror or str(error)
        if deadline.is_over():
            raise RuntimeError(
                f"the chief, {spec.chief}, did not answer within {deadline.seconds:g} s ({reason}). Was it started,"
                " with the same cluster, and is its port open to this host?"
            )
        deadline.report_waiting(f"{spec.name(spec.rank)} waits for the chief, {spec.chief} ({reason})")
        time.sleep(PAUSE_SECONDS)


def send(connection, **message):
    """Send a message, a line of JSON; lost if the receiver has disconnected."""
    with suppress(OSError):
        connection.sendall(f"{GREETING} {json.dumps(message)}\n".encode())


def receive_message(connection, until):
    """Return the next message; None if the peer disconnects, sends something else, or nothing by ``until``."""
    line = bytearray()
    while b"\n" not in line and len(line) < LONGEST_MESSAGE:
        left = until - time.monotonic()
        if left <= 0 or not _readable([connection], left):
            return None
        more = b""
        with suppress(ConnectionError):
            more = connection.recv(2**16)  # no part of the next message: the sender waits for an answer
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
    """A timeout for the other tasks, which prints every `REPORT_INTERVAL_SECONDS` which are missing."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.began = self.last_report = time.monotonic()
        self.until = self.began + seconds

    def is_over(self):
        return time.monotonic() >= self.until

    def report_waiting(self, text):
        now = time.monotonic()
        if now >= self.last_report + REPORT_INTERVAL_SECONDS:
            self.last_report = now
            print(f"{text}, for {now - self.began:.0f} s", flush=True)


def refusal(peers, problem):
    """Send a problem to all these peers, and return it as an error."""
    for peer in peers:
        send(peer, refused=problem)
    return RuntimeError(problem)


def _readable(connections, seconds):
    """Return those of any number of connections from which something, or their end, can be read within ``seconds``."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]


def _wait_for_peers_to_end(peers):
    """Wait until the others have ended, unless an error ends this worker, for which they may be waiting."""
    if hasattr(sys, "last_value"):
        return
    until = time.monotonic() + EXIT_TIMEOUT_SECONDS
    left = list(peers)
    while left and (seconds := until - time.monotonic()) > 0:
        ended = _readable(left, seconds)
        left = [peer for peer in left if peer not in ended]
