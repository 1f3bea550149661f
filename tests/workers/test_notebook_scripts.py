"""The scripts beside notebooks 03 and 06: workers that answer or say why they do not, and a script to copy."""

import json
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
    """Return the losses that the chief prints as JSON, by step, and the loss on the test text."""
    *steps, last = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert steps[-1]["examples_per_second"] > 0
    return {line["step"]: line["loss"] for line in steps}, last["test_loss"]


@pytest.mark.more("a long job: notebook 06 runs the script")
def test_the_source_script_trains_alike_in_one_process_and_in_slices_in_two_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("BIGTRAIN_NB_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.mkdir()
    for file in ("asked.py", "train_photos.py", "train_source.py"):
        (text / file).write_text((SCRIPTS / file).read_text())
    script, settings = SCRIPTS / "train_source.py", ["--text", text, "--examples", 384, "--batch", 8, "--every", 20]

    command = map(str, [sys.executable, script, tmp_path / "one", *settings])
    one = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    job = bt.run_workers(script, arguments=[tmp_path / "two", *settings, "--micro-batches", 3], timeout=SECONDS)
    assert job.wait(show=False) == [0, 0] and "{" not in job.logs(1)
    losses, test_loss = news(one.stdout)
    assert list(losses) == [16, 32, 48] and losses[48] < losses[16]
    assert news(job.logs(0)) == (pytest.approx(losses, abs=0.02), pytest.approx(test_loss, abs=0.01))
