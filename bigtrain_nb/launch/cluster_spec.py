"""Which worker is this process, and where are the others? Read from TF_CONFIG or from SLURM's variables."""

import json
import os
import re
import subprocess
from dataclasses import dataclass

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
TRAINING = ("chief", "worker")
FIRST_PORT, PORTS, PORTS_OF_A_JOB = 20_000, 12_000, 64  # below the ports that Linux gives to clients


@dataclass(frozen=True)
class ClusterSpec:
    """All workers that train together, and which of them this process is.

    ``cluster`` maps "chief" and "worker" to lists of "host:port", ``task_type`` is "chief" or "worker", ``index``
    counts within it, ``source`` says where all this is from.
    """

    cluster: dict
    task_type: str
    index: int
    source: str

    @property
    def addresses(self):
        """The address of every worker, the chief's first."""
        return self.cluster.get("chief", []) + self.cluster.get("worker", [])

    @property
    def rank(self):
        """This worker's position in `addresses`; 0 is the chief."""
        before = len(self.cluster.get("chief", [])) if self.task_type == "worker" else 0
        return before + self.index

    @property
    def port(self):
        """The port on which this worker will listen."""
        return int(self.addresses[self.rank].rpartition(":")[2])

    def tf_config(self):
        """The value of TF_CONFIG for this worker."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.task_type, "index": self.index}})


def cluster_spec(environment=os.environ):
    """Return this process' `ClusterSpec`, or None if it is on its own. TF_CONFIG comes before SLURM's variables.

    Raises ValueError for a TF_CONFIG that no group of workers can be made from, and where SLURM has placed the tasks
    so that their addresses cannot be told; RuntimeError without SLURM's scontrol.
    """
    if environment.get("TF_CONFIG", "").strip():
        spec = _from_tf_config(environment["TF_CONFIG"])
    elif "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:  # set by srun, not by sbatch
        spec = _from_slurm(environment)
    else:
        return None
    return spec if len(spec.addresses) > 1 else None


def _from_tf_config(text):
    try:
        config = json.loads(text)
        spec = ClusterSpec(config["cluster"], config["task"]["type"], config["task"]["index"], "TF_CONFIG")
        sound = _is_sound(spec)
    except (ValueError, TypeError, KeyError, AttributeError):
        sound = False
    if not sound:
        raise ValueError(
            f"TF_CONFIG must be JSON like {EXAMPLE}: each worker, and the chief if there is one, with a host:port of"
            f" its own, and in the task which of them this process is. It is {text[:1000]}"
        )
    return spec


def _is_sound(spec):
    ports = [int(address.rpartition(":")[2]) for address in spec.addresses]
    return (
        set(spec.cluster) <= set(TRAINING)
        and len(spec.cluster.get("chief", [])) <= 1
        and len(set(spec.addresses)) == len(spec.addresses)
        and all(0 < port < 2**16 for port in ports)
        and spec.index in range(len(spec.cluster[spec.task_type]))
    )


def _from_slurm(environment):
    """Return the cluster of a task that srun started.

    The ports come from the job's number and the task's rank: two jobs on a node differ, and so do two nodes on a host.
    """
    rank = int(environment["SLURM_PROCID"])
    hosts = _hosts_of_tasks(environment["SLURM_STEP_NODELIST"], environment["SLURM_STEP_TASKS_PER_NODE"])
    here = environment.get("SLURMD_NODENAME", hosts[rank])
    if here != hosts[rank]:
        raise ValueError(f"SLURM has put task {rank} on {here}, not on {hosts[rank]}: use srun --distribution=block")
    first = FIRST_PORT + PORTS_OF_A_JOB * int(environment["SLURM_JOB_ID"]) % PORTS
    addresses = [f"{host}:{first + task % PORTS_OF_A_JOB}" for task, host in enumerate(hosts)]
    return ClusterSpec({"worker": addresses}, "worker", rank, "SLURM's variables")


def _hosts_of_tasks(nodes, tasks_per_node):
    """Return the host of each task: nodes "n[1-3]" with "2(x2),1" tasks are n1, n1, n2, n2 and n3."""
    counts = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node):
        counts += [int(tasks)] * int(times or 1)
    hosts = []
    for host, count in zip(_host_names(nodes), counts, strict=True):
        hosts += [host] * count
    return hosts


def _host_names(nodes):
    """Return the names that SLURM abbreviates, in its order: "n[08-10],login" is n08, n09, n10 and login.

    TensorFlow's SlurmClusterResolver would sort them as text, n10 before n2, and so give a task another's address.
    """
    if "[" not in nodes:
        return nodes.split(",")
    try:
        done = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"only SLURM's scontrol can tell which nodes {nodes} are: {error}") from None
    return done.stdout.split()
