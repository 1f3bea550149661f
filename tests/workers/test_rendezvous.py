"""All workers meet before TensorFlow starts: who is waited for, and whose words count."""

import atexit
import json
from concurrent.futures import ThreadPoolExecutor
from socket import create_connection, create_server

import pytest
from leftovers import eventually, listens

from bigtrain_nb.launch import rendezvous
from bigtrain_nb.launch.cluster_spec import ClusterSpec
from bigtrain_nb.launch.rendezvous import meet
from bigtrain_nb.launch.supervisor import free_ports

SECONDS = 60  # a net: these meetings take a second


@pytest.fixture(autouse=True)
def nobody_waits_at_exit():
    yield
    atexit.unregister(rendezvous._leave_last)
    while rendezvous.to_the_chief:
        rendezvous.to_the_chief.pop().close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as made:
        yield made


def specs(count):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [ClusterSpec(addresses, rank, False, 0, "TF_CONFIG") for rank in range(count)]


def say(port, words):
    """Say something to the chief, and hang up."""
    with create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(words)


def test_one_that_came_and_hung_up_is_waited_for(pool):
    chief, first, second = specs(3)
    met = [pool.submit(meet, chief, SECONDS)]
    eventually(lambda: listens(chief.addresses[0]))
    say(chief.port, json.dumps([first.rank, first.addresses]).encode() + b"\n")
    met.append(pool.submit(meet, second, SECONDS))
    with pytest.raises(TimeoutError):
        met[-1].result(timeout=0.5)
    met.append(pool.submit(meet, first, SECONDS))
    assert [one.result() for one in met] == [None] * 3


def test_strangers_at_the_chiefs_port_do_no_harm(pool):
    chief, worker = specs(2)
    met = [pool.submit(meet, chief, SECONDS)]
    eventually(lambda: listens(chief.addresses[0]))
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'[7, ""]\n', b"\0" * 9000):
        say(chief.port, words)
    met.append(pool.submit(meet, worker, SECONDS))
    assert [one.result() for one in met] == [None] * 2


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["none", "HTTP"])
def test_another_server_at_the_chiefs_port_is_outlasted(words, pool):
    chief, worker = specs(2)
    with create_server(("127.0.0.1", chief.port)) as server:
        met = [pool.submit(meet, worker, SECONDS)]
        guest, _ = server.accept()
        with guest, guest.makefile("rb") as told:
            told.readline()
            guest.sendall(words)
    met.append(pool.submit(meet, chief, SECONDS))
    assert [one.result() for one in met] == [None] * 2


def test_the_chief_says_who_is_missing(pool, monkeypatch):
    monkeypatch.setattr(rendezvous, "TALK_SECONDS", 0.5)
    chief, missing, second, lost = specs(4)
    other = pool.submit(meet, second, 0.5)
    said = rf"^worker 1 \({missing.addresses[1]}\), worker 3 \({lost.addresses[3]}\) did not come within 0\.5 s"
    with pytest.raises(RuntimeError, match=said):
        meet(chief, 0.5)
    with pytest.raises(RuntimeError, match=f"^the chief, {chief.addresses[0]}, did not answer within"):
        other.result()
