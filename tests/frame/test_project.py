"""The files that say the same thing in two places say the same thing."""
import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import setup
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [Requirement(text) for text in PROJECT["dependencies"] + EXTRAS["book"] + EXTRAS["test"]]


def test_constraints_are_exact_and_name_nothing_twice():
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in PINS)
    names = [canonicalize_name(pin.name) for pin in PINS]
    assert len(names) == len(set(names))


def test_everything_that_is_needed_is_pinned_within_its_bounds():
    pins = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in PINS}
    peers = [Requirement(text) for text in EXTRAS["peers"]]
    for need in [*NEEDED, *peers]:
        assert need.specifier.contains(pins[canonicalize_name(need.name)]), need


def test_nothing_is_asked_for_that_nobody_uses():
    files = [ROOT / "Makefile", *(path for top in ("bigtrain_nb", "tools", "tests", "benchmarks")
                                  for path in (ROOT / top).rglob("*.py"))]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    words |= {found.dist.name for found in metadata.entry_points(group="pytest11")}  # what pytest itself uses
    modules = metadata.packages_distributions()
    for need in NEEDED:
        names = {need.name, need.name.replace("-", "_")}
        names |= {module for module, owners in modules.items() if need.name in map(canonicalize_name, owners)}
        assert words & names, need


def test_what_the_needed_packages_need_is_pinned_too():
    pinned = {canonicalize_name(pin.name) for pin in PINS}
    queue, seen = [(need.name, need.extras) for need in NEEDED], set()
    while queue:
        name, extras = queue.pop()
        if (canonicalize_name(name), *extras) in seen:
            continue
        seen.add((canonicalize_name(name), *extras))
        for text in metadata.requires(name) or []:
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                queue.append((need.name, need.extras))
    assert {name for name, *_ in seen} <= pinned
    assert len(seen) > len(NEEDED)


def test_every_pinned_version_runs_on_the_first_release_of_every_python():
    firsts = [f"3.{minor}.0" for minor in range(setup.OLDEST[1], setup.NEWEST[1] + 1)]
    installed = {canonicalize_name(found.name): found.metadata for found in metadata.distributions()}
    checked, refused = 0, []
    for pin in PINS:
        about = installed.get(canonicalize_name(pin.name))
        if about and pin.specifier.contains(about["Version"]):  # not one of the reader's own, nor an older one
            allowed = SpecifierSet(about["Requires-Python"] or "")
            refused += [f"{pin} on {python}" for python in firsts if python not in allowed]
            checked += 1
    assert refused == []
    assert checked > len(NEEDED)


def test_cuda_is_pinned_as_tensorflow_wants_it():
    pins = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in PINS}
    (wanted,) = [Requirement(text) for text in EXTRAS["gpu"]]
    needs = [Requirement(text) for text in metadata.requires("tensorflow")]
    cuda = [need for need in needs if need.marker and need.marker.evaluate({"extra": "and-cuda"})]
    cuda = [need for need in cuda if not need.marker.evaluate({"extra": ""})]
    assert wanted.extras == {"and-cuda"} and len(cuda) > 5
    assert [need for need in cuda if not need.specifier.contains(pins[need.name])] == []


def test_the_python_range_is_the_same_everywhere():
    allowed = SpecifierSet(PROJECT["requires-python"])
    oldest, newest = setup.OLDEST, setup.NEWEST
    inside = [f"3.{minor}" for minor in range(6, 30) if f"3.{minor}" in allowed]
    assert inside == [f"3.{minor}" for minor in range(oldest[1], newest[1] + 1)]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert f"python{PROJECT['requires-python']}" in conda
    assert setup.WANTED in (ROOT / "README.md").read_text()


def test_conda_installs_this_project_and_lists_no_packages_of_its_own():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert [re.match(r"\w+", item)[0] for item in conda if isinstance(item, str)] == ["python", "pip", "make"]
    assert conda[-1] == {"pip": ["-c constraints.txt", "-e .[book,test]"]}


@pytest.mark.parametrize("target, command", [
    ("lab", "-m jupyterlab --ip=127.0.0.1 --LabApp.default_url=/lab/tree/notebooks/00-measure-first.ipynb"),
    ("test", "-m pytest"),
    ("render", "tools/render.py"),
    ("book", "tools/book.py"),
    ("bench", "benchmarks/pipeline.py"),
    ("lint", "-m ruff check ."),
])
def test_each_target_sets_up_and_then_runs_in_the_projects_environment(target, command):
    dry = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert dry.stdout.index("tools/setup.py") < dry.stdout.index(f".venv/bin/python {command}")


def test_the_oldest_xdist_that_is_allowed_knows_the_option_of_make_test():
    (xdist,) = [need for need in NEEDED if need.name == "pytest-xdist"]
    assert "--no-loadscope-reorder" in (ROOT / "Makefile").read_text()
    assert not xdist.specifier.contains("3.7")  # the option came with 3.8


def test_without_any_python_make_says_so():
    made = subprocess.run(["make", "lab", "PYTHON="], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode != 0
    assert "Python 3.11 to 3.13 is needed and no python3 was found on PATH." in made.stdout
    assert setup.WANTED in made.stdout


def test_only_a_python_that_was_chosen_is_handed_on(tmp_path):
    python = tmp_path / "my own" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || printf "%s|" "$@"\n')
    python.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS", "MAKELEVEL")}
    clean["PATH"] = f"{python.parent}:{clean['PATH']}"

    def handed_on(*words, **added):
        made = subprocess.run(["make", "setup", *words], cwd=ROOT, env=clean | added, capture_output=True, text=True)
        return made.stdout

    assert handed_on() == "tools/setup.py|"
    assert handed_on(f"PYTHON={python}") == handed_on(PYTHON=str(python)) == f"tools/setup.py|{python}|"


def in_bash(folder, *words, **programs):
    """What bash prints where there are no programs but these, of one line each."""
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    command = [shutil.which("bash"), *words]
    return subprocess.run(command, env={"PATH": str(folder)}, capture_output=True, text=True).stdout


def test_ci_holds_the_style_before_it_runs_the_tests(tmp_path):
    script = ROOT / ".ci" / "run"
    assert in_bash(tmp_path, script, make='echo "$@"', dirname=f"echo '{script.parent}'") == "lint\ntest\n"


def test_ci_installs_slurm_unless_all_of_it_is_there(tmp_path):
    function = re.search(r"^install_packages\(\) {.*?^}", (ROOT / ".ci" / "slurm").read_text(), re.M | re.S)[0]

    def install(*there):
        programs = {"apt-get": 'echo "$1"', **dict.fromkeys(there, "true")}
        return in_bash(tmp_path, "-c", f"{function}\ninstall_packages", **programs)

    assert install("slurmctld", "sbatch") == "update\n"
    assert install("slurmctld", "sbatch", "slurmd", "munged") == ""


def test_the_readmes_links_and_commands_exist():
    readme = (ROOT / "README.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)", readme) if "://" not in link]
    assert links and [link for link in links if not (ROOT / link).exists()] == []
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = set(re.findall(r"\bmake (\w+)$", readme, re.MULTILINE)) | set(re.findall(r"`make (\w+)`", readme))
    assert {"lab", "test"} <= commands <= targets
    assert len(readme.splitlines()) < 140
