"""``%%workers 2``: run a cell's code in worker processes instead of the kernel."""

import builtins
import json
import symtable

from IPython.core import magic_arguments
from IPython.core.error import UsageError

from bigtrain_nb.launch.jobs import run_workers
from bigtrain_nb.launch.worker_main import GIVEN

BUILTINS = {*vars(builtins), "exit", "quit"}  # IPython hides these two


def register(shell):
    """Make the magic known to a running IPython."""

    @magic_arguments.magic_arguments()
    @magic_arguments.argument("workers", type=int, nargs="?", default=2)
    @magic_arguments.argument("--give", nargs="+", default=[], metavar="name")
    @magic_arguments.argument("--name")
    @magic_arguments.argument("--timeout", type=float)
    @magic_arguments.argument("--restarts", type=int, default=0)
    @magic_arguments.argument("--patience", type=float, default=2.0)
    def workers(line, cell):
        """Run the cell's code in worker processes, show their lines as they come, and wait for their end.

        ``%%workers 2 --give steps folder --name job --timeout 60 --restarts 1 --patience 2``

        The code sees no variable of the notebook but those named after --give: numbers, strings, lists and
        dictionaries, by value. --name keeps the `Job` under that name; without it, the cell raises RuntimeError if a
        worker fails. The rest is as for `bigtrain_nb.run_workers`.
        """
        settings = vars(magic_arguments.parse_argstring(workers, line))
        give, name = settings.pop("give"), settings.pop("name")
        _check_names(cell, shell.user_ns, give)
        job = run_workers(f"{GIVEN}{_given(shell.user_ns, give)}\n{cell}", **settings)
        if name:
            shell.user_ns[name] = job
        job.wait()
        if job.exit_code and not name:
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
            fits = json.loads(json.dumps(values[name])) == values[name]
        except (TypeError, ValueError):
            fits = False
        if not fits:
            allowed = "numbers, strings, lists, and dictionaries with strings as keys"
            raise UsageError(f"%%workers --give {name}: only {allowed} can be given, not {values[name]!r:.100}")
    return json.dumps(values)


def _check_names(cell, variables, given):
    """Raise UsageError if the code uses a variable that only the notebook has."""
    try:
        names = _global_names(symtable.symtable(cell, "the cell", "exec"))
    except SyntaxError:
        return  # the workers will say where
    made = {name.get_name() for name in names if name.is_assigned() or name.is_imported()}
    used = {name.get_name() for name in names if name.is_referenced()}
    missing = sorted((used - made - set(given) - BUILTINS) & set(variables))
    if missing:
        raise UsageError(
            f"%%workers: the code uses {', '.join(missing)} of the notebook, which workers do not see. Set or import it"
            f" in the cell, or pass its value: --give {' '.join(missing)}"
        )


def _global_names(table):
    """Return the global names of a block of code and of all blocks in it."""
    names = [name for name in table.get_symbols() if table.get_type() == "module" or name.is_global()]
    for block in table.get_children():
        names += _global_names(block)
    return names
