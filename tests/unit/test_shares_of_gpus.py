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
        (["0", "1", "2", "3"], 2, None, ["0,1", "2,3"], "Of 4 GPUs each worker has 2."),
        (["0", "1", "2", "3"], 2, 1, ["0", "1"], "Of 4 GPUs each worker has 1, and 2 are idle."),
        (["0", "1", "2"], 2, None, ["0", "1"], "Of 3 GPUs each worker has 1, and 1 are idle."),
        (["0"], 2, None, ["-1", "-1"], "All workers run on the CPU: 1 GPUs are here for 2 workers."),
        (["0", "1"], 2, 2, ["-1", "-1"], "All workers run on the CPU: 2 GPUs are here for 2 workers, 2 for each."),
        (["5"], 1, 0, ["-1"], "All workers run on the CPU: 1 GPUs are here for 1 workers, 0 for each."),
        ([], 2, 1, [None, None], ""),
    ],
)
def test_each_worker_has_its_own(monkeypatch, gpus, workers, each, expected, words):
    assert visible(monkeypatch, gpus, workers, each) == (expected, words)
