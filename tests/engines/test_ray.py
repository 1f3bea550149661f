"""train_on_ray.py on a local cluster of two nodes, with one worker each: `make engines` installs Ray first."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import bigtrain_nb as bt
from bigtrain_nb import tf

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"
STORED = Path(__file__).parents[2] / "benchmarks" / "elastic_on_ray.md"  # shown in notebook 03
PAUSE_SECONDS = 0.4  # per step: Ray's reactions take a minute or two
CALM_STEPS = 96
SECONDS = 1200  # a safety limit: on a busy machine the first step of two workers takes two minutes
A_NODE = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
pytestmark = pytest.mark.timeout(2 * SECONDS)


@pytest.fixture
def cluster():
    made = Cluster(initialize_head=True, head_node_args={**A_NODE, "include_dashboard": False})
    made.second = made.add_node(**A_NODE)
    yield made
    made.shutdown()


class Training:
    """An unchanged script of the notebooks on the cluster, with its output in ``lines``."""

    def __init__(self, cluster, folder, script, *arguments):
        program = folder / "train_on_ray.py"
        text = (SCRIPTS / "train_on_ray.py").read_text()
        for name, value in {
            "SCRIPT": str(script),
            "ARGUMENTS": [str(word) for word in (folder / "checkpoints", *arguments)],
            "WORKERS": (1, 2),
            "EACH_WORKER": {"CPU": 1, "GPU": 0},
            "STORAGE": str(folder / "ray"),
        }.items():
            text, found = re.subn(f"^{name} = [^#\n]*", f"{name} = {value!r}  ", text, flags=re.MULTILINE)
            assert found == 1
        program.write_text(text)
        environment = os.environ | {
            "RAY_ADDRESS": cluster.address,
            "CUDA_VISIBLE_DEVICES": "-1",
            "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
            "BIGTRAIN_PAUSE": str(PAUSE_SECONDS),
        }
        self.process = subprocess.Popen(
            [sys.executable, program],
            cwd=SCRIPTS,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            print(line, end="", flush=True)

    @property
    def steps(self):
        return [told["step"] for told in map(as_told, list(self.lines)) if told and "step" in told]

    def until(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end and self.process.poll() is None, "".join(self.lines[-200:])
            time.sleep(0.2)

    def code(self):
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()


def as_told(line):
    """Return the dictionary that the script printed, without the worker's prefix."""
    found = re.search(r"\{.*\}", line)
    try:
        return found and json.loads(found[0])
    except ValueError:
        return None


def workers_here():
    """Return the training processes."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any("RayTrainWorker" in word for word in process.info["cmdline"] or []):
            found.append(process)
    return found


def weights_in(folder):
    """Return all weights of the latest checkpoint in a folder, as one vector."""
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    names = sorted(name for name in reader.get_variable_to_shape_map() if name.startswith("weights/"))
    assert names
    return np.concatenate([reader.get_tensor(name).ravel() for name in names])


def undisturbed(folder, script, *arguments, workers=2):
    """Run workers with our launcher; return the completed job."""
    environment = {"CUDA_VISIBLE_DEVICES": "-1", "BIGTRAIN_PAUSE": "0"}
    job = bt.run_workers(SCRIPTS / script, workers, arguments=[folder, *arguments], env=environment)
    job.wait(show=False)
    assert job.codes == [0] * workers, job.logs(0)
    return job


def stretches(lines):
    """Return (number of workers, {step: loss}) for each start that trained."""
    found = []
    for line in lines:
        if "of 2, the chief" in line or "No strategy is needed" in line:
            found.append((2 if "the chief" in line else 1, {}))
        elif told := as_told(line):
            found[-1][1][told["step"]] = told["loss"]
    return [(workers, losses) for workers, losses in found if losses]


def until_started(training, count):
    """Wait until this many workers have newly started and trained some steps."""
    seen, told = len(training.lines), len(training.steps)
    word = "of 2, the chief" if count == 2 else "No strategy is needed"
    training.until(lambda: any(word in line for line in training.lines[seen:]) and len(training.steps) > told + 4)


def test_after_a_killed_worker_and_a_lost_node_the_weights_are_those_of_our_launcher(cluster, tmp_path):
    settings = ["--examples", "16384", "--batch", "8", "--text", str(SCRIPTS.parents[1] / "bigtrain_nb")]
    training = Training(cluster, tmp_path, "train_source.py", *settings)
    training.until(lambda: training.steps and training.steps[-1] >= 300)
    workers_here()[-1].kill()
    until_started(training, 2)
    training.until(lambda: training.steps[-1] >= 700)
    cluster.remove_node(cluster.second, allow_graceful=False)
    assert training.code() == 0
    assert any("worker 1 of 2, with 0 GPUs, summing by RING, because of TF_CONFIG" in line for line in training.lines)
    assert any("No strategy is needed" in line for line in training.lines) and training.steps[-1] == 2048
    undisturbed(tmp_path / "ours", "train_source.py", *settings)
    assert np.abs(weights_in(tmp_path / "checkpoints") - weights_in(tmp_path / "ours")).max() < 1e-4


def beside(whole, workers, losses):
    """Return a row of the stored table: the distance of losses, {step: loss}, from those of an undisturbed run."""
    calm, later = [], []
    for step, loss in losses.items():
        (calm if step <= CALM_STEPS else later).append(abs(loss - whole[step]))
    same = sum(loss == whole[step] for step, loss in losses.items())
    largest = "|".join(f" {max(some):.0e} " if some else " " for some in (calm, later))
    return f"| {workers} | {min(losses)} to {max(losses)} | {same} of {len(losses)} |{largest}|"


def test_the_curve_of_two_one_and_two_workers_is_that_of_two(cluster, tmp_path):
    """The curve is stored. Later its loss jumps, and rounding errors reach the first digit."""
    script = Path(__file__).with_name("slow_photos.py")
    training = Training(cluster, tmp_path, script)
    training.until(lambda: len(training.steps) >= 60)
    cluster.remove_node(cluster.second, allow_graceful=False)
    until_started(training, 1)
    cluster.add_node(**A_NODE)
    until_started(training, 2)
    assert training.code() == 0
    told = stretches(training.lines)
    [(_, whole)] = stretches(undisturbed(tmp_path / "two", script).logs(0).splitlines())
    [(_, alone)] = stretches(undisturbed(tmp_path / "one", script, workers=1).logs(0).splitlines())
    assert [workers for workers, _ in told] == [2, 1, 2]
    assert all(whole[step] == loss for step, loss in told[0][1].items())
    every_step = {}
    for _, losses in told:
        every_step |= losses
    assert sorted(every_step) == sorted(whole)
    assert all(abs(every_step[step] - whole[step]) < 0.05 for step in whole if step <= CALM_STEPS)
    for losses in (every_step, whole, alone):
        assert np.mean([losses[step] for step in whole if step > max(whole) - 24]) < 0.1

    rows = [beside(whole, workers, losses) for workers, losses in told]
    rows.append(beside(whole, "1, undisturbed", alone))
    text = STORED.read_text()
    head = text[: text.index("|---|") + len("|---|---|---|---|---|\n")]
    STORED.write_text(head + "\n".join(rows) + "\n")
