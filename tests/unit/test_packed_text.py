"""Packed documents train as separate documents would, on replicas too, and so does a model with chunked attention."""

import json
from functools import cache
from pathlib import Path

import numpy as np
from equal_models import on, precision

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10-feed-a-language-model.ipynb"
LENGTH, VOCABULARY = 12, 64


@cache
def from_the_notebook():
    """Return notebook 10's definitions of inputs, labels and weights, and of documents alone in their rows."""
    known = {"np": np, "LENGTH": LENGTH}
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    exec(cells["def-examples"], known)
    return known


def gpt():
    return bt.gpt(VOCABULARY, LENGTH, width=16, layers=2, heads=2, packed=True)


def gpt_in_chunks():
    return bt.chunk_attention(gpt(), chunks=5)


def packed_rows():
    """Return seven rows of 10, 12, 12, 12, 11, 12 and 3 tokens: token counts of shares and micro-batches differ."""
    lengths = np.array([12, 5, 7, 1, 4, 6, 2, 9, 3, 8, 2, 7, 3, 3])
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, lengths.sum())
    rows = bt.TokenRows(tokens, lengths, LENGTH)
    return rows[np.arange(len(rows))]


def moved(build, batch, replicas=1, micro_batches=1):
    """Return the weight change of one SGD step on these rows in 64 bits, as a vector."""
    inputs, labels, weights = from_the_notebook()["examples"](batch)
    keras.config.set_floatx("float64")
    try:
        keras.utils.set_random_seed(1)
        with precision("float64"), on(replicas):
            model = bt.Model.of(build(), micro_batches=micro_batches)
            loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight", dtype="float64"
            )
            model.compile(keras.optimizers.SGD(1.0), loss)
        random = np.random.default_rng(2)
        model.set_weights([random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
        before = model.get_weights()
        weights = weights.astype("float64")
        model.fit(inputs, labels, sample_weight=weights, batch_size=len(labels), shuffle=False, verbose=0)
    finally:
        keras.config.set_floatx("float32")
    return np.concatenate([np.ravel(new - old) for new, old in zip(model.get_weights(), before, strict=True)])


def test_packed_rows_train_as_each_document_alone_would():
    """Notebook 10 asserts it of KerasHub's GPT-2 and Llama."""
    batch = packed_rows()
    separate = moved(gpt, from_the_notebook()["alone"](batch))
    assert np.linalg.norm(separate) > 0.01
    for build, settings in ((gpt, {"replicas": 2, "micro_batches": 3}), (gpt_in_chunks, {})):
        packed = moved(build, batch, **settings)
        assert np.linalg.norm(packed - separate) < 1e-12 * np.linalg.norm(separate), build.__name__


def test_a_packed_model_is_saved_and_loaded(tmp_path):
    model, batch = gpt(), packed_rows()
    model.save(tmp_path / "packed.keras")
    np.testing.assert_allclose(bt.load_model(tmp_path / "packed.keras")(batch), model(batch), atol=1e-6)


def test_logits_have_64_bits_where_all_has_and_never_16():
    for policy in ("float32", "mixed_float16", "mixed_bfloat16", "float64"):
        with precision(policy):
            assert gpt().output.dtype == ("float64" if policy == "float64" else "float32")
