"""The docstring of every public function and class ends with an example of at most six lines, and it runs."""

import inspect
import linecache
from textwrap import dedent

import pytest

import bigtrain_nb as bt

BEGINNING = "import bigtrain_nb as bt\nfrom bigtrain_nb import tf\nimport keras\n"
TAKEN_TO_BE_THERE = {
    "Resume": """
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
examples = tf.data.Dataset.from_tensor_slices((tf.ones([32, 8]), tf.ones([32, 1])))
""",
}
PRINTED = {"all_reduce_seconds": "0.07", "Transformer": "124439808"}


@pytest.fixture(autouse=True)
def a_place_of_its_own(tmp_path, tmp_path_factory, monkeypatch, fresh_notes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIGTRAIN_NB_TIME_SCALE", "0.2")
    monkeypatch.setenv("BIGTRAIN_NB_CACHE", str(tmp_path_factory.getbasetemp() / "cache-of-examples"))


NAMES = [name for name in bt.__all__ if inspect.isfunction(getattr(bt, name)) or inspect.isclass(getattr(bt, name))]


def example_of(name):
    return dedent(inspect.getdoc(getattr(bt, name)).partition("Example::\n\n")[2]).strip()


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_short_runs_and_prints_what_its_comments_say(name, capsys):
    example = example_of(name)
    assert 1 <= len([line for line in example.splitlines() if line]) <= 6
    assert f"bt.{name}" in example or name in ("Result",)
    code = BEGINNING + TAKEN_TO_BE_THERE.get(name, "") + example
    file = f"example of {name}"
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file  # for AutoGraph
    exec(compile(code, file, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith(PRINTED.get(name, ""))
