"""A pipeline whose stages stand in two processes trains as one process does, and ends if one of them is lost."""

import json
import time

import pytest
from launching import SCRIPTS, SECONDS, ended
from leftovers import SECONDS as PROMISED
from leftovers import eventually

import bigtrain_nb as bt

pytestmark = pytest.mark.slow


def start(workers, *arguments):
    on_cpus = {"CUDA_VISIBLE_DEVICES": "-1"}
    return bt.run_workers(SCRIPTS / "pipelines.py", workers, arguments=arguments, env=on_cpus, timeout=2 * SECONDS)


def found(job):
    """What the chief has printed once it has trained; None before."""
    lines = [line for line in job.logs(0).splitlines() if line.startswith("{")]
    return json.loads(lines[0]) if lines else None


def test_two_processes_train_as_one(watch):
    two, one = ended(start(2)), ended(start(1))
    assert two.codes == [0, 0] and one.codes == [0], two.logs(0) + one.logs(0)
    assert [device.partition("/task:")[2] for device in found(two)["devices"]] == ["0/device:CPU:0", "1/device:CPU:0"]
    assert found(two)["weights"] == pytest.approx(found(one)["weights"], rel=1e-5)
    for name, values in found(one)["history"].items():
        assert found(two)["history"][name] == pytest.approx(values, rel=1e-5)
    assert not two.logs(1).count("Traceback")
    watch.nothing_left()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_lost_ends_the_job_with_its_name(lost, watch):
    job = start(2, "endless")
    eventually(lambda: found(job), seconds=SECONDS)
    job.kill(lost)
    began = time.monotonic()
    job.wait(show=False)
    assert time.monotonic() - began < PROMISED
    assert job.failed == lost and job.codes[lost] == -9 and job.codes[1 - lost] != 0
    watch.nothing_left()
