"""The helper works alone: its tests pass with a wheel built without the layers above it."""

import os
import shutil
import subprocess
import tarfile

import pytest
from building import ROOT, build, installed

ABOVE = ("advanced", "lab", "workbook", "series", "unpack.py")
TESTS = (
    "checks",
    "checkpoints_files",
    "cluster_spec",
    "intervals",
    "models_equality",
    "results",
    "schedules",
)
SHARED = ("unit/equal_models.py", "unit/logical_cpus.py", "unit/resume_runs.py", "tiers.py")
CONFTEST = """\
import equal_models
import pytest


@pytest.fixture
def each_reduction():
    with equal_models.reducing("by collectives"):
        yield


def pytest_configure(config):
    config.addinivalue_line("markers", "more(why): of the second tier")
"""


@pytest.fixture(scope="module")
def alone(sdist, tmp_path_factory):
    """The Python of an environment with the helper and nothing above it."""
    folder = tmp_path_factory.mktemp("helper")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    for name in ABOVE:
        path = source / "bigtrain_nb" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return installed(build("wheel", source, folder), folder / "fresh") / "bin" / "python"


@pytest.mark.more("a second wheel, and tests a second time")
def test_the_helper_passes_its_tests_without_what_stands_above_it(alone, tmp_path):
    for path in [*SHARED, *(f"unit/test_{name}.py" for name in TESTS)]:
        shutil.copy(ROOT / "tests" / path, tmp_path)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pytest_here = [alone, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not more", "-c", os.devnull]
    done = subprocess.run(
        [*pytest_here, "--rootdir", tmp_path, tmp_path], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    code = "import bigtrain_nb as bt; bt.Model, bt.compare; bt.plan_step"
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run([alone, "-c", code], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert "No module named 'bigtrain_nb.advanced'" in done.stderr
