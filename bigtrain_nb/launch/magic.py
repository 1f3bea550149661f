"""``%%workers 2``: run a cell's code in worker processes instead of the kernel."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from IPython.core import magic_arguments

from bigtrain_nb.launch.jobs import run_workers
from bigtrain_nb.launch.worker_main import ORDER


def register(shell):
    """Make the magic known to a running IPython."""

    @magic_arguments.magic_arguments()
    @magic_arguments.argument("workers", type=int, nargs="?", default=2)
    @magic_arguments.argument("--give", nargs="+", default=[], metavar="name")
    @magic_arguments.argument("--take", nargs="+", default=[], metavar="name")
    @magic_arguments.argument("--name")
    def workers(line, cell):
        """Run the cell's code in worker processes, show their lines as they come, and wait for their end.

        ``%%workers 2 --give steps folder --take losses --name job``

        The code sees no variable of the notebook but those named after --give. Those named after --take come back: in
        the notebook ``losses[1]`` is then what worker 1 had in ``losses`` at its end. Both are numbers, strings, lists
        and dictionaries, by value, as JSON. --name keeps the `Job` under that name; without it, the cell raises
        RuntimeError if a worker fails.
        """
        chosen = magic_arguments.parse_argstring(workers, line)
        given = {name: shell.user_ns[name] for name in chosen.give}
        with TemporaryDirectory() as folder:
            order = {"give": given, "take": chosen.take, "folder": folder}
            job = run_workers(f"{ORDER}{json.dumps(order)}\n{cell}", chosen.workers)
            if chosen.name:
                shell.user_ns[chosen.name] = job
            job.wait()
            if chosen.take and job.exit_code == 0:
                ends = [json.loads(Path(folder, str(pid)).read_text()) for pid in job.pids]
                for name in chosen.take:
                    shell.user_ns[name] = [end[name] for end in ends]
        if job.exit_code and not chosen.name:
            raise RuntimeError(
                f"{str(job).splitlines()[0]}; --name job would have kept them to look at. Of the notebook's variables"
                " the code sees those after --give"
            )

    shell.register_magic_function(workers, magic_kind="cell")
