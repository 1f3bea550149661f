"""The file that a cluster runs, for SLURM or for Kubernetes: a template, filled. The training script stays as it is."""

import argparse
import json
import re
import shlex
from pathlib import Path

USAGE = "%(prog)s TRAIN.py [settings] [-- the script's own arguments] > FILE"
PORT = 2222


def memory(text):
    """An argument's type. Without M or G, SLURM would take 32 for megabytes and Kubernetes for bytes."""
    if not re.fullmatch(r"\d+[MGT]i?", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number and M, G or T, like 32G")
    return text


def add_script_parser(commands):
    """Add ``script slurm | kubernetes`` to the command line."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes")

    slurm = _add_kind(kinds, "slurm", "a batch file for SLURM's sbatch", "so many of the tasks are parameter servers")
    slurm.add_argument("--nodes", type=int, default=2, help="how many (default: 2)")
    slurm.add_argument("--tasks-per-node", type=int, default=1, help="workers on each node (default: 1)")
    slurm.add_argument("--time", default="04:00:00", help="of one start at most (default: 04:00:00)")
    slurm.set_defaults(text=slurm_file)

    what = "a headless Service and an indexed Job, for Kubernetes 1.29 or later"
    kubernetes = _add_kind(kinds, "kubernetes", what, "parameter servers, with a chief beside the workers")
    kubernetes.add_argument("--workers", type=int, default=2, help="how many (default: 2)")
    kubernetes.add_argument("--image", required=True, help="with script, Python and bigtrain-nb, by a fixed tag")
    kubernetes.set_defaults(text=kubernetes_file)


def _add_kind(kinds, kind, what, servers):
    parser = kinds.add_parser(kind, help=what, description=f"Write {what}. The rest is edited there.", usage=USAGE)
    parser.add_argument("script", metavar="TRAIN.py")
    parser.add_argument("--name", help="the job's (default: the script's)")
    parser.add_argument("--cpus", type=int, default=4, help="cores for each worker (default: 4)")
    parser.add_argument("--gpus", type=int, default=0, help="NVIDIA GPUs for each worker (default: 0)")
    parser.add_argument("--memory", type=memory, default="16G", help="for each node, or pod (default: 16G)")
    parser.add_argument("--servers", type=int, default=0, help=servers)
    parser.add_argument("--data-workers", type=int, default=0, help="of a tf.data service beside (default: none)")
    parser.add_argument("--restarts", type=int, default=3, help="how often to start again (default: 3)")
    parser.set_defaults(command=_write)
    return parser


def _write(chosen):
    plain = re.sub(r"[^a-z0-9]+", "-", Path(chosen.script).stem.lower())  # in the letters that every cluster takes
    chosen.name = chosen.name or plain.strip("-")
    print(chosen.text(chosen), end="")
    return 0


def slurm_file(chosen):
    """Return the text of a batch file for ``sbatch``."""
    values = vars(chosen) | {
        "tasks": chosen.nodes * chosen.tasks_per_node,
        "gpus": chosen.gpus or None,
        "servers": chosen.servers or None,
        "data_tasks": 1 + chosen.data_workers,
        "data_service": None,
        "command": shlex.join(["python3", chosen.script, *chosen.arguments]),
    }
    if chosen.data_workers:
        values["data_service"] = _filled("data.sbatch", values, str)
    return _filled("train.sbatch", values, str)


def kubernetes_file(chosen):
    """Return the text of a file for ``kubectl apply``. Every value is written as JSON, which is YAML too."""
    tasks = chosen.workers
    if chosen.servers:
        tasks += 1 + chosen.servers  # a chief too
    data_name = f"{chosen.name}-data"
    data_addresses = _addresses(data_name, 1 + chosen.data_workers)
    values = vars(chosen) | {
        "tasks": tasks,
        "failures": chosen.restarts * tasks,
        "gpus": chosen.gpus or None,
        "servers": str(chosen.servers) if chosen.servers else None,
        "shared_memory": "1Gi" if chosen.gpus > 1 else None,
        "addresses": _addresses(chosen.name, tasks),
        "data_name": data_name,
        "data_tasks": 1 + chosen.data_workers,
        "data_addresses": data_addresses,
        "data_service": f"grpc://{data_addresses[0]}" if chosen.data_workers else None,
        # Kubernetes takes $(NAME) for a variable, and $$ for a dollar.
        "arguments": [word.replace("$", "$$") for word in [chosen.script, *chosen.arguments]],
    }
    text = _filled("train.yaml", values, json.dumps)
    if chosen.data_workers:
        text += _filled("data.yaml", values, json.dumps)
    return text


def _addresses(name, count):
    return [f"{name}-{index}.{name}:{PORT}" for index in range(count)]


def _filled(template, values, written):
    """Return the template with a value ``written`` for each <name>, without the lines whose value is None."""
    text = Path(__file__).with_name("templates").joinpath(template).read_text()
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: written(values[found[1]]), line))
    return "".join(lines)
