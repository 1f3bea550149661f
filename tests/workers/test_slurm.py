"""notebooks/scripts/train.sbatch under a real SLURM: the weights of a single process, even after a SIGTERM.

.ci/slurm installs and starts SLURM with two nodes on one host.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_train
from slurm_train import weights_in

SBATCH = Path(__file__).parents[2] / "notebooks" / "scripts" / "train.sbatch"
SECONDS = 300  # a safety limit: one start takes about ten seconds
pytestmark = pytest.mark.more("needs a SLURM, and waits for its queue")
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


@pytest.fixture(scope="module", autouse=True)
def slurm():
    """Skip all tests unless the cluster is that of .ci/slurm."""
    if not shutil.which("sbatch"):
        pytest.skip("there is no sbatch; .ci/slurm installs SLURM")
    names = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%N"], capture_output=True, text=True).stdout
    if names.split() != ["bigtrain-1", "bigtrain-2"]:
        pytest.skip("the SLURM of .ci/slurm does not run")


class SlurmJob:
    def __init__(self, file, folder):
        size = ["--cpus-per-task=1", "--mem=1G", "--time=00:10:00"]
        self.id, self.folder = command("sbatch", "--parsable", *size, file, folder=folder).strip(), folder

    @property
    def facts(self):
        return dict(re.findall(r"(\w+)=(\S*)", command("scontrol", "show", "job", self.id)))

    @property
    def log(self):
        return "".join(path.read_text(encoding="utf-8") for path in self.folder.glob(f"*-{self.id}.log"))

    def until(self, condition):
        """Wait until ``condition(facts, log)`` holds; fail if the job ends first."""
        end = time.monotonic() + SECONDS
        while not condition(facts := self.facts, self.log):
            assert time.monotonic() < end and facts["JobState"] not in OVER, f"{facts}\n{self.log}"
            time.sleep(0.3)

    def code(self):
        """Wait for the end of the job; return its exit code."""
        end = time.monotonic() + SECONDS
        while (facts := self.facts)["JobState"] not in OVER:
            assert time.monotonic() < end, f"{facts}\n{self.log}"
            time.sleep(0.3)
        return int(facts["ExitCode"].partition(":")[0])

    def cancel(self):
        subprocess.run(["scancel", self.id], capture_output=True)
        end = time.monotonic() + 60
        while subprocess.run(["squeue", "--noheader", f"--jobs={self.id}"], capture_output=True).stdout:
            assert time.monotonic() < end, f"job {self.id} is still there"
            time.sleep(0.3)


def command(*words, folder=None):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """A function that edits the marked places of the file and submits it; its jobs end with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # python3 is this Python
    jobs = []

    def submitted(script, *arguments, container=""):
        text = SBATCH.read_text()
        words = shlex.join(map(str, ["python3", script, *arguments]))
        for line, edited in [
            ("container=()", f"container=({container})"),
            ("command=(python3 scripts/train_photos.py checkpoints)", f"command=({words})"),
        ]:
            assert text.count(f"\n{line}\n") == 1
            text = text.replace(f"\n{line}\n", f"\n{edited}\n")
        Path("train.sbatch").write_text(text)
        jobs.append(SlurmJob("train.sbatch", tmp_path))
        return jobs[-1]

    yield submitted
    for job in jobs:
        job.cancel()


def only_python(folder):
    """Return a folder that contains only python3."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (folder / "bin" / "python3").chmod(0o755)
    return folder / "bin"


def start_again(job, restart):
    """Wait until the job is requeued; let it start in 5 s, not two minutes: the nodes need a moment."""
    job.until(lambda facts, log: facts["Restarts"] == str(restart) and facts["JobState"] == "PENDING")
    command("scontrol", "update", f"JobId={job.id}", "StartTime=now+5")


def test_two_nodes_that_are_told_to_end_and_put_back_end_with_the_weights_of_one_process(
    submit, tmp_path, trained_here
):
    """The tasks find no SLURM commands, as in a container."""
    job = submit(slurm_train.__file__, tmp_path, "--pause=0.2", container=f"env PATH={only_python(tmp_path)}")
    job.until(lambda facts, log: "step 5" in log)
    command("scancel", "--signal=TERM", job.id)
    start_again(job, 1)
    job.until(lambda facts, log: "step 17" in log)
    command("scontrol", "requeue", job.id)
    start_again(job, 2)
    assert job.code() == 0, job.log
    assert weights_in(tmp_path) == pytest.approx(trained_here, rel=1e-5, abs=1e-6)
    said = [line for line in job.log.splitlines() if "because of SLURM's variables" in line]
    workers = {re.match(r"(\d): .*worker (\d) of 2", line).groups() for line in said}
    assert workers == {("0", "0"), ("1", "1")}
    assert "The tasks have saved: back into the queue." in job.log
    steps = [int(number) for number in re.findall(r"^0: step (\d+)", job.log, re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) == 3 * slurm_train.STEPS


def test_the_first_failure_ends_the_job_with_its_code(submit, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import os, sys, time\nos.environ['SLURM_PROCID'] == '1' and sys.exit(3)\ntime.sleep(100)\n")
    job = submit(script)
    assert job.code() == 3, job.log
    assert job.facts["Restarts"] == "0" and job.facts["JobState"] == "FAILED"
