"""KerasHub models taken in place train as in stock Keras, and keep their classes and files."""

import zipfile
from functools import cache
from typing import NamedTuple

import hub_models
import numpy as np
import pytest
from equal_models import apart_of_weights as apart  # absolute: a key's bias changes only by rounding
from equal_models import on
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.train.in_place import own_class

keras_hub = pytest.importorskip("keras_hub")


def built(build, replicas, taken=lambda model: model):
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = taken(build())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9), loss=loss, weighted_metrics=["accuracy"])
    return model


def train(model, data):
    x, y, weight = data()
    model.fit(x, y, sample_weight=weight, batch_size=7, epochs=2, shuffle=False, verbose=0)
    return model


class Stock(NamedTuple):
    start: list[np.ndarray]  # initial weights
    model: keras.Model
    predicted: np.ndarray


@cache
def stock_of(name):
    """Return the stock Keras result of a task; no test changes it."""
    build, data = hub_models.TASKS[name]
    model = built(build, 1)
    start = model.get_weights()
    train(model, data)
    return Stock(start, model, model.predict(data()[0], verbose=0))


def assert_trained_as(stock, taken):
    moved = max(
        np.abs(after - before).max() for after, before in zip(stock.model.get_weights(), stock.start, strict=True)
    )
    assert apart(taken, stock.model) < 2e-5 < moved


def in_two_and_sharded(model):
    return bt.Model.of(model, micro_batches=2, shard_optimizer=True)


OTHERS = pytest.mark.more("KerasHub's other tasks: the ones of the first tier have the most inputs and frozen weights")


@pytest.mark.parametrize("name", in_two_tiers(hub_models.TASKS, ["BART"], OTHERS))
def test_two_replicas_in_micro_batches_equal_stock_keras_and_the_file_is_stock(name, tmp_path):
    build, data = hub_models.TASKS[name]
    stock = stock_of(name)
    taken = train(built(build, 2, in_two_and_sharded), data)
    assert_trained_as(stock, taken)
    for metric, values in stock.model.history.history.items():
        assert taken.history.history[metric] == pytest.approx(values, rel=1e-4), metric

    taken.save(tmp_path / "model.keras")
    assert b"bigtrain" not in zipfile.ZipFile(tmp_path / "model.keras").read("config.json")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is own_class(stock.model)
    x, _, _ = data()
    np.testing.assert_allclose(loaded.predict(x, verbose=0), stock.predicted, atol=1e-4)


BLOCKS_OF = {
    "Gemma": r"decoder_block_\d+",
    "ViT": r"transformer_block_\d+",
    "BART": r"transformer_(en|de)coder_layer_\d+",
}


SHARDED = [("GPT-2", 2), ("Gemma", 1), ("Qwen with LoRA", 1), ("BART", 1), ("ViT", 1)]


@pytest.mark.parametrize(("name", "micro_batches"), in_two_tiers(SHARDED, [("Qwen with LoRA", 1)], OTHERS))
def test_fully_sharded_on_two_replicas_they_equal_stock_keras(name, micro_batches):
    """Llama's blocks are like Qwen's, and BERT's like those of BART's encoder."""
    build, data = hub_models.TASKS[name]
    blocks = BLOCKS_OF.get(name, r"transformer_layer_\d+")
    stock = stock_of(name)
    taken = built(build, 2, lambda model: bt.Model.of(model, fully_shard=blocks, micro_batches=micro_batches))
    train(taken, data)
    assert_trained_as(stock, taken)
    x, _, _ = data()
    np.testing.assert_allclose(taken.predict(x, verbose=0), stock.predicted, atol=1e-4)


TEXTS = ["the cat sat", "a dog ran on", "the mat", "cat and dog", "on the mat", "dogs ran", "the end", "a cat"]


def of_texts(taken=lambda model: model, replicas=1):
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = taken(hub_models.gpt2_of_texts())
        model.compile(
            optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            sampler="greedy",
        )
        model.fit(TEXTS, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model


def generated(model):
    return model.generate(["the ca", "a do"], max_length=hub_models.LENGTH)


def test_texts_go_into_fit_and_generate_gives_the_same_tokens_also_recomputed_in_chunks():
    def all_of_it(model):
        bt.recompute(model, r"transformer_layer_\d+")
        bt.chunk_attention(model, chunks=3)
        return in_two_and_sharded(model)

    stock, taken = of_texts(), of_texts(all_of_it, replicas=2)
    assert apart(taken, stock) < 2e-5
    assert generated(taken) == generated(stock)
    assert isinstance(taken, keras_hub.models.GPT2CausalLM) and taken.preprocessor is not None


def test_presets_are_saved_and_loaded_in_a_process_that_has_imported_us(tmp_path):
    model = bt.Model.of(hub_models.gpt2_of_texts())
    model.save_to_preset(tmp_path / "preset")
    again = keras_hub.models.CausalLM.from_preset(str(tmp_path / "preset"))
    assert type(again) is keras_hub.models.GPT2CausalLM
    assert apart(again, model) == 0
