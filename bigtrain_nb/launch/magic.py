"""``%%workers 2``: run a cell's code in worker processes instead of the kernel."""

import json
import re

from IPython.core import magic_arguments
from IPython.core.error import UsageError

from bigtrain_nb.launch.jobs import run_workers
from bigtrain_nb.launch.worker_main import GIVEN


def register(shell):
    """Make the magic known to a running IPython."""

    @magic_arguments.magic_arguments()
    @magic_arguments.argument("workers", type=int, nargs="?", default=2)
    @magic_arguments.argument("--give", nargs="+", default=[], metavar="name")
    @magic_arguments.argument("--name")
    def workers(line, cell):
        """Run the cell's code in worker processes, show their lines as they come, and wait for their end.

        ``%%workers 2 --give steps folder --name job``

        The code sees no variable of the notebook but those named after --give: numbers, strings, lists and
        dictionaries, by value, written as JSON. --name keeps the `Job` under that name; without it, the cell raises
        RuntimeError if a worker fails.
        """
        chosen = magic_arguments.parse_argstring(workers, line)
        job = run_workers(f"{GIVEN}{_given(shell.user_ns, chosen.give)}\n{cell}", chosen.workers)
        if chosen.name:
            shell.user_ns[chosen.name] = job
        job.wait()
        if job.failed is not None:
            _explain(job.logs(job.failed), shell.user_ns)
        if job.exit_code and not chosen.name:
            raise RuntimeError(f"{str(job).splitlines()[0]}; %%workers --name job would have kept them to look at")

    shell.register_magic_function(workers, magic_kind="cell")


def _given(variables, names):
    """Return the values of what is given, as JSON."""
    values = {}
    for name in names:
        if name not in variables:
            raise UsageError(f"%%workers --give {name}: the notebook has no such variable")
        values[name] = variables[name]
        try:
            json.dumps(values[name])
        except (TypeError, ValueError) as error:
            raise UsageError(f"%%workers --give {name}: only what JSON can write can be given: {error}") from None
    return json.dumps(values)


def _explain(log, variables):
    """Raise UsageError if a worker has missed a variable that only the notebook has."""
    missed = re.findall(r"^NameError: name '(\w+)' is not defined", log, re.MULTILINE)
    if missed and missed[-1] in variables:
        raise UsageError(
            f"%%workers: {missed[-1]} is a variable of the notebook, which workers do not see. Set or import it in the"
            f" cell, or pass its value: --give {missed[-1]}"
        )
