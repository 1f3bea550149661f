"""Where the repository is: pyproject.toml says it, and the first cell of each notebook has a link that follows from it.

python tools/repository.py                               writes the links into the notebooks
python tools/repository.py https://github.com/you/name   the repository is there now: writes pyproject.toml, too
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

import notebook_rules as rules

ROOT = Path(__file__).resolve().parent.parent
ON_GITHUB = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")
ELSEWHERE = (
    "**On a hosted service** ([open in Colab](https://colab.research.google.com/github/{place}/blob/main/notebooks/{name}))"
    " clear the stored outputs first (**Edit**, **Clear all outputs**), or you see the answers."
    " Then run `%pip install -q {package}` and `%run -m bigtrain_nb.unpack`."
)
PACKAGES = {
    "07-pay-with-time.ipynb": '"bigtrain-nb[hub]"',
    "08-share-it-out.ipynb": '"bigtrain-nb[hub]"',
    "10-feed-a-language-model.ipynb": '"bigtrain-nb[workbook,hub]"',
    "13-choose-it.ipynb": '"bigtrain-nb[workbook]"',
    "14-shrink-it-hand-it-on.ipynb": '"bigtrain-nb[workbook,hub]"',
}
"""A hosted service has what the others need beside the package itself; more would replace packages of its own."""


def address(root=ROOT):
    """The repository's address, as pyproject.toml has it."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]


def opening(source, name, repository):
    """The first cell of the notebook of that file name, with how to open it on a hosted service as its last line."""
    said = source.partition("\n\n**On a hosted service**")[0]
    place = repository.removeprefix("https://github.com/")
    package = PACKAGES.get(name, "bigtrain-nb")
    return f"{said}\n\n{ELSEWHERE.format(place=place, name=name, package=package)}"


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", nargs="?", help="its new address")
    old = address(root)
    new = parser.parse_args(arguments).repository or old
    if not ON_GITHUB.fullmatch(new):
        print(f"{new!r} is not like https://github.com/owner/name, from where Colab opens notebooks", file=sys.stderr)
        return 1
    if new != old:
        file = root / "pyproject.toml"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        print("pyproject.toml: written")
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        notebook = rules.read(path)
        source = opening(notebook.cells[0].source, path.name, new)
        if notebook.cells[0].source != source:
            notebook.cells[0].source = source
            rules.write(notebook, path)
            print(f"{path.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
