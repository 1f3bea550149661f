"""A type checker sees all public names, no error in README's examples, and an error for each typo."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stub
from test_readme_examples import EXAMPLES, KERAS

import bigtrain_nb as bt

ROOT = Path(__file__).parents[2]
GIVEN = "from typing import Any\nbuild_new: Any = None\nbuild_old: Any = None\n"
BEFORE_A_TYPO = """
import bigtrain_nb as bt
import keras
both = bt.compare({"a": lambda: [[1]], "b": lambda: [[1]]})
model = keras.Sequential()
"""
NO_ERROR = """
import bigtrain_nb as bt
import keras
inputs = keras.Input((8,))
model = bt.Model(inputs, keras.layers.Dense(1)(inputs), micro_batches=4)
model.compile("adam", loss="mse")
model.fit([], epochs=2)
bt.conv_net().compile("adam")
bt.Model.of(model, fully_shard=r"block_.*").generate("what a model of KerasHub has")
bt.load_model("model.keras", micro_batches=2).save("again.keras")
class Own(bt.Model):
    def train_step(self, data):
        return super().train_step(data)
Own(micro_batches=2).fit([])
"""
TYPOS = {
    'bt.compare({"a": lambda: [[1]]}, secnds=5)': "secnds",
    'bt.comparee({"a": lambda: [[1]]})': "comparee",
    "both.ratios": "ratios",
    "bt.Pipeline(data=[], prefetsch=2)": "prefetsch",
    "bt.Model.of(model, micro_batchs=4)": "micro_batchs",
}


@pytest.fixture(scope="module")
def errors_in(tmp_path_factory):
    """Return a function: {name: code} -> {name: mypy's error messages}."""

    def check(files):
        folder = tmp_path_factory.mktemp("types")
        for name, code in files.items():
            (folder / f"{name}.py").write_text(code)
        how = ["--python-executable", sys.executable, "--follow-imports=silent", "--ignore-missing-imports"]
        command = [sys.executable, "-m", "mypy", *how, "--check-untyped-defs", "--hide-error-context", "."]
        environment = {**os.environ, "MYPYPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment)
        assert done.returncode in (0, 1), done.stderr
        found = {name: [] for name in files}
        for name, message in re.findall(r"^(\w+)\.py:\d+: error: (.*)$", done.stdout, re.MULTILINE):
            found[name].append(message)
        return found

    return check


def test_the_stub_has_the_names_that_there_are():
    text = stub.FILE.read_text(encoding="utf-8")
    assert text == stub.stub(), "run tools/stub.py"
    assert sorted(re.findall(r" as (\w+)$", text, re.MULTILINE)) == bt.__all__
    assert (stub.FILE.parent / "py.typed").exists()


def test_a_checker_takes_what_is_right_and_finds_typos(errors_in):
    files = {"readme": KERAS + GIVEN + "\n".join(EXAMPLES.values()), "models": NO_ERROR}
    for number, typo in enumerate(TYPOS):
        files[f"typo_{number}"] = BEFORE_A_TYPO + typo + "\n"
    found = errors_in(files)
    assert (found.pop("readme"), found.pop("models")) == ([], [])
    for errors, (typo, word) in zip(found.values(), TYPOS.items(), strict=True):
        assert len(errors) == 1 and f'"{word}"' in errors[0], (typo, errors)
