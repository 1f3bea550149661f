"""Choose the distribution strategy for this process: one device, several, or one of several workers."""

import os

from bigtrain_nb.common.checks import positive
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.cluster_spec import cluster_spec, why_alone
from bigtrain_nb.launch.rendezvous import connect_all_tasks
from bigtrain_nb.launch.same_run import describe_run
from bigtrain_nb.train.devices import mirrored_over

_made = {}  # this worker's strategy by TF_CONFIG, for another call: its port is in use


def strategy(timeout: float = 600) -> tf.distribute.Strategy:
    """Return the `tf.distribute` strategy for this process, and print which it is and why.

    As one of several workers: a `MultiWorkerMirroredStrategy` over all of them, once all have come. A worker reads all
    addresses from TF_CONFIG. SLURM's srun gives it only its rank, the world size and the first node: then each listens
    on a free port, they exchange addresses, and TF_CONFIG is set. Each process uses all GPUs that it sees: under SLURM,
    assign each task its own (--gpus-per-task).

    With several GPUs: a `MirroredStrategy` over them. Otherwise TensorFlow's default for one device. Call it before
    TensorFlow runs anything; in a worker, a second call returns the same object. On the CPU each worker is one device.
    Workers with GPUs sum gradients with NCCL, others with TensorFlow's ring over gRPC; the printed line names which.

    When they meet, the tasks compare what they run: the script and the modules in its folder that are loaded by now,
    arguments, versions, Keras settings, and the number of GPUs. Pass what differs in environment variables.

    Raises ValueError if TF_CONFIG or other variables are invalid, and if only another launcher's, such as WORLD_SIZE=2,
    show that there are several processes; RuntimeError if this task's port is taken, if TensorFlow has run already,
    and, with their names, for tasks that do not run the same or are missing after ``timeout`` seconds.

    Example::

        with bt.strategy().scope():
            model = bt.conv_net(image_size=16)
    """
    positive("timeout", timeout, "seconds")
    found = cluster_spec()
    if found is None:
        return _alone()
    if known := _made.get(os.environ.get("TF_CONFIG")):
        return known
    gpus = tf.config.get_visible_devices("GPU")
    spec = connect_all_tasks(found, describe_run() | {"the number of GPUs": len(gpus)}, timeout)
    ways = tf.distribute.experimental.CommunicationImplementation
    way = ways.NCCL if gpus else ways.RING  # on GPUs, TensorFlow's default is its ring (tensorflow issue 50178)
    options = tf.distribute.experimental.CommunicationOptions(implementation=way)
    made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    _made[spec.tf_config] = made
    chief = ", the chief" if spec.rank == 0 else ""
    role = f"worker {spec.rank} of {spec.count}{chief}, with {len(gpus)} GPUs, summing by {way.value}"
    print(f"MultiWorkerMirroredStrategy: {role}, because of {spec.source}", flush=True)
    return made


def _alone():
    if reason := why_alone():
        print(f"Warning: this process trains alone. {reason}", flush=True)
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) > 1:
        print(f"MirroredStrategy over all {len(gpus)} visible GPUs", flush=True)
        return mirrored_over([f"GPU:{i}" for i in range(len(gpus))])
    print(f"No strategy is needed: one {'GPU' if gpus else 'CPU'}, and no variables of several workers", flush=True)
    return tf.distribute.get_strategy()
