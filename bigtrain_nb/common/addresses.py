"""Addresses, "host:port": their parts, and whether anybody listens there."""

import socket


def answers(address, seconds=1.0):
    """Tell whether somebody listens at "host:port" or "grpc://host:port"."""
    try:
        socket.create_connection(host_and_port(address.removeprefix("grpc://")), seconds).close()
    except (OSError, ValueError):
        return False
    return True


def host_and_port(address):
    """Return host and port of "host:port", or of "[::1]:port"; raise ValueError for a port that is no number."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
