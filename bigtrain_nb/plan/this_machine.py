"""What this machine reaches at most: products of matrices, memory at several sizes, the start of an operation.

On CPUs processor time is taken, times that a core works for this process, and the least of many runs: other programs on
the same cores then change little.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf

SIZES = [2**n for n in range(18, 30, 2)]
"""Bytes, from what cores keep close to them to what no cache holds."""
SECONDS = 0.2  # spent on each number
LEAST_BYTES = 2**30


@dataclass(frozen=True)
class ThisMachine:
    """What `least_seconds` asks of a machine, as measured here: all cores, or the first GPU.

    ``bandwidths``: {bytes: bytes/s of reading and writing so many in place, again and again}; ``start``: seconds of an
    operation on one number; ``fuses``: XLA, which Keras uses on GPUs, makes one operation of several.
    """

    bandwidths: dict[int, float]
    start: float
    fuses: bool
    source = "products, convolutions and memory as measured on this machine"

    def flops(self, policy: str) -> float:
        """FLOP/s of products of matrices for a Keras dtype policy; 16 bits can be computed in float32 too."""
        return flops_here(policy)

    def moving(self, size: float) -> float:
        """Seconds in which an operation reads and writes so many bytes, at the bandwidth of its own size.

        Every byte may be read and written, as in place, so that it touches half as many.
        """
        touched = min(size / 2, max(self.bandwidths))
        return size / max(rate for held, rate in self.bandwidths.items() if 4 * held > touched)

    @property
    def times_alone(self) -> bool:
        """Whether `timed_alone` times operations: on cores, which a few examples fill."""
        return not self.fuses

    @property
    def link(self) -> float:
        """Bytes/s that a replica here sends to the next at most, each read and written."""
        return max(self.bandwidths.values()) / 2


@cache
def this_machine() -> ThisMachine:
    """Measure this machine, in some two seconds; once in a process."""
    bandwidth = _bandwidth_of_gpu if on_gpu() else _bandwidth_of_cores
    start = _seconds(partial(tf.maximum, 1.0), tf.zeros([]), 1000)
    return ThisMachine({size: bandwidth(size) for size in SIZES}, start, fuses=on_gpu())


def flops_here(policy: str) -> float:
    """Measure FLOP/s of products of matrices for a Keras dtype policy, in a fifth of a second; once in a process."""
    return _flops("float32") if policy == "float32" else max(_flops(policy.removeprefix("mixed_")), _flops("float32"))


def on_gpu():
    """Return whether TensorFlow computes on a GPU here."""
    return bool(tf.config.list_logical_devices("GPU"))


@cache
def _flops(dtype):
    width = 8192 if on_gpu() else 2048
    ones = tf.ones([width, width], dtype)
    return 2 * width**3 / _seconds(partial(tf.matmul, ones / width), ones, 1)


def _seconds(operation, tensor, times):
    """Return the seconds of an operation that runs so many times in a graph, each time on its last result."""

    @partial(tf.function, autograph=False)
    def chain(tensor):
        for _ in range(times):
            tensor = operation(tensor)
        return tensor

    def run():
        chain(tensor)
        tf.test.experimental.sync_devices()  # waits for GPUs

    run()
    if on_gpu():
        return _least(run, time.perf_counter) / times
    return _least(run, time.process_time) / times / cores()


def _bandwidth_of_gpu(size):
    return 2 * size / _seconds(partial(tf.maximum, 1.0), tf.zeros([size // 4]), 20)


def _bandwidth_of_cores(size):
    """Return bytes/s of all cores, each of which works on a part of so many bytes."""

    def one_core(_):
        part = np.ones(size // 4 // cores(), "float32")
        times = -(-LEAST_BYTES // part.nbytes)  # long enough for clocks that tick each hundredth of a second

        def run():
            for _ in range(times):
                np.multiply(part, 1.0, out=part)

        return 2 * part.nbytes * times / _least(run, time.thread_time)

    with ThreadPoolExecutor(cores()) as pool:
        return sum(pool.map(one_core, range(cores())))


def _least(run, clock):
    """Return the least seconds of several runs."""
    end = time.perf_counter() + SECONDS
    took = []
    while len(took) < 3 or time.perf_counter() < end:
        began = clock()
        run()
        took.append(clock() - began)
    return min(took)
