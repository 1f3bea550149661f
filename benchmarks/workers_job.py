"""What the processes of workers.py do: ``workers_job.py train WAY ANSWER`` or ``workers_job.py reduce ROUNDS ANSWER``.

The chief writes the answer, as JSON. Nothing here imports TensorFlow before the process is on its own core.
"""

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from training_workers import STEPS, fit

from bigtrain_nb.common.files import write_text

NETWORKS = ("wide", "conv")
SIZES = [2**16 * 4**n for n in range(6)]
"""Bytes of a message: 64 KiB to 64 MiB."""
BYTES_A_ROUND, MOST_A_ROUND = 2**27, 32


def train(way, index, folder):
    """Return for each network the seconds of a step, in the median epoch of `fit` with the same global batch."""
    import tensorflow as tf

    alone = way == "one process"
    strategy = tf.distribute.get_strategy() if alone else tf.distribute.MultiWorkerMirroredStrategy()
    return [median(fit(tf, strategy, way, network, 1)[1:]) / STEPS[network] for network in NETWORKS]


def reduce(rounds, index, folder):
    """Return for each size, of an all-reduce and of the same bytes through a socket, each round's `timed`."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = []
    with Peer(index, folder / "port") as peer:
        for size in SIZES:
            often = max(2, min(MOST_A_ROUND, BYTES_A_ROUND // size))
            ways = [all_reduces(tf, strategy, size, often), exchanges(peer, size, often)]
            times = [[timed(work, peer, often) for work in ways] for _ in range(1 + int(rounds))]
            found.append(list(zip(*times[1:], strict=True)))  # the first warms up
    return found


def timed(work, peer, often):
    """Return the seconds, and those of this process on any core, of one of so many; starts once both are there."""
    peer.swap(bytearray(1), bytearray(1))
    began = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - began[0]) / often, (time.process_time() - began[1]) / often


def all_reduces(tf, strategy, size, often):
    """Return a function that all-reduces ``size`` bytes of zeros so many times, one after the other."""
    zeros = tf.zeros([size // 4])

    def one_after_the_other(x):
        x = tf.identity(x)  # on the replica's device
        for _ in range(often):
            x = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)
        return x[0]

    step = tf.function(lambda: strategy.run(one_after_the_other, args=(zeros,)))
    return lambda: step().numpy()


def exchanges(peer, size, often):
    """Return a function that moves what a ring of two does: one half each way at once, and then the other half."""
    mine, theirs = bytearray(size // 2), bytearray(size // 2)

    def work():
        for _ in range(2 * often):
            peer.swap(mine, theirs)

    return work


class Peer:
    """A plain TCP connection to the other worker, with one thread that sends."""

    def __init__(self, index, port):
        if index == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                write_text(port, str(server.getsockname()[1]))
                self.socket = server.accept()[0]
        else:
            while not port.exists():
                time.sleep(0.05)
            self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sender = ThreadPoolExecutor(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sender.shutdown()
        self.socket.close()

    def swap(self, mine, theirs):
        """Send one buffer while the other fills."""
        sent = self.sender.submit(self.socket.sendall, mine)
        view = memoryview(theirs)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise ConnectionError("the other worker has gone")
            view = view[count:]
        sent.result()


def take_a_core(index):
    """Keep to one core, another in each worker, so that a worker has as much to itself as a process alone."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[index % len(cores)]})


def main(job, setting, answer):
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    if job == "train":
        take_a_core(index)
    found = {"train": train, "reduce": reduce}[job](setting, index, Path(answer).parent)
    if index == 0:
        write_text(Path(answer), json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
