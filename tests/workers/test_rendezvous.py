"""The rendezvous of all workers before TensorFlow starts: who is awaited, and whose messages count."""

import atexit
import fcntl
import json
import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from socket import create_connection, create_server

import pytest
from leftovers import eventually, listens

from bigtrain_nb.launch import rendezvous
from bigtrain_nb.launch.cluster_spec import ClusterSpec, Place
from bigtrain_nb.launch.supervisor import free_ports

SECONDS = 60  # a safety limit: these meetings take a second


@pytest.fixture(autouse=True)
def nobody_waits_at_exit():
    yield
    atexit.unregister(rendezvous._wait_for_peers_to_end)
    while rendezvous.to_the_chief:
        rendezvous.to_the_chief.pop().close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as made:
        yield made


def specs(count):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [ClusterSpec(addresses, rank, False, "TF_CONFIG") for rank in range(count)]


def meet(spec, seconds=SECONDS, **runs):
    """Let a task with these facts (`describe_run`) meet the others."""
    return rendezvous.meet(spec, runs, rendezvous.Deadline(seconds))


def greeting(spec, **runs):
    """Return a task's first message to the chief."""
    message = {"rank": spec.rank, "group": spec.group, "runs": runs}
    return f"bigtrain_nb {json.dumps(message)}\n".encode()


def say(port, words):
    """Send a message to the chief, and close the connection."""
    with create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(words)


def refused(*meetings):
    """Return the error message with which all of them fail."""
    said = set()
    for one in meetings:
        with pytest.raises(RuntimeError) as caught:
            one.result()
        said.add(str(caught.value))
    assert len(said) == 1
    return said.pop()


def test_one_that_came_and_hung_up_is_waited_for(pool):
    chief, first, second = specs(3)
    met = [pool.submit(meet, chief)]
    eventually(lambda: listens(chief.addresses[0]))
    say(chief.port, greeting(first))
    met.append(pool.submit(meet, second))
    with pytest.raises(TimeoutError):
        met[-1].result(timeout=0.5)
    met.append(pool.submit(meet, first))
    assert [one.result() for one in met] == [None] * 3


def test_strangers_at_the_chiefs_port_do_no_harm_and_one_that_is_slow_holds_up_nobody(pool, monkeypatch):
    monkeypatch.setattr(rendezvous, "MESSAGE_TIMEOUT_SECONDS", SECONDS)
    chief, worker = specs(2)
    met = [pool.submit(meet, chief)]
    eventually(lambda: listens(chief.addresses[0]))
    odd = {"rank": 1, "group": worker.group, "runs": 7}, {"rank": [], "group": 1, "runs": {}}, {"rank": 7}, []
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 9000, b"bigtrain_nb " + b"[" * 100_000 + b"\n"):
        say(chief.port, words)
    for message in odd:
        say(chief.port, f"bigtrain_nb {json.dumps(message)}\n".encode())
    with create_connection(("127.0.0.1", chief.port)) as slow:
        slow.sendall(b"bigtrain_nb {")
        met.append(pool.submit(meet, worker))
        assert [one.result(timeout=SECONDS / 2) for one in met] == [None] * 2


def test_another_server_at_the_chiefs_port_is_outlasted(pool):
    chief, worker = specs(2)
    with create_server(("127.0.0.1", chief.port)) as server:
        met = [pool.submit(meet, worker)]
        peer, _ = server.accept()
        with peer, peer.makefile("rb") as told:
            told.readline()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    met.append(pool.submit(meet, chief))
    assert [one.result() for one in met] == [None] * 2


def test_all_that_came_hear_who_is_missing(pool, monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "REPORT_INTERVAL_SECONDS", 0.5)
    chief, missing, second, lost = specs(4)
    other = pool.submit(meet, second)
    said = refused(pool.submit(meet, chief, 2), other)
    names = f"worker 1 ({missing.addresses[1]}), worker 3 ({lost.addresses[3]})"
    assert said.startswith(f"{names} did not come within 2 s")
    assert f"worker 0 ({chief.addresses[0]}) waits for {names}, for " in capsys.readouterr().out


def test_tasks_that_run_something_else_are_refused_with_all_values(pool):
    chief, first, second = specs(3)
    met = [
        pool.submit(meet, chief, **{"argument --rate": "0.1", "keras": "3.15.0", "file plots.py": "1"}),
        pool.submit(meet, first, **{"argument --rate": "0.2", "keras": "3.15.0"}),
        pool.submit(meet, second, **{"argument --rate": "0.1", "keras": "3.14.0", "argument -v": ""}),
    ]
    one, two = first.name(1), second.name(2)
    assert refused(*met) == (
        f"the tasks' runs differ: {one}: argument --rate is '0.2', the chief's is '0.1';"
        f" {two}: argument -v is '', the chief's is missing; {two}: keras is '3.14.0', the chief's is '3.15.0'"
    )


