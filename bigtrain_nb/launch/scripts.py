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
    "--time": ("04:00:00", "of one start at most"),
    "--servers": (0, "so many of the tasks are parameter servers"),
}
FOR_KUBERNETES = {
    "--workers": (2, "how many"),
    "--servers": (0, "parameter servers, with a chief beside the workers"),
}
FOR_BOTH = {
    "--cpus": (4, "cores for each worker"),
    "--gpus": (0, "NVIDIA GPUs for each worker"),
    "--data-workers": (0, "of a tf.data service beside"),
    "--restarts": (3, "how often to start again"),
}
MOST_LETTERS = 47  # a StatefulSet's name may have 52, and ours ends with "-data"


def add_script_parser(commands):
    """Add ``script slurm | kubernetes`` to the command line."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes")
    _add_kind(kinds, "slurm", "a batch file for SLURM's sbatch", slurm_file, FOR_SLURM)
    what = "a headless Service, a NetworkPolicy and an indexed Job, for Kubernetes 1.29 or later"
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


def _write(chosen):
    plain = re.sub(r"[^a-z0-9]+", "-", Path(chosen.script).stem.lower())  # in the letters that every cluster takes
    values = {
        **vars(chosen),
        "name": chosen.name or plain.strip("-"),
        "gpus": chosen.gpus or None,
        "servers": chosen.servers or None,
        "data_tasks": 1 + chosen.data_workers,
        "data_service": None,
    }
    print(chosen.file(chosen, values), end="")
    return 0


def slurm_file(chosen, values):
    """Return the text of a batch file for ``sbatch``."""
    values["memory"] = chosen.memory.removesuffix("i")  # sbatch knows 32G only, and takes it for GiB
    values["tasks"] = chosen.nodes * chosen.tasks_per_node
    values["command"] = shlex.join(["python3", chosen.script, *chosen.arguments])
    if chosen.data_workers:
        values["data_service"] = _filled("data.sbatch", values, str)
    return _filled("train.sbatch", values, str)


def kubernetes_file(chosen, values):
    """Return the text of a file for ``kubectl apply``. Every value is written as JSON, which is YAML too.

    Raises ValueError for a name that Kubernetes refuses, and for servers beside GPUs.
    """
    _check_name(values["name"])
    if chosen.servers and chosen.gpus:
        raise ValueError(
            "--servers cannot have --gpus beside it: the pods of a Job are all alike, so that the chief and the servers"
            " would take GPUs too. Leave out one of the two"
        )
    tasks = chosen.workers
    if chosen.servers:
        tasks += 1 + chosen.servers  # a chief too
    values["tasks"] = tasks
    values["failures"] = chosen.restarts * tasks
    values["shared_memory"] = "1Gi" if chosen.gpus > 1 else None
    values["addresses"] = _addresses(values["name"], tasks)
    # Kubernetes takes $(NAME) for a variable, and $$ for a dollar.
    values["arguments"] = [word.replace("$", "$$") for word in [chosen.script, *chosen.arguments]]
    values["pods"] = [values["name"]]
    beside = ""
    if chosen.data_workers:
        values["data_name"] = f"{values['name']}-data"
        values["pods"].append(values["data_name"])
        values["data_addresses"] = _addresses(values["data_name"], values["data_tasks"])
        values["data_service"] = f"grpc://{values['data_addresses'][0]}"
        beside = _filled("data.yaml", values, json.dumps)
    return _filled("train.yaml", values, json.dumps) + beside


def _check_name(name):
    if not re.fullmatch(f"[a-z]([a-z0-9-]{{0,{MOST_LETTERS - 2}}}[a-z0-9])?", name):
        raise ValueError(
            f"--name={name} must have letters from a to z, digits and - only, begin with a letter, end with a letter or"
            f" a digit, and be at most {MOST_LETTERS} long: hosts are called after it"
        )


def _addresses(name, count):
    return [f"{name}-{index}.{name}:2222" for index in range(count)]


def _filled(template, values, written):
    """Return the template with a value ``written`` for each <name>, without the lines whose value is None."""
    text = Path(__file__).with_name("templates").joinpath(template).read_text()
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: written(values[found[1]]), line))
    return "".join(lines)
