"""Every kind of source and batch: counted, or refused with what to give instead."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
from clocks import Source

from bigtrain_nb.measure.benchmark import compare, count_examples, throughput


def test_a_generator_that_is_long_enough_is_measured(clock):
    assert throughput(iter(Source(clock, 0.01)), seconds=1).median == pytest.approx(3200)


def test_a_generator_that_ends_says_what_to_give_instead(clock):
    with pytest.raises(ValueError, match="source yielded no batch a second time: .*an iterable that starts anew"):
        throughput(iter(Source(clock, 0.01, [32] * 5)), seconds=10)


@pytest.mark.parametrize("source", [[], (), iter([]), {}, np.empty([0, 3])])
def test_an_empty_source_is_refused(source):
    with pytest.raises(ValueError, match="^source yielded no batch$"):
        throughput(source, seconds=1)


@pytest.mark.parametrize("source", [5, None, object()])
def test_what_is_neither_iterable_nor_callable_is_refused(source):
    with pytest.raises(TypeError, match="mine must be an iterable of batches or a step function, not"):
        throughput(source, seconds=1, name="mine")


@pytest.mark.parametrize("seconds", [0, -1, -0.5, float("nan"), float("inf"), "3", None, True, [1]])
def test_nonsensical_seconds_are_refused(seconds):
    for run in (
        lambda: throughput([[1]], seconds=seconds),
        lambda: compare(dict.fromkeys("ab", list), seconds=seconds),
    ):
        with pytest.raises(ValueError, match="seconds=.* must be a positive, finite number of seconds"):
            run()


Pair = namedtuple("Pair", "images labels")


@pytest.mark.parametrize(
    "batch, examples",
    [
        (np.empty([7, 3]), 7),
        (np.empty([7]), 7),
        ((np.empty([7, 3]), np.empty([7])), 7),
        ([np.empty([7, 3]), np.empty([7])], 7),
        (Pair(np.empty([7, 3]), np.empty([7])), 7),
        ({"image": np.empty([7, 3]), "label": np.empty([7])}, 7),
        (({"a": np.empty([7, 3])}, np.empty([7])), 7),
        (((np.empty([7, 1]), np.empty([9])), np.empty([8])), 7),
        ([1, 2, 3], 3),
        (["one", "two"], 2),
        ([b"one", b"two"], 2),
        ([0.5, 1.5, 2.5], 3),
        ((["one", "two"], [0, 1]), 2),
        (SimpleNamespace(shape=(7, 3)), 7),
    ],
)
def test_batches_of_every_kind_are_counted(batch, examples):
    assert count_examples(batch) == examples


def test_tensors_are_counted():
    from bigtrain_nb import tf

    assert count_examples(tf.ones([7, 3])) == 7
    assert count_examples((tf.constant(["a", "b"]), tf.ones([2]))) == 2
    assert count_examples(tf.ragged.constant([[1], [2, 3], []])) == 3
    assert count_examples({"ids": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])}) == 3
    dataset = tf.data.Dataset.range(10).batch(4)
    assert [count_examples(batch) for batch in dataset] == [4, 4, 2]
    assert throughput(dataset, seconds=1).examples % 10 == 0  # long enough for whole passes on a busy machine


@pytest.mark.parametrize("batch", [np.float32(1), 5, 1.5, "text", None, (3, np.empty([7])), [None], object()])
def test_a_batch_without_a_leading_dimension_is_refused(batch):
    with pytest.raises(ValueError, match="source yielded .* without a leading dimension: batch it first"):
        throughput([batch], seconds=0.1)


def test_batches_of_a_distributed_dataset_are_refused():
    from logical_cpus import mirrored

    from bigtrain_nb import tf

    distributed = mirrored(2).experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
    with pytest.raises(ValueError, match="source is distributed: give the dataset as it was before that, or a step"):
        throughput(distributed, seconds=0.1)


@pytest.mark.parametrize("batch", [(), {}, [], ([], [])])
def test_a_batch_without_components_is_refused(batch):
    with pytest.raises(ValueError, match="source yielded an empty (tuple|dict|list): there is nothing to count"):
        throughput([batch], seconds=0.1)


def test_a_batch_of_no_examples_is_refused():
    with pytest.raises(ValueError, match="source yielded a batch of 0 examples"):
        throughput([np.empty([0, 3])], seconds=0.1)
