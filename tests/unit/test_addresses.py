"""Is there a server at an address? test_cluster_spec.py parses addresses."""

import socket

from bigtrain_nb.common.addresses import answers


def test_who_listens_answers_and_who_has_gone_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address) and answers(f"grpc://{address}")
    assert not answers(address)
    assert not answers("127.0.0.1:none")
