"""The file that a cluster runs: for SLURM, for Kubernetes, or for Kubeflow. The training script stays as it is."""

import argparse
import re
import shlex
import sys
from importlib import resources
from pathlib import Path

import yaml

from bigtrain_nb.common.files import write_text
from bigtrain_nb.launch import manifests

DIGEST = r"@sha256:[0-9a-f]{64}"
IMAGE = rf"[a-z0-9][\w.-]*(:\d+(?=/))?(/[\w.-]+)*({DIGEST}|:(?!latest(@|$))\w[\w.-]{{0,127}}({DIGEST})?)"
ONE_VERSION = (
    "an image by a tag other than 'latest' or by a digest, so that all workers run the same code after every restart:"
    " like registry.example.com/train:1.4 or ...@sha256:..."
)
LABEL = r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?"  # as part of a host name (RFC 1123) and as a service (RFC 1035)


def add_script_parser(commands):
    """Add ``script slurm | kubernetes | tfjob`` to the command line; bad settings end it with code 2."""
    parser = commands.add_parser("script", help="write the file that a cluster runs")
    kinds = parser.add_subparsers(required=True, metavar="slurm | kubernetes | tfjob")
    _add_slurm(kinds)
    _add_kubernetes(kinds, "kubernetes", "a headless Service and an indexed Job: plain Kubernetes, 1.29 or later")
    _add_kubernetes(kinds, "tfjob", "a TFJob for Kubeflow's training operator, version 1")


def slurm_file(chosen):
    """Return the text of a batch file for ``sbatch``."""
    values = vars(chosen) | {
        "tasks": chosen.nodes * chosen.tasks_per_node,
        "gpus": chosen.gpus or None,
        "setup": _setup(chosen.setup),
        "command": shlex.join([chosen.python, chosen.script, *chosen.arguments]),
    }
    template = resources.files("bigtrain_nb.launch").joinpath("templates/train.sbatch")
    return _filled(template.read_text(encoding="utf-8"), values)


def kubernetes_file(objects):
    """Return the objects as YAML for ``kubectl``, keys in the order in which they were set."""
    name = objects[0]["metadata"]["labels"][manifests.NAME]
    heading = f"""\
# Start: kubectl apply -f FILE
# What the workers print: kubectl logs --follow --prefix --selector {manifests.NAME}={name}
# End, and remove: kubectl delete -f FILE
# The claim for checkpoints must be ReadWriteMany: all workers mount it.
"""
    return heading + yaml.safe_dump_all(objects, sort_keys=False, width=1000)


def _filled(template, values):
    """Return the template with a value for each <name>, without the lines whose value is None."""
    lines = []
    for line in template.splitlines():
        names = re.findall(r"<(\w+)>", line)
        if all(values[name] is not None for name in names):
            lines.append(re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), line))
    return "\n".join(lines) + "\n"


def _setup(lines):
    if not lines:
        return None
    return "\n".join(["set +u # modules and environments look at variables that are not set", *lines, "set -u"])


def _write(chosen):
    chosen.name = chosen.name or _name_of(chosen.script)
    text = chosen.text(chosen)
    if chosen.output is None:
        sys.stdout.write(text)
        return 0
    try:
        write_text(chosen.output, text)
        if chosen.logs:
            Path(chosen.logs).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"--output {chosen.output}: {error.strerror}: {error.filename}", file=sys.stderr)
        return 2
    print(f"{chosen.output} is written; start it with: {chosen.start} {shlex.quote(chosen.output)}")
    return 0


