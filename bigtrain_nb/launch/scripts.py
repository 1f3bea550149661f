"""The file that a cluster runs, for SLURM or for Kubernetes: a template, filled. The training script stays as it is."""

import argparse
import json
import re
import shlex
from functools import partial
from importlib import resources
from pathlib import Path

USAGE = "%(prog)s TRAIN.py [settings] [-- the script's own arguments] > FILE"
PORT = 2222


def matching(pattern, allowed):
    """Return an argument's type: a text that matches the whole pattern; ``allowed`` says it in words."""

    def parse(text):
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} must be {allowed}")
        return text

    return parse


memory = matching(r"[1-9]\d*[MGT]i?", "a whole number and M, G or T, like 32G")
time = matching(r"(\d+-)?\d{1,2}:\d\d:\d\d", "hours:minutes:seconds, or days-hours:minutes:seconds")
name = matching(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", "a letter, then at most 49 of a-z, 0-9 and '-', not '-' at the end")
image = matching(
    r"[^\s@]+:(?!latest$)[\w.-]+|\S+@sha256:[0-9a-f]{64}",
    "an image by a tag other than 'latest' or by a digest, so that all workers run the same code after every restart:"
    " like registry.example.com/train:1.4 or ...@sha256:...",
)


def add_script_parser(commands):
    """Add ``script slurm | kubernetes`` to the command line."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes")

    slurm = _add_kind(kinds, "slurm", "a batch file for SLURM's sbatch")
    slurm.add_argument("--nodes", type=int, default=2, help="how many (default: 2)")
    slurm.add_argument("--tasks-per-node", type=int, default=1, help="workers on each node (default: 1)")
    slurm.add_argument("--time", type=time, default="04:00:00", help="of one start at most (default: 04:00:00)")
    slurm.set_defaults(text=slurm_file)

    kubernetes = _add_kind(kinds, "kubernetes", "a headless Service and an indexed Job, for Kubernetes 1.29 or later")
    kubernetes.add_argument("--workers", type=int, default=2, help="how many (default: 2)")
    kubernetes.add_argument("--image", type=image, required=True, help="has the script, its Python and bigtrain-nb")
    kubernetes.set_defaults(text=kubernetes_file)


def _add_kind(kinds, kind, what):
    parser = kinds.add_parser(kind, help=what, description=f"Write {what}. The rest is edited there.", usage=USAGE)
    parser.add_argument("script", metavar="TRAIN.py")
    parser.add_argument("--name", type=name, help="the job's (default: the script's)")
    parser.add_argument("--cpus", type=int, default=4, help="cores for each worker (default: 4)")
    parser.add_argument("--gpus", type=int, default=0, help="NVIDIA GPUs for each worker (default: 0)")
    parser.add_argument("--memory", type=memory, default="16G", help="for each node, or pod (default: 16G)")
    parser.add_argument("--restarts", type=int, default=3, help="how often to start again (default: 3)")
    parser.set_defaults(command=_write)
    return parser


def _write(chosen):
    chosen.name = chosen.name or _name_of(chosen.script)
    print(chosen.text(chosen), end="")
    return 0


def _name_of(script):
    """Return the script's name in the letters that every cluster takes."""
    plain = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).lstrip("-0123456789")
    return plain[:50].rstrip("-") or "train"


def slurm_file(chosen):
    """Return the text of a batch file for ``sbatch``."""
    values = vars(chosen) | {
        "tasks": chosen.nodes * chosen.tasks_per_node,
        "gpus": chosen.gpus or None,
        "command": shlex.join(["python3", chosen.script, *chosen.arguments]),
    }
    return _filled("train.sbatch", values, str)


def kubernetes_file(chosen):
    """Return the text of a file for ``kubectl apply``. Every value is written as JSON, which is YAML too."""
    values = vars(chosen) | {
        "failures": chosen.restarts * chosen.workers,
        "gpus": chosen.gpus or None,
        "shared_memory": "1Gi" if chosen.gpus > 1 else None,
        "addresses": [f"{chosen.name}-{index}.{chosen.name}:{PORT}" for index in range(chosen.workers)],
        # Kubernetes takes $(NAME) for a variable, and $$ for a dollar.
        "arguments": [word.replace("$", "$$") for word in [chosen.script, *chosen.arguments]],
    }
    return _filled("train.yaml", values, partial(json.dumps, ensure_ascii=False))


def _filled(template, values, written):
    """Return the template with a value ``written`` for each <name>, without the lines whose value is None."""
    text = resources.files("bigtrain_nb.launch").joinpath("templates", template).read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: written(values[found[1]]), line))
    return "".join(lines)
