"""Run the code on standard input as a worker's main module; tracebacks show its lines only."""

import linecache
import os
import sys
import traceback
import types

FILE = "<workers>"


def main():
    source = sys.stdin.buffer.read().decode()  # UTF-8 in any locale
    linecache.cache[FILE] = len(source), None, source.splitlines(keepends=True), FILE
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path[0] = os.getcwd()
    sys.excepthook = show
    exec(compile(source, FILE, "exec"), vars(module))


def show(kind, error, frames):
    """Print an error without the two frames of this file."""
    traceback.print_exception(kind, error, frames.tb_next.tb_next)


if __name__ == "__main__":
    main()
