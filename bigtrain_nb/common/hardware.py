"""What this machine is, in the few facts that a figure needs beside it."""

import functools
import os
import platform
from glob import glob
from importlib import metadata

import psutil


@functools.cache
def machine():
    """Return a dictionary: processor, cores this process may use, memory in GiB, system, Python, library versions."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("tensorflow", "keras", "numpy") if _version(name)},
    }


def cores():
    """Return the number of cores this process may use, which a container or `taskset` can make less than all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nvidia_gpus():
    """Return the names of the NVIDIA GPUs that this process may use, without loading TensorFlow, which takes them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(glob("/dev/nvidia[0-9]*")))]
    return [gpu for gpu in visible.split(",") if gpu not in ("", "-1")]


def _processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
