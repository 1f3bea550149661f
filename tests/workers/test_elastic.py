"""Two workers, then one, then two, each restarted on the same folder: the same training up to rounding."""

import json
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import resume_worker
from launching import ON_CPUS, ended
from resume_worker import EPOCHS, EXAMPLES

import bigtrain_nb as bt


def trained(folder, results, *ends, **settings):
    """Run workers that resume from the folder; return the completed job."""
    results.mkdir()
    arguments = [folder / "checkpoints", folder.parent / "data", results, *ends]
    run = {"arguments": arguments, "timeout": 240, "env": {**ON_CPUS, "ELASTIC": "yes"}} | settings
    return ended(bt.run_workers(resume_worker.__file__, **run))


def steps(results, worker):
    return [json.loads(line) for line in Path(results, f"steps{worker}-0").open()]


def final(results):
    arrays = np.load(results / "state0.npz")
    return [arrays[name] for name in arrays.files]


@pytest.mark.more("three long jobs: what a training finds again is held by test_resume.py")
def test_two_workers_then_one_then_two_train_what_two_train_up_to_rounding(tmp_path, watch):
    """Worker 1 is killed in the first epoch; a single one gets SIGTERM in the second; two continue."""
    folder = tmp_path / "broken"
    first, alone, second = folder / "first", folder / "alone", folder / "second"
    (tmp_path / "data").mkdir()
    (tmp_path / "whole").mkdir()
    folder.mkdir()
    resume_worker.write(tmp_path / "data")
    whole = trained(tmp_path / "whole", tmp_path / "whole" / "results")
    assert whole.codes == [0, 0], whole.logs(0)

    killed = trained(folder, first, f"{int(signal.SIGKILL)},1,7", grace_period=30)
    assert killed.codes[1] == -signal.SIGKILL, killed.logs(0)
    shrunk = trained(folder, alone, f"{int(signal.SIGTERM)},0,10", workers=1)
    assert shrunk.codes == [75], shrunk.logs(0)
    grown = trained(folder, second, workers=2)
    assert grown.codes == [0, 0], grown.logs(0)
    starts = [(results / "starts0").read_text().split("\n")[0] for results in (first, alone, second)]
    assert starts == ["0 0", "0 4", "1 4"]

    undisturbed = steps(tmp_path / "whole" / "results", 0)
    again = steps(first, 0)
    assert len(again) >= 6
    assert [step["checksum"] for step in again] == [step["checksum"] for step in undisturbed[: len(again)]]
    counts = [Counter() for _ in range(EPOCHS)]
    for worker, results, until in [(0, first, 4), (1, first, 4), (0, alone, 99), (0, second, 99)]:
        for step in steps(results, worker)[:until]:
            counts[step["epoch"]].update(step["examples"])
    for step in steps(second, 1):
        counts[step["epoch"]].update(step["examples"])
    assert counts == [Counter(range(EXAMPLES))] * EPOCHS
    for ours, theirs in zip(final(second), final(tmp_path / "whole" / "results"), strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
    left = sorted(path.name.partition(".")[0] for path in (folder / "checkpoints").iterdir())
    assert len(left) == 6 and left.count("checkpoint") == left.count("owner") == 1
    watch.nothing_left()
