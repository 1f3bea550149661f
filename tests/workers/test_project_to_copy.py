"""The project template: two workers train it in a reader's folder, one is killed midway, nothing is lost."""

import csv
import shutil

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


def start(project, folder, workers, **settings):
    """Start a run of three epochs of eight steps, with its results in ``folder``."""
    chosen = yaml.safe_load((project / "settings.yaml").read_text())
    chosen |= {"folder": str(folder)}
    chosen["data"] |= {"examples": 256, "batch": 32}
    chosen["training"] |= {"epochs": EPOCHS, "checkpoint_every": 3}
    written = folder.with_suffix(".yaml")
    written.write_text(yaml.safe_dump(chosen))
    run = {"arguments": [written], "timeout": SECONDS, "env": ON_CPUS} | settings
    return bt.run_workers(project / "train.py", workers, **run)


def validation_losses(folder):
    with (folder / "log.csv").open() as log:
        return [float(row["val_loss"]) for row in csv.DictReader(log)]


def weights(folder):
    return keras.models.load_model(folder / "model.keras").get_weights()


def test_a_reader_gets_all_of_it(project):
    assert {path.name for path in project.iterdir() if path.is_file()} == FILES
    named = {name for name in FILES if f"`{name}`" in (project / "README.md").read_text()}
    assert named == FILES - {"README.md"}


def test_a_run_that_was_killed_ends_as_one_that_was_not(project, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = ended(start(project, whole, 2))
    assert undisturbed.codes == [0, 0], undisturbed.logs(0)

    job = start(project, killed, 2, restarts=1)
    try:
        eventually(lambda: f'"step": {STEPS + 4}' in job.logs(0))
        job.kill(1)
    finally:
        ended(job)
    assert job.codes == [0, 0] and job.restarted == 1, job.logs(0)

    assert len(validation_losses(whole)) == EPOCHS
    assert validation_losses(killed) == validation_losses(whole)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(weights(killed), weights(whole), strict=True))
    assert validation_losses(whole)[-1] < validation_losses(whole)[0]
    assert list((whole / "tensorboard" / "validation").iterdir())
    assert '"step": 1,' in undisturbed.logs(0) and '"step"' not in undisturbed.logs(1)


@pytest.mark.more("a process for one wrong setting")
def test_a_misspelt_setting_is_named(project, tmp_path):
    copied = tmp_path / "project"
    shutil.copytree(project, copied)
    text = (copied / "settings.yaml").read_text()
    (copied / "settings.yaml").write_text(text.replace("width:", "widht:"))
    job = ended(bt.run_workers(copied / "train.py", 1, timeout=SECONDS, env=ON_CPUS))
    assert job.codes == [1] and "unexpected keyword argument 'widht'" in job.logs(0)
