"""Waiting until a machine has done what it was given: this process at rest, its GPUs ready."""

import sys
import time

from bigtrain_nb.common.hardware import own_cpu_seconds

LONGEST_REST = 1.0
"""Seconds."""


def let_rest(tick):
    """Wait until this process and its children rest, a second at most; ``tick()`` is called meanwhile."""
    until, used = time.perf_counter() + LONGEST_REST, own_cpu_seconds() - time.thread_time()
    while time.perf_counter() < until:
        time.sleep(0.01)
        tick()
        used, before = own_cpu_seconds() - time.thread_time(), used
        if used - before < 0.002:
            return


def wait_for_gpus():
    """Wait until this process' GPUs have done what they were given; a CPU has when TensorFlow's call returns.

    `tf.test.experimental.sync_devices` would ask the devices of other workers too, and raises in a worker.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "config") or not tf.config.get_visible_devices("GPU"):
        return  # not loaded, or being loaded, or nothing to wait for
    for device in tf.config.list_logical_devices("GPU"):  # a GPU may be two of them
        with tf.device(device.name):
            tf.raw_ops.SyncDevice()
