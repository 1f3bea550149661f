"""README's examples for the reader's own notebook run as they stand, after what the reader is taken to have."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", README.read_text(), re.DOTALL))

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
GIVEN = {  # what stands before an example, and what must hold after it
    "measuring": (SOURCES, "assert set(both.names) == {'new', 'old'}"),
    "examining": (KERAS, "assert report.of('ok')"),
    "fitting": (KERAS, "assert model.optimizer.iterations == 8 and model.micro_batches == 4"),
    "launching": (f"open('train.py', 'w').write({TRAIN!r})", "assert codes == [0, 0] and 'trained' in job.logs(0)"),
    "planning": ("", "assert 0 < plan.peak < plan.room"),
}


def test_the_examples_run_one_after_the_other(tmp_path):
    assert list(EXAMPLES) == list(GIVEN)
    script = ""
    for name, (before, after) in GIVEN.items():
        assert len(EXAMPLES[name].splitlines()) <= 5
        script += f"{before}\n{EXAMPLES[name]}\n{after}\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
