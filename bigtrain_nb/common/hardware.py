"""Description of this machine, as needed to interpret a measurement."""

import ctypes
import functools
import math
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import suppress
from glob import glob
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


@functools.cache
def machine() -> dict:
    """Return a dictionary: processor, cores, memory in GiB, system, Python, library versions.

    Cores and memory are those that this process may use. If the machine has more, as with a container, there are also
    "cores_of_host" and "memory_gib_of_host". The version of a library that is not installed is None. With NVIDIA GPUs
    there are also "gpus" (a list of names, with their memory), "driver" and "cuda" (the CUDA runtime from pip).

    Example::

        here = bt.machine()
        print(here["processor"], here["cores"], here["memory_gib"])
    """
    of_host = {}
    if cores() < (os.cpu_count() or 1):
        of_host["cores_of_host"] = os.cpu_count()
    if memory_limit() < psutil.virtual_memory().total:
        of_host["memory_gib_of_host"] = round(psutil.virtual_memory().total / 2**30, 1)
    return {
        "processor": _processor(),
        "cores": cores(),
        "memory_gib": round(memory_limit() / 2**30, 1),
        **of_host,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "tensorflow": version_of("tensorflow"),
        "keras": version_of("keras"),
        "numpy": version_of("numpy"),
        **_gpus(),
    }


