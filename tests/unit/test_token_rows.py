"""Documents packed in rows: every token once, correct segments and positions, little padding, deterministic."""

import time

import numpy as np
import pytest

import bigtrain_nb as bt


def documents(count=400, longest=90, seed=0):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(3, 1, count).astype(int), longest)  # some are 0
    return rng.integers(1, 8192, lengths.sum()), lengths


def test_rows_say_how_many_they_are_and_how_much_is_padding():
    rows = bt.TokenRows(np.arange(1, 24), [0, 21, 2], 8)
    assert len(rows) == 3 and rows.padding == pytest.approx(1 / 24)
    assert repr(rows) == "TokenRows: 3 rows of 8 tokens, 23 tokens, 4.2 % padding"
    for none in ([], [0, 0]):
        rows = bt.TokenRows([], none, 8)
        assert len(rows) == 0 and rows.padding == 0


def test_little_is_wasted_where_documents_are_many():
    tokens, lengths = documents(5000, longest=3000)
    assert bt.TokenRows(tokens, lengths, 512).padding < 0.002


def test_rows_come_in_any_order_and_are_the_same_each_time():
    tokens, lengths = documents()
    rows, again = (bt.TokenRows(tokens, lengths, 100) for _ in range(2))
    one, other = rows[[5, 2, 5]], again[np.array([5, 2, 5], np.uint8)]
    for name in ("tokens", "segments", "positions"):
        assert one[name].dtype == np.int32 and one[name].shape == (3, 100)
        np.testing.assert_array_equal(one[name], other[name])
        np.testing.assert_array_equal(one[name][0], rows[5][name][0])
        np.testing.assert_array_equal(one[name][0], one[name][2])
    assert rows[[]]["tokens"].shape == (0, 100)


def test_a_memmap_stays_one_and_is_read_inside_of_tf_data(tmp_path):
    tokens, lengths = documents()
    tokens.astype(np.uint16).tofile(tmp_path / "tokens.bin")
    stored = np.memmap(tmp_path / "tokens.bin", np.uint16, mode="r")
    rows = bt.TokenRows(stored, lengths, 100, vocabulary=8192)
    assert rows.tokens is stored
    expected = bt.TokenRows(tokens, lengths, 100)[np.arange(8)]["tokens"]

    def read(numbers):
        return bt.tf.numpy_function(lambda chosen: rows[chosen]["tokens"], [numbers], bt.tf.int32)

    batches = bt.tf.data.Dataset.range(8).batch(4).map(read)
    np.testing.assert_array_equal(np.concatenate(list(batches.as_numpy_iterator())), expected)


def test_planning_takes_little_memory_and_no_long_time():
    lengths = np.random.default_rng(1).integers(1, 900, 200_000)
    tokens = np.broadcast_to(np.uint16(7), lengths.sum())
    began = time.process_time()
    rows = bt.TokenRows(tokens, lengths, 1024)
    assert time.process_time() - began < 10  # 0.3 s on an idle machine
    kept = rows._starts.nbytes + rows._sizes.nbytes + rows._first.nbytes
    assert kept <= 17 * len(lengths)


def test_tokens_that_were_stored_in_too_few_bits_are_refused():
    wrapped = np.array([70_000, 3]).astype(np.uint16)
    with pytest.raises(ValueError, match="uint16 cannot hold a vocabulary of 100,000: .* above 65,535 .* uint32"):
        bt.TokenRows(wrapped, [2], 8, vocabulary=100_000)
    for tokens in ([5, -1], [5, 2**31]):
        rows = bt.TokenRows(np.array(tokens, np.int64), [2], 8)
        with pytest.raises(ValueError, match="tokens must be at least 0 and below 2,147,483,647, but these are from"):
            rows[0]
    with pytest.raises(ValueError, match="tokens must be at least 0 and below 5, but these are from 5 to 5"):
        bt.TokenRows([5], [1], 8, vocabulary=5)[0]


@pytest.mark.parametrize("numbers", [-1, [0, 3], 10**9, 1.5, [True, False, True], "0", [[0]]])
def test_what_is_no_row_is_refused(numbers):
    rows = bt.TokenRows(np.arange(1, 24), [21, 2], 8)
    with pytest.raises(
        (IndexError, ValueError), match="row .* does not exist: there are 3 rows|numbers must be an array of integers"
    ):
        rows[numbers]
