"""``workers=(least, most)``: after a failure one worker less, the same training, and nothing of the others is left."""

import json
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import resume_worker
from launching import ON_CPUS, SCRIPTS, address_of, ended, run
from leftovers import eventually, listens
from resume_worker import EPOCHS, EXAMPLES

import bigtrain_nb as bt

COUNT = """
workers = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
restart = int(os.environ["BIGTRAIN_RESTART"])
print(restart, index, len(workers), os.environ["SEEN"])
if restart < 3:
    sys.exit(3 if index == 0 else 0)
"""


def test_each_restart_has_one_less_and_the_least_is_always_left(capsys):
    job = run(COUNT, (2, 4), restarts=3, patience=60, show=True, env={"SEEN": "all"})
    assert job.codes == [0, 0] and len(job.pids) == len(job.addresses) == 2
    assert job.restarted == 3 and job.exit_code == 0 and job.failed is None
    assert job.logs(0).splitlines() == ["0 0 4 all", "1 0 3 all", "2 0 2 all", "3 0 2 all"]
    assert job.logs("worker 3") == "0 3 4 all\n" and job.logs(2) == "0 2 4 all\n1 2 3 all\n"
    shown = capsys.readouterr().out
    assert "-- all are started again: 3 of 4 workers" in shown and "-- all are started again: 2 of 4 workers" in shown
    assert repr(job).startswith("2 of 4 workers ended well") and "worker 2 " not in repr(job)
    job.kill(3)  # there is nobody to kill


def test_a_failure_of_the_last_one_is_the_jobs():
    job = run("sys.exit(3 if index == 0 else 0)", (1, 2), restarts=1, patience=60)
    assert job.codes == [3] and job.exit_code == 3 and job.failed == 0
    assert "1 of 2 workers ended because worker 0 failed" in repr(job)


def waiting_for_one(watch):
    """Return a job of one worker that is left of two, and the ports of its first start."""
    job = bt.run_workers(SCRIPTS / "waits.py", (1, 2), arguments=["stubborn", "grandchild"], restarts=1, patience=0)
    first = [address_of(job, index) for index in range(2)]
    job.kill(1)
    eventually(lambda: job.restarted == 1 and job.logs(0).count("ready at") == 2)
    second = job.logs(0).split()[-1]
    assert len(job.pids) == 1 and job.addresses == [second] and listens(second)
    assert not any(listens(address) for address in first if address != second)
    return job, [*first, second]


def test_of_a_killed_one_and_of_those_after_it_nothing_is_left(watch):
    job, addresses = waiting_for_one(watch)
    own = {process.pid for process in watch.processes()}
    assert job.pids[0] in own and len(own) == 3  # the process between, the worker and its child
    job.kill(0)
    assert job.wait(show=False) == [-signal.SIGKILL] and job.exit_code == 128 + signal.SIGKILL
    watch.nothing_left(addresses)


def test_a_job_that_is_stopped_after_it_has_shrunk_leaves_nothing(watch):
    job, addresses = waiting_for_one(watch)
    assert job.stop() == [-signal.SIGKILL]
    watch.nothing_left(addresses)


def trained(folder, results, *ends, **settings):
    """Return the ended job of two workers, or of one that is left of them."""
    results.mkdir()
    arguments = [folder / "checkpoints", folder.parent / "data", results, *ends]
    run = {"arguments": arguments, "timeout": 240, "env": {**ON_CPUS, "ELASTIC": "yes"}} | settings
    return ended(bt.run_workers(resume_worker.__file__, **run))


def steps(results, worker, restart=0):
    return [json.loads(line) for line in Path(results, f"steps{worker}-{restart}").open()]


def final(results):
    arrays = np.load(results / "state0.npz")
    return [arrays[name] for name in arrays.files]


@pytest.mark.more("three long jobs: what a training finds again is held by test_resume.py")
def test_two_workers_then_one_then_two_train_what_two_train_up_to_rounding(tmp_path, watch):
    """Worker 1 is killed in the first epoch; the one that is left is told to end in the second; two go on."""
    folder, first, second = tmp_path / "broken", tmp_path / "broken" / "first", tmp_path / "broken" / "second"
    (tmp_path / "data").mkdir()
    (tmp_path / "whole").mkdir()
    folder.mkdir()
    resume_worker.write(tmp_path / "data")
    whole = trained(tmp_path / "whole", tmp_path / "whole" / "results")
    assert whole.codes == [0, 0], whole.logs(0)

    ends = f"{int(signal.SIGKILL)},1,7", f"{int(signal.SIGTERM)},0,10"
    shrunk = trained(folder, first, *ends, workers=(1, 2), restarts=1, patience=30)
    assert shrunk.codes == [75] and shrunk.restarted == 1, shrunk.logs(0)
    grown = trained(folder, second, workers=2)
    assert grown.codes == [0, 0], grown.logs(0)
    starts = (first / "starts0").read_text().split("\n")[:2] + (second / "starts0").read_text().split("\n")[:1]
    assert starts == ["0 0", "0 4", "1 4"]

    undisturbed = steps(tmp_path / "whole" / "results", 0)
    again = steps(first, 0)
    assert len(again) >= 6
    assert [step["checksum"] for step in again] == [step["checksum"] for step in undisturbed[: len(again)]]
    counts = [Counter() for _ in range(EPOCHS)]
    for worker, results, restart, until in [(0, first, 0, 4), (1, first, 0, 4), (0, first, 1, 99), (0, second, 0, 99)]:
        for step in steps(results, worker, restart)[:until]:
            counts[step["epoch"]].update(step["examples"])
    for step in steps(second, 1):
        counts[step["epoch"]].update(step["examples"])
    assert counts == [Counter(range(EXAMPLES))] * EPOCHS
    for ours, theirs in zip(final(second), final(tmp_path / "whole" / "results"), strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
    left = sorted(path.name.partition(".")[0] for path in (folder / "checkpoints").iterdir())
    assert len(left) == 6 and left.count("checkpoint") == left.count("owner") == 1
    watch.nothing_left()
