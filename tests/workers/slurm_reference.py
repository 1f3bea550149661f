"""What the same training gives in two workers on this machine's loopback."""

import json

import slurm_train

import bigtrain_nb as bt

SECONDS = 200  # a net: about ten seconds are enough


def trained_here(folder):
    """Return the weights that two workers here end with."""
    job = bt.run_workers(slurm_train.__file__, 2, arguments=[folder], timeout=SECONDS)
    try:
        assert job.wait(show=False) == [0, 0], job.logs(job.failed or 0)
    finally:
        job.stop()
    return weights_in(folder)


def weights_in(folder):
    """Return the weights that both workers have written into the folder; they are the same."""
    first, second = (json.loads((folder / f"{index}.json").read_text(encoding="utf-8")) for index in range(2))
    assert first == second
    return first
