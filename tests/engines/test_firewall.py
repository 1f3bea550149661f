"""Two network namespaces, and a firewall that blocks the chief's port: both report it. Needs root and nft."""

import os
import shutil
import subprocess
import sys

import pytest
from test_namespaces import ADDRESSES, place

SECONDS = 30
CODE = f"import bigtrain_nb as bt; bt.strategy(timeout={SECONDS})"


def close(host, from_address):
    """Block incoming connections to a host."""
    rule = f"ip saddr {from_address} tcp flags & (syn | ack) == syn drop"
    table = f"table inet closed {{\nchain in {{\ntype filter hook input priority 0\n{rule}\n}}\n}}\n"
    done = subprocess.run(["ip", "netns", "exec", host, "nft", "-f", "-"], input=table, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no firewall in a network namespace of this machine: {done.stderr}")


def refused(hosts):
    """Return the error output of two workers, which know both addresses."""
    workers = []
    for rank, host in enumerate(hosts):
        environment = os.environ | place(rank) | {"CUDA_VISIBLE_DEVICES": "-1"}
        command = ["ip", "netns", "exec", host, sys.executable, "-c", CODE]
        workers.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    said = [worker.communicate(timeout=SECONDS + 120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [1, 1], said
    return said


@pytest.fixture(autouse=True)
def nft():
    if not shutil.which("nft"):
        pytest.skip("needs nft, of Debian's package nftables")


def test_a_chief_that_cannot_be_met_is_named(hosts):
    close(hosts[0], ADDRESSES[1])
    chief, worker = refused(hosts)
    assert (
        f"worker 1 ({ADDRESSES[1]}:2222) did not come within {SECONDS} s" in chief
        and f"can it reach {ADDRESSES[0]}:2222?" in chief
    )
    assert f"the chief, {ADDRESSES[0]}:2222, did not answer within {SECONDS} s" in worker
