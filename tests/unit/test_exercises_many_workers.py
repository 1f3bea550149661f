"""Exercises of notebook 03: TensorFlow and the package agree with the solutions."""

import json

import pytest
from workbook.exercises import many_workers

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.launch.cluster_spec import place
from bigtrain_nb.plan.parallelism import all_reduce_seconds


def test_the_config_is_one_that_a_worker_takes():
    for index in range(3):
        config = many_workers.tf_config(["ann", "ben", "cid"], 2222, index)
        found = place({"TF_CONFIG": json.dumps(config)})
        assert found.rank == index and found.addresses == ["ann:2222", "ben:2222", "cid:2222"]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("policy", ["FILE", "DATA", "OFF"])
def test_together_workers_read_all(policy, workers):
    files = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    read = [many_workers.reads(policy, files, 8, worker, workers) for worker in range(workers)]
    assert sorted(sum(read, [])) == sorted(list(range(16)) * (workers if policy == "OFF" else 1))


def test_dealing_batches_is_what_shard_does():
    numbers = tf.data.Dataset.range(24).batch(3)
    for worker in range(2):
        dealt = [int(number) for part in numbers.shard(2, worker) for number in part]
        assert dealt == many_workers.reads("DATA", [list(range(12)), list(range(12, 24))], 6, worker, 2)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_ring_takes_as_long_as_the_budget_says(workers):
    mine = many_workers.ring_seconds(3e7, workers, 2e9, 1e-4)
    assert mine == pytest.approx(all_reduce_seconds(3e7, workers, 2e9, 1e-4))


def test_training_goes_on_where_it_stopped():
    steps = [(epoch, batch) for epoch in range(3) for batch, _ in enumerate(range(0, 500, 32))]
    for step, place_of_it in enumerate(steps):
        assert many_workers.resume_at(step, 500, 32) == place_of_it
