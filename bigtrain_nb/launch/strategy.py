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
    under SLURM it also sets TF_CONFIG, for those who read it, and each task needs GPUs of its own (--gpus-per-task).
    With several GPUs: a `MirroredStrategy` over them. Otherwise TensorFlow's default for one device. Call it before
    TensorFlow runs anything. On the CPU each worker is one device.

    Raises ValueError for a TF_CONFIG, or SLURM's variables, that cannot be; RuntimeError if this worker's port is
    taken, if TensorFlow has run already, or if the workers have not all come after ``timeout`` seconds: it names those
    that do not answer.
    """
    seconds = positive("timeout", timeout, "seconds")
    spec = cluster_spec()
    if spec is None:
        return _alone()
    made = _together(spec, seconds)
    gpus = tf.config.get_visible_devices("GPU")
    chief = ", the chief" if spec.rank == 0 else ""
    each = f"{len(gpus)} GPUs" if len(gpus) > 1 else "one GPU" if gpus else "one CPU device"
    role = f"worker {spec.rank} of {len(spec.addresses)}{chief}, {each} each"
    print(f"MultiWorkerMirroredStrategy: {role}, because of {spec.source}", flush=True)
    return made


def _alone():
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) > 1:
        print(f"MirroredStrategy over {len(gpus)} GPUs, because they are there", flush=True)
        return mirrored(len(gpus))
    print(f"No strategy is needed: one {'GPU' if gpus else 'CPU'}, and neither TF_CONFIG nor SLURM's tasks", flush=True)
    return tf.distribute.get_strategy()


def _together(spec, seconds):
    """Return the strategy of all workers, after all have come."""
    os.environ["TF_CONFIG"] = spec.tf_config
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
