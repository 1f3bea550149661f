"""The strategy for wherever this process runs: one device, several, or one of several workers."""

import os
import socket

from bigtrain_nb.common.checks import positive
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.rendezvous import meet
from bigtrain_nb.train.devices import mirrored


def strategy(timeout=600):
    """Return the `tf.distribute` strategy for where this process runs, and print which it is and why.

    With TF_CONFIG or in a task of SLURM's srun: a `MultiWorkerMirroredStrategy` over all workers, once all have come;
    under SLURM it also sets TF_CONFIG, for those who read it. With several GPUs: a `MirroredStrategy` over them.
    Otherwise TensorFlow's default for one device. Call it before TensorFlow runs anything. On the CPU each worker is
    one device.

    Raises ValueError for a TF_CONFIG, or SLURM's variables, that cannot be; RuntimeError if this worker's port is
    taken, if TensorFlow has run already, or if the workers have not all come after ``timeout`` seconds: it names those
    that do not answer.
    """
    seconds = positive("timeout", timeout, "seconds")
    asked = int(os.environ.get("BIGTRAIN_DEVICES_PER_WORKER", 0))
    spec = cluster_spec()
    if spec is None:
        return _alone(asked)
    gpus = _own_gpus(spec)
    if asked > max(1, len(gpus)):
        raise ValueError(f"devices_per_worker={asked}: this worker has {len(gpus)} GPUs; on the CPU it is one device")
    made = _together(spec, seconds)
    chief = ", the chief" if spec.rank == 0 else ""
    each = f"{len(gpus)} GPUs" if len(gpus) > 1 else "one GPU" if gpus else "one CPU device"
    role = f"worker {spec.rank} of {len(spec.addresses)}{chief}, {each} each"
    print(f"MultiWorkerMirroredStrategy: {role}, because of {spec.source}", flush=True)
    return made


def _alone(asked):
    gpus = tf.config.get_visible_devices("GPU")
    count = asked or len(gpus)
    if count > 1:
        kind = "GPUs" if len(gpus) >= count else "parts of the CPU"
        reason = f"devices_per_worker={asked}" if asked else "they are there"
        print(f"MirroredStrategy over {count} {kind}, because {reason}", flush=True)
        return mirrored(count)
    print(f"No strategy is needed: one {'GPU' if gpus else 'CPU'}, and neither TF_CONFIG nor SLURM's tasks", flush=True)
    return tf.distribute.get_strategy()


def _own_gpus(spec):
    """Return the GPUs of this worker. Where SLURM shows all of a node's GPUs to all of its tasks, divide them."""
    gpus = tf.config.get_visible_devices("GPU")
    if spec.source != "TF_CONFIG" and gpus and "SLURM_GPUS_PER_TASK" not in os.environ:
        host = spec.addresses[spec.rank].rpartition(":")[0]
        tasks = sum(address.startswith(f"{host}:") for address in spec.addresses)
        each = len(gpus) // tasks
        first = int(os.environ["SLURM_LOCALID"]) * each
        gpus = gpus[first : first + each]
        tf.config.set_visible_devices(gpus, "GPU")
    return gpus


def _together(spec, seconds):
    """Return the strategy of all workers, after all have come."""
    os.environ["TF_CONFIG"] = spec.tf_config()
    try:
        socket.create_server(("", spec.port)).close()
        meet(spec, seconds)
    except OSError as error:
        raise RuntimeError(
            f"port {spec.port} of this worker ({spec.source}) cannot be used: {error.strerror}; end the process that"
            " has it, or choose another port for this worker, the same in every worker's TF_CONFIG"
        ) from None
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise RuntimeError("bt.strategy() must come before TensorFlow runs anything else: call it first") from None
