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


def files_passed(run):
    """Return the files of bigtrain_nb whose functions run during ``run``, in any thread."""
    passed = set()

    def note(frame, event, _):
        if event == "call":
            passed.add(frame.f_code.co_filename)

    with profiled(note):
        run()
    ours = [Path(name).relative_to(ROOT) for name in passed if Path(name).is_relative_to(ROOT)]
    return {path.with_suffix("").as_posix() for path in ours}


def calls_in_steps(run):
    """Return our function calls (file, name) in each traced step of a replica, in order.

    Comprehensions, which are calls only in some Pythons, and resumed generators are excluded.
    """
    steps, inside, seen = [], {}, set()

    def note(frame, event, _):
        code, thread = frame.f_code, threading.get_ident()
        is_ours = code.co_filename.startswith(str(ROOT))
        if event == "return" and inside.get(thread) is frame:
            del inside[thread]
        if event != "call" or not is_ours or code.co_name.startswith("<") or frame in seen:
            return
        if code.co_name == "train_step" and thread not in inside:
            inside[thread] = frame
            steps.append((thread, []))
        if thread in inside:
            seen.add(frame)
            calls = next(calls for of, calls in reversed(steps) if of == thread)
            calls.append((Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_name))

    with profiled(note):
        run()
    return [calls for _, calls in steps]


def compiled(recompute=False, **settings):
    inputs = keras.Input((6,))
    wide = keras.layers.Dense(8, name="wide")(inputs)
    model = bt.Model(inputs, keras.layers.Dense(1, name="narrow")(wide), micro_batches=4, **settings)
    if recompute:
        bt.recompute(model, "wide")
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize("way", WAYS)
def test_a_fit_of_two_replicas_in_four_micro_batches_passes_few_files(way):
    settings, others = WAYS[way]
    with on(2):
        model = compiled(**settings)
    passed = files_passed(lambda: model.fit(X, Y, batch_size=16, verbose=0))
    assert passed <= MEAN | others
    assert {"train/model"} | others - {"train/in_place"} <= passed  # used only in `compile`
    assert len(passed) <= (12 if way == "fully sharded" else 10)


@pytest.mark.parametrize("way", WAYS)
def test_a_traced_step_asks_for_each_fact_of_its_share_once(way):
    settings, _ = WAYS[way]
    with on(2):
        model = compiled(**settings)
    steps = calls_in_steps(lambda: model.fit(X, Y, batch_size=16, verbose=0))
    assert len(steps) == 2
    for calls in steps:
        times = Counter(name for _, name in calls)
        for fact in ("count_examples", "loss_reduction", "places_of", "replica_reduction"):
            assert times[fact] == 1, fact
        assert times["weight_of"] == 1 + times["micro_batch"]  # each micro-batch has its own weight
        if way == "mean":
            assert sum(file != next_file for (file, _), (next_file, _) in pairwise(calls)) <= 24
