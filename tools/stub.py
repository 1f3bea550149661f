"""Write bigtrain_nb/__init__.pyi: the lazily loaded names for type checkers and editors.

python tools/stub.py
"""

from pathlib import Path

from bigtrain_nb import _HOME

FILE = Path(__file__).resolve().parent.parent / "bigtrain_nb" / "__init__.pyi"
HEAD = """\
# What type checkers and editors read in place of __init__.py. Written by tools/stub.py from the map of names there.
# ruff: noqa: I001

"""
FOOT = """
__version__: str

def load_ipython_extension(shell) -> None: ...
"""


def stub():
    """Return the text of the file: an import for each name, in the form that PEP 484 treats as public."""
    lines = []
    for module, names in _HOME.items():
        lines += [f"from bigtrain_nb.{module} import {name} as {name}\n" for name in names]
    return HEAD + "".join(lines) + FOOT


if __name__ == "__main__":
    FILE.write_text(stub(), encoding="utf-8")
