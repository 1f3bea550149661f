"""The devices of all workers, for one process to use.

Another worker reports to the chief once its server runs. The chief's word on that connection says that it has ended; an
end without a word means that it was lost.
"""

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from bigtrain_nb.common.checks import positive
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.rendezvous import come_together, gather, listening, report
from bigtrain_nb.launch.same_run import what_runs
from bigtrain_nb.train.devices import devices


def cluster_devices(at_least: int = 2, timeout: float = 600, may_differ: Sequence[str] = ()) -> list[str]:
    """Return the names of the devices of all workers, in the chief; in another worker, serve the chief until it ends.

    As one of several workers, which `strategy` says how to start, the devices are the GPUs of all workers, or one CPU
    of each if there are none, in the order of the workers. All run the same script, but what stands below this call is
    the chief's alone: in the others this call does not return. They compute what the chief sends them, and when it has
    ended they end, with code 0. On its own, a process gets `devices(at_least)`. Call it before TensorFlow runs
    anything.

    Raises as `strategy` does, which says what ``may_differ`` is.

    Example::

        for name in bt.cluster_devices(at_least=2):
            print(name)
    """
    positive("timeout", timeout, "seconds")
    found = cluster_spec()
    if found is None:
        return devices(at_least)
    spec, cluster = come_together(_lead, found, what_runs(may_differ), timeout)
    tf.config.experimental_connect_to_cluster(cluster, spec.tasks[0]["type"], 0)
    there = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in there]
    print(f"The chief, with {len(names)} devices of {spec.count} workers, because of {spec.source}", flush=True)
    return names


def _lead(spec, runs, patience):
    """In the chief, return the `tf.train.ClusterSpec` of all tasks once the others serve; in another, do not return."""
    os.environ["GRPC_FAIL_FAST"] = "use_caller"  # TensorFlow raises when a task is gone; else it waits for it
    if spec.rank > 0:
        _serve(spec, runs, patience)
    with listening(spec, patience) as server:
        atexit.register(_dismiss, gather(server, spec, runs, patience))
    return tf.train.ClusterSpec(spec.cluster)


def _serve(spec, runs, patience):
    """Run a TensorFlow server until the chief has ended, then end this process, with code 1 if the chief was lost.

    SIGTERM is ignored meanwhile: the chief may be saving what stands here.
    """
    print(f"{spec.name(spec.rank)} serves the chief, because of {spec.source}", flush=True)
    task = spec.tasks[spec.rank]
    _ = tf.distribute.Server(spec.cluster, task["type"], task["index"], protocol="grpc")
    chief, _ = report(spec, runs, patience)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    chief.settimeout(None)
    word = b""
    with suppress(OSError):
        word = chief.recv(16)
    if not word:
        print(f"the chief ({spec.chief}) is gone without a word", flush=True)
    os._exit(0 if word else 1)  # at once: TensorFlow's server cannot be ended


def _dismiss(guests):
    """Let the other tasks end, unless an error ends this process: they see that it is gone."""
    if not hasattr(sys, "last_value"):
        for guest in guests.values():
            with suppress(OSError):
                guest.sendall(b"0")