def test_a_name_that_does_not_resolve_yet_is_waited_for(pool, monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "REPORT_INTERVAL_SECONDS", 0.0)
    addresses = [f"host{index}.invalid:{port}" for index, port in enumerate(free_ports(2))]
    chief, worker = (ClusterSpec(addresses, rank, False, "TF_CONFIG") for rank in range(2))
    known = threading.Event()
    look_up = socket.getaddrinfo

    def slow_names(host, *arguments, **options):
        if host.endswith(".invalid"):
            if not known.is_set():
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow_names)
    met = [pool.submit(meet, chief), pool.submit(meet, worker)]
    with pytest.raises(TimeoutError):
        met[0].result(timeout=0.5)
    known.set()
    assert [one.result() for one in met] == [None] * 2
    said = capsys.readouterr().out
    assert f"worker 0 ({addresses[0]}) waits for its own name to resolve (Name or service" in said
    assert f"worker 1 ({addresses[1]}) waits for the chief, {addresses[0]} (Name or service" in said
    known.clear()
    with pytest.raises(
        RuntimeError, match=r"host0\.invalid \(TF_CONFIG\), does not resolve: Name or service not known"
    ):
        meet(chief, 0.1)


def test_the_chief_listens_on_its_own_address_only():
    chief, _ = specs(2)
    with rendezvous.listening(chief, rendezvous.Deadline(1)) as server:
        assert server.getsockname() == ("127.0.0.1", chief.port)
    at_two_hosts = ClusterSpec([chief.addresses[0], "192.0.2.1:2222"], 0, False, "TF_CONFIG")
    with rendezvous.listening(at_two_hosts, rendezvous.Deadline(1)) as server:  # others cannot reach loopback
        assert server.getsockname()[:2] in [("::", chief.port), ("0.0.0.0", chief.port)]
        create_connection(("127.0.0.1", chief.port)).close()  # both address families


def test_at_the_end_the_chief_waits_for_all_together_and_not_long(monkeypatch):
    monkeypatch.setattr(rendezvous, "EXIT_TIMEOUT_SECONDS", 1.0)
    pairs = [socket.socketpair() for _ in range(20)]
    pairs[0][1].close()
    began = time.monotonic()
    rendezvous._wait_for_peers_to_end([mine for mine, _ in pairs])
    assert 1 <= time.monotonic() - began < 18  # one after the other, 19 would take 19
    for pair in pairs:
        pair[0].close()
        pair[1].close()


