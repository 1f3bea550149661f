"""The strategy for wherever this process runs: one device, several, or one of several workers."""

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.rendezvous import come_together, meet
from bigtrain_nb.launch.serve import lead
from bigtrain_nb.train.devices import mirrored


def strategy(timeout=600, communication_options=None, variable_partitioner=None):
    """Return the `tf.distribute` strategy for where this process runs, and print which it is and why.

    With TF_CONFIG or in a task of SLURM's srun: a `MultiWorkerMirroredStrategy` over all workers, once all have come;
    under SLURM it also sets TF_CONFIG, for those who read it, and each task needs GPUs of its own (--gpus-per-task).
    Where there are parameter servers among them, this returns in the chief only, with a `ParameterServerStrategy`; a
    worker or a server serves the chief until that has ended, and then ends, with code 0.

    With several GPUs: a `MirroredStrategy` over them. Otherwise TensorFlow's default for one device. Call it before
    TensorFlow runs anything. On the CPU each worker is one device. ``communication_options``, a
    `tf.distribute.experimental.CommunicationOptions`, says how several workers sum their gradients;
    ``variable_partitioner``, one of `tf.distribute.experimental.partitioners`, which variables are cut into shards that
    stand on several parameter servers.

    Raises ValueError for a TF_CONFIG, or SLURM's variables, that cannot be; RuntimeError if this task's port is
    taken, if TensorFlow has run already, or if the tasks have not all come after ``timeout`` seconds: it names those
    that do not answer.
    """
    spec = cluster_spec()
    if spec is None:
        return _alone()
    if spec.servers:
        return _with_servers(spec, timeout, variable_partitioner)
    come_together(meet, spec, timeout)
    made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication_options)
    gpus = tf.config.get_visible_devices("GPU")
    chief = ", the chief" if spec.rank == 0 else ""
    role = f"worker {spec.rank} of {len(spec.addresses)}{chief}, with {len(gpus)} GPUs"
    print(f"MultiWorkerMirroredStrategy: {role}, because of {spec.source}", flush=True)
    return made


def _alone():
    gpus = tf.config.get_visible_devices("GPU")
    if len(gpus) > 1:
        print(f"MirroredStrategy over {len(gpus)} GPUs, because they are there", flush=True)
        return mirrored(len(gpus))
    print(f"No strategy is needed: one {'GPU' if gpus else 'CPU'}, and neither TF_CONFIG nor SLURM's tasks", flush=True)
    return tf.distribute.get_strategy()


def _with_servers(spec, seconds, variable_partitioner):
    reached = come_together(lead, spec, seconds)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        reached, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    made = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner)
    workers, servers = len(spec.cluster["worker"]), spec.servers
    print(f"ParameterServerStrategy: the chief of {workers} workers and {servers} servers, because of {spec.source}")
    return made
