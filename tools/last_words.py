"""Why did a notebook's kernel die? Execute it again, and show what the kernel writes before it goes.

python tools/last_words.py NOTEBOOK.ipynb

A kernel sends its standard error to the notebook through a pipe of its own, which ends with it: the reason of a crash
in TensorFlow or CUDA is lost. Here it goes to the terminal, with all threads' stacks if a signal ended it.
"""

import argparse
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

CELL_SECONDS = 600


def tell(cell, cell_index):
    print(f"cell {cell_index} ({cell.id})", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    path = parser.parse_args().notebook.resolve()
    os.environ["PYTHONFAULTHANDLER"] = "1"
    client = NotebookClient(
        nbformat.read(path, as_version=4),
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
        on_cell_execute=tell,
    )
    try:
        client.execute()
    except DeadKernelError:
        sys.exit("The kernel died in the cell that is named last. If it wrote nothing, look for the end in `dmesg`.")
    except CellExecutionError as error:
        sys.exit(f"No kernel died, but a cell failed:\n{error}")
    print("Every cell has run.")


if __name__ == "__main__":
    main()
