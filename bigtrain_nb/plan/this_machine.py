"""What this machine reaches at most: FLOP/s of products of matrices.

On CPUs processor time is taken, times that a core works for this process, and the least of many runs: other programs on
the same cores then change little.
"""

import time
from functools import cache, partial

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf

SECONDS = 0.2  # spent on each number


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
    return 2 * width**3 / _seconds(partial(tf.matmul, ones / width), ones)


def _seconds(operation, tensor):
    """Return the seconds of an operation that runs in a graph."""
    in_graph = tf.function(operation, autograph=False)

    def run():
        in_graph(tensor)
        tf.test.experimental.sync_devices()  # waits for GPUs

    run()
    if on_gpu():
        return _least(run, time.perf_counter)
    return _least(run, time.process_time) / cores()


def _least(run, clock):
    """Return the least seconds of several runs."""
    end = time.perf_counter() + SECONDS
    took = []
    while len(took) < 3 or time.perf_counter() < end:
        began = clock()
        run()
        took.append(clock() - began)
    return min(took)
