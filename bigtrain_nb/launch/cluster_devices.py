"""The devices of all workers, for one process to use."""

from collections.abc import Sequence

from bigtrain_nb.common.checks import positive
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch import silence
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.rendezvous import come_together
from bigtrain_nb.launch.same_run import what_runs
from bigtrain_nb.launch.serve import lead
from bigtrain_nb.train.devices import devices


def cluster_devices(at_least: int = 2, timeout: float = 600, may_differ: Sequence[str] = ()) -> list[str]:
    """Return the names of the devices of all workers, in the chief; in another worker, serve the chief until it ends.

    As one of several workers, which `strategy` says how to start, the devices are the GPUs of all workers, or one CPU
    of each if there are none, in the order of the workers. All run the same script, but what stands below this call is
    the chief's alone: in the others this call does not return. They compute what the chief sends them, and when it has
    ended they end, with code 0. On its own, a process gets `devices(at_least)`. Call it before TensorFlow runs
    anything.

    A worker that has not answered for a minute, because it was stopped or its machine hangs, is named in a line.

    Raises as `strategy` does, which says what ``may_differ`` is.

    Example::

        for name in bt.cluster_devices(at_least=2):
            print(name)
    """
    positive("timeout", timeout, "seconds")
    found = cluster_spec()
    if found is None:
        return devices(at_least)
    spec, reached = come_together(lead, found, what_runs(may_differ), timeout)
    silence.say(list(map(spec.name, range(1, spec.count))), spec.addresses[1:])
    tf.config.experimental_connect_to_cluster(reached, spec.tasks[0]["type"], 0)
    there = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in there]
    print(f"The chief, with {len(names)} devices of {spec.count} workers, because of {spec.source}", flush=True)
    return names
