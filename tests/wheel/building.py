"""Call the build backend as pip does, and install the result in an environment."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(kind, source, folder):
    """Build a "wheel", an "sdist" or an "editable" wheel of a source folder; return the file."""
    code = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return folder / done.stdout.split()[-1]


def installed(wheel, folder):
    """Create an environment with the wheel in the folder, and return it.

    The wheel's requirements come from the current environment, but not its .pth files, and so no editable install of
    the checkout.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(pip, check=True, timeout=120)
    (packages,) = folder.glob("lib/python*/site-packages")
    needed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("\n".join(needed) + "\n")
    return folder
