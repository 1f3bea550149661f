"""Which task is this process, and where are the others? Read from TF_CONFIG or from SLURM's variables."""

import json
import os
import re
import subprocess
from dataclasses import dataclass

from bigtrain_nb.common.addresses import host_and_port

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
KINDS = ["chief", "worker", "ps"]
FIRST_PORT, PORTS, PORTS_OF_A_JOB = 20_000, 12_000, 64  # below the ports that Linux gives to clients


@dataclass(frozen=True)
class ClusterSpec:
    """All tasks that train together, and which of them this process is.

    ``addresses`` has the "host:port" of every task: the chief's first, then the workers', then those of so many
    parameter ``servers``. Where none ``has_chief`` for its kind, worker 0 is the chief. ``rank`` is this task's place
    among them; ``source`` says where all this is from.
    """

    addresses: list
    rank: int
    has_chief: bool
    servers: int
    source: str

    @property
    def port(self):
        """The port on which this task will listen."""
        return host_and_port(self.addresses[self.rank])[1]

    @property
    def cluster(self):
        """The addresses by the kind of the tasks: "chief", "worker", "ps"."""
        chiefs = 1 if self.has_chief else 0
        first_server = len(self.addresses) - self.servers
        parts = {
            "chief": self.addresses[:chiefs],
            "worker": self.addresses[chiefs:first_server],
            "ps": self.addresses[first_server:],
        }
        return {kind: addresses for kind, addresses in parts.items() if addresses}

    @property
    def tasks(self):
        """Each task: {"type": its kind, "index": its place among those of its kind}."""
        return [{"type": kind, "index": i} for kind, some in self.cluster.items() for i in range(len(some))]

    @property
    def tf_config(self):
        """The value of TF_CONFIG for this task."""
        return json.dumps({"cluster": self.cluster, "task": self.tasks[self.rank]})

    def name(self, rank):
        """Return what messages call a task, with its address: "worker 1 (host1:2222)"."""
        task = self.tasks[rank]
        kind = "server" if task["type"] == "ps" else task["type"]
        return f"{kind} {task['index']} ({self.addresses[rank]})"


def cluster_spec(environment=os.environ):
    """Return this process' `ClusterSpec`, or None if it is on its own. TF_CONFIG comes before SLURM's variables.

    BIGTRAIN_SERVERS=n, where a cluster's file sets it, makes parameter servers of the last n tasks, and a chief of the
    first. BIGTRAIN_PORT is, under SLURM, the port of the first task, which our sbatch file draws at random; without it
    the port is made from the job's number.

    Raises ValueError for a TF_CONFIG that no group of workers can be made from, and where SLURM has placed the tasks
    so that their addresses cannot be told. A list of several nodes is read with SLURM's scontrol.
    """
    servers = int(environment.get("BIGTRAIN_SERVERS", "0"))
    if environment.get("TF_CONFIG", "").strip():
        spec = _from_tf_config(environment["TF_CONFIG"], servers)
    elif "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:  # set by srun, not by sbatch
        spec = _from_slurm(environment, servers)
    else:
        return None
    return spec if len(spec.addresses) > 1 else None


def _from_tf_config(text, servers):
    cluster, task = _parsed(text)
    _check_kinds([*cluster, task["type"]])
    _check_addresses(cluster)
    _check_task(cluster, task)
    chief, given = cluster.get("chief", []), cluster.get("ps", [])
    addresses = chief + cluster.get("worker", []) + given
    rank = addresses.index(cluster[task["type"]][task["index"]])
    servers = servers or len(given)
    return ClusterSpec(addresses, rank, bool(chief or servers), servers, "TF_CONFIG")


