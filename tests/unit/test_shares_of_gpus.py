"""Assigning GPUs to the workers of a job, tested without GPUs: only their names are passed on."""

import pytest

from bigtrain_nb.launch import jobs


def visible(monkeypatch, gpus, workers, each=None):
    monkeypatch.setattr(jobs, "nvidia_gpus", lambda: gpus)
    shares, words = jobs._shares_of_gpus(workers, each)
    return [share.get("CUDA_VISIBLE_DEVICES") for share in shares], words


@pytest.mark.parametrize(
    ("gpus", "workers", "each", "expected", "words"),
    [
        (["0", "1", "2", "3"], 2, None, ["0,1", "2,3"], "GPUs per worker: 2 of 4."),
        (["0", "1", "2", "3"], 2, 1, ["0", "1"], "GPUs per worker: 1 of 4; idle: 2."),
        (["0", "1", "2"], 2, None, ["0", "1"], "GPUs per worker: 1 of 3; idle: 1."),
        (["0"], 2, None, ["-1", "-1"], "All workers run on the CPU (GPUs: 1, workers: 2)."),
        (["0", "1"], 2, 2, ["-1", "-1"], "All workers run on the CPU (GPUs: 2, workers: 2, gpus_per_worker=2)."),
        (["5"], 1, 0, ["-1"], "All workers run on the CPU (GPUs: 1, workers: 1, gpus_per_worker=0)."),
        ([], 2, 1, [None, None], ""),
    ],
)
def test_each_worker_has_its_own(monkeypatch, gpus, workers, each, expected, words):
    assert visible(monkeypatch, gpus, workers, each) == (expected, words)
