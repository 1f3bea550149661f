"""Run the code on standard input as a worker's main module; tracebacks show its lines, and only those."""

import json
import linecache
import os
import sys
import traceback
import types

FILE = "<workers>"
ORDER = "# %%workers: "  # with what the cell is given and what is taken from it as JSON, in place of the first line


def main():
    source = sys.stdin.read()
    linecache.cache[FILE] = len(source), None, source.splitlines(keepends=True), FILE
    order = {"give": {}, "take": []}
    if source.startswith(ORDER):
        order = json.loads(source.partition("\n")[0].removeprefix(ORDER))
    module = types.ModuleType("__main__")
    vars(module).update(order["give"])
    sys.modules["__main__"] = module
    sys.path[0] = os.getcwd()
    sys.excepthook = show
    exec(compile(source, FILE, "exec"), vars(module))
    if order["take"]:
        taken = {name: vars(module)[name] for name in order["take"]}
        with open(os.path.join(order["folder"], str(os.getpid())), "w") as file:
            json.dump(taken, file)


def show(kind, error, frames):
    """Print an error without the two frames of this file."""
    traceback.print_exception(kind, error, frames.tb_next.tb_next)


if __name__ == "__main__":
    main()
