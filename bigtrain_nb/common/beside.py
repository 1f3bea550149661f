"""The files next to the notebooks: the scripts that they show and run, images, the glossary."""

from pathlib import Path

NAMES = ("scripts", "images", "glossary.md")
REMEDY = "`%run -m bigtrain_nb.unpack` puts it next to your notebook"
PACKAGE = Path(__file__).parents[1]


def folder():
    """Return their folder: in the installed package, or, in a checkout, that of the notebooks."""
    carried = PACKAGE / "beside"
    return carried if carried.is_dir() else PACKAGE.parent / "notebooks"


def remedy_for(path):
    """Return the end of a sentence that says how to get a missing file of the series; "" for any other path."""
    path = Path(path)
    if path.parts[:1] and path.parts[0] in NAMES and (folder() / path).is_file():
        return f"; it belongs to this series: {REMEDY}"
    return ""
