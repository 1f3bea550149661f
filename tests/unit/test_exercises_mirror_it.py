"""Exercises of notebook 02: solutions pass, typical mistakes are refused with a reason, and TensorFlow agrees."""

import numpy as np
import pytest
from logical_cpus import mirrored

from bigtrain_nb import workbook
from bigtrain_nb.exercises import mirror_it
from bigtrain_nb.quiet import tf
from bigtrain_nb.schedules import warmup_cosine

MISTAKES = [(exercise.name, *mistake) for exercise in mirror_it.EXERCISES for mistake in exercise.wrong]


@pytest.mark.parametrize("exercise", mirror_it.EXERCISES, ids=lambda exercise: exercise.name)
def test_the_reference_is_right(exercise):
    assert workbook.check(exercise.name, exercise.reference).status == "right"


@pytest.mark.parametrize(("name", "answer", "reason"), MISTAKES)
def test_mistakes_are_refused_with_a_reason(name, answer, reason):
    found = workbook.check(name, answer)
    assert found.status == "wrong" and reason in found.message


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
