"""Write what was predicted and solved in the copies of a folder to one page, FOLDER/report.html.

    python -m bigtrain_nb.report FOLDER

The exercises in which something was written are checked again, in processes of their own.
"""

import argparse
import sys
from pathlib import Path

from bigtrain_nb.common.files import write_text
from bigtrain_nb.report.again import check_again
from bigtrain_nb.report.page import page
from bigtrain_nb.workbook import copies, record


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m bigtrain_nb.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where the copies of the notebooks are")
    folder = parser.parse_args(arguments).folder
    notebooks = sorted(folder.glob("*.ipynb"))
    if not notebooks:
        sys.exit(f"There are no notebooks in {folder}: `make lab` makes copies of them in my/")
    checked = {}
    for path in notebooks:
        print(f"{path.name}: checking its exercises ...", flush=True)
        try:
            checked[path.stem] = check_again(path, copies.shipped_cells(path))
        except ValueError as error:
            print(f"  left out: {error}")
    with record.locked(folder):
        notes = record.read(folder)
    file = folder / "report.html"
    write_text(file, page(notes, checked))
    print(f"The report is ready: open {file}")


if __name__ == "__main__":
    main()
