"""The pages of the reference say what the code says, and have every public name."""

from pathlib import Path

import reference_pages

import bigtrain_nb as bt

FOLDER = Path(__file__).parents[2] / "notebooks" / "reference"


def test_every_public_name_has_one_place():
    names = [name for _, names in reference_pages.PAGES.values() for name in names]
    assert sorted(names) == bt.__all__


def test_the_pages_are_current():
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert written == reference_pages.pages(), "run tools/reference_pages.py"


def test_a_section_has_the_call_the_errors_the_example_and_what_is_returned():
    text = reference_pages.pages()["measure.md"]
    section = text[text.index("## race\n") : text.index("## Result\n")]
    assert "bt.race(build: Callable, *, seconds: float = 60.0," in section
    assert "Raises ValueError for fewer than two combinations" in section
    assert "[`throughput`](measure.md#throughput)" in section
    assert "found = bt.race(build, seconds=1, batch=[10, 100])" in section
    assert "### Race\n" in section and "- `finalists: list[dict]`" in section
    assert "- `save(path: str | os.PathLike) -> None`" in section, "which a base of its base has"
