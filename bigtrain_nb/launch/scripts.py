"""The file that a cluster runs, for SLURM or for Kubernetes: a template, filled. The training script stays as it is."""

import argparse
import json
import re
import shlex
from pathlib import Path

USAGE = "%(prog)s TRAIN.py [settings] [-- the script's own arguments] > FILE"
FOR_SLURM = {
    "--nodes": (2, "how many"),
    "--tasks-per-node": (1, "workers on each node"),
    "--servers": (0, "so many of the tasks are parameter servers"),
}
FOR_KUBERNETES = {
    "--workers": (2, "how many"),
    "--servers": (0, "parameter servers, with a chief beside the workers; both without GPUs"),
}
FOR_BOTH = {
    "--cpus": (4, "cores for each task"),
    "--gpus": (0, "NVIDIA GPUs for each worker"),
    "--data-workers": (0, "of a tf.data service beside"),
    "--restarts": (3, "how often to start again"),
}
LEAST_SECONDS = 600  # of a start under SLURM
MOST_LETTERS = 40  # a pod's name may have 63, and JobSet makes NAME-worker-0-12345-abcde of it
DISRUPTED = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
SAVED = {"action": "FailJob", "onExitCodes": {"containerName": "task", "operator": "In", "values": [75]}}
# What the tasks of a role have, unless it says otherwise. One that fails ends the Job of its role, and so all others.
ONE_START = {
    "failures": 0,
    "restart_policy": "Never",
    "saved": {"rules": [DISRUPTED, SAVED]},
    "after": None,
    "ready": None,
    "gpus": None,
    "shared_memory": None,
    "log_level": None,
}
# A process of the data service comes back in its pod, where /tmp has what the dispatcher must know then.
DATA_SERVICE = {
    "role": "data",
    "kind": "worker",
    "arguments": ["-m", "bigtrain_nb.launch", "data-service", "--folder", "/tmp"],
    "failures": 1000,
    "restart_policy": "OnFailure",
    "saved": None,
    "after": None,
    "data_service": None,
    "ready": {"exec": {"command": ["sh", "-c", "test -e /tmp/registered-$TASK_INDEX"]}, "periodSeconds": 2},
}


