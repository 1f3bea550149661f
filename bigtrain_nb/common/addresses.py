"""Addresses, "host:port": parsing them, and testing whether a server listens."""

import socket


def answers(address, seconds=1.0):
    """Return whether a server listens at "host:port" or "grpc://host:port"."""
    try:
        socket.create_connection(host_and_port(address.removeprefix("grpc://")), seconds).close()
    except (OSError, ValueError):
        return False
    return True


def host_and_port(address):
    """Return host and port of "host:port" or "[::1]:port"; raise ValueError if the port is not an integer."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
