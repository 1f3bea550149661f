"""Find this process's task. TF_CONFIG also has the other tasks' addresses. SLURM's variables have only a rank, the
number of tasks and the first node, so the tasks exchange their addresses (`rendezvous.locate`).
"""

import json
import os
import re
import zlib
from dataclasses import dataclass

from bigtrain_nb.common.addresses import host_and_port

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
KINDS = ["chief", "worker"]
# Variables by which other launchers tell a process that it is one of several.
COUNTS = ["JAX_NUM_PROCESSES", "WORLD_SIZE", "PET_NNODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
SLURM_PORTS = range(20_000, 32_000)  # below Linux's ephemeral ports


@dataclass(frozen=True)
class ClusterSpec:
    """All tasks of a training job, and which of them this process is.

    ``addresses`` are "host:port" of the chief, then of the workers; worker 0 is the chief unless the cluster
    ``has_chief``. ``rank`` is this task's index in ``addresses``; ``source`` names the variables.
    """

    addresses: list
    rank: int
    has_chief: bool
    source: str

    @property
    def count(self):
        """The number of tasks."""
        return len(self.addresses)

    @property
    def chief(self):
        """The chief's address."""
        return self.addresses[0]

    @property
    def group(self):
        """The identifier by which the tasks of one training job recognize each other."""
        return ", ".join(self.addresses)

    @property
    def port(self):
        """The port on which this task will listen."""
        return host_and_port(self.addresses[self.rank])[1]

    @property
    def cluster(self):
        """The addresses by kind of task: "chief", "worker"."""
        chiefs = 1 if self.has_chief else 0
        parts = {"chief": self.addresses[:chiefs], "worker": self.addresses[chiefs:]}
        return {kind: addresses for kind, addresses in parts.items() if addresses}

    @property
    def tf_config(self):
        """The value of TF_CONFIG for this task."""
        return json.dumps({"cluster": self.cluster, "task": self._task(self.rank)})

    def name(self, rank):
        """Return a task's name for messages, with its address: "worker 1 (host1:2222)"."""
        return "{type} {index} ({address})".format(**self._task(rank), address=self.addresses[rank])

    def _task(self, rank):
        if self.has_chief and rank == 0:
            return {"type": "chief", "index": 0}
        return {"type": "worker", "index": rank - self.has_chief}


@dataclass(frozen=True)
class Place:
    """A task that knows only its ``rank``, the ``count`` of tasks, and the "host:port" where the ``chief`` waits.

    ``source`` names the variables that were read; ``group`` identifies the training job.
    """

    rank: int
    count: int
    chief: str
    source: str
    group: str

    def name(self, rank):
        """Return a task's name for messages, while its address is unknown."""
        return f"task {rank} of {self.count}"


def cluster_spec(environment=os.environ):
    """Return this process's `ClusterSpec`, its `Place` if the addresses are unknown, or None if it trains alone.

    TF_CONFIG has precedence over SLURM's variables, which srun sets in each task.

    Raises ValueError for invalid variables, and if only another launcher's variables show that this is one of several.
    """
    if environment.get("TF_CONFIG", "").strip():
        found = _from_tf_config(environment["TF_CONFIG"])
    elif "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:  # set by srun, not by sbatch
        found = _from_slurm(environment)
    else:
        for name in COUNTS:
            count = environment.get(name, "")
            if count not in ("", "0", "1"):
                raise ValueError(
                    f"{name}={count} says that this is one of several processes, but their addresses are missing: set"
                    f" TF_CONFIG in each, like {EXAMPLE}, with that process's index; or unset {name} to train alone"
                )
        return None
    return found if found.count > 1 else None


def why_alone(environment=os.environ):
    """Return why this process trains alone although it seems to be one of several, or None."""
    if "SLURM_STEP_ID" not in environment:
        for name, what in [("SLURM_NTASKS", "tasks"), ("SLURM_JOB_NUM_NODES", "nodes")]:
            count = environment.get(name) or "1"
            if count != "1":
                return (
                    f"This SLURM job has {count} {what}, but srun did not start this process. Run it with srun python3"
                )
    return None


def _from_slurm(environment):
    """Return the `Place` of a task that srun started. SLURM assigns no port: it is derived from the job and step."""
    rank, count = int(environment["SLURM_PROCID"]), int(environment["SLURM_STEP_NUM_TASKS"])
    step = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    host = _first_host(environment["SLURM_STEP_NODELIST"])
    here = environment.get("SLURMD_NODENAME", host)
    if rank == 0 and here != host:
        raise ValueError(
            f"SLURM has placed task 0 on {here}, but the others look for it on the first node, {host}: leave out"
            " --distribution=arbitrary"
        )
    port = SLURM_PORTS[zlib.crc32(step.encode()) % len(SLURM_PORTS)]
    return Place(rank, count, f"{host}:{port}", "SLURM's variables", f"{count} tasks of SLURM's step {step}")


def _first_host(nodes):
    """Return the first of SLURM's nodes: node09 of "node[09-11,14],login"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def _from_tf_config(text):
    cluster, task = _parsed(text)
    _check_kinds([*cluster, task["type"]])
    _check_addresses(cluster)
    _check_task(cluster, task)
    chief = cluster.get("chief", [])
    addresses = chief + cluster.get("worker", [])
    rank = addresses.index(cluster[task["type"]][task["index"]])
    return ClusterSpec(addresses, rank, bool(chief), "TF_CONFIG")


def _parsed(text):
    """Return TF_CONFIG's cluster (addresses by kind) and task."""
    if unfilled := re.search(r"\$\(\w+\)", text):
        raise ValueError(
            f"TF_CONFIG has {unfilled[0]}, which Kubernetes has not expanded: define that variable before"
            " TF_CONFIG in the container's env"
        )
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, _ = task["type"], task["index"]
        shaped = isinstance(kind, str) and all(isinstance(some, list) for some in cluster.values())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        shaped = False
    if not shaped:
        raise ValueError(
            f"TF_CONFIG must be JSON like {EXAMPLE}: a separate host:port for each worker and for the chief, if there"
            f" is one, and a task that says which of them this process is. It is {text[:1000]}"
        )
    return cluster, task


def _check_kinds(kinds):
    if "evaluator" in kinds:
        raise ValueError(
            "TF_CONFIG has an evaluator, which does not take part in training: let it load checkpoints in a"
            " process without TF_CONFIG, or leave it out and pass validation_data to fit"
        )
    if "ps" in kinds:
        raise ValueError(
            "TF_CONFIG has parameter servers (ps): bt.strategy() is for workers that train synchronously. Create a"
            " tf.distribute.ParameterServerStrategy in the chief and a tf.distribute.Server in the others, as"
            " scripts/on_servers.py of notebook 12 does"
        )
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(
                f"TF_CONFIG has the task type {kind!r}; it must be one of {', '.join(KINDS)} (TensorFlow 1's master is"
                " the chief)"
            )


def _check_addresses(cluster):
    addresses = [address for some in cluster.values() for address in some]
    for address in addresses:
        is_text = isinstance(address, str) and re.fullmatch(r".+:\d{1,5}", address)
        if not is_text or not 0 < host_and_port(address)[1] < 65536:
            raise ValueError(f"TF_CONFIG's address {address!r} must be a host and a port, like host1:2222")
        if addresses.count(address) > 1:
            raise ValueError(f"TF_CONFIG has the address {address} twice: each task needs its own host:port")
    if len(cluster.get("chief", [])) > 1:
        raise ValueError(f"TF_CONFIG has {len(cluster['chief'])} chiefs: keep one, and call the others worker")


def _check_task(cluster, task):
    kind, index = task["type"], task["index"]
    if kind not in cluster:
        raise ValueError(f"TF_CONFIG's task has type {kind!r}, but its cluster has {', '.join(cluster) or 'no task'}")
    if not isinstance(index, int) or isinstance(index, bool):
        raise ValueError(f"TF_CONFIG's task has the index {index!r}: it must be an integer, such as 1, not a string")
    if not 0 <= index < len(cluster[kind]):
        raise ValueError(
            f"TF_CONFIG's task is {kind} {index}, but there are {len(cluster[kind])} of that kind, with indices from 0"
        )
