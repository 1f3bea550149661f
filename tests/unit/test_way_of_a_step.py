"""A training step runs in few of our files, those listed in CONTRIBUTING.md, and asks for nothing twice."""

import sys
import threading
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from equal_models import examples, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

ROOT = Path(bt.__file__).parent
X, Y = examples(16)
MEAN = {
    "train/model",
    "train/loss_reduction",
    "train/reduction",
    "train/batches",
    "common/replicas",
    "common/keras_compat",
    "train/own_step",
}
WAYS = {  # settings, and the files that only this path uses
    "mean": ({}, set()),
    "sharded": (
        {"shard_optimizer": True},
        {"advanced/parallel/sharded", "advanced/parallel/shards", "train/in_place"},
    ),
    "fully sharded": (
        {"fully_shard": "wide"},
        {
            "advanced/parallel/fully_shard",
            "advanced/parallel/layers",
            "advanced/parallel/sharded_weights",
            "advanced/parallel/shards",
            "common/layers",
        },
    ),
    "recomputed": ({"recompute": True}, {"advanced/parallel/recompute", "advanced/parallel/layers"}),
}


@contextmanager
def profiled(note):
    """Profile calls and returns with ``note``, in this thread and in new ones, for example those of replicas."""
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def calls_in(run):
    """Return the files of bigtrain_nb whose functions ``run`` calls, in any thread, and the calls in its steps.

    The latter are our functions (file, name) in each traced step of a replica, in order. Comprehensions, which are
    calls only in some Pythons, and resumed generators are excluded.
    """
    passed, steps, inside, seen = set(), [], {}, set()

    def note(frame, event, _):
        code, thread = frame.f_code, threading.get_ident()
        if event == "return" and inside.get(thread) is frame:
            del inside[thread]
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        file = Path(code.co_filename).relative_to(ROOT).with_suffix("").as_posix()
        passed.add(file)
        if code.co_name.startswith("<") or frame in seen:
            return
        if code.co_name == "train_step" and thread not in inside:
            inside[thread] = frame
            steps.append((thread, []))
        if thread in inside:
            seen.add(frame)
            calls = next(calls for of, calls in reversed(steps) if of == thread)
            calls.append((file, code.co_name))

    with profiled(note):
        run()
    return passed, [calls for _, calls in steps]


def compiled(recompute=False, **settings):
    inputs = keras.Input((6,))
    wide = keras.layers.Dense(8, name="wide")(inputs)
    model = bt.Model(inputs, keras.layers.Dense(1, name="narrow")(wide), micro_batches=4, **settings)
    if recompute:
        bt.recompute(model, "wide")
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("way", WAYS)
def test_a_fit_of_two_replicas_in_four_micro_batches_passes_few_files_and_asks_for_each_fact_once(way):
    settings, others = WAYS[way]
    with on(2):
        model = compiled(**settings)
    passed, steps = calls_in(lambda: model.fit(X, Y, batch_size=16, verbose=0))
    assert passed <= MEAN | others
    assert {"train/model"} | others - {"train/in_place"} <= passed  # used only in `compile`
    assert len(passed) <= (12 if way == "fully sharded" else 10)
    assert len(steps) == 2
    for calls in steps:
        times = Counter(name for _, name in calls)
        for fact in ("count_examples", "loss_reduction", "places_of", "replica_reduction"):
            assert times[fact] == 1, fact
        assert times["weight_of"] == 1 + times["micro_batch"]  # each micro-batch has its own weight
        if way == "mean":
            assert sum(file != next_file for (file, _), (next_file, _) in pairwise(calls)) <= 24
