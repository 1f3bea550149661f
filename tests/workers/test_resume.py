"""Two workers that are ended in the middle of an epoch, by either signal to either of them, go on to the same bits."""

import json
import re
import signal
import time
from collections import Counter
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import resume_worker
from resume_worker import EPOCHS, EVERY, EXAMPLES

import bigtrain_nb as bt

SECONDS = 240  # a net under workers that wait for each other
STEPS = 17  # of ten in an epoch
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    resume_worker.write(folder)
    return folder


def run(folder, data, *end, checkpoints="checkpoints", **settings):
    """Return the ended job of two workers."""
    results = folder / "results"
    results.mkdir(parents=True)
    script, arguments = Path(resume_worker.__file__), [folder / checkpoints, data, results, *end]
    env = {"CUDA_VISIBLE_DEVICES": "-1"}
    job = bt.run_workers(script, arguments=arguments, timeout=SECONDS, env=env, **settings)
    try:
        job.wait(show=False)
    finally:
        job.stop()
    return job


def logs(job):
    return "\n".join(job.logs(worker) for worker in range(2))


def states(folder):
    """Return the final variables of each worker."""
    loaded = [np.load(folder / "results" / f"state{worker}.npz") for worker in range(2)]
    return [[arrays[name] for name in arrays.files] for arrays in loaded]


def difference(ours, theirs):
    """Return the largest difference of any number, and whether all bits are equal."""
    largest = max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(ours, theirs, strict=True))
    return largest, all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))


def counted(folder, restarts):
    """Return how often each example was trained in each epoch, on both workers, by steps that are in the result."""
    counts = [Counter() for _ in range(EPOCHS)]
    for worker in range(2):
        starts = [tuple(map(int, line.split())) for line in (folder / "results" / f"starts{worker}").open()]
        for restart in range(restarts + 1):
            lost_from = starts[restart + 1] if restart < restarts else (EPOCHS, 0)
            for line in (folder / "results" / f"steps{worker}-{restart}").open():
                step = json.loads(line)
                if (step["epoch"], step["step"]) < lost_from:
                    counts[step["epoch"]].update(step["examples"])
    return counts


@pytest.fixture(scope="module")
def whole_folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    job = run(folder, data)
    assert job.codes == [0, 0], logs(job)
    assert counted(folder, 0) == [Counter(range(EXAMPLES))] * EPOCHS
    return folder


@pytest.fixture(scope="module")
def whole(whole_folder):
    return states(whole_folder)


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)], ids=["SIGTERM", "SIGKILL"])
def test_workers_ended_in_the_middle_of_an_epoch_go_on_to_the_same_bits(number, rank, whole, data, tmp_path):
    job = run(tmp_path, data, int(number), rank, STEPS, restarts=1)
    assert (job.codes, job.restarted) == ([0, 0], 1), logs(job)
    starts = [(tmp_path / "results" / f"starts{worker}").read_text().splitlines() for worker in range(2)]
    assert starts[0] == starts[1]
    epoch, step = map(int, starts[0][1].split())
    if number == signal.SIGKILL:
        assert (epoch, step) == (1, (STEPS - 10 - 1) // EVERY * EVERY)
    else:
        assert 10 * epoch + step == STEPS
        assert "Traceback" not in logs(job), logs(job)
    for worker, state in enumerate(states(tmp_path)):
        assert difference(state, whole[worker]) == (0.0, True)
    assert counted(tmp_path, 1) == [Counter(range(EXAMPLES))] * EPOCHS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "results"]
    left = sorted(path.name.partition(".")[0] for path in (tmp_path / "checkpoints").iterdir())
    assert len(left) == 5
    assert left.count("checkpoint") == 1


def test_after_sigterm_to_one_worker_both_leave_with_75_and_say_no_more_than_that(data, tmp_path):
    job = run(tmp_path, data, int(signal.SIGTERM), 1, STEPS, patience=SECONDS)  # on a busy machine to leave takes long
    assert job.codes == [bt.PREEMPTED] * 2, logs(job)
    for worker in range(2):
        lines = job.logs(worker).splitlines()
        assert len(lines) == 2 or re.match(r"E\d{4} .*unhealthy", lines[2]), lines  # TensorFlow, of who left late
        assert "Traceback" not in job.logs(worker)
        assert lines[0].startswith("MultiWorkerMirroredStrategy")
        assert lines[1].startswith("SIGTERM: saved after ")
    assert job.logs(0).splitlines()[1] == job.logs(1).splitlines()[1]


def test_a_folder_that_is_not_shared_is_an_error_on_both(whole_folder, data, tmp_path):
    copytree(whole_folder / "checkpoints", tmp_path / "of0")
    job = run(tmp_path, data, checkpoints="of{rank}")
    assert job.codes == [1, 1], logs(job)
    for worker in range(2):
        assert "the workers see different checkpoints" in job.logs(worker)
        assert "ckpt-6, none" in job.logs(worker)
    assert not (tmp_path / "of1").exists()


def test_a_folder_that_the_chief_cannot_write_is_an_error_on_both(data, tmp_path):
    (tmp_path / "file").write_text("")
    job = run(tmp_path / "run", data, checkpoints="../file")
    assert job.codes == [1, 1], logs(job)
    assert "cannot be written" in job.logs(0)
    assert "another worker cannot use the folder" in job.logs(1)


SAVING = r"""
import sys
import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(5000)])
model.compile("adam", "mse")
resume = bt.Resume(sys.argv[1], model, every=1)
sys.stdout.write(f"begin {resume.step}\n")  # in one piece, which a kill cannot tear, unlike print's
for epoch in resume.epochs(1):
    while True:
        resume.step_done()
        sys.stdout.write(f"saved {resume.step}\n")
"""


def test_kill_9_in_the_middle_of_a_save_costs_no_more_than_that_save(tmp_path):
    last = 0
    for delay in (0.0, 0.013, 0.029, 0.061):
        run = {"arguments": [tmp_path], "env": {"CUDA_VISIBLE_DEVICES": "-1"}, "timeout": SECONDS}
        job = bt.run_workers(SAVING, workers=1, **run)
        end = time.monotonic() + 60
        while job.logs(0).count("saved") < 3 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(delay)
        job.kill(0)
        assert job.wait(show=False) == [-signal.SIGKILL], job.logs(0)
        begin, *_, newest = [int(line.split()[1]) for line in job.logs(0).splitlines()]
        assert last <= begin <= last + 1
        assert newest >= begin + 3
        last = newest
        assert len(list(tmp_path.iterdir())) <= 9
