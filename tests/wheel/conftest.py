"""The shipped files, built once, and a Python that has them without the checkout."""

import json
import os
import tarfile

import pytest
from building import ROOT, build, installed


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory):
    """The wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)


@pytest.fixture(scope="session")
def fresh(wheel, tmp_path_factory):
    """The folder of an environment with the wheel and a kernel."""
    folder = installed(wheel, tmp_path_factory.mktemp("fresh"))
    kernel = folder / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [str(folder / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "fresh", "language": "python"}))
    return folder


@pytest.fixture
def kernel_of_the_wheel(fresh, monkeypatch):
    """The folder of the fresh environment, which all kernels use."""
    monkeypatch.setenv("JUPYTER_PATH", os.fspath(fresh / "share" / "jupyter"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return fresh