def add_script_parser(commands):
    """Add ``script slurm | kubernetes`` to the command line."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes")
    slurm = _add_kind(kinds, "slurm", "a batch file for SLURM's sbatch", slurm_file, FOR_SLURM)
    slurm.add_argument("--time", type=time_limit, default="04:00:00", help="of one start at most (default: 04:00:00)")
    what = "a JobSet and a NetworkPolicy, for Kubernetes 1.29 or later with JobSet"
    kubernetes = _add_kind(kinds, "kubernetes", what, kubernetes_file, FOR_KUBERNETES)
    kubernetes.add_argument("--image", required=True, help="with script, Python and bigtrain-nb, by a fixed tag")


def _add_kind(kinds, kind, what, file, settings):
    parser = kinds.add_parser(kind, help=what, description=f"Write {what}. The rest is edited there.", usage=USAGE)
    parser.add_argument("script", metavar="TRAIN.py")
    parser.add_argument("--name", help="the job's (default: the script's)")
    parser.add_argument("--memory", type=memory, default="16G", help="for each node, or pod (default: 16G)")
    for name, (default, words) in {**settings, **FOR_BOTH}.items():
        parser.add_argument(name, type=type(default), default=default, help=f"{words} (default: {default})")
    parser.set_defaults(command=_write, file=file)
    return parser


def memory(text):
    """An argument's type. Without M or G, SLURM would take 32 for megabytes and Kubernetes for bytes."""
    if not re.fullmatch(r"\d+[MGT]i?", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number and M, G or T, like 32G")
    return text


def time_limit(text):
    """An argument's type. sbatch takes minutes[:seconds], hours:minutes:seconds and days-hours[:minutes[:seconds]].

    Two minutes before that time, at most three, SLURM tells the tasks to save: a start must have time to train too.
    """
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be like 30 (minutes), 04:00:00 or 1-12:00:00")
    units = {1: [60], 2: [60, 1], 3: [3600, 60, 1]}[len(parts)]
    if dash:
        units = [3600, 60, 1]
    seconds = int(days or 0) * 86400 + sum(int(part) * unit for part, unit in zip(parts, units, strict=False))
    if seconds < LEAST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is {seconds} s: give at least {LEAST_SECONDS // 60} minutes, of which SLURM takes the last two"
            " or three to let the tasks save"
        )
    return text


def _write(chosen):
    plain = re.sub(r"[^a-z0-9]+", "-", Path(chosen.script).stem.lower())  # in the letters that every cluster takes
    values = {
        **vars(chosen),
        "name": chosen.name or plain.strip("-"),
        "servers": chosen.servers or None,
        "data_tasks": 1 + chosen.data_workers,
        "data_service": None,
    }
    print(chosen.file(chosen, values), end="")
    return 0


def slurm_file(chosen, values):
    """Return the text of a batch file for ``sbatch``."""
    values["gpus"] = chosen.gpus or None
    values["without_gpus"] = None if chosen.gpus else ""
    values["memory"] = chosen.memory.removesuffix("i")  # sbatch knows 32G only, and takes it for GiB
    values["tasks"] = chosen.nodes * chosen.tasks_per_node
    values["command"] = shlex.join(["python3", chosen.script, *chosen.arguments])
    if chosen.data_workers:
        values["data_service"] = _filled("data.sbatch", values, str)
    return _filled("train.sbatch", values, str)


def kubernetes_file(chosen, values):
    """Return the text of a file for ``kubectl apply``. Every value is written as JSON, which is YAML too.

    Raises ValueError for a name that Kubernetes refuses.
    """
    name = values["name"]
    _check_name(name)
    values |= ONE_START
    cluster = {"worker": _addresses(name, "worker", chosen.workers)}
    if chosen.servers:
        servers = _addresses(name, "server", chosen.servers)
        cluster = {"chief": _addresses(name, "chief", 1), **cluster, "ps": servers}
        values["log_level"] = "3"
    data_addresses = _addresses(name, "data", values["data_tasks"])
    if chosen.data_workers:
        values["data_service"] = f"grpc://{data_addresses[0]}"
        values["after"] = [{"name": "data", "status": "Ready"}]
    # Kubernetes takes $(NAME) for a variable, and $$ for a dollar.
    arguments = [word.replace("$", "$$") for word in [chosen.script, *chosen.arguments]]
    training = {**values, "cluster": cluster, "arguments": arguments}
    roles = []
    if chosen.data_workers:
        roles.append({**values, **DATA_SERVICE, "tasks": values["data_tasks"], "cluster": {"worker": data_addresses}})
    for kind, addresses in cluster.items():
        role = "server" if kind == "ps" else kind
        roles.append({**training, "role": role, "kind": kind, "tasks": len(addresses)})
        if kind == "worker" and chosen.gpus:
            roles[-1] |= {"gpus": chosen.gpus, "shared_memory": "1Gi" if chosen.gpus > 1 else None}
    values["leader"] = "chief" if chosen.servers else "worker"
    return "".join(
        [_filled("jobset.yaml", values, json.dumps), *(_filled("role.yaml", role, json.dumps) for role in roles)]
    )


def _check_name(name):
    if not re.fullmatch(f"[a-z]([a-z0-9-]{{0,{MOST_LETTERS - 2}}}[a-z0-9])?", name):
        raise ValueError(
            f"--name={name} must have letters from a to z, digits and - only, begin with a letter, end with a letter or"
            f" a digit, and be at most {MOST_LETTERS} long: hosts are called after it"
        )


def _addresses(name, role, count):
    """Return where each task of a role is: JobSet's host names, of the first and only Job of that role."""
    return [f"{name}-{role}-0-{index}.{name}:2222" for index in range(count)]


def _filled(template, values, written):
    """Return the template with a value ``written`` for each <name>, without the lines whose value is None."""
    text = Path(__file__).with_name("templates").joinpath(template).read_text()
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: written(values[found[1]]), line))
    return "".join(lines)
