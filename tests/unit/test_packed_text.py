"""Packed documents train as separate documents would: in all models, on replicas, after a kill."""

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import hub_models
import numpy as np
import packed_training
import pytest
from equal_models import on, precision

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10-feed-a-language-model.ipynb"
LENGTH, VOCABULARY = hub_models.LENGTH, hub_models.VOCABULARY


@cache
def from_the_notebook():
    """Return notebook 10's definitions that prepare packed rows and rewire a KerasHub backbone."""
    known = {"bt": bt, "np": np, "keras": keras, "LENGTH": LENGTH}
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    for name in ("def-examples", "with-segments"):
        exec(cells[name], known)
    return known


def gpt():
    return bt.gpt(VOCABULARY, LENGTH, width=16, layers=2, heads=2, packed=True)


def gpt2():
    return from_the_notebook()["with_segments"](hub_models.gpt2().backbone)


def llama():
    return from_the_notebook()["with_segments"](hub_models.llama().backbone)


def packed_rows():
    """Return seven rows of 10, 12, 12, 12, 11, 12 and 3 tokens: token counts of shares and micro-batches differ."""
    lengths = np.array([12, 5, 7, 1, 4, 6, 2, 9, 3, 8, 2, 7, 3, 3])
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, lengths.sum())
    rows = bt.TokenRows(tokens, lengths, LENGTH)
    return rows[np.arange(len(rows))]


def moved(build, policy, batch, replicas=1, micro_batches=1):
    """Return the weight change of one SGD step on these rows, as a vector."""
    inputs, labels, weights = from_the_notebook()["examples"](batch)
    keras.config.set_dtype_policy(policy)
    keras.config.set_floatx(policy)
    try:
        keras.utils.set_random_seed(1)
        with on(replicas):
            model = bt.Model.of(build(), micro_batches=micro_batches)
            loss = keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight", dtype=policy
            )
            model.compile(keras.optimizers.SGD(1.0), loss)
        random = np.random.default_rng(2)
        model.set_weights([random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
        before = model.get_weights()
        model.fit(
            inputs, labels, sample_weight=weights.astype(policy), batch_size=len(labels), shuffle=False, verbose=0
        )
    finally:
        keras.config.set_dtype_policy("float32")
        keras.config.set_floatx("float32")
    return np.concatenate([np.ravel(new - old) for new, old in zip(model.get_weights(), before, strict=True)])


OTHERS = pytest.mark.more("every model of the notebook x every precision; in float64 the nearest is asked for")


@pytest.mark.parametrize(
    ("build", "policy", "most"),
    [
        pytest.param(gpt, "float32", 1e-5, marks=OTHERS),
        (gpt, "float64", 1e-12),
        pytest.param(gpt2, "float64", 1e-12, marks=OTHERS),
        pytest.param(llama, "float64", 1e-7, marks=OTHERS),  # its norm and rotary embedding compute in float32
    ],
)
def test_packed_rows_train_as_each_document_alone_would(build, policy, most):
    if build is not gpt:
        hub_models.keras_hub()
    batch = packed_rows()
    separate = moved(build, policy, from_the_notebook()["alone"](batch))
    assert np.linalg.norm(separate) > 0.01
    for replicas, micro_batches in ((1, 1), (2, 3)):
        packed = moved(build, policy, batch, replicas, micro_batches)
        assert np.linalg.norm(packed - separate) < most * np.linalg.norm(separate)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_backbone_that_is_wired_anew_computes_as_it_did(build):
    models = hub_models.keras_hub()
    backbone = (hub_models.gpt2 if build is gpt2 else hub_models.llama)().backbone
    assert isinstance(backbone, models.Backbone)
    anew = from_the_notebook()["with_segments"](backbone)
    tokens = np.random.default_rng(3).integers(1, VOCABULARY, (2, LENGTH)).astype("int32")
    ones, places = np.ones_like(tokens), np.tile(np.arange(LENGTH, dtype="int32"), (2, 1))
    hidden = backbone({"token_ids": tokens, "padding_mask": ones})
    expected = backbone.token_embedding(hidden, reverse=True)
    found = anew({"tokens": tokens, "segments": ones, "positions": places})
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_training_that_is_killed_in_an_epoch_ends_with_the_same_bits(tmp_path):
    undisturbed = packed_training.train(tmp_path / "undisturbed")
    command = [sys.executable, packed_training.__file__, tmp_path / "killed", "7"]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    steps_read = []
    resumed = packed_training.train(tmp_path / "killed", steps_read=steps_read)
    left = [step for step in steps_read if step > 3]  # the first four are reread for comparison
    first = min(left)  # tf.data prefetches, so the kill may come before the save after six steps
    assert first in (4, 6) and sorted(set(left)) == list(range(first, packed_training.STEPS))
    for one, other in zip(undisturbed, resumed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_logits_have_64_bits_where_all_has_and_never_16():
    for policy in ("float32", "mixed_float16", "mixed_bfloat16", "float64"):
        with precision(policy):
            assert gpt().output.dtype == ("float64" if policy == "float64" else "float32")
