"""What holds for all inputs: packed rows, confidence intervals, micro-batches, and shards, on generated inputs."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bigtrain_nb as bt
from bigtrain_nb.advanced.parallel.shards import in_rows
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.measure.intervals import mean_interval, median_interval, ratio_interval
from bigtrain_nb.train.batches import equal_parts, micro_batches_of

settings.register_profile("same each time", derandomize=True, deadline=None, max_examples=100, database=None)
settings.load_profile("same each time")

RATES = st.floats(1e-3, 1e6)
LOGARITHMS = st.lists(st.floats(-3, 3), min_size=2, max_size=30)


@given(lengths=st.lists(st.integers(0, 40), max_size=60), length=st.integers(1, 32))
def test_packed_rows_have_each_token_once_and_no_two_rows_would_fit_in_one(lengths, length):
    tokens = np.arange(1, sum(lengths) + 1)
    rows = bt.TokenRows(tokens, lengths, length)
    batch = rows[np.arange(len(rows))]
    is_token = batch["segments"] > 0
    assert sorted(batch["tokens"][is_token]) == tokens.tolist() and not batch["tokens"][~is_token].any()

    document = np.repeat(np.arange(len(lengths)), lengths)
    inside = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths).astype(int)
    numbers = batch["tokens"][is_token] - 1
    assert (batch["positions"][is_token] == inside[numbers] % length).all()
    row = np.nonzero(is_token)[0]
    segment = batch["segments"][is_token]
    piece = np.stack([document[numbers], inside[numbers] // length])
    for one in np.unique(np.stack([row, segment]), axis=1).T:
        (held,) = np.unique(piece[:, (row == one[0]) & (segment == one[1])], axis=1).T  # of one document
        assert (row[(piece.T == held).all(1)] == one[0]).all()  # and all of it

    filled = np.sort(is_token.sum(1))
    assert len(filled) < 2 or filled[0] + filled[1] > length


@given(rounds=st.lists(RATES, min_size=1, max_size=60), power=st.floats(0.2, 3))
def test_the_median_interval_holds_the_median_and_follows_a_change_of_unit(rounds, power):
    low, high = median_interval(rounds)
    assert low in rounds and high in rounds and low <= np.median(rounds) <= high
    moved = [each**power for each in rounds]
    assume(len(set(moved)) == len(set(rounds)))
    assert median_interval(moved) == (low**power, high**power)


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), by=st.floats(-10, 10))
def test_the_interval_of_a_mean_moves_with_its_values_and_widens_with_confidence(values, by):
    mean, low, high = mean_interval(values)
    _, lower, higher = mean_interval(values, error=0.01)
    assert lower <= low <= mean <= high <= higher
    assert mean_interval([each + by for each in values]) == pytest.approx((mean + by, low + by, high + by), abs=1e-6)


@given(values=LOGARITHMS, data=st.data(), error=st.floats(0.001, 0.3))
def test_a_ratio_turned_round_has_the_interval_turned_round(values, data, error):
    instances = data.draw(st.lists(st.integers(0, 6), min_size=len(values), max_size=len(values)))
    mean, low, high, share = ratio_interval(values, instances, error)
    turned = ratio_interval([-each for each in values], instances, error)
    assert turned == pytest.approx((-mean, -high, -low, share))
    assert low < mean < high and 0 <= share <= 1 and math.isfinite(high - low)
    _, lower, higher, _ = ratio_interval(values, instances, error / 2)
    assert lower < low and high < higher


@given(examples=st.integers(0, 200), count=st.integers(1, 50))
def test_micro_batches_have_each_example_once(examples, count):
    for parts in (equal_parts(examples, count), micro_batches_of(examples, count)):
        numbers = [number for start, size in parts for number in range(start, start + size)]
        assert numbers == list(range(examples))
    sizes = [size for _, size in equal_parts(examples, count)]
    assert len(sizes) == count and max(sizes) - min(sizes) <= 1


@settings(max_examples=40)
@given(shape=st.lists(st.integers(1, 7), min_size=1, max_size=3), replicas=st.integers(1, 9))
def test_shards_of_equal_length_have_each_element_once(shape, replicas):
    tensor = tf.reshape(tf.range(1, math.prod(shape) + 1), shape)
    table = in_rows(tensor, replicas).numpy()
    assert len(table) == replicas and table.size - tf.size(tensor) < replicas
    np.testing.assert_array_equal(table.reshape(-1)[: math.prod(shape)].reshape(shape), tensor)
    assert not table.reshape(-1)[math.prod(shape) :].any()
