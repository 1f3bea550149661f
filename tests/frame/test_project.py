"""Facts that are stated in several files agree."""

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
EXTRAS = PROJECT["optional-dependencies"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
PINNED = {canonicalize_name(pin.name): pin for pin in PINS}
PYTHONS = ["3.11", "3.12", "3.13"]


def needs(name, extras):
    """Return the requirements of a package with these extras on this platform; none if it is not installed."""
    try:
        needed = [Requirement(text) for text in metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        return []
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [need for need in needed if not need.marker or any(map(need.marker.evaluate, environments))]


def test_everything_that_is_needed_is_pinned_exactly_within_its_bounds():
    assert len(PINNED) == len(PINS)
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in PINS)
    named = PROJECT["dependencies"] + sum(EXTRAS.values(), SETTINGS["build-system"]["requires"])
    queue = [Requirement(text) for text in named]
    of_peers = {Requirement(text).name for text in EXTRAS["peers"]}  # pinned without their own requirements
    seen = set()
    while queue:
        need = queue.pop()
        if str(need) not in seen:
            seen.add(str(need))
            pin = PINNED[canonicalize_name(need.name)]
            assert need.specifier.contains(str(pin.specifier)[2:]), f"{need}, but {pin}"
            if need.name not in of_peers:
                queue += needs(need.name, need.extras)
    assert len(seen) > 150


def test_the_python_range_is_the_same_everywhere():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(6, 30) if f"3.{minor}" in allowed] == PYTHONS
    assert [line.split()[-1] for line in PROJECT["classifiers"] if "Python :: 3." in line] == PYTHONS
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert f"python{PROJECT['requires-python']}" in conda
    assert conda[-1] == {"pip": ["-c constraints.txt", "-e .[workbook,hub,test]"]}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == [PYTHONS[0], PYTHONS[-1]]
    for file in ("README.md", "Makefile"):
        assert "Python 3.11 to 3.13" in (ROOT / file).read_text()


def test_ci_makes_the_environment_of_conda_and_runs_a_notebook_in_it():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    *_, setup, run = workflow["jobs"]["conda"]["steps"]
    name = yaml.safe_load((ROOT / "environment.yml").read_text())["name"]
    assert setup["with"]["environment-file"] == "environment.yml" and setup["with"]["activate-environment"] == name
    assert "-l" in run["shell"] or "-el" in run["shell"]  # only a login shell activates the environment
    notebook = run["run"].removeprefix("python -m pytest --nbval ")
    assert (ROOT / notebook).exists()
    said = (ROOT / "README.md").read_text()
    assert f"`conda env create -f environment.yml && conda activate {name}`" in said


def test_the_dev_container_makes_the_same_environment():
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    container = json.loads(re.sub(r"^//.*\n", "", text, flags=re.MULTILINE))
    assert re.search(r"/python:([\d.]+)", container["image"])[1] in PYTHONS
    target = container["postCreateCommand"].removeprefix("make ")
    assert f"READY := {target}\n" in (ROOT / "Makefile").read_text()


BESIDE = [f"notebooks/{page}.md" for page in ("README", "older-tutorials", "tried", "your-fit")]


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *BESIDE])
def test_links_and_commands_exist(file):
    text = (ROOT / file).read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / file).parent / link).exists()] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= set(targets)


def test_each_notebook_says_how_it_opens_elsewhere_with_the_wheel_that_a_clone_makes():
    wheel = f"bigtrain_nb-{PROJECT['version']}-py3-none-any.whl"
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        said = re.search(r"`pip wheel --no-deps \.`.*`%pip install -q \"(\S+?)(\[[\w,]+\])?\"`", first)
        assert said and said[1] == wheel, path.name
        assert set((said[2] or "[]")[1:-1].split(",")) <= {"", *PROJECT["optional-dependencies"]}


PIP_INSTALL = re.compile(r"pip install ((?:(?:-\w|--[\w-]+)\s+(?:constraints\.txt\s+)?)*)([\"']?)([^\s`\"')]+)\2")
ELSEWHERE = {"jax"}  # for a script that uses a separate environment


def pages_and_messages():
    """Return {path: text} of all files with installation instructions."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("notebooks/*.md"), *ROOT.glob("notebooks/scripts/*")]
    files += [*ROOT.glob("benchmarks/*"), *ROOT.glob("bigtrain_nb/**/*.py")]
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files if path.is_file()}
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[path.relative_to(ROOT)] = "\n".join("".join(cell["source"]) for cell in cells)
    return texts


def can_be_installed(what):
    """Return whether pip finds it: this clone, its wheel, or a pinned package. The project itself is on no index."""
    name, _, extras = what.rstrip("]").partition("[")
    wheel = f"bigtrain_nb-{PROJECT['version']}-py3-none-any.whl"
    if name in (".", "/path/to/this/folder", "PATH", wheel):
        return set(filter(None, extras.split(","))) <= set(EXTRAS)
    return name in ELSEWHERE or canonicalize_name(name) in PINNED


def test_what_a_reader_is_told_to_install_can_be_installed():
    texts = pages_and_messages()
    told = {(str(place), found[3]) for place in texts for found in PIP_INSTALL.finditer(texts[place])}
    assert len(told) > 20 and len({what for _, what in told}) > 6
    assert [one for one in sorted(told) if not can_be_installed(one[1])] == []
    assert not can_be_installed("bigtrain-nb[workbook]") and not can_be_installed(".[workbooks]")


def test_each_case_of_the_plans_benchmark_has_a_network(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import budget

    assert all(callable(case.build) for case in budget.CASES)
