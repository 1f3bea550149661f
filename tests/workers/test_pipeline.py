"""A pipeline whose stages stand in two processes trains as one process does, and ends if one of them is lost."""

import json

import pipelines
import pytest
from launching import ON_CPUS, SECONDS, ended
from leftovers import eventually

import bigtrain_nb as bt

pytestmark = pytest.mark.more("long jobs: the stages are held in one process by tests/unit/test_pipelined.py")


def start(*arguments):
    return bt.run_workers(pipelines.__file__, arguments=arguments, env=ON_CPUS, timeout=2 * SECONDS)


def found(job):
    """What the chief has printed once it has trained; None before."""
    lines = [line for line in job.logs(0).splitlines() if line.startswith("{")]
    return json.loads(lines[0]) if lines else None


def test_two_processes_train_as_one(watch):
    job = ended(start())
    assert job.codes == [0, 0], job.logs(0)
    *_, here = pipelines.trained(["CPU:0", "CPU:0"])
    there = found(job)
    assert [device.partition("/task:")[2] for device in there["devices"]] == ["0/device:CPU:0", "1/device:CPU:0"]
    assert there["weights"] == pytest.approx(here["weights"], rel=1e-5)
    for name, values in here["history"].items():
        assert there["history"][name] == pytest.approx(values, rel=1e-5)
    first, *others = there["mae at rest"]
    assert others == pytest.approx([first] * len(others), rel=1e-5), "each epoch begins with metrics at zero"
    assert "Traceback" not in job.logs(1)
    watch.nothing_left()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_is_lost_ends_the_job_with_its_name(lost, watch):
    job = start("endless")
    eventually(lambda: found(job))
    job.kill(lost)
    job.wait(show=False)
    assert job.failed == lost and job.codes[lost] == -9 and job.codes[1 - lost] != 0
    watch.nothing_left()
