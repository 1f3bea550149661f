"""Execute notebooks from a clean kernel and store their outputs, cleaned.

    python tools/render.py                        those whose code or outputs changed since they were rendered
    python tools/render.py notebooks/01-*.ipynb   these, changed or not

A notebook that fails, or whose outputs break the rules, is left unchanged, and the exit status is 1.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
import notebook_rules as rules
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent


def execute(notebook, folder, **settings):
    """Run every cell in a fresh kernel of this environment, as in `folder`, and store the outputs in `notebook`.

    `settings` are further settings of nbclient.

    Raises CellExecutionError for a cell that fails, CellTimeoutError for one that exceeds its time limit, and
    DeadKernelError when the kernel dies.
    """
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    for cell in rules.code_cells(notebook):
        cell.update(outputs=[], execution_count=None)
    client = NotebookClient(
        notebook,
        timeout=rules.CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        **settings,
    )
    with client.setup_kernel():  # not execute(), which mistakes Ctrl-C for a dead kernel
        try:
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
        except KeyboardInterrupt:
            client.shutdown_kernel = "immediate"  # a graceful shutdown prints a traceback first
            raise
    return notebook


def render(path):
    """Execute, clean, seal and store the notebook at `path`; return the list of problems, empty if it was stored."""
    notebook = rules.clean(rules.read(path))
    nbformat.validate(notebook)
    try:
        notebook = rules.clean(execute(notebook, path.parent))
    except (CellExecutionError, CellTimeoutError) as error:
        return [str(error)]
    except DeadKernelError:
        return ["its kernel died"]
    problems = rules.output_problems(notebook, private=private_texts())
    if not problems:
        rules.write(rules.seal(notebook), path)
    return problems


def private_texts():
    """Folders of the rendering machine."""
    return sorted({str(ROOT), str(Path.home()), sys.prefix} - {"/"})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="render these, changed or not")
    named = parser.parse_args(arguments).notebooks
    if missing := [str(path) for path in named if not path.is_file()]:
        print("No such notebook:", *missing, file=sys.stderr)
        return 1
    failed = False
    for path in named or sorted((ROOT / "notebooks").glob("*.ipynb")):
        if not named and rules.is_sealed(rules.read(path)):
            print(f"{path.name}: up to date")
            continue
        print(f"{path.name}: executing ...", flush=True)
        began = time.monotonic()
        problems = render(path.resolve())
        left = ", left unchanged:" if problems else ""
        print(f"{path.name}: {time.monotonic() - began:.0f} s{left}")
        for problem in problems:
            failed = True
            print(f"  {problem}")
    return int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped; the notebook that was being executed is left unchanged.")