def version_of(package):
    """Return the version of the package imported by this name, without importing it; None if it is not installed.

    Its distribution may have another name: tensorflow-cpu, tf-nightly and keras-nightly.
    """
    if loaded := sys.modules.get(package):
        return loaded.__version__
    if find_spec(package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        brought_by = packages_distributions().get(package)  # slow
        return version(brought_by[0]) if brought_by else None


def cores() -> int:
    """Return how many cores this process may use: those in its affinity mask, or fewer if a container has a limit.

    Limits are rounded up: 1.5 cores can keep two threads busy and count as 2.

    Example::

        numbers = tf.data.Dataset.range(100)
        squares = numbers.map(lambda n: n * n, num_parallel_calls=bt.cores())
    """
    return math.ceil(core_limit())


def core_limit():
    """Return the limit of cores for this process, possibly a fraction such as 1.5.

    It considers affinity (`taskset`) and the CPU quotas of its control group and all parents, versions 1 and 2.
    """
    return min([len(usable_cores()), *map(_quota, _control_groups("cpu"))])


def usable_cores():
    """Return the numbers of the cores that this process may run on, which `taskset` can restrict."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def memory_limit():
    """Return the memory limit of this process in bytes: the machine's memory or that of its control groups."""
    return min([psutil.virtual_memory().total, *map(_memory_of, _control_groups("memory"))])


def lost_seconds():
    """Return the total seconds that cores were ready to run but could not; 0 if the system does not report it.

    The sum over all processes of the time that the host gave to other virtual machines ("steal" in /proc/stat, man 5
    proc_stat), and of throttling by a control group's limit ("throttled" in its cpu.stat). Steal is reported for all
    cores of the machine and scaled to those that this process may use.
    """
    stolen = 0.0
    with suppress(OSError), open("/proc/stat", encoding="utf-8") as lines:  # only Linux has it
        stolen = int(lines.readline().split()[8]) / os.sysconf("SC_CLK_TCK") * core_limit() / os.cpu_count()
    return stolen + max([0.0, *map(_throttled, _control_groups("cpu"))])


def seconds_of_others():
    """Return the total seconds that the cores of this process were busy with other programs, or `lost_seconds`."""
    times = psutil.cpu_times(percpu=True)
    busy = lost_seconds()
    for core in usable_cores():
        if core < len(times):
            busy += times[core].user + times[core].system + getattr(times[core], "nice", 0.0)
    return busy - own_cpu_seconds()


def own_cpu_seconds():
    """Return the CPU seconds of this process and its children, including exited ones."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def _throttled(group):
    """Return a control group's throttled seconds; the file has microseconds in version 2, nanoseconds in version 1."""
    words = _words(group / "cpu.stat")
    told = dict(zip(words[::2], words[1::2], strict=False))
    return int(told.get("throttled_usec", 0)) / 1e6 + int(told.get("throttled_time", 0)) / 1e9


def _control_groups(controller):
    """Return the folders of this process's control group and its parents.

    A line of /proc/self/cgroup is "4:cpu,cpuacct:/path" in version 1 and "0::/path" in version 2 (man 7 cgroups). In a
    container this may be the host's path, which does not exist there: then the top folder is the container's.
    """
    try:
        lines = OWN_CGROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []  # not Linux
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = CGROUPS / controller if controllers else CGROUPS
        group = top / path.strip("/")
        found += [each for each in (group, *group.parents) if each.is_relative_to(top)]
    return found


def _quota(group):
    """Return the limit of cores of a control group: microseconds of CPU time / those of the period."""
    words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
    has_limit = len(words) == 2 and words[0].isdigit()  # else "max" in version 2, "-1" in version 1
    return int(words[0]) / int(words[1]) if has_limit else math.inf


def _memory_of(group):
    """Return the memory limit of a control group in bytes; in version 1 "no limit" is a number near 2^63."""
    words = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
    return int(words[0]) if words and words[0].isdigit() else math.inf


def _words(path):
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []  # no such limit in this version, or in this group


def nvidia_gpus():
    """Return the numbers or names, as in CUDA_VISIBLE_DEVICES, of the NVIDIA GPUs that this process may use.

    It does not load TensorFlow, which would allocate their memory.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu not in ("", "-1")]
    if found := glob("/dev/nvidia[0-9]*"):
        return [str(number) for number in range(len(found))]
    in_wsl = os.path.exists("/dev/dxg")  # which has no /dev/nvidia*
    return [str(number) for number, _ in enumerate(_nvidia_smi("name"))] if in_wsl else []


CUDA_LIBRARIES = {
    "libcuda.so.1": "NVIDIA's driver",
    "libcudart.so.12": "nvidia-cuda-runtime-cu12",
    "libcublas.so.12": "nvidia-cublas-cu12",
    "libcublasLt.so.12": "nvidia-cublas-cu12",
    "libcufft.so.11": "nvidia-cufft-cu12",
    "libcusolver.so.11": "nvidia-cusolver-cu12",
    "libcusparse.so.12": "nvidia-cusparse-cu12",
    "libcudnn.so.9": "nvidia-cudnn-cu12",
}
"""Libraries that TensorFlow for CUDA 12 loads before it uses a GPU, and the package that has each."""


def missing_cuda_libraries():
    """Return which of `CUDA_LIBRARIES` cannot be loaded, from the system's search path or pip's folders."""
    nvidia = find_spec("nvidia")
    folders = nvidia.submodule_search_locations if nvidia else None
    missing = {}
    for library, source in CUDA_LIBRARIES.items():
        paths = [library, *(path for folder in folders or () for path in glob(f"{folder}/*/lib/{library}"))]
        if not any(_loads(path) for path in paths):
            missing[library] = source
    return missing


def _loads(path):
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


def gpu_memory():
    """Return the memory of the first NVIDIA GPU in use, in bytes; None if it is unknown or MIG is enabled."""
    for gpu in nvidia_gpus()[:1]:
        for line in _nvidia_smi("memory.total,mig.mode.current", f"--id={gpu}"):
            size, _, parts = line.partition(",")
            if size.split()[0].isdigit() and parts.strip() != "Enabled":
                return int(size.split()[0]) * 2**20
    return None


def _gpus():
    """Return the GPU entries of `machine`; empty without GPUs."""
    if not nvidia_gpus():
        return {}
    drivers = _nvidia_smi("driver_version")
    cuda = None
    for runtime in ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"):  # the names for CUDA 12 and later
        with suppress(PackageNotFoundError):
            cuda = cuda or version(runtime)
    return {"gpus": _nvidia_smi("name,memory.total"), "driver": drivers[0] if drivers else None, "cuda": cuda}


def _nvidia_smi(query, *options):
    """Return the output of nvidia-smi, a line for each GPU; empty if it is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _processor():
    with suppress(OSError):  # only Linux has it
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if found := re.search(r"^model name[ \t]*:[ \t]*(.*\S)", info, re.MULTILINE):
            return found[1]
    return platform.processor() or platform.machine()
