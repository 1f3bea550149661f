"""``%%workers 2``: run a cell's code in worker processes instead of the kernel."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from IPython.core import magic_arguments

from bigtrain_nb.launch.jobs import run_workers

# Neither defines a name, which could collide with one of the cell's.
GIVE = "globals().update(__import__('json').loads({given!r}))"  # in place of the first line
TAKE = """
__import__("pathlib").Path({folder!r}, str(__import__("os").getpid())).write_text(
    __import__("json").dumps({{name: globals()[name] for name in {names}}})
)
"""


def register(shell):
    """Register the magic with a running IPython."""

    @magic_arguments.magic_arguments()
    @magic_arguments.argument("workers", type=int, nargs="?", default=2)
    @magic_arguments.argument("--give", nargs="+", default=[], metavar="name")
    @magic_arguments.argument("--take", nargs="+", default=[], metavar="name")
    def workers(line, cell):
        """Run the cell's code in worker processes, show their output as it arrives, and wait for their end.

        ``%%workers 2 --give steps folder --take losses``

        The code sees only the notebook's variables named after --give. Those named after --take are returned: in the
        notebook, ``losses[1]`` is then the final value of ``losses`` in worker 1. Both are passed by value, as JSON:
        numbers, strings, lists and dictionaries. Each worker has one GPU, if there are enough. Raises RuntimeError if a
        worker fails.
        """
        chosen = magic_arguments.parse_argstring(workers, line)
        first = GIVE.format(given=json.dumps({name: shell.user_ns[name] for name in chosen.give}))
        if future := re.match(r"(?:(?:#.*)?\n)*(from __future__ import [\w, ]+)", cell):  # must be the first statement
            first = f"{future[1]}; {first}"
            cell = f"{cell[: future.start(1)]}pass{cell[future.end(1) :]}"
        with TemporaryDirectory() as folder:
            last = TAKE.format(folder=folder, names=chosen.take)
            job = run_workers(f"{first}\n{cell}\n{last}", chosen.workers, gpus_per_worker=1)
            job.wait()
            if job.exit_code:
                raise RuntimeError(
                    f"{str(job).splitlines()[0]}. The code sees only the notebook variables named after --give"
                )
            if chosen.take:
                files = [Path(folder, str(pid)) for pid in job.pids]
                ends = list(map(_at_its_end, files, job.names))
        for name in chosen.take:
            shell.user_ns[name] = [end[name] for end in ends]

    shell.register_magic_function(workers, magic_kind="cell")


def _at_its_end(file, worker):
    """Return {name: value} from the file that a worker has written."""
    if not file.exists():
        raise RuntimeError(
            f"{worker} exited without an error before the end of the cell's code, as with sys.exit(0),"
            " so there is nothing to take from it: leave out --take, or let the code run to its end"
        )
    return json.loads(file.read_text())
