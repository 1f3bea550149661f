"""The file that a cluster runs, for SLURM or for Kubernetes: a template, filled. The training script stays as it is."""

import argparse
import json
import re
import shlex
import sys
from functools import partial
from importlib import resources
from pathlib import Path

from bigtrain_nb.common.files import write_text

PORT = 2222
IMAGE = r"[^\s@]+:(?!latest$)[\w.-]+|\S+@sha256:[0-9a-f]{64}"
ONE_VERSION = (
    "an image by a tag other than 'latest' or by a digest, so that all workers run the same code after every restart:"
    " like registry.example.com/train:1.4 or ...@sha256:..."
)
HOST = r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?"  # as part of a host name (RFC 1123) and as a service (RFC 1035)


def matching(pattern, allowed):
    """Return an argument's type: a text that matches the whole pattern; ``allowed`` says it in words."""

    def parse(text):
        if not re.fullmatch(pattern, text, re.ASCII):
            raise argparse.ArgumentTypeError(f"{text!r} must be {allowed}")
        return text

    return parse


def whole(least):
    """Return an argument's type: a whole number."""

    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
        return int(text)

    return parse


python_script = matching(r".+\.py", "a Python script: a name that ends in .py")
plain = matching(r"[\w.-]+", "letters, digits, '_', '.' and '-'")
folder = matching(r"[\w./+-]+", "a folder without spaces, '%' and the like: SLURM reads them as its own")
slurm_memory = matching(r"[1-9]\d*[KMGT]", "a whole number and K, M, G or T, like 32G")
memory = matching(r"[1-9]\d*[MGT]i?", "a whole number and M, G, T, Mi, Gi or Ti, like 32Gi")
time = matching(r"(\d+-)?\d{1,2}:\d\d:\d\d", "hours:minutes:seconds, or days-hours:minutes:seconds")
host = matching(HOST, "a letter, then at most 49 of a-z, 0-9 and '-', not '-' at the end (RFC 1123)")
path = matching(r"/.+", "an absolute path like /checkpoints")

COMMON = [
    ("--python", "python3", str, "the command of Python"),
    ("--cpus", 4, whole(1), "cores for each worker"),
    ("--gpus", 0, whole(0), "NVIDIA GPUs for each worker"),
    ("--restarts", 3, whole(0), "how often to start again"),
    ("--grace", 120, whole(1), "seconds to save in after SIGTERM"),
]
SLURM = [
    ("--nodes", 2, whole(1), "how many"),
    ("--tasks-per-node", 1, whole(1), "workers on each node"),
    ("--memory", "16G", slurm_memory, "for each node"),
    ("--time", "04:00:00", time, "the longest that one start may take"),
    ("--logs", "logs", folder, "folder of the log; made with --output"),
    ("--name", None, plain, "the job's, if not the script's"),
    ("--partition", None, plain, "if not the cluster's own"),
    ("--account", None, plain, "if not your own"),
]
KUBERNETES = [
    ("--workers", 2, whole(1), "how many"),
    ("--memory", "16Gi", memory, "for each worker"),
    ("--name", None, host, "the job's, if not the script's"),
    ("--claim", "checkpoints", str, "the PersistentVolumeClaim for what outlasts the job, ReadWriteMany"),
    ("--mount", "/checkpoints", path, "where the workers find it; give it to the script after --"),
]


def add_script_parser(commands):
    """Add ``script slurm | kubernetes`` to the command line; bad settings end it with code 2."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes")
    slurm = _add_kind(kinds, "slurm", "a batch file for SLURM's sbatch", SLURM)
    setup = "shell to run first, like 'module load cuda' or 'source .venv/bin/activate'; may be given several times"
    slurm.add_argument("--setup", action="append", metavar="LINE", default=[], help=setup)
    slurm.set_defaults(text=slurm_file, start="sbatch")
    what = "a headless Service and an indexed Job: plain Kubernetes, 1.29 or later"
    kubernetes = _add_kind(kinds, "kubernetes", what, KUBERNETES)
    image = "has the script, its Python and bigtrain-nb; with a tag or digest"
    kubernetes.add_argument("--image", required=True, type=matching(IMAGE, ONE_VERSION), help=image)
    kubernetes.set_defaults(text=kubernetes_file, start="kubectl apply -f", logs=None)


def _add_kind(kinds, kind, what, settings):
    usage = "%(prog)s TRAIN.py [settings] [--output FILE] [-- the script's own arguments]"
    parser = kinds.add_parser(kind, help=what, description=f"Write {what}.", usage=usage)
    parser.set_defaults(command=_write)
    parser.add_argument("script", metavar="TRAIN.py", type=python_script)
    parser.add_argument("--output", metavar="FILE", help="where to write it, if not to standard output")
    for name, default, kind_of_text, words in settings + COMMON:
        words += "" if default is None else " (default: %(default)s)"
        parser.add_argument(name, default=default, type=kind_of_text, help=words)
    return parser


def slurm_file(chosen):
    """Return the text of a batch file for ``sbatch``."""
    values = vars(chosen) | {
        "tasks": chosen.nodes * chosen.tasks_per_node,
        "gpus": chosen.gpus or None,
        "setup": "\n".join(chosen.setup) or None,
        "command": shlex.join([chosen.python, chosen.script, *chosen.arguments]),
    }
    return _filled("train.sbatch", values, str)


def kubernetes_file(chosen):
    """Return the text of a file for ``kubectl apply``. Every value is written as JSON, which is YAML too."""
    name = chosen.name
    values = vars(chosen) | {
        "failures": chosen.restarts * chosen.workers,
        "gpus": chosen.gpus or None,
        "shared_memory": "1Gi" if chosen.gpus > 1 else None,
        "addresses": [f"{name}-{index}.{name}:{PORT}" for index in range(chosen.workers)],
        "command": [_literal(chosen.python), _literal(chosen.script)],
        "arguments": [_literal(word) for word in chosen.arguments],
    }
    return _filled("train.yaml", values, partial(json.dumps, ensure_ascii=False))


def _literal(word):
    """Return a word in which Kubernetes expands nothing: it would take $(NAME) for a variable."""
    return word.replace("$", "$$")


def _filled(template, values, written):
    """Return the template with a value ``written`` for each <name>, without the lines whose value is None."""
    text = resources.files("bigtrain_nb.launch").joinpath("templates", template).read_text(encoding="utf-8")
    lines = []
    for line in text.splitlines(keepends=True):
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: written(values[found[1]]), line))
    return "".join(lines)


def _write(chosen):
    chosen.name = chosen.name or _name_of(chosen.script)
    text = chosen.text(chosen)
    if chosen.output is None:
        sys.stdout.write(text)
        return 0
    write_text(chosen.output, text)
    if chosen.logs:
        Path(chosen.logs).mkdir(parents=True, exist_ok=True)
    print(f"{chosen.output} is written; start it with: {chosen.start} {shlex.quote(chosen.output)}")
    return 0


def _name_of(script):
    """Return the script's name in the letters that every cluster takes."""
    plain = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).lstrip("-0123456789")
    return plain[:50].rstrip("-") or "train"