def _add_slurm(kinds):
    memory = _matching(r"[1-9]\d*[KMGT]", "a whole number and K, M, G or T, like 32G")
    time = _matching(r"(\d+-)?\d{1,2}:\d\d:\d\d", "hours:minutes:seconds, or days-hours:minutes:seconds")
    plain = _matching(r"\w[\w.-]*", "letters, digits, '_', '.' and '-'")
    logs = _matching(r"[\w./+-]+", "a folder without spaces, '%' and the like: SLURM reads them as its own")
    line = _matching(r".+", "one line of shell")
    setup = "shell to run first, like 'module load cuda' or 'source .venv/bin/activate'; may be given several times"
    add = _kind(kinds, "slurm", "a batch file for SLURM's sbatch", "task", slurm_file, start="sbatch")
    add("--nodes", default=2, type=_whole(1), help="default: %(default)s")
    add("--tasks-per-node", default=1, type=_whole(1), help="workers on each node (default: %(default)s)")
    add("--memory", default="16G", type=memory, help="for each node (default: %(default)s)")
    add("--time", default="04:00:00", type=time, help="the longest that one start may take (default: %(default)s)")
    add("--name", type=plain, help="the job's (default: the script's)")
    add("--partition", type=plain, help="default: the cluster's")
    add("--account", type=plain, help="default: yours")
    add("--logs", default="logs", type=logs, help="folder of the log; made with --output (default: %(default)s)")
    add("--setup", action="append", metavar="LINE", type=line, help=setup)


def _add_kubernetes(kinds, kind, what):
    memory = _matching(r"[1-9]\d*[MGT]i?", "a whole number and M, G, T, Mi, Gi or Ti, like 32Gi")
    label = _matching(LABEL, "a letter, then at most 49 of a-z, 0-9 and '-', not '-' at the end (RFC 1123)")
    claim = _matching(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", "a-z, 0-9, '-' and '.' (RFC 1123)")
    path = _matching(r"(/[\w.-]+)+", "an absolute path like /checkpoints")
    kept = "the PersistentVolumeClaim for what outlasts the job, ReadWriteMany (default: %(default)s)"
    mount = "where the workers find it; give it to the script after -- (default: %(default)s)"
    make = manifests.indexed_job if kind == "kubernetes" else manifests.tfjob
    start = "kubectl apply -f"
    add = _kind(kinds, kind, what, "worker", lambda chosen: kubernetes_file(make(chosen)), start=start, logs=None)
    image = "has the script, its Python and bigtrain-nb; with a tag or digest"
    add("--image", required=True, type=_matching(IMAGE, ONE_VERSION), help=image)
    add("--workers", default=2, type=_whole(1), help="default: %(default)s")
    add("--memory", default="16Gi", type=memory, help="for each worker (default: %(default)s)")
    add("--name", type=label, help="the job's (default: the script's)")
    add("--claim", default="checkpoints", type=claim, help=kept)
    add("--mount", default="/checkpoints", type=path, help=mount)


def _kind(kinds, kind, what, process, text, **defaults):
    """Add a kind of file with the settings that all have; return what adds its own. ``process``: one in its words."""
    usage = "%(prog)s TRAIN.py [settings] [--output FILE] [-- the script's own arguments]"
    parser = kinds.add_parser(kind, help=what, description=f"Write {what}.", usage=usage)
    parser.set_defaults(command=_write, text=text, **defaults)
    add = parser.add_argument
    add("script", metavar="TRAIN.py", type=python_script)
    add("--python", default="python3", type=_matching(r".+", "a command"), help="default: %(default)s")
    add("--cpus", default=4, type=_whole(1), help=f"cores for each {process} (default: %(default)s)")
    add("--gpus", default=0, type=_whole(0), help=f"NVIDIA GPUs for each {process} (default: none)")
    add("--restarts", default=3, type=_whole(0), help="how often to start again (default: %(default)s)")
    add("--grace", default=120, type=_whole(1), help="seconds to save in after SIGTERM (default: %(default)s)")
    add("--output", metavar="FILE", help="default: standard output")
    return add


def _name_of(script):
    """Return the script's name in the letters that every cluster takes."""
    plain = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).lstrip("-0123456789")
    return plain[:50].rstrip("-") or "train"


def _whole(least, most=9999):
    def parse(text):
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {least} to {most}")
        return int(text)

    return parse


def _matching(pattern, allowed):
    def parse(text):
        if not re.fullmatch(pattern, text, re.ASCII):
            raise argparse.ArgumentTypeError(f"{text!r} must be {allowed}")
        return text

    return parse


python_script = _matching(r".+\.py", "a Python script: a name that ends in .py")
