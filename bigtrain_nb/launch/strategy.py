"""The strategy for wherever this process runs: one device, several, or one of several workers."""

import os
import socket

from bigtrain_nb.common.checks import positive, whole_number
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.cluster_spec import place
from bigtrain_nb.launch.rendezvous import meet
from bigtrain_nb.train import devices as replicas


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
    devices = os.environ.get("BIGTRAIN_DEVICES_PER_WORKER")
    if devices is not None:
        devices = whole_number("BIGTRAIN_DEVICES_PER_WORKER", int(devices) if devices.isdecimal() else devices, 1)
    mine = place()
    if mine is None:
        return _alone(devices)
    gpus = _own_gpus(mine)
    if devices and devices > max(1, len(gpus)):
        raise ValueError(
            f"devices_per_worker={devices}: this worker has {len(gpus)} GPUs; on the CPU it is one device"
        )
    made = _together(mine, seconds)
    role = f"worker {mine.rank} of {len(mine.addresses)}" + (", the chief" if mine.rank == 0 else "")
    each = f"{len(gpus)} GPUs each" if len(gpus) > 1 else f"one {'GPU' if gpus else 'CPU device'} each"
    print(f"MultiWorkerMirroredStrategy: {role}, {each}, because of {mine.source}", flush=True)
    return made


def _alone(devices):
    gpus = tf.config.get_visible_devices("GPU")
    count = devices or len(gpus)
    if count > 1:
        kind = "GPUs" if len(gpus) >= count else "parts of the CPU"
        reason = "they are there" if devices is None else f"devices_per_worker={devices}"
        print(f"MirroredStrategy over {count} {kind}, because {reason}", flush=True)
        return replicas.mirrored(count)
    print(f"No strategy is needed: one {'GPU' if gpus else 'CPU'}, and neither TF_CONFIG nor SLURM's tasks", flush=True)
    return tf.distribute.get_strategy()


def _own_gpus(mine):
    """Return the GPUs of this worker. Where SLURM shows all of a node's GPUs to all of its tasks, divide them."""
    gpus = tf.config.get_visible_devices("GPU")
    if mine.source != "TF_CONFIG" and gpus and "SLURM_GPUS_PER_TASK" not in os.environ:
        host = mine.addresses[mine.rank].rpartition(":")[0]
        tasks = sum(address.startswith(f"{host}:") for address in mine.addresses)
        each, own = len(gpus) // tasks, int(os.environ["SLURM_LOCALID"])
        gpus = gpus[own * each : (own + 1) * each]
        tf.config.set_visible_devices(gpus, "GPU")
    return gpus


def _together(mine, seconds):
    """Return the strategy of all workers, after all have come."""
    os.environ["TF_CONFIG"] = mine.tf_config()
    try:
        socket.create_server(("", mine.port)).close()
        meet(mine, seconds)
    except OSError as error:
        raise RuntimeError(
            f"port {mine.port} of this worker ({mine.source}) cannot be used: {error.strerror}; end the process that"
            " has it, or choose another port for this worker, the same in every worker's TF_CONFIG"
        ) from None
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise RuntimeError("bt.strategy() must come before TensorFlow runs anything else: call it first") from None
