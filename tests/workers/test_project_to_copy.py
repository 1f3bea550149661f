"""The project template: two workers train it in a reader's folder, one is killed midway, nothing is lost."""

import csv

import numpy as np
import pytest
import yaml
from launching import ON_CPUS, ended
from leftovers import eventually

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.unpack import unpack

SECONDS = 240  # a safety limit for workers that wait for each other
STEPS, EPOCHS = 8, 3
FILES = {"README.md", "data.py", "engine.py", "model.py", "monitoring.py", "settings.yaml", "train.py"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The folder of the template, unpacked as by a reader."""
    folder = tmp_path_factory.mktemp("reader")
    unpack(folder)
    return folder / "scripts" / "project"


def start(project, folder, **settings):
    """Start a run of two workers and three epochs of eight steps, with its results in ``folder``."""
    chosen = yaml.safe_load((project / "settings.yaml").read_text())
    chosen |= {"folder": str(folder)}
    chosen["data"] |= {"examples": 256, "batch": 32}
    chosen["training"] |= {"epochs": EPOCHS, "checkpoint_every": 3}
    written = folder.with_suffix(".yaml")
    written.write_text(yaml.safe_dump(chosen))
    run = {"arguments": [written], "timeout": SECONDS, "env": ON_CPUS} | settings
    return bt.run_workers(project / "train.py", **run)


def validation_losses(folder):
    with (folder / "log.csv").open() as log:
        return [float(row["val_loss"]) for row in csv.DictReader(log)]


def weights(folder):
    return keras.models.load_model(folder / "model.keras").get_weights()


def test_a_reader_gets_all_of_it(project):
    assert {path.name for path in project.iterdir() if path.is_file()} == FILES
    named = {name for name in FILES if f"`{name}`" in (project / "README.md").read_text()}
    assert named == FILES - {"README.md"}


@pytest.fixture(scope="module")
def killed(project, tmp_path_factory):
    """The results of a run in which worker 1 was killed in the second epoch."""
    folder = tmp_path_factory.mktemp("killed") / "results"
    job = start(project, folder, restarts=1)
    try:
        eventually(lambda: f'"step": {STEPS + 4}' in job.logs(0))
        job.kill(1)
    finally:
        ended(job)
    assert job.codes == [0, 0] and job.restarted == 1, job.logs(0)
    assert '"step": 1,' in job.logs(0) and '"step"' not in job.logs(1)
    return folder


def test_a_run_that_was_killed_goes_on(killed):
    losses = validation_losses(killed)
    assert len(losses) == EPOCHS and losses[-1] < losses[0]
    assert list((killed / "tensorboard" / "validation").iterdir())


@pytest.mark.more("one more run: test_resume.py compares those that were killed bit by bit")
def test_it_ends_as_one_that_was_not(project, killed, tmp_path):
    whole = tmp_path / "whole"
    undisturbed = ended(start(project, whole))
    assert undisturbed.codes == [0, 0], undisturbed.logs(0)
    assert validation_losses(killed) == validation_losses(whole)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(weights(killed), weights(whole), strict=True))
