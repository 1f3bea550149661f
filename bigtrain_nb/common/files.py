"""Writing files so that nobody ever sees half of one."""

import os
from pathlib import Path


def write_text(path, text):
    """Write a whole file at once: beside ``path``, then renamed."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
