"""Two hosts: network namespaces with their own addresses and a virtual cable. Needs root."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import slurm_train
from slurm_train import weights_in

SECONDS = 200  # a safety limit: about ten seconds are enough
ADDRESSES = ("10.213.7.1", "10.213.7.2")
pytestmark = pytest.mark.more("needs root: two hosts, made of network namespaces")


def place(index):
    """Return the environment of a worker on one of the hosts."""
    cluster = {"worker": [f"{address}:2222" for address in ADDRESSES]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def hosts():
    """The names of two namespaces, each with its address."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the command ip")
    names = [f"bigtrain-{os.getpid()}-{index}" for index in range(2)]
    cable = [f"bt{os.getpid()}-{index}" for index in range(2)]
    try:
        for name in names:
            if (added := ip("netns", "add", name)).returncode:
                pytest.skip(f"no network namespaces on this machine: {added.stderr.strip()}")
        if (added := ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])).returncode:
            pytest.skip(f"no virtual cables on this machine: {added.stderr.strip()}")
        for name, end, address in zip(names, cable, ADDRESSES, strict=True):
            assert not ip("link", "set", end, "netns", name).stderr
            assert not ip("-n", name, "address", "add", f"{address}/24", "dev", end).stderr
            for device in ("lo", end):
                assert not ip("-n", name, "link", "set", device, "up").stderr
        yield names
    finally:
        ip("link", "delete", cable[0])  # exists only if the setup failed halfway
        for name in names:
            ip("netns", "delete", name)


def test_workers_on_two_hosts_train_to_the_weights_of_one_process(hosts, tmp_path, trained_here):
    workers = []
    try:
        for index, host in enumerate(hosts):
            environment = os.environ | place(index) | {"CUDA_VISIBLE_DEVICES": "-1"}
            command = ["ip", "netns", "exec", host, sys.executable, slurm_train.__file__, tmp_path]
            with open(tmp_path / f"{index}.log", "w", encoding="utf-8") as log:
                workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        end = time.monotonic() + SECONDS
        codes = [worker.wait(max(0.1, end - time.monotonic())) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert codes == [0, 0], "\n".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.log"))
    assert weights_in(tmp_path) == pytest.approx(trained_here, rel=1e-5, abs=1e-6)
