"""The examples of README and "Your fit, our fit" run unchanged, after the code that they assume."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bigtrain_nb.common.time_scale import VARIABLE

ROOT = Path(__file__).parents[2]


def examples(page):
    """Return {name: code} of the examples on a page, in order."""
    text = (ROOT / page).read_text()
    return dict(re.findall(r"<!-- example: ([\w -]+) -->\n```python\n(.*?)```", text, re.DOTALL))


def run(script, folder):
    command, environment = [sys.executable, "-c", script], {**os.environ, VARIABLE: "0.1"}  # measure for a short time
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


EXAMPLES = examples("README.md")
FITS = examples("notebooks/your-fit.md")

SOURCES = """
def build_old(): return [[0] * 32] * 4
def build_new(): return [[0] * 32] * 4
"""
KERAS = """
from bigtrain_nb.common.quiet import keras, tf
def build():
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
dataset = tf.data.Dataset.from_tensor_slices((tf.ones((50, 8)), tf.ones((50, 1)))).batch(16)
"""
TRAIN = """
import bigtrain_nb as bt
with bt.strategy().scope():
    bt.tf.Variable(1.0)
print("trained")
"""
GIVEN = {  # code before an example, and an assertion after it
    "measuring": (SOURCES, "assert set(both.names) == {'new', 'old'}"),
    "examining": (KERAS, "assert report.of('ok')"),
    "fitting": (KERAS, "assert model.optimizer.iterations == 8 and model.micro_batches == 4"),
    "launching": (f"open('train.py', 'w').write({TRAIN!r})", "assert codes == [0, 0] and 'trained' in job.logs(0)"),
    "planning": ("", "assert 0 < plan.peak < plan.device_memory"),
}


def test_the_examples_run_one_after_the_other(tmp_path):
    assert list(EXAMPLES) == list(GIVEN)
    script = ""
    for name, (before, after) in GIVEN.items():
        assert len(EXAMPLES[name].splitlines()) <= 5
        script += f"{before}\n{EXAMPLES[name]}\n{after}\n"
    run(script, tmp_path)


FIT = """
import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
import numpy as np, os

def build():
    keras.utils.set_random_seed(1)
    blocks = [keras.layers.Dense(8, "tanh", name=f"block_{n}") for n in range(3)]
    return keras.Sequential([keras.Input((8,)), *blocks, keras.layers.Dense(1, dtype="float32")])
x = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
def make_dataset():
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(16)
def said():
    return model.predict(x, verbose=0)
"""
EQUAL = "np.testing.assert_allclose(said(), alone, atol=1e-4)"
AFTER = {  # an assertion after each example
    "yours": "alone = said()",
    "two devices": EQUAL,
    "16 bits": "np.testing.assert_allclose(said(), alone, atol=0.1)\nkeras.config.set_dtype_policy('float32')",
    "micro-batches": EQUAL,
    "recompute": EQUAL,
    "shares": EQUAL,
}


def test_the_fits_end_where_the_first_one_does(tmp_path):
    assert {*FITS} - {"two workers"} == {*AFTER}
    run(
        FIT
        + "bt.devices()\ndataset = make_dataset()\n"
        + "\n".join(f"{FITS[name]}\n{after}" for name, after in AFTER.items()),
        tmp_path,
    )


@pytest.mark.more("two processes, as in the README's example of them")
def test_the_fit_of_two_workers_ends_there_too(tmp_path):
    ends = f"dataset = make_dataset()\n{FITS['yours']}\nalone = said()\n"
    worker = FIT + FITS["two workers"]
    (tmp_path / "train.py").write_text(worker + "\nnp.save(f'{os.getpid()}', said())")
    job = "job = bt.run_workers('train.py', workers=2)\nassert job.wait() == [0, 0]\n"
    equal = "for pid in job.pids:\n    np.testing.assert_allclose(np.load(f'{pid}.npy'), alone, atol=1e-4)"
    run(f"{FIT}{ends}{job}{equal}", tmp_path)
