"""What this machine is, in the few facts that a figure needs beside it."""

import functools
import os
import platform
from glob import glob
from importlib.metadata import version

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
        "tensorflow": version("tensorflow"),
        "keras": version("keras"),
        "numpy": version("numpy"),
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
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
