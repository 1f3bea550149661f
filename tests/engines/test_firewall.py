"""Two hosts, network namespaces, and a firewall that closes one direction: it is named. Needs root, and nft."""

import os
import shutil
import subprocess
import sys

import pytest
from test_namespaces import ADDRESSES

SECONDS = 30
CODE = f"import bigtrain_nb as bt; bt.strategy(timeout={SECONDS})"


def close(host, from_address, but_port):
    """Let no connection into a host that another begins, but for those to one port."""
    rule = f"ip saddr {from_address} tcp dport != {but_port} tcp flags & (syn | ack) == syn drop"
    table = f"table inet closed {{\nchain in {{\ntype filter hook input priority 0\n{rule}\n}}\n}}\n"
    done = subprocess.run(["ip", "netns", "exec", host, "nft", "-f", "-"], input=table, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no firewall in a network namespace of this machine: {done.stderr}")


def refused(hosts):
    """Return what each of two workers prints, which are told a rank, a count and the chief's address."""
    workers = []
    for rank, host in enumerate(hosts):
        told = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "2222", "RANK": str(rank), "WORLD_SIZE": "2"}
        environment = os.environ | told | {"CUDA_VISIBLE_DEVICES": "-1"}
        command = ["ip", "netns", "exec", host, sys.executable, "-c", CODE]
        workers.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    said = [worker.communicate(timeout=SECONDS + 120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [1, 1], said
    return said


@pytest.fixture(autouse=True)
def nft():
    if not shutil.which("nft"):
        pytest.skip("needs nft, of Debian's package nftables")


def test_a_worker_that_the_chief_cannot_reach_is_named_to_both(hosts):
    close(hosts[1], ADDRESSES[0], but_port=1)
    for said in refused(hosts):
        assert f"worker 1 ({ADDRESSES[1]}:" in said
        assert f" cannot be reached from worker 0 ({ADDRESSES[0]}:" in said and "The port of each task must be" in said


def test_a_chief_whose_own_port_is_closed_to_a_worker_is_named(hosts):
    close(hosts[0], ADDRESSES[1], but_port=2222)  # they can meet, and no more
    chief, worker = refused(hosts)
    assert f"worker 1 ({ADDRESSES[1]}:" in chief and f"did not come within {SECONDS} s" in chief
    assert f"the chief, {ADDRESSES[0]}:" in worker and "is its port open to this host?" in worker


def test_a_chief_that_cannot_be_met_is_named(hosts):
    close(hosts[0], ADDRESSES[1], but_port=1)
    chief, worker = refused(hosts)
    assert f"task 1 of 2 did not come within {SECONDS} s" in chief and f"can it reach {ADDRESSES[0]}:2222?" in chief
    assert f"the chief, {ADDRESSES[0]}:2222, did not answer within {SECONDS} s" in worker
