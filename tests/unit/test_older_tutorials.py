"""Each row of notebooks/older-tutorials.md: the old call has the outcome stated there, and today's line runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import logical_cpus
import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

PAGE = Path(__file__).parents[2] / "notebooks" / "older-tutorials.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| often printed"))
]
CODE = re.compile(r"`([^`]+)`")
# Rows whose first cell is not a line of Python: each has its own test below.
IN_TWO_WORKERS = ['the same, "for pipeline parallelism"', "`model.fit(dataset)` in two workers of it"]
MIRRORED = "`gradient_accumulation_steps=4` and `fit` under `MirroredStrategy`"
LINES = [row for row in ROWS if row[0] not in [*IN_TWO_WORKERS, MIRRORED]]
SAID = {  # the value of an old line that raises nothing
    "tf.data.experimental.AUTOTUNE": "-1",
    "optimizer.lr = 0.01": "learning rate 0.10",
    "dataset.apply(tf.data.experimental.snapshot(folder))": "1",
}
NOW = {  # the value of today's line
    "tf.data.AUTOTUNE": "-1",
    "optimizer.learning_rate = 0.01": "learning rate 0.01",
    'keras.mixed_precision.set_global_policy("mixed_float16")': "mixed_float16",
    'strategy.reduce("SUM", losses, axis=None)': "tf.Tensor(2.0, shape=(), dtype=float32)",
    "scaled.scale_loss(loss)": "tf.Tensor(32768.0, shape=(), dtype=float32)",
    "dataset.snapshot(folder)": "1",
}


def old(row):
    return CODE.match(row[0])[1]


def now(row):
    return CODE.fullmatch(row[2])[1]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{line: its outcome}, from one separate process."""
    folder = tmp_path_factory.mktemp("older")
    lines = [line for row in LINES for line in (old(row), now(row))]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("older_calls.py")],
        input=json.dumps(lines),
        cwd=folder,
        env=os.environ | logical_cpus.NO_GPUS | {"PYTHONPATH": str(PAGE.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_the_page_has_rows_and_each_once():
    assert len(ROWS) > 30 and len({row[0] for row in ROWS}) == len(ROWS)
    assert all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("row", LINES, ids=old)
def test_the_old_call_does_what_the_page_says(row, found):
    did = found[old(row)]
    error = re.match(r"`(\w+(?:Error|Exception))`:", row[1])
    assert did["raised"] == (error and error[1]), did
    if error:
        names = set(re.findall(r"[a-zA-Z_]\w+", old(row))) - {"tf", "keras", "model", "optimizer"}
        called = [name for name in names if name in did["words"]]
        assert called, did  # this call raised, not an earlier one
    else:
        assert row[1].startswith("runs: ")
        assert did["value"] == SAID.get(old(row), did["value"])
    if old(row) == "keras.optimizers.SGD(decay=0.1)":
        assert "will be ignored" in str(did["warned"])


@pytest.mark.parametrize("row", LINES, ids=old)
def test_todays_line_runs(row, found):
    did = found[now(row)]
    assert did["raised"] is None, did
    assert did["value"] == NOW.get(now(row), did["value"])


def test_a_rate_that_was_set_by_its_old_name_cannot_be_read_before():
    with pytest.raises(AttributeError, match="lr"):
        _ = keras.optimizers.SGD(0.1).lr


def test_keras_accumulation_raises_on_two_replicas_and_ours_trains():
    data = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1)))).repeat(4)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), "mse")
        [row] = [row for row in ROWS if row[0] == MIRRORED]
        assert row[1].startswith("`RuntimeError`")
        with pytest.raises(RuntimeError, match="merge_call"):
            model.fit(data, shuffle=False, verbose=0)
        ours = eval(now(row), {"bt": bt, "model": keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])})
        ours.compile(keras.optimizers.SGD(0.1), "mse")
    losses = ours.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses[1] < losses[0]


WORKER = """
from bigtrain_nb.common.quiet import keras, tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
[kernel] = strategy.experimental_local_results(model.weights[0].value)
print("workers", strategy.num_replicas_in_sync, "kernel here", kernel.shape)
try:
    model.fit(tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1)))), verbose=0)
except Exception as error:
    print("fit raised", type(error).__name__)
"""


@pytest.mark.more("two processes; a cell of notebook 03 holds that stock `fit` raises")
def test_two_workers_of_the_strategy_hold_all_weights_each_and_their_fit_raises():
    rows = {row[0]: row[1] for row in ROWS}
    assert "holds *all* weights" in rows[IN_TWO_WORKERS[0]]
    raised = re.match(r"`(\w+)`:", rows[IN_TWO_WORKERS[1]])[1]
    job = bt.run_workers(WORKER, workers=2, timeout=300)
    try:
        assert job.wait(False) == [0, 0], job.logs(0)[-2000:]
        for index in range(2):
            assert "workers 2 kernel here (4, 1)" in job.logs(index)
            assert f"fit raised {raised}" in job.logs(index)
    finally:
        job.stop()
