"""Run the code on standard input as a worker's main module; tracebacks show its lines, and only those."""

import json
import linecache
import os
import sys
import traceback
import types

FILE = "<workers>"
GIVEN = "# %%workers gives: "  # with variables as JSON behind it, in place of the first line


def main():
    source = sys.stdin.read()
    linecache.cache[FILE] = len(source), None, source.splitlines(keepends=True), FILE
    sys.path[0] = os.getcwd()
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    first = source.partition("\n")[0]
    if first.startswith(GIVEN):
        vars(module).update(json.loads(first.removeprefix(GIVEN)))
    try:
        exec(compile(source, FILE, "exec"), vars(module))
    except Exception as error:
        sys.last_value = error  # as the interpreter leaves it: those who act at exit see that it was no good end
        traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))
        sys.exit(1)


if __name__ == "__main__":
    main()
