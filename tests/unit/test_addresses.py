"""Parsing addresses, and the processes that listen at them."""

import socket

import pytest

from bigtrain_nb.common.addresses import answers, host_and_port


def test_who_listens_answers_and_who_has_gone_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address) and answers(f"grpc://{address}")
    assert not answers(address)
    assert not answers("127.0.0.1:none")


def test_a_host_may_be_written_with_brackets():
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("node-3:8080") == ("node-3", 8080)
    with pytest.raises(ValueError):
        host_and_port("node-3:http")
