"""The scripts beside notebooks 03 and 06: workers that answer or say why they do not, and a script to copy."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts.asked import Asked

import bigtrain_nb as bt

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"
SECONDS = 240  # a net: each takes 10 to 20 seconds alone


def test_workers_answer_until_one_is_killed():
    workers = Asked(2)
    for settings in ({"kind": "all_reduce", "bytes": 4096}, {"kind": "train", "width": 8, "micro_batches": 2}):
        assert 0 < workers.ask(2, **settings) < 60
    workers.job.kill(1)
    while workers.job.codes[1] is None:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="does not answer(.|\n)*MultiWorkerMirroredStrategy: worker 0 of 2"):
        workers.ask(2, "all_reduce", bytes=4096)
    assert -9 in workers.job.codes and None not in workers.job.codes


def news(log):
    """Return the lines of JSON that the chief prints, and the loss on the test text."""
    *steps, last = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return steps, last["test_loss"]


@pytest.fixture
def ways(tmp_path, monkeypatch):
    """Return a function that runs train_source.py on a small text, in one process or in workers, in a folder."""
    monkeypatch.setenv("BIGTRAIN_NB_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.mkdir()
    for file in ("asked.py", "train_photos.py", "train_source.py"):
        (text / file).write_text((SCRIPTS / file).read_text())

    def run(folder, *more, workers=0):
        arguments = [tmp_path / folder, "--text", text, "--examples", 768, "--batch", 8, "--every", 20, *more]
        if not workers:
            command = [sys.executable, SCRIPTS / "train_source.py", *arguments]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, check=True)
            return news(done.stdout)
        job = bt.run_workers(SCRIPTS / "train_source.py", workers, arguments=arguments, timeout=SECONDS)
        assert job.wait(show=False) == [0] * workers
        assert not re.search("^{", job.logs(1), re.M)
        return news(job.logs(0))

    return run


@pytest.mark.slow
def test_the_source_script_trains_alike_in_one_process_and_in_slices_in_two_workers(ways):
    steps, loss = ways("one", "--epochs", 2)
    assert [line["step"] for line in steps] == list(range(16, 193, 16)) and steps[-1]["loss"] < steps[0]["loss"]
    assert steps[1]["examples_per_second"] > 0
    sliced, loss_of_two = ways("two", "--epochs", 2, "--micro-batches", 3, workers=2)
    assert loss_of_two == pytest.approx(loss, abs=0.01)
    assert [line["loss"] for line in sliced] == pytest.approx([line["loss"] for line in steps], abs=0.02)
