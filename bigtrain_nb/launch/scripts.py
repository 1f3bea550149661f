"""The file that a cluster runs, for SLURM, Kubernetes or Ray: a template, filled. The training script stays."""

import argparse
import json
import re
import shlex
from pathlib import Path
from textwrap import indent

USAGE = "%(prog)s TRAIN.py [settings] [-- the script's own arguments] > FILE"
LEAST_MINUTES = 10  # of a start under SLURM
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
}
# A process of the data service comes back in its pod, where /tmp has what the dispatcher must know then.
DATA_SERVICE = {
    "role": "data",
    "kind": "worker",
    "arguments": ["-m", "bigtrain_nb.launch", "data-service", "--folder", "/tmp"],
    "failures": 1000,
    "restart_policy": "OnFailure",
    "saved": None,
    "data_service": None,
    "ready": {"exec": {"command": ["sh", "-c", "test -e /tmp/registered-$TASK_INDEX"]}, "periodSeconds": 2},
}


def memory(text):
    """An argument's type. Without M or G, SLURM would take 32 for megabytes and Kubernetes for bytes."""
    if not re.fullmatch(r"[1-9]\d*[MGT]i?", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number and M, G or T, like 32G")
    return text


def time_limit(text):
    """An argument's type. SLURM tells the tasks to save two or three minutes before; before that they must train."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):\d\d", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} must be hours:minutes:seconds, like 04:00:00, or like 1-12:00:00")
    days, hours, minutes = (int(part or 0) for part in found.groups())
    if (days * 24 + hours) * 60 + minutes < LEAST_MINUTES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too short: give at least {LEAST_MINUTES} minutes, of which SLURM takes the last two or three"
            " to let the tasks save"
        )
    return text


def from_0(text):
    """An argument's type: a whole number, 0 or more."""
    return _whole_number(text, least=0)


def from_1(text):
    """An argument's type: a whole number, 1 or more."""
    return _whole_number(text, least=1)


def _whole_number(text, least):
    if not re.fullmatch(r"\d+", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
    return int(text)


# Of each setting: its type, its default, and its words.
FOR_SLURM = {
    "--nodes": (from_1, 2, "how many"),
    "--tasks-per-node": (from_1, 1, "workers on each node"),
    "--servers": (from_0, 0, "so many of the tasks are parameter servers"),
    "--data-workers": (from_0, 0, "of a tf.data service beside"),
    "--memory": (memory, "16G", "for each node"),
}
FOR_KUBERNETES = {
    "--workers": (from_1, 2, "how many"),
    "--servers": (from_0, 0, "parameter servers, with a chief beside the workers; both without GPUs"),
    "--data-workers": (from_0, 0, "of a tf.data service beside"),
    "--memory": (memory, "16G", "for each pod"),
}
FOR_RAY = {
    "--workers": (from_1, 2, "how many at most"),
    "--at-least": (from_1, 1, "with how many to go on while there is room for no more"),
    "--restarts": (from_0, 10, "how often to start again; a lost node may count three times"),
}
FOR_ALL = {
    "--cpus": (from_1, 4, "cores for each task"),
    "--gpus": (from_0, 0, "NVIDIA GPUs for each worker"),
    "--restarts": (from_0, 3, "how often to start again"),
}


def add_script_parser(commands):
    """Add ``script slurm | kubernetes | ray`` to the command line."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes | ray")
    slurm = _add_kind(kinds, "slurm", "a batch file for SLURM's sbatch", slurm_file, FOR_SLURM)
    slurm.add_argument("--time", type=time_limit, default="04:00:00", help="of one start at most (default: 04:00:00)")
    what = "a JobSet and a NetworkPolicy, for Kubernetes 1.29 or later with JobSet"
    kubernetes = _add_kind(kinds, "kubernetes", what, kubernetes_file, FOR_KUBERNETES)
    kubernetes.add_argument("--image", required=True, help="with script, Python and bigtrain-nb, by a fixed tag")
    ray = _add_kind(kinds, "ray", "train_on_ray.py, or with --image a RayJob for KubeRay", ray_file, FOR_RAY)
    ray.add_argument("--storage", required=True, help="a folder for Ray's own notes, which all nodes see")
    ray.add_argument("--image", help="with script, Python, bigtrain-nb and ray[train], by a fixed tag")
    ray.add_argument("--memory", type=memory, help="for each worker's pod, with --image (default: 16G)")


def _add_kind(kinds, name, what, file, settings):
    parser = kinds.add_parser(name, help=what, description=f"Write {what}. The rest is edited there.", usage=USAGE)
    parser.add_argument("script", metavar="TRAIN.py")
    parser.add_argument("--name", help="the job's (default: the script's)")
    for setting, (kind, default, words) in {**FOR_ALL, **settings}.items():
        parser.add_argument(setting, type=kind, default=default, help=f"{words} (default: {default})")
    parser.set_defaults(command=_write, file=file)
    return parser


def _write(chosen):
    plain = re.sub(r"[^a-z0-9]+", "-", Path(chosen.script).stem.lower())  # in the letters that every cluster takes
    chosen.name = chosen.name or plain.strip("-")
    print(chosen.file(chosen), end="")
    return 0


def slurm_file(chosen):
    """Return the text of a batch file for ``sbatch``.

    Raises ValueError for more servers than the tasks have room for.
    """
    tasks = chosen.nodes * chosen.tasks_per_node
    if chosen.servers and tasks < chosen.servers + 2:
        raise ValueError(
            f"--servers={chosen.servers} needs at least {chosen.servers + 2} tasks, a chief and a worker beside the"
            f" servers: --nodes={chosen.nodes} times --tasks-per-node={chosen.tasks_per_node} is {tasks}"
        )
    values = vars(chosen) | {
        "tasks": tasks,
        "servers": chosen.servers or None,
        "gpus": chosen.gpus or None,
        "without_gpus": None if chosen.gpus else "",
        "gpus_of_servers": "" if chosen.gpus and chosen.servers else None,
        "memory": chosen.memory.removesuffix("i"),  # sbatch knows 32G only, and takes it for GiB
        "command": shlex.join(["python3", chosen.script, *chosen.arguments]),
        "data_tasks": 1 + chosen.data_workers,
        "data_service": None,
    }
    if chosen.data_workers:
        values["data_service"] = _filled("data.sbatch", values, str)
    return _filled("train.sbatch", values, str)


def kubernetes_file(chosen):
    """Return the text of a file for ``kubectl apply``. Every value is written as JSON, which is YAML too.

    Raises ValueError for a name that Kubernetes refuses.
    """
    name = chosen.name
    _check_name(name)
    cluster = {"worker": _addresses(name, "worker", chosen.workers)}
    if chosen.servers:
        servers = _addresses(name, "server", chosen.servers)
        cluster = {"chief": _addresses(name, "chief", 1), **cluster, "ps": servers}
    data_addresses = _addresses(name, "data", 1 + chosen.data_workers)
    of_all = vars(chosen) | ONE_START | {"log_level": "3" if chosen.servers else None}
    training = of_all | {
        # Kubernetes takes $(NAME) for a variable, and $$ for a dollar.
        "arguments": [word.replace("$", "$$") for word in [chosen.script, *chosen.arguments]],
        "cluster": cluster,
        "data_service": f"grpc://{data_addresses[0]}" if chosen.data_workers else None,
        "after": [{"name": "data", "status": "Ready"}] if chosen.data_workers else None,
    }
    roles = []
    if chosen.data_workers:
        roles.append(of_all | DATA_SERVICE | {"cluster": {"worker": data_addresses}, "tasks": len(data_addresses)})
    for kind, addresses in cluster.items():
        role = training | {"role": "server" if kind == "ps" else kind, "kind": kind, "tasks": len(addresses)}
        if kind == "worker" and chosen.gpus:
            role |= {"gpus": chosen.gpus, "shared_memory": "1Gi" if chosen.gpus > 1 else None}
        roles.append(role)
    leader = "chief" if chosen.servers else "worker"
    head = _filled("jobset.yaml", vars(chosen) | {"leader": leader}, json.dumps)
    return head + "".join(_filled("role.yaml", role, json.dumps) for role in roles)


def ray_file(chosen):
    """Return the text of a Python program that trains on Ray, or with an image that of a file for ``kubectl apply``.

    Raises ValueError for numbers of workers, a name and memory that cannot be.
    """
    if not 1 <= chosen.at_least <= chosen.workers:
        raise ValueError(f"--at-least={chosen.at_least} must be from 1 to --workers={chosen.workers}")
    program = _filled("train_on_ray.py.template", vars(chosen), repr)
    if not chosen.image:
        if chosen.memory:
            raise ValueError("--memory is for the pods of --image: Ray alone does not hold a worker to its memory")
        return program
    _check_name(chosen.name)
    values = vars(chosen) | {
        "gpus": chosen.gpus or None,
        "memory": chosen.memory or "16G",
        "who": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "may": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return _filled("rayjob.yaml", values, json.dumps) + indent(program, "    ")


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
    text = Path(__file__).with_name("templates").joinpath(template).read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: written(values[found[1]]), line))
    return "".join(lines)
