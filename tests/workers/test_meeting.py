"""All workers meet before TensorFlow starts: who is waited for, and whose words count."""

import atexit
import json
from concurrent.futures import ThreadPoolExecutor
from socket import create_connection, create_server

import pytest
from leftovers import eventually, listens

from bigtrain_nb.launch import rendezvous as meeting
from bigtrain_nb.launch.cluster_spec import Place
from bigtrain_nb.launch.rendezvous import meet
from bigtrain_nb.launch.supervisor import free_ports

SECONDS = 60  # a net: these meetings take a second


@pytest.fixture(autouse=True)
def nobody_waits_at_exit():
    yield
    atexit.unregister(meeting._leave_last)
    while meeting.to_the_chief:
        meeting.to_the_chief.pop().close()


def places(count):
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    return [Place({"worker": addresses}, "worker", index, "TF_CONFIG") for index in range(count)]


def test_one_that_came_and_hung_up_is_waited_for():
    chief, first, second = places(3)
    with ThreadPoolExecutor() as pool:
        met = [pool.submit(meet, chief, SECONDS)]
        eventually(lambda: listens(chief.addresses[0]))
        with create_connection(("127.0.0.1", chief.port)) as connection:
            told = {"rank": first.rank, "cluster": first.addresses}
            connection.sendall(json.dumps(told).encode() + b"\n")
        met.append(pool.submit(meet, second, SECONDS))
        with pytest.raises(TimeoutError):
            met[-1].result(timeout=1)
        met.append(pool.submit(meet, first, SECONDS))
        assert [one.result() for one in met] == [None] * 3


@pytest.mark.parametrize(
    "words",
    [b"", b"\0\0\x12\x04\xff\xfe\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"go\n"],
    ids=["none", "binary", "HTTP", "almost the chief's"],
)
def test_another_server_at_the_chiefs_port_is_outlasted(words):
    chief, worker = places(2)
    with ThreadPoolExecutor() as pool:
        with create_server(("127.0.0.1", chief.port)) as server:
            met = [pool.submit(meet, worker, SECONDS)]
            guest, _ = server.accept()
            with guest, guest.makefile("rb") as told:
                told.readline()
                guest.sendall(words)
        met.append(pool.submit(meet, chief, SECONDS))
        assert [one.result() for one in met] == [None] * 2


def test_what_the_chief_complains_of_is_told():
    chief, worker = places(2)
    other = Place({"worker": [*worker.addresses, "127.0.0.1:1"]}, "worker", 1, "TF_CONFIG")
    with ThreadPoolExecutor() as pool:
        for one in [pool.submit(meet, mine, SECONDS) for mine in (chief, other)]:
            with pytest.raises(RuntimeError, match="^worker 1 was told of another cluster than the chief"):
                one.result()
