"""Two workers ended in mid-epoch, by either signal to either worker, resume to bitwise identical results."""

import json
import signal
import time
from collections import Counter

import numpy as np
import pytest
import resume_worker
from launching import ON_CPUS, ended
from leftovers import eventually
from resume_worker import EPOCHS, EVERY, EXAMPLES

import bigtrain_nb as bt

SECONDS = 240  # a safety limit for workers that wait for each other
SIGTERM_AFTER, SIGKILL_AFTER = 5, 12  # steps, of ten per epoch


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    resume_worker.write(folder)
    return folder


def trained(folder, data, *ends, **settings):
    """Run two workers to completion; return the job."""
    (folder / "results").mkdir()
    arguments = [folder / "checkpoints", data, folder / "results", *ends]
    run = {"arguments": arguments, "timeout": SECONDS, "env": ON_CPUS} | settings
    return ended(bt.run_workers(resume_worker.__file__, **run))


def logs(job):
    return "\n".join(job.logs(worker) for worker in range(2))


def states(folder):
    """Return the bits of each worker's final variables."""
    loaded = [np.load(folder / "results" / f"state{worker}.npz") for worker in range(2)]
    return [{name: arrays[name].tobytes() for name in arrays.files} for arrays in loaded]


def steps(folder, worker, restart):
    """Return a worker's records of its steps after one of its starts."""
    return [json.loads(line) for line in (folder / "results" / f"steps{worker}-{restart}").open()]


def counted(folder, restarts):
    """Return how often each example was trained per epoch, on both workers, without lost steps."""
    counts = [Counter() for _ in range(EPOCHS)]
    for worker in range(2):
        starts = [tuple(map(int, line.split())) for line in (folder / "results" / f"starts{worker}").open()]
        for restart in range(restarts + 1):
            lost_from = starts[restart + 1] if restart < restarts else (EPOCHS, 0)
            for step in steps(folder, worker, restart):
                if (step["epoch"], step["step"]) < lost_from:
                    counts[step["epoch"]].update(step["examples"])
    return counts


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The job of an undisturbed training run, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    job = trained(folder, data)
    assert job.codes == [0, 0], logs(job)
    assert counted(folder, 0) == [Counter(range(EXAMPLES))] * EPOCHS
    return job, folder


def test_workers_ended_by_sigterm_and_the_chief_by_kill_9_go_on_to_the_same_bits(whole, data, tmp_path):
    ends = f"{int(signal.SIGTERM)},1,{SIGTERM_AFTER}", f"{int(signal.SIGKILL)},0,{SIGKILL_AFTER}"
    job = trained(tmp_path, data, *ends, restarts=2, grace_period=30)  # exiting takes long on a busy machine
    assert (job.codes, job.restarted) == ([0, 0], 2), logs(job)
    starts = [(tmp_path / "results" / f"starts{worker}").read_text().splitlines() for worker in range(2)]
    last_save = (SIGTERM_AFTER + SIGKILL_AFTER - 10 - 1) // EVERY * EVERY
    assert starts[0] == starts[1] == ["0 0", f"0 {SIGTERM_AFTER}", f"1 {last_save}"]
    assert states(tmp_path) == states(whole[1])
    for worker in range(2):
        _, first_start, *_ = job.logs(worker).split("MultiWorkerMirroredStrategy")
        assert f"\nSIGTERM: saved after 0 epochs and {SIGTERM_AFTER} steps" in first_start
        assert "Traceback" not in first_start
    assert counted(tmp_path, 2) == [Counter(range(EXAMPLES))] * EPOCHS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "results"]
    left = sorted(path.name.partition(".")[0] for path in (tmp_path / "checkpoints").iterdir())
    assert len(left) == 6
    assert left.count("checkpoint") == left.count("owner") == 1


def test_a_folder_that_is_not_shared_or_that_the_chief_cannot_write_is_an_error_on_both(whole):
    job, folder = whole
    said = [dict(line.split(": ", 1) for line in job.logs(worker).splitlines()) for worker in range(2)]
    for one in said:
        assert one["not shared"].startswith("1 of 2 replicas do not see the chief's file in ")
    assert not (folder / "results" / "none").exists()
    assert "cannot be written" in said[0]["no folder"]
    assert "another worker cannot resume from" in said[1]["no folder"]


def test_workers_may_augment_the_same_examples_differently(whole):
    for worker in range(2):
        assert "augmented: 1 epoch" in whole[0].logs(worker)


def test_kill_9_in_the_middle_of_a_save_costs_no_more_than_that_save(tmp_path):
    job = bt.run_workers(resume_worker.__file__, 1, arguments=[tmp_path], timeout=SECONDS)
    eventually(lambda: job.logs(0).count("saved") >= 3)
    time.sleep(0.013)
    job.kill(0)
    assert job.wait(show=False) == [-signal.SIGKILL], job.logs(0)
    newest = int(job.logs(0).split()[-1])
    assert newest <= resume_worker.saving(tmp_path).step <= newest + 1
    assert len(list(tmp_path.iterdir())) <= 9
