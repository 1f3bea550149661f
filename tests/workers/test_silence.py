"""Who is there and says nothing: told from who is gone, and from who answers."""

import errno
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from leftovers import eventually

from bigtrain_nb.common.addresses import host_and_port
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch import rendezvous, serve, silence
from bigtrain_nb.launch.cluster_spec import ClusterSpec
from bigtrain_nb.launch.coordinator import Coordinator
from bigtrain_nb.launch.supervisor import free_ports

SECONDS = 60  # a net


@pytest.fixture
def mute():
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def answering():
    """The address of a server of TensorFlow's."""
    server = tf.data.experimental.service.DispatchServer()
    yield server.target.removeprefix("grpc://")


@pytest.fixture
def nobody():
    return f"127.0.0.1:{free_ports(1)[0]}"


def test_only_who_is_there_and_does_not_answer_is_silent(mute, answering, nobody):
    assert silence.is_silent(mute, 0.1)
    assert not silence.is_silent(answering, SECONDS)
    assert not silence.is_silent(nobody, SECONDS)


def test_the_silent_one_is_told_until_it_is_over(mute, answering, nobody):
    told, over = [], threading.Event()
    again = threading.Event()

    def tell(index):
        if told:
            over.set()
            again.set()
        told.append(index)

    silence.watch([answering, nobody, mute], 4, tell, over)
    assert again.wait(SECONDS)
    assert told == [2, 2]


def test_a_machine_to_which_there_is_no_way_is_silent(monkeypatch):
    def no_way(*_):
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(socket, "create_connection", no_way)
    assert silence.is_silent("10.0.0.9:1", 1)


def test_a_line_names_the_silent_one(mute, answering, monkeypatch, capsys):
    monkeypatch.setattr(silence, "SILENT_SECONDS", 4)
    silence.say(["worker 0", "worker 1"], [answering, mute])
    eventually(lambda: capsys.readouterr().out.startswith("worker 1 has not answered for 4 s: was it stopped, or"))


def test_a_chief_that_runs_is_not_silent_to_its_tasks_and_hears_them_still():
    spec = ClusterSpec(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], 0, True, 1, "TF_CONFIG")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def welcome_until_closed():
            with suppress(OSError):
                serve._welcome_again(server, spec, {})

        threading.Thread(target=welcome_until_closed, daemon=True).start()
        for _ in range(3):
            assert not silence.is_silent(address, rendezvous.TALK_SECONDS / 2)
        with socket.create_connection(host_and_port(address)) as task:
            rendezvous.send(task, rank=1, group=spec.group, runs={})
            assert rendezvous.heard(task, time.monotonic() + SECONDS) == {"go": True}
        serve.guests.clear()


def test_the_last_word_is_the_chiefs_and_one_that_is_gone_has_none():
    chief, guest = socket.socketpair()
    with chief, guest, ThreadPoolExecutor(1) as pool:
        last_word = pool.submit(serve._last_word, guest)
        chief.sendall(b"75")
        assert last_word.result(SECONDS) == b"75"
        chief.close()
        assert serve._last_word(guest) == b""


@pytest.fixture
def lost_and_kept(mute, nobody):
    """A coordinator of two servers, of which the second is gone; it runs nothing."""
    coordinator = object.__new__(Coordinator)
    coordinator._spec = ClusterSpec([nobody, nobody, mute, nobody], 0, True, 2, "TF_CONFIG")
    return coordinator


@pytest.mark.parametrize("error", [OSError("cannot save"), tf.errors.AbortedError(None, None, "")])
def test_a_lost_server_is_named_whatever_it_leads_to(error, lost_and_kept, nobody):
    with pytest.raises(RuntimeError, match=rf"^server 1 \({nobody}\) is gone, and the variables"):
        with lost_and_kept._naming_a_lost_server():
            raise error


def test_an_error_with_all_servers_there_stays_what_it_is(lost_and_kept, mute):
    lost_and_kept._spec.addresses[3] = mute
    with pytest.raises(OSError, match="No space left"):
        with lost_and_kept._naming_a_lost_server():
            raise OSError("No space left")
    with pytest.raises(RuntimeError, match="^a parameter server is gone"):
        with lost_and_kept._naming_a_lost_server():
            raise tf.errors.UnavailableError(None, None, "")
