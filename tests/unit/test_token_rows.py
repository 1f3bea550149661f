"""Documents packed in rows: every token once, correct segments and positions, little padding, deterministic."""

import time

import numpy as np
import pytest
from tiers import in_two_tiers

import bigtrain_nb as bt


def documents(count=400, longest=90, seed=0):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(3, 1, count).astype(int), longest)  # some are 0
    return rng.integers(1, 8192, lengths.sum()), lengths


def test_rows_say_how_many_they_are_and_how_much_is_padding():
    rows = bt.TokenRows(np.arange(1, 24), [0, 21, 2], 8)
    assert len(rows) == 3 and rows.padding == pytest.approx(1 / 24)
    assert repr(rows) == "TokenRows: 3 rows of 8 tokens, 23 tokens, 4.2 % padding"


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


def test_no_documents_are_no_rows():
    rows = bt.TokenRows([], [], 8)
    assert len(rows) == 0 and rows.padding == 0
    assert len(bt.TokenRows([], [0, 0], 8)) == 0


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


LENGTH = 12
DOCUMENTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9], [3, 2, 3, 8], [4, 6]]


def rows_and_documents():
    tokens = np.concatenate(DOCUMENTS)
    packed = bt.TokenRows(tokens, [len(document) for document in DOCUMENTS], LENGTH)
    alone = np.zeros([len(DOCUMENTS), LENGTH], np.int32)
    for row, document in zip(alone, DOCUMENTS, strict=True):
        row[: len(document)] = document
    return packed[np.arange(len(packed))], alone


def labels_and_weights(tokens, segments):
    """Return the next token of the same document, and weights, 0 if there is none."""
    labels = np.roll(tokens, -1, axis=1)
    following = np.roll(segments, -1, axis=1)
    following[:, -1] = 0
    return labels, ((segments == following) & (segments > 0)).astype("float32")


def gradient(model, inputs, tokens, segments):
    tf = bt.tf
    labels, weights = labels_and_weights(tokens, segments)
    with tf.GradientTape() as tape:
        logits = tf.cast(model(inputs), "float64")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(losses * weights) / weights.sum()
    found = tape.gradient(loss, model.trainable_variables)
    return np.concatenate([np.ravel(tf.convert_to_tensor(each)) for each in found])


WAYS = {
    "recomputed": lambda model: bt.recompute(model, r"block_\d+"),
    "in chunks": lambda model: bt.chunk_attention(model, chunks=5),
    "fully sharded": lambda model: bt.Model.of(model, fully_shard=r"block_\d+"),
}


@pytest.mark.parametrize(
    "way", in_two_tiers(WAYS, ["in chunks"], pytest.mark.more("settings that do not change the attention"))
)
def test_packed_documents_have_the_gradient_of_documents_alone(way):
    packed, alone = rows_and_documents()
    sizes = {"vocabulary": 10, "length": LENGTH, "width": 16, "layers": 2, "heads": 2}
    together, apart = WAYS[way](bt.gpt(**sizes, packed=True, nested_blocks=True)), bt.gpt(**sizes)
    together.set_weights(apart.get_weights())
    expected = gradient(apart, alone, alone, (alone > 0).astype("int32"))
    found = gradient(together, packed, packed["tokens"], packed["segments"])
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()

    wrong = {**packed, "segments": (packed["segments"] > 0).astype("int32")}  # treats a row as one document
    leaking = gradient(together, wrong, packed["tokens"], packed["segments"])
    assert np.abs(leaking - expected).max() > 0.05 * np.abs(expected).max()


def test_a_packed_model_is_saved_and_loaded(tmp_path):
    packed, _ = rows_and_documents()
    model = bt.gpt(10, LENGTH, 16, 1, 2, packed=True)
    model.save(tmp_path / "packed.keras")
    np.testing.assert_allclose(bt.load_model(tmp_path / "packed.keras")(packed), model(packed), atol=1e-6)
