"""What is shipped, built once, and a Python that has it and nothing of the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv

import pytest
from building import ROOT, build


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory):
    """The wheel that is made from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build("wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)


@pytest.fixture(scope="session")
def fresh(wheel, tmp_path_factory):
    """The folder of an environment with the wheel. What the wheel needs it has from this environment, whose own .pth
    files, and so an editable install of the checkout, are not read there.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("\n".join(needed) + "\n")
    kernel = folder / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "fresh", "language": "python"}))
    return folder


@pytest.fixture
def kernel_of_the_wheel(fresh, monkeypatch):
    """Kernels are of the fresh environment, whose folder this is."""
    monkeypatch.setenv("JUPYTER_PATH", os.fspath(fresh / "share" / "jupyter"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return fresh
