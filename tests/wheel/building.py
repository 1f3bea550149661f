"""The build backend, called as pip does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(kind, source, folder):
    """Build a "wheel", an "sdist" or an "editable" wheel of a source folder; return the file that was made."""
    code = f"import hatchling.build, sys; print(hatchling.build.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, folder]
    done = subprocess.run(command, cwd=source, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return folder / done.stdout.split()[-1]
