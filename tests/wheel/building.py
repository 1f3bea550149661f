"""The build backend, called as pip does, and an environment for what it has built."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(kind, source, folder):
    """Build a "wheel", an "sdist" or an "editable" wheel of a source folder; return the file that was made."""
    code = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return folder / done.stdout.split()[-1]


def installed(wheel, folder):
    """Make the folder an environment with the wheel, and return it.

    What the wheel needs it has from this environment, whose own .pth files, and so an editable install of the checkout,
    are not read there.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("\n".join(needed) + "\n")
    return folder
