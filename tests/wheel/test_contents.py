"""The contents of the wheel, the sdist and an editable install, and their metadata on a package index."""

import re
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from building import ROOT, build

from bigtrain_nb.common.beside import NAMES

LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)]+)\)")


def files_under(folder):
    """Return the checkout's files in a folder, as relative paths, without Python's or Jupyter's leftovers."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return {str(path) for path in files if not any(part.startswith((".", "__pycache__")) for part in path.parts)}


@pytest.fixture(scope="module")
def metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_package_and_what_stands_beside_a_notebook(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = {f"bigtrain_nb/{path}" for path in files_under(ROOT / "bigtrain_nb")}
    notebooks = files_under(ROOT / "notebooks")
    beside = {f"bigtrain_nb/beside/{path}" for path in notebooks if Path(path).parts[0] in NAMES}
    assert held == package | beside
    assert {"bigtrain_nb/py.typed", "bigtrain_nb/beside/scripts/jobset.yaml"} < held


def test_the_sdist_is_the_whole_project(sdist):
    names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    for folder in ("benchmarks", "bigtrain_nb", "notebooks", "tests", "tools"):
        needed = {f"{folder}/{path}" for path in files_under(ROOT / folder) if not path.startswith("artifacts/")}
        assert needed <= names
    files = ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "conftest.py", "constraints.txt", "environment.yml")
    assert set(files) <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", ".git/"))]


def test_an_editable_install_is_a_plain_path_that_editors_read(tmp_path):
    archive = zipfile.ZipFile(build("editable", ROOT, tmp_path))
    (name,) = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert name.endswith(".pth") and Path(archive.read(name).decode().strip()) == ROOT


def test_an_index_shows_the_readme_with_links_that_lead_somewhere(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL"))
    repository = urls["Repository"]
    assert all(url.startswith(repository) for url in urls.values())
    links = LINK.findall(metadata.get_payload())
    assert len(links) > 40 and sum(is_picture == "!" for is_picture, _ in links) >= 2
    for is_picture, link in links:
        kind = "raw" if is_picture else "blob"
        if link.startswith(repository):
            path = link.removeprefix(f"{repository}/{kind}/main/").partition("#")[0]
            assert (ROOT / path).is_file(), link
        else:
            assert link.startswith(("https://", "#")), link
