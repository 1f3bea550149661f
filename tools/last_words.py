"""Why did a notebook's kernel die? Execute it again, and show the kernel's last output.

python tools/last_words.py NOTEBOOK.ipynb

A kernel sends its standard error to the notebook through its own pipe, which ends with it, so the cause of a crash in
TensorFlow or CUDA is lost. Here it goes to the terminal, with the stacks of all threads if a signal ended the kernel.
"""

import argparse
import os
import sys
from pathlib import Path

import notebook_rules as rules
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from render import execute


def tell(cell, cell_index):
    print(f"cell {cell_index} ({cell.id})", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    path = parser.parse_args().notebook.resolve()
    if not path.is_file():
        parser.error(f"there is no {path}")
    os.environ["PYTHONFAULTHANDLER"] = "1"
    to_the_terminal = ["--IPKernelApp.capture_fd_output=False"]
    try:
        execute(rules.read(path), path.parent, extra_arguments=to_the_terminal, on_cell_execute=tell)
    except DeadKernelError:
        sys.exit("The kernel died in the last cell named above. If it wrote nothing, look for the cause in `dmesg`.")
    except (CellExecutionError, CellTimeoutError) as error:
        sys.exit(f"The kernel did not die, but a cell failed:\n{error}")
    print("Every cell has run.")


if __name__ == "__main__":
    main()
