"""``%%workers 2``: run a cell's code in worker processes instead of the kernel."""

import argparse
import ast
import builtins
import json
import re
import shlex

from IPython.core.error import UsageError

from bigtrain_nb.cluster.jobs import run_workers

BUILTINS = {*vars(builtins), "exit", "quit"}  # IPython hides these two
FUTURE = re.compile(r"(\s*from __future__ import [\w, ]+)*")


class _Arguments(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"%%workers: {message}; {self.format_usage().strip()}")


def _parser():
    parser = _Arguments(prog="%%workers", add_help=False)
    parser.add_argument("workers", type=int, nargs="?", default=2)
    parser.add_argument("--give", nargs="+", default=[], metavar="name")
    parser.add_argument("--name")
    parser.add_argument("--timeout", type=float)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--patience", type=float, default=2.0)
    return parser


def register(shell):
    """Make the magic known to a running IPython."""

    def workers(line, cell):
        """Run the cell's code in worker processes, show their lines as they come, and wait for their end.

        ``%%workers 2 --give steps folder --name job --timeout 60 --restarts 1 --patience 2``

        The code sees no variable of the notebook but those named after --give: numbers, strings, lists and
        dictionaries, by value. --name keeps the `Job` under that name; without it, the cell raises RuntimeError if a
        worker fails. The rest is as for `bigtrain_nb.run_workers`.
        """
        settings = vars(_parser().parse_args(_words(line)))
        give, name = settings.pop("give"), settings.pop("name")
        _check_names(cell, shell.user_ns, give)
        job = run_workers(_given_first(_line_of(shell.user_ns, give), cell), **settings)
        if name:
            shell.user_ns[name] = job
        job.wait()
        if job.exit_code and not name:
            raise RuntimeError(f"{str(job).splitlines()[0]}; %%workers --name job would have kept them to look at")

    shell.register_magic_function(workers, magic_kind="cell")


def _words(line):
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%%workers {line}: {error}") from None


def _line_of(variables, names):
    """Return one line that sets what is given."""
    values = {}
    for name in names:
        if name not in variables:
            raise UsageError(f"%%workers: --give {name}: the notebook has no such variable")
        try:
            values[name] = json.dumps(variables[name])
        except (TypeError, ValueError) as error:
            raise UsageError(f"%%workers --give {name}: numbers, strings, lists, dictionaries only ({error})") from None
        there = json.loads(values[name])
        if there != variables[name]:
            raise UsageError(f"%%workers --give {name}: only lists, and strings as keys; it would be {there}")
    return "; ".join(f"{name} = __import__('json').loads({value!r})" for name, value in values.items())


def _given_first(line, cell):
    """Return the cell with a line where the magic's was, so that line numbers stay; __future__ comes before it."""
    end = FUTURE.match(cell).end() if line else 0
    return f"\n{cell[:end]}; {line}{cell[end:]}" if end else f"{line}\n{cell}"


def _check_names(cell, variables, given):
    """Raise UsageError if the code uses a variable that only the notebook has."""
    try:
        tree = ast.parse(cell)
    except SyntaxError:
        return  # the workers will say where
    missing = sorted((_used(tree) - _made(tree) - set(given) - BUILTINS) & set(variables))
    if missing:
        raise UsageError(
            f"%%workers: the code uses {', '.join(missing)} of the notebook, which workers do not see. Set or import it"
            f" in the cell, or pass its value: --give {' '.join(missing)}"
        )


def _used(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _made(tree):
    """Return all names that the code sets anywhere: variables, arguments, imports, functions and classes."""
    made = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                made.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add(other or name.partition(".")[0])
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                made.add(name)
    return made
