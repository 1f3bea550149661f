"""What stands beside the notebooks of the series: the scripts that they show and run, pictures, the glossary."""

from pathlib import Path

NAMES = ("scripts", "images", "glossary.md")
INDEX = ("README.md", "older-tutorials.md", "reference.md", "tried.md", "your-fit.md")
"""What stands there too, and is of use only beside all notebooks."""
REMEDY = "`%run -m bigtrain_nb.unpack` puts it next to your notebook"
PACKAGE = Path(__file__).parents[1]


def folder():
    """Return the folder that holds them: one in the installed package, or, in a checkout, that of the notebooks."""
    carried = PACKAGE / "beside"
    return carried if carried.is_dir() else PACKAGE.parent / "notebooks"


def remedy_for(path):
    """Return how a file of the series comes to the path where it is missing, as the end of a sentence.

    "" for any other path.
    """
    path = Path(path)
    if path.parts[:1] and path.parts[0] in NAMES and (folder() / path).is_file():
        return f"; it is one of this series: {REMEDY}"
    return ""