def test_a_task_that_meets_the_others_hands_its_cluster_to_tensorflow(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")  # restored after the test
    (spec,) = specs(1)
    assert rendezvous.connect_all_tasks(spec, {"keras": "3"}, SECONDS) == spec
    assert os.environ["TF_CONFIG"] == spec.tf_config
    with create_server(("", spec.port)), pytest.raises(RuntimeError, match=f"^port {spec.port} of this task"):
        rendezvous.connect_all_tasks(spec, {}, 7.0)


@pytest.mark.parametrize("free", [0, 1])
def test_a_chief_without_open_files_left_says_so_and_not_that_its_port_is_taken(free, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")
    (spec, _), opened = specs(2), []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    try:
        with suppress(OSError):
            while True:
                opened.append(os.dup(0))
        for _ in range(free):
            os.close(opened.pop())
        with pytest.raises(RuntimeError, match="^2 tasks need more open files: raise the limit, ulimit -n$"):
            rendezvous.connect_all_tasks(spec, {}, SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in opened:
            os.close(each)


def test_a_chief_of_more_workers_than_select_allows_hears_them_and_sees_them_end():
    """`select.select` takes no descriptor above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    low, theirs = socket.socketpair()
    with low, theirs, socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, 2000)) as mine:
        assert rendezvous._readable([mine], 0) == []
        rendezvous.send(theirs, rank=2)
        assert rendezvous.receive_message(mine, time.monotonic() + SECONDS) == {"rank": 2}
        theirs.close()
        assert set(rendezvous._readable([low, mine], 0)) == {low, mine}
        rendezvous._wait_for_peers_to_end([mine])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_that_says_nothing_says_half_a_line_or_too_much_is_heard_out_until_then_only():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.settimeout(SECONDS)
        began = time.monotonic()
        for words in (b"", b"bigtrain_nb {"):
            theirs.sendall(words)
            assert rendezvous.receive_message(mine, time.monotonic() + 0.2) is None
        assert time.monotonic() - began < SECONDS
        theirs.sendall(b'"rank": 1}\n')  # the rest is too late
        assert rendezvous.receive_message(mine, time.monotonic() + SECONDS) is None
        rendezvous.send(theirs, rank=2)
        assert rendezvous.receive_message(mine, time.monotonic() + SECONDS) == {"rank": 2}


def places(count, host="127.0.0.1"):
    """Return tasks that know their rank, the world size and the chief's address."""
    chief = f"{host}:{free_ports(1)[0]}"
    return [Place(rank, count, chief, "SLURM's variables", f"{count} tasks") for rank in range(count)]


def locate(place, seconds=SECONDS):
    return rendezvous.locate(place, rendezvous.Deadline(seconds))


def test_tasks_that_know_the_chief_only_tell_each_other_where_they_are(pool):
    chief, *others = places(4, host="localhost")
    specs = [pool.submit(locate, place) for place in reversed(others)]
    specs = [locate(chief), *(one.result() for one in reversed(specs))]
    assert [spec.rank for spec in specs] == [0, 1, 2, 3]
    assert all(spec.addresses == specs[0].addresses and spec.source == "SLURM's variables" for spec in specs)
    assert len(set(specs[0].addresses)) == 4 and chief.chief not in specs[0].addresses
    assert [*specs[0].cluster] == ["worker"]
    assert all(address.startswith("localhost:") for address in specs[0].addresses)  # by host name, not loopback address


def test_those_beside_the_chief_are_where_the_others_reach_the_chief(pool, monkeypatch):
    chief, beside, far = places(3)
    host_of, of_another_host = rendezvous._host, []

    def host(address):
        return "192.0.2.7" if address[1] in of_another_host else host_of(address)

    assert host_of(("::ffff:192.0.2.1", 1)) == "192.0.2.1"
    monkeypatch.setattr(rendezvous, "_host", host)
    met = [pool.submit(locate, chief), pool.submit(locate, beside)]
    eventually(lambda: listens(chief.chief))
    with create_connection(("127.0.0.1", int(chief.chief.rpartition(":")[2]))) as peer:
        of_another_host.append(peer.getsockname()[1])
        rendezvous.send(peer, rank=2, group=far.group, runs={"port": 4000})
        answer = rendezvous.receive_message(peer, time.monotonic() + SECONDS)
    assert answer["addresses"][2] == "192.0.2.7:4000"
    assert [one.result().addresses for one in met] == [answer["addresses"]] * 2


def test_who_does_not_come_and_who_comes_to_another_group_is_named(pool, monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "REPORT_INTERVAL_SECONDS", 0.3)
    chief, worker, _ = places(3)
    other = Place(1, 2, chief.chief, "SLURM's variables", "2 tasks")
    met = [pool.submit(locate, chief, 2), pool.submit(locate, worker, 60), pool.submit(locate, other, 1)]
    with pytest.raises(RuntimeError, match=r"^the chief, .* \(it waits for 3 tasks\)"):
        met.pop().result()
    assert refused(*met).startswith("task 2 of 3 did not come within 2 s")
    assert "task 0 of 3 waits for task 2 of 3, for" in capsys.readouterr().out


def test_tasks_that_have_told_where_they_are_are_compared_by_what_they_run(pool, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")  # set by the meeting, restored after the test
    met = []
    for place, rate in zip(places(2), ("0.1", "0.2"), strict=True):
        runs = {"argument --rate": rate, "file train.py": rate, "keras": f"3.{rate}"}
        met.append(pool.submit(rendezvous.connect_all_tasks, place, runs, SECONDS))
    said = refused(*met)
    for what in ("argument --rate is '0.2', the chief's is '0.1'", "file train.py is", "keras is '3.0.2'"):
        assert what in said
    assert said.startswith("the tasks' runs differ: worker 1 (127.0.0.1:")


def test_where_the_chief_cannot_listen_the_address_and_its_source_are_named():
    chief, _ = places(2)
    with create_server(("127.0.0.1", int(chief.chief.rpartition(":")[2]))):
        with pytest.raises(
            RuntimeError, match=rf"cannot connect at {chief.chief} \(from SLURM's variables\): Address already"
        ):
            locate(chief)
