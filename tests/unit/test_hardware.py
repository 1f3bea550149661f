"""Cores and memory of a container: fake control groups of both versions, with limits in parents too."""

import io
import os
import subprocess
import sys
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest

from bigtrain_nb.common import hardware

GIB = 2**30
Memory = namedtuple("Memory", "total")


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A machine with 16 cores and 64 GiB. Call it with the lines of /proc/self/cgroup and {file: content}."""
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(hardware.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(hardware.psutil, "virtual_memory", lambda: Memory(64 * GIB))

    def put(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    hardware.machine.cache_clear()
    yield put
    hardware.machine.cache_clear()


def test_version_2_takes_the_least_of_a_group_and_those_above_it_or_the_affinity(host, monkeypatch):
    files = {
        "pods/cpu.max": "250000 100000\n",
        "pods/one/cpu.max": "max 100000\n",
        "pods/one/main/cpu.max": "800000 100000\n",
        "pods/memory.max": "max\n",
        "pods/one/memory.max": f"{3 * GIB}\n",
        "pods/two/cpu.max": "100000 100000\n",
    }
    host("0::/pods/one/main\n", files)
    assert (hardware.core_limit(), hardware.cores(), hardware.memory_limit()) == (2.5, 3, 3 * GIB)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: {3, 7}, raising=False)
    assert hardware.cores() == 2 and hardware.usable_cores() == {3, 7}


V1 = "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n3:cpuset:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n"


@pytest.mark.parametrize("folder", ["docker/abc/", "docker/", ""])
def test_version_1_also_where_a_container_sees_its_group_at_the_top(host, folder):
    files = {
        f"cpu/{folder}cpu.cfs_quota_us": "50000\n",
        f"cpu/{folder}cpu.cfs_period_us": "100000\n",
        f"memory/{folder}memory.limit_in_bytes": f"{2 * GIB}\n",
    }
    host(V1, files)
    assert (hardware.core_limit(), hardware.cores(), hardware.memory_limit()) == (0.5, 1, 2 * GIB)


def test_no_limit_in_either_version_nor_without_control_groups(host, monkeypatch, tmp_path):
    host(
        V1,
        {
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
        },
    )
    assert (hardware.core_limit(), hardware.memory_limit()) == (16, 64 * GIB)
    monkeypatch.setattr(hardware, "OWN_CGROUP", tmp_path / "not Linux")
    assert (hardware.core_limit(), hardware.memory_limit()) == (16, 64 * GIB)


def test_the_machine_shows_what_the_host_has_only_where_that_is_more(host):
    host("0::/\n", {"cpu.max": "400000 100000\n", "memory.max": f"{8 * GIB}\n"})
    here = hardware.machine()
    assert (here["cores"], here["cores_of_host"]) == (4, 16)
    assert (here["memory_gib"], here["memory_gib_of_host"]) == (8.0, 64.0)
    hardware.machine.cache_clear()
    host("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"})
    assert not {"cores_of_host", "memory_gib_of_host"} & set(hardware.machine())


def test_gpus_are_named_with_their_driver(host, monkeypatch):
    answers = {"name,memory.total": ["NVIDIA H100, 81559 MiB"], "driver_version": ["570.1"], "name": ["NVIDIA H100"]}
    host("0::/\n", {})
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert hardware._nvidia_smi("name") == []
    monkeypatch.setattr(hardware, "_nvidia_smi", answers.get)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(hardware, "glob", lambda _: ["/dev/nvidia0"])
    here = hardware.machine()
    assert (here["gpus"], here["driver"]) == (["NVIDIA H100, 81559 MiB"], "570.1") and "cuda" in here

    monkeypatch.setattr(hardware, "glob", lambda _: [])
    monkeypatch.setattr(hardware.os.path, "exists", lambda path: path == "/dev/dxg")
    assert hardware.nvidia_gpus() == ["0"], "in WSL2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    hardware.machine.cache_clear()
    assert hardware.nvidia_gpus() == [] and "gpus" not in hardware.machine()


SMI = """#!/bin/sh
case "$*" in
*--id=1*) echo "24576 MiB, [N/A]" ;;
*--id=GPU-ab*) echo "40960 MiB, Enabled" ;;
*) printf "81920 MiB, Disabled\\n24576 MiB, [N/A]\\n" ;;
esac
"""


@pytest.mark.parametrize(
    ("visible", "expected"), [("0,1", 81920 * 2**20), ("1,0", 24576 * 2**20), ("GPU-ab", None), ("-1", None)]
)
def test_the_memory_of_a_gpu_is_that_of_the_first_in_use(tmp_path, monkeypatch, visible, expected):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.gpu_memory() == expected


def test_lost_seconds_are_a_containers_share_of_the_stolen_time_and_those_of_its_limit(host, monkeypatch):
    """The container has 4 of 16 cores; 800 ticks of 10 ms are stolen from the whole machine."""
    host("0::/\n", {"cpu.max": "400000 100000\n", "cpu.stat": "usage_usec 9\nthrottled_usec 2500000\n"})
    monkeypatch.setattr(hardware.os, "sysconf", lambda _: 100)
    monkeypatch.setattr("builtins.open", lambda *_, **__: io.StringIO("cpu  1 2 3 4 5 6 7 800 0 0\n"))
    assert hardware.lost_seconds() == pytest.approx(8 * 4 / 16 + 2.5)


def test_a_version_is_found_by_the_name_of_the_import_without_the_import(tmp_path, monkeypatch):
    """For example, tensorflow-cpu and tf-nightly provide "tensorflow"."""
    (tmp_path / "swiftflow").mkdir()
    (tmp_path / "swiftflow" / "__init__.py").write_text("raise RuntimeError")
    facts = tmp_path / "swiftflow_cpu-2.99.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: swiftflow-cpu\nVersion: 2.99.0\n")
    (facts / "RECORD").write_text("swiftflow/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert hardware.version_of("swiftflow") == "2.99.0"
    assert hardware.version_of("swiftflow_cpu") is None


def test_what_is_loaded_tells_its_version_itself(host, monkeypatch):
    def not_here(name):
        raise hardware.PackageNotFoundError(name)

    host("0::/\n", {})
    monkeypatch.setattr(hardware, "version", not_here)
    for name in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__version__=f"{name} of tomorrow"))
    here = hardware.machine()
    assert (here["tensorflow"], here["keras"]) == ("tensorflow of tomorrow", "keras of tomorrow")


START = """
import os, sys
from pathlib import Path
from bigtrain_nb.common import hardware
hardware.CGROUPS, hardware.OWN_CGROUP = Path(sys.argv[1]), Path(sys.argv[1], "own")
hardware.os.sched_getaffinity = lambda _: set(range(16))
from bigtrain_nb import tf
tf.random.normal([64, 64]) @ tf.ones([64, 64])
names = [Path("/proc/self/task", thread, "comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
assert any(name.startswith("tf_") for name in names), "no names"
print(names.count("tf_Compute"), *(os.environ.get(f"TF_NUM_{kind}_THREADS") for kind in ("INTRAOP", "INTEROP")))
"""


BOTH_TOLD = {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "3"}
TOLD = pytest.mark.more("a process that loads TensorFlow for each way to be told otherwise")


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
@pytest.mark.parametrize(
    ("limit", "own", "said"),
    [
        ("500000 100000", {}, "5 5 5"),
        pytest.param("500000 100000", BOTH_TOLD, "3 2 3", marks=TOLD),
        pytest.param("max 100000", {"TF_NUM_INTEROP_THREADS": "4"}, "4 None 4", marks=TOLD),
    ],
)
def test_tensorflow_starts_as_many_threads_as_the_container_has_cores_unless_told_otherwise(tmp_path, limit, own, said):
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(limit)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_NUM_")}
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], env={**clean, **own}, capture_output=True, text=True, timeout=120
    )
    if "AssertionError: no names" in done.stderr:
        pytest.skip("TensorFlow 2.20 gives its threads no names")
    assert done.stdout.strip() == said, done


def test_what_this_process_and_those_that_it_ended_use_is_not_what_others_take(monkeypatch):
    before = hardware.own_cpu_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    of_ended = hardware.own_cpu_seconds()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert of_ended - before > 0.4 and hardware.own_cpu_seconds() - of_ended > 0.15
    core = SimpleNamespace(user=5.0, system=2.0, nice=1.0)
    monkeypatch.setattr(hardware.psutil, "cpu_times", lambda percpu: [core, core, core])
    monkeypatch.setattr(hardware, "usable_cores", lambda: {0, 2})
    monkeypatch.setattr(hardware, "lost_seconds", lambda: 4.0)
    monkeypatch.setattr(hardware, "own_cpu_seconds", lambda: 6.0)
    assert hardware.seconds_of_others() == 2 * 8 + 4 - 6


def test_the_libraries_of_cuda_that_cannot_be_loaded_are_named(monkeypatch, tmp_path):
    installed = tmp_path / "cudnn" / "lib" / "libcudnn.so.9"
    installed.parent.mkdir(parents=True)
    installed.touch()
    there = {*hardware.CUDA_LIBRARIES, str(installed)} - {"libcufft.so.11", "libcudnn.so.9"}

    def load(path):
        if path not in there:
            raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(hardware.ctypes, "CDLL", load)
    monkeypatch.setattr(hardware, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    assert hardware.missing_cuda_libraries() == {"libcufft.so.11": "nvidia-cufft-cu12"}


@pytest.mark.skipif(hardware.missing_cuda_libraries() == {}, reason="CUDA's libraries are all here")
def test_the_warning_of_a_gpu_that_is_not_used_names_what_is_missing():
    code = "from bigtrain_nb import tf"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], env=environment, capture_output=True, text=True)
    assert "TensorFlow can use none" in done.stderr
    for library, source in hardware.missing_cuda_libraries().items():
        assert f"{library} ({source})" in done.stderr
