"""The helper and the package stay small: additions require removals, or a move up one layer."""

from pathlib import Path

import pytest
from test_arrows import HELPER

PACKAGE = Path(__file__).parents[2] / "bigtrain_nb"
SIZES = {  # physical lines of Python; these numbers may only be lowered
    "helper": 9_600,
    "package without series": 24_047,
}
AIMS = {"helper": 9_600, "package without series": 20_300}


def lines(name):
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "series"]
    if name == "helper":
        files = [path for path in files if path.relative_to(PACKAGE).parts[0] in HELPER]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


@pytest.mark.parametrize("name", SIZES)
def test_it_does_not_grow(name):
    found, most = lines(name), SIZES[name]
    assert found <= most, (
        f"the {name} has {found:,} lines, of which {most:,} are allowed and the aim is {AIMS[name]:,}: take something"
        " out, or move it up a layer"
    )
