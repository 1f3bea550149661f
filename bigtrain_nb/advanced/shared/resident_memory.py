"""The peak memory of this process."""

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path


def reset_peak():
    """Reset the kernel's peak memory counter of this process; return whether that worked (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return True
    return False


def peak_resident():
    """Return the highest resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+)", status.read_text()) if status.exists() else None
    if found:
        return 1024 * int(found[1])
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
