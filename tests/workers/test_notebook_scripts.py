"""Notebook 03's script whose workers answer, or report why they do not."""

import time

import pytest
from scripts.asked import Asked


@pytest.mark.more("two starts of two workers: a cell of notebook 03 asks the same workers, none of which is killed")
def test_workers_answer_until_one_is_killed_and_the_next_question_starts_them_again():
    workers = Asked(2)
    for settings in ({"kind": "all_reduce", "bytes": 4096}, {"kind": "train", "width": 8, "micro_batches": 2}):
        assert 0 < workers.ask(2, **settings) < 60
    workers.job.kill(1)
    while workers.job.codes[1] is None:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="does not answer(.|\n)*MultiWorkerMirroredStrategy: worker 0 of 2"):
        workers.ask(2, "all_reduce", bytes=4096)
    assert -9 in workers.job.codes and None not in workers.job.codes
    assert 0 < workers.ask(2, "all_reduce", bytes=4096) < 60 and workers.job.codes == [None, None]
