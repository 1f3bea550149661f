"""Which worker is this process, and where are the others? Read from TF_CONFIG or from SLURM's variables."""

import json
import os
import re
import subprocess
from dataclasses import dataclass

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
FIRST_PORT, PORTS, PORTS_OF_A_JOB = 20_000, 12_000, 64  # below the ports that Linux gives to clients


@dataclass(frozen=True)
class ClusterSpec:
    """All workers that train together, and which of them this process is.

    ``addresses`` has the "host:port" of every worker, the chief's first; ``rank`` is this worker's place among them, 0
    the chief's; ``tf_config`` is its TF_CONFIG, ``source`` says where all this is from.
    """

    addresses: list
    rank: int
    tf_config: str
    source: str

    @property
    def port(self):
        """The port on which this worker will listen."""
        return int(self.addresses[self.rank].rpartition(":")[2])


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
        cluster, task = config["cluster"], config["task"]
        chiefs = cluster.get("chief", [])
        addresses = chiefs + cluster.get("worker", [])
        rank = addresses.index(cluster[task["type"]][task["index"]])
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        is_sound = (
            set(cluster) <= {"chief", "worker"}
            and len(chiefs) <= 1
            and len(set(addresses)) == len(addresses)
            and all(0 < port < 2**16 for port in ports)
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        is_sound = False
    if not is_sound:
        raise ValueError(
            f"TF_CONFIG must be JSON like {EXAMPLE}: each worker, and the chief if there is one, with a host:port of"
            f" its own, and in the task which of them this process is. It is {text[:1000]}"
        )
    return ClusterSpec(addresses, rank, text, "TF_CONFIG")


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
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
    return ClusterSpec(addresses, rank, json.dumps(config), "SLURM's variables")


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
