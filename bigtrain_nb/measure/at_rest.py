"""Waiting until this process is idle, and until its GPUs have finished their work."""

import sys
import time

from bigtrain_nb.common.hardware import own_cpu_seconds


def wait_until_idle(tick, longest):
    """Wait, for at most ``longest`` seconds, until this process and its children are idle; call ``tick()`` meanwhile.

    Return whether they were busy.
    """
    is_busy = False
    until, used = time.perf_counter() + longest, own_cpu_seconds() - time.thread_time()
    while time.perf_counter() < until:
        time.sleep(0.01)
        tick()
        used, before = own_cpu_seconds() - time.thread_time(), used
        if used - before < 0.002:
            break
        is_busy = True
    return is_busy


def wait_for_gpus():
    """Wait until the GPUs of this process have finished; a CPU has finished when TensorFlow's call returns.

    `tf.test.experimental.sync_devices` would include the devices of other workers, and raises in a worker.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "config") or not tf.config.get_visible_devices("GPU"):
        return  # not loaded, still loading, or no GPUs
    for device in tf.config.list_logical_devices("GPU"):  # a GPU may be split into several
        with tf.device(device.name):
            tf.raw_ops.SyncDevice()
