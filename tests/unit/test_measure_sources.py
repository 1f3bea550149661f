"""Every kind of source and batch: counted, or refused with what to give instead."""

from types import SimpleNamespace

import numpy as np
import pytest
from clocks import Source

from bigtrain_nb.measure.benchmark import compare, throughput
from bigtrain_nb.measure.counting import count_examples


def test_a_generator_that_ends_says_what_to_give_instead(clock):
    with pytest.raises(ValueError, match="source yielded no batch a second time: .*an iterable that starts anew"):
        throughput(iter(Source(clock, 0.01, [32] * 5)), seconds=10)


def test_an_empty_source_is_refused():
    with pytest.raises(ValueError, match="^source yielded no batch$"):
        throughput([], seconds=1)


@pytest.mark.parametrize("seconds", [0, float("inf"), "3"])
def test_nonsensical_seconds_are_refused(seconds):
    with pytest.raises(ValueError, match="seconds=.* must be a positive, finite number of seconds"):
        compare({"a": list, "b": list}, seconds=seconds)


IMAGES = np.empty([7, 3])


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        (IMAGES, np.empty([9])),
        {"image": IMAGES, "label": np.empty([7])},
        (({"a": IMAGES}, np.empty([7])), np.empty([8])),
        (["one"] * 7, [0] * 7),
        [1, 2, 3, 4, 5, 6, 7],
        SimpleNamespace(shape=(7, 3)),
    ],
)
def test_batches_of_every_kind_are_counted_by_their_first_component(batch):
    assert count_examples(batch) == 7


def test_tensors_are_counted():
    from bigtrain_nb import tf

    assert count_examples((tf.constant(["a", "b"]), tf.ones([2]))) == 2
    assert count_examples(tf.ragged.constant([[1], [2, 3], []])) == 3
    assert count_examples({"ids": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])}) == 3
    dataset = tf.data.Dataset.range(10).batch(4)
    assert [count_examples(batch) for batch in dataset] == [4, 4, 2]


@pytest.mark.parametrize("batch", ["text", None, (3, IMAGES), IMAGES[:0]])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(ValueError, match="source yielded .* no examples along a leading dimension: batch it first"):
        throughput([batch], seconds=0.1)