def _parsed(text):
    """Return TF_CONFIG's cluster, addresses by kind, and its task."""
    if unfilled := re.search(r"\$\(\w+\)", text):
        raise ValueError(
            f"TF_CONFIG holds {unfilled[0]}, which Kubernetes has not filled in: define that variable above TF_CONFIG"
            " in the container's env"
        )
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, _ = task["type"], task["index"]
        shaped = isinstance(kind, str) and all(isinstance(some, list) for some in cluster.values())
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        shaped = False
    if not shaped:
        if "sparseCluster" in text:
            raise ValueError(
                "TF_CONFIG has a sparseCluster, in which a task sees itself and the parameter servers only: all must"
                " see all. Set enableDynamicWorker: false in the TFJob"
            )
        raise ValueError(
            f"TF_CONFIG must be JSON like {EXAMPLE}: each worker, and the chief if there is one, with a host:port of"
            f" its own, and in the task which of them this process is. It is {text[:1000]}"
        )
    return cluster, task


def _check_kinds(kinds):
    if "evaluator" in kinds:
        raise ValueError(
            "TF_CONFIG has an evaluator, which takes no part in a training: let it load checkpoints in a process"
            " without TF_CONFIG, or leave it out and give fit validation_data"
        )
    if "master" in kinds:
        raise ValueError('TF_CONFIG has a "master", the name of TensorFlow 1: call it "chief"')
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"TF_CONFIG has a task of the kind {kind!r}; a task is one of {', '.join(KINDS)}")


def _check_addresses(cluster):
    addresses = [address for some in cluster.values() for address in some]
    for address in addresses:
        if not (
            isinstance(address, str) and re.fullmatch(r".+:\d{1,5}", address) and 0 < host_and_port(address)[1] < 65536
        ):
            raise ValueError(f"TF_CONFIG's address {address!r} must be a host and a port, like host1:2222")
        if addresses.count(address) > 1:
            raise ValueError(f"TF_CONFIG has the address {address} twice: each task needs a host:port of its own")
    if len(cluster.get("chief", [])) > 1:
        raise ValueError(f"TF_CONFIG has {len(cluster['chief'])} chiefs: one of them leads, call the others worker")
    if cluster.get("ps") and not cluster.get("worker"):
        raise ValueError("TF_CONFIG has parameter servers (ps) and no worker that would train with them: add workers")


def _check_task(cluster, task):
    kind, index = task["type"], task["index"]
    if kind not in cluster:
        raise ValueError(f"TF_CONFIG's task is a {kind!r}; its cluster has {', '.join(cluster) or 'no task'}")
    if not isinstance(index, int) or isinstance(index, bool):
        raise ValueError(f"TF_CONFIG's task has the index {index!r}: it must be a whole number, such as 1, not a text")
    if not 0 <= index < len(cluster[kind]):
        raise ValueError(
            f"TF_CONFIG's task is {kind} {index}, but there are {len(cluster[kind])} of that kind, counted from 0"
        )


def _from_slurm(environment, servers):
    """Return the cluster of a task that srun started.

    Each task has a port of its own, counted from the first: two nodes may be one host.
    """
    rank = int(environment["SLURM_PROCID"])
    hosts = _hosts_of_tasks(environment["SLURM_STEP_NODELIST"], environment["SLURM_STEP_TASKS_PER_NODE"])
    here = environment.get("SLURMD_NODENAME", hosts[rank])
    if here != hosts[rank]:
        raise ValueError(f"SLURM has put task {rank} on {here}, not on {hosts[rank]}: use srun --distribution=block")
    drawn = environment.get("BIGTRAIN_PORT")
    first = int(drawn) if drawn else FIRST_PORT + PORTS_OF_A_JOB * int(environment["SLURM_JOB_ID"]) % PORTS
    addresses = [f"{host}:{first + task % PORTS_OF_A_JOB}" for task, host in enumerate(hosts)]
    return ClusterSpec(addresses, rank, servers > 0, servers, "SLURM's variables")


def _hosts_of_tasks(nodes, tasks_per_node):
    """Return the host of each task: nodes "n[1-3]" with "2(x2),1" tasks are n1, n1, n2, n2 and n3.

    TensorFlow's SlurmClusterResolver would sort the names as text, n10 before n2, and so give a task another's address.
    """
    names = nodes.split(",")
    if "[" in nodes:
        names = subprocess.check_output(["scontrol", "show", "hostnames", nodes], text=True).split()
    hosts = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node):
        for _ in range(int(times or 1)):
            hosts += [names.pop(0)] * int(tasks)
    return hosts
