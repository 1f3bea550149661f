"""TensorFlow, Keras and the package agree with the exercises' solutions."""

import json
from pathlib import Path

import numpy as np
import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.series.exercises import (
    all_of_it,
    ask_a_server,
    choose_it,
    feed_a_language_model,
    many_workers,
    mirror_it,
)
from bigtrain_nb.series.worker_clock import staleness_of_updates

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "10-feed-a-language-model.ipynb"


def test_the_meter_finds_the_noise_scale_of_the_solution():
    keras.utils.set_random_seed(1)
    x, y = np.random.default_rng(1).normal(size=(2, 64, 1)).astype("float32")
    model = bt.Model.of(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), micro_batches=4)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    meter = bt.Meter(gradients=True)
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[meter])
    pieces = []
    for start in range(0, 64, 4):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean((model(x[start : start + 4]) - y[start : start + 4]) ** 2)
        pieces.append(np.concatenate([np.ravel(one) for one in tape.gradient(value, model.trainable_variables)]))
    assert np.isclose(meter.noise_scale, mirror_it.noise_scale(np.reshape(pieces, (4, 4, 2)), 4), rtol=1e-3)


def test_dealing_batches_is_what_shard_does():
    files = [list(range(12)), list(range(12, 24))]
    for worker in range(2):
        shard = tf.data.Dataset.range(24).batch(3).shard(2, worker).unbatch()
        assert list(shard.as_numpy_iterator()) == many_workers.reads("DATA", files, 6, worker, 2)


def test_the_unshared_state_is_that_of_the_plan_but_for_gradients_in_16_bits():
    model = bt.Transformer(32, 4096, 32)
    whole = {"devices": 8, "tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 0, "recompute": "everything"}
    memory = bt.plan_cluster(model, 8, **whole).memory
    state = (
        sum(memory[name] for name in ("weights", "16-bit copies", "gradients", "optimizer state")) - 2 * model.weights
    )
    assert all_of_it.which_stage(model.weights, {8: state, 16: state}) == (0, 0)


def test_updates_on_the_clock_are_as_stale_as_the_solution_says():
    seconds = [1.0, 1.0, 2.5]
    found = staleness_of_updates(seconds, until=10.0)
    _, expected = ask_a_server.asynchronous(0.0, lambda worker, weights: 0.0, seconds, rate=0.1, steps=len(found))
    assert len(found) == 10 + 10 + 4 and found == expected


FAULTS = {
    "no mask": "mask",
    "positions run on": "positions",
    "boundaries weighted": "boundary",
    "padding weighted": "padding",
}


@pytest.mark.parametrize(
    ("inputs", "weights"), [("no mask", "boundaries weighted"), ("positions run on", "padding weighted")]
)
def test_the_exercise_plants_faults_as_its_notebook_switches_them_off(inputs, weights):
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]}
    batch = feed_a_language_model._packed_rows()
    place = np.arange(feed_a_language_model.ROW)
    known = {"np": np, "batch": batch, "place": place, "LENGTH": len(place)}
    exec(cells["def-examples"], known)
    known["inputs"], known["labels"], known["weights"] = known["examples"](batch)
    exec(cells["switches"].split("in_loss, in_gradient")[0], known)

    switched_off = known["switched_off"]
    planted = switched_off[inputs][0], known["labels"], switched_off[weights][2]
    faulty = feed_a_language_model._faulty_gradient((FAULTS[inputs], FAULTS[weights]))
    np.testing.assert_allclose(feed_a_language_model._gradient_function()(*planted), faulty, atol=1e-5)


def test_halving_finds_more_than_the_same_epochs_for_all_as_the_text_of_its_exercise_says():
    def all_alike(train, trials, budget):
        return np.argmin([train(trial, budget // trials) for trial in range(trials)])

    for search, expected in ((choose_it.halving, 170), (all_alike, 137)):
        found = 0
        for repetition in range(200):
            trials, budget = [(32, 320), (24, 240)][repetition % 2]
            curves = choose_it._Curves(trials, budget, seed=repetition)
            best = search(curves.train, trials, budget)
            found += curves.ends[best] < min(curves.ends) + 0.05
        assert found == expected
