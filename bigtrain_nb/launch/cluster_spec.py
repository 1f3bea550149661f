"""Which worker is this process, and where are the others? Read from TF_CONFIG or from SLURM's variables."""

import itertools
import json
import os
import re
from dataclasses import dataclass

EXAMPLE = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
TRAINING = ("chief", "worker")
FIRST_PORT, PORTS, PORTS_OF_A_JOB = 20_000, 12_000, 64  # below the ports that Linux gives to clients
NODE = r"([^\[\],\s]|\[\d+(-\d+)?(,\d+(-\d+)?)*\])+"
SLURMS = {
    "SLURM_JOB_ID": (r"\d+", "a whole number"),
    "SLURM_PROCID": (r"\d+", "a whole number"),
    "SLURM_STEP_NODELIST": (rf"{NODE}(,{NODE})*", "names of nodes, like node[1-3],login"),
    "SLURM_STEP_TASKS_PER_NODE": (r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", "numbers of tasks, like 2(x3),1"),
}


@dataclass(frozen=True)
class Place:
    """One of several workers.

    ``cluster`` maps "chief" and "worker" to lists of "host:port", ``task`` is "chief" or "worker", ``index`` counts
    within it, ``source`` says where all this is from.
    """

    cluster: dict
    task: str
    index: int
    source: str

    @property
    def addresses(self):
        """The address of every worker, the chief's first."""
        return [address for task in TRAINING for address in self.cluster.get(task, [])]

    @property
    def rank(self):
        """This worker's position in `addresses`; 0 is the chief."""
        return self.index + (len(self.cluster.get("chief", [])) if self.task == "worker" else 0)

    @property
    def port(self):
        """The port on which this worker will listen."""
        return int(self.addresses[self.rank].rpartition(":")[2])

    def tf_config(self):
        """The value of TF_CONFIG for this worker."""
        return json.dumps({"cluster": self.cluster, "task": {"type": self.task, "index": self.index}})


def place(environment=os.environ):
    """Return this process' `Place`, or None if it is on its own. TF_CONFIG comes before SLURM's variables.

    Raises ValueError for a TF_CONFIG, or SLURM's variables, that no group of workers can be made from.
    """
    if environment.get("TF_CONFIG", "").strip():
        found = _from_tf_config(environment["TF_CONFIG"])
    elif "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:  # set by srun, not by sbatch
        found = _from_slurm(environment)
    else:
        return None
    return found if len(found.addresses) > 1 else None


def _from_tf_config(text):
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"TF_CONFIG is not JSON ({error}): {text[:200]}") from None
    cluster = config.get("cluster") if isinstance(config, dict) else None
    task = config.get("task") if cluster else None
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise ValueError(f"TF_CONFIG must be like {EXAMPLE}, not {text[:200]}")
    _check_cluster(cluster)
    kind, index = task.get("type"), task.get("index")
    if not isinstance(kind, str) or kind not in cluster:
        raise ValueError(f"TF_CONFIG's task type {kind!r} must be one of its cluster's: {', '.join(cluster)}")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(cluster[kind]):
        raise ValueError(f"TF_CONFIG's task index {index!r} must be from 0 to {len(cluster[kind]) - 1}")
    return Place(cluster, kind, index, "TF_CONFIG")


def _check_cluster(cluster):
    for task, addresses in cluster.items():
        if task not in TRAINING:
            raise ValueError(f"TF_CONFIG's cluster has {task!r}; workers that train alike are 'chief' and 'worker'")
        if not isinstance(addresses, list) or not addresses:
            raise ValueError(f"TF_CONFIG's cluster must have a list of addresses for {task!r}, not {addresses!r}")
    if len(cluster.get("chief", [])) > 1:
        raise ValueError(f"TF_CONFIG's cluster has {len(cluster['chief'])} chiefs; one is allowed")
    everyone = [address for addresses in cluster.values() for address in addresses]
    for address in everyone:
        host, _, port = str(address).rpartition(":")
        if not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(f"TF_CONFIG's address {address!r} must be host:port, with a port from 1 to 65535")
        if everyone.count(address) > 1:
            raise ValueError(f"TF_CONFIG's address {address!r} is there twice; each worker needs its own")


def _from_slurm(environment):
    """Return the place of a task that srun started.

    The ports come from the job's number and the task's rank: two jobs on a node differ, and so do two nodes on a host.
    """
    job, rank, nodes, counts = (_variable(environment, name) for name in SLURMS)
    hosts, tasks = host_names(nodes), tasks_of_nodes(counts)
    if len(hosts) != len(tasks) or max(tasks) > PORTS_OF_A_JOB:
        raise ValueError(
            f"SLURM_STEP_TASKS_PER_NODE={counts!r} must have a number of at most {PORTS_OF_A_JOB} for each of the"
            f" {len(hosts)} nodes in SLURM_STEP_NODELIST={nodes!r}"
        )
    if int(rank) >= sum(tasks):
        raise ValueError(f"SLURM_PROCID={rank!r} must be below {sum(tasks)}: SLURM_STEP_TASKS_PER_NODE={counts!r}")
    first = FIRST_PORT + PORTS_OF_A_JOB * int(job) % PORTS
    host_of_task = [host for host, count in zip(hosts, tasks, strict=True) for _ in range(count)]
    addresses = [f"{host}:{first + task % PORTS_OF_A_JOB}" for task, host in enumerate(host_of_task)]
    found = Place({"worker": addresses}, "worker", int(rank), "SLURM's variables")
    here, expected = environment.get("SLURMD_NODENAME"), addresses[found.rank].rpartition(":")[0]
    if here not in (None, expected):
        raise ValueError(f"SLURM has put task {found.rank} on {here}, not on {expected}: use srun --distribution=block")
    return found


def _variable(environment, name):
    pattern, allowed = SLURMS[name]
    text = environment.get(name)
    if text is None or not re.fullmatch(pattern, text):
        raise ValueError(f"{name}={text!r} must be {allowed}: let srun set it")
    return text


def host_names(text):
    """Return the names that SLURM abbreviates: "n[01-03,7],login" is n01, n02, n03, n7 and login.

    TensorFlow's SlurmClusterResolver would sort them as text, n10 before n2, and so give a task another's address.
    """
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        fixed, *rest = re.split(r"\[([^\]]*)\]", part)
        choices = [[fixed]] + [_numbers(piece) if i % 2 == 0 else [piece] for i, piece in enumerate(rest)]
        names += map("".join, itertools.product(*choices))
    return names


def _numbers(text):
    """Return "01-03,7" as 01, 02, 03 and 7."""
    spans = [span.partition("-") for span in text.split(",")]
    return [
        str(number).zfill(len(low)) for low, _, high in spans for number in range(int(low), int(high or low) + 1)
    ]


def tasks_of_nodes(text):
    """Return the number of tasks of each node that SLURM abbreviates: "2(x3),1" is 2, 2, 2 and 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in found for _ in range(int(times or 1))]
