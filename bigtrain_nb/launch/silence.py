"""A process that is there and says nothing: it was stopped, or its machine hangs. TensorFlow waits for it for ever.

Whether a process lives can be asked without TensorFlow: a gRPC server answers a greeting within a moment, also one that
computes with all its cores, and our own hangs up.
"""

import errno
import socket
import threading
import time

from bigtrain_nb.common.addresses import host_and_port

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # RFC 9113, 3.4: and no settings
LONGEST_WAIT_SECONDS = 5.0
SILENT_SECONDS = 60.0


def say(names, addresses):
    """Print a line with the name of whoever has not answered for a minute, until this process ends."""

    def tell(index):
        print(f"{sentence(names[index], SILENT_SECONDS)} What waits for it waits until it is ended", flush=True)

    watch(addresses, SILENT_SECONDS, tell, threading.Event())


def sentence(name, seconds):
    return f"{name} has not answered for {seconds:g} s: was it stopped, or does its machine hang?"


def watch(addresses, silent_after, tell, over):
    """Greet the gRPC server at each address, "host:port", again and again, until the event ``over`` is set.

    Calls ``tell(index)``, in a thread, for one that has not answered for ``silent_after`` seconds. Where nobody listens
    there is nobody to be silent.
    """
    for index, address in enumerate(addresses):
        threading.Thread(target=_watch, args=(index, address, silent_after, tell, over), daemon=True).start()


def _watch(index, address, silent_after, tell, over):
    seconds = min(silent_after / 4, LONGEST_WAIT_SECONDS)
    answered = time.monotonic()
    while not over.wait(seconds):
        if not is_silent(address, seconds):
            answered = time.monotonic()
        elif time.monotonic() - answered >= silent_after and not over.is_set():
            tell(index)
            answered = time.monotonic()


def is_silent(address, seconds):
    """Tell whether a gRPC server at "host:port" does not answer a greeting in time, though the port is not closed.

    Of a machine that is gone, its neighbours say after some seconds that there is no way to it: it is silent too.
    """
    try:
        with socket.create_connection(host_and_port(address), seconds) as connection:
            connection.sendall(GREETING)
            connection.recv(1)
    except TimeoutError:
        return True
    except OSError as error:
        return error.errno in (errno.EHOSTUNREACH, errno.EHOSTDOWN)
    return False
