"""Does anybody listen there?"""

import socket


def answers(address, seconds=1.0):
    """Tell whether somebody listens at "host:port" or "grpc://host:port"."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except (OSError, ValueError):
        return False
    return True
