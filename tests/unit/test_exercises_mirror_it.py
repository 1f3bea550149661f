"""Exercises of notebook 02: TensorFlow agrees with the solutions."""

import numpy as np
import pytest
from logical_cpus import mirrored
from workbook.exercises import mirror_it

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train.schedules import warmup_cosine


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_tensorflow_cuts_batches_as_the_solution_says(replicas):
    strategy = mirrored(replicas)
    for batch in (1, 2, 5, 7, 9, 64):
        (cut,) = strategy.experimental_distribute_dataset(tf.data.Dataset.range(batch).batch(batch))
        sizes = [len(share.numpy()) for share in strategy.experimental_local_results(cut)]
        assert sizes == mirror_it.shares(batch, replicas)


def test_the_rate_rises_as_that_of_the_helper_does():
    schedule = warmup_cosine(0.8, 9, 100)
    ours = [mirror_it.rate_at(step, 256, 0.1, 32, 9) for step in range(10)]
    np.testing.assert_allclose(ours, [float(schedule(step)) for step in range(10)], rtol=1e-5)
