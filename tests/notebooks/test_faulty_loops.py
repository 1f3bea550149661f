"""The faulty loops that readers must fix: if attempted but not fixed, each is refused for its fault."""

import re
from importlib import import_module
from pathlib import Path

import notebook_rules as rules
import pytest

import bigtrain_nb as bt
from bigtrain_nb.workbook.exercises import registry

FOLDER = Path(__file__).parents[2] / "notebooks"
LOOPS = {
    "02-mirror-it": [f"mirror_it_loops.loop_{letter}" for letter in "abcde"],
    "05-a-batch-that-does-not-fit": [f"a_batch_in_slices.loop_{number}" for number in (1, 2, 3)],
}


@pytest.mark.parametrize(("notebook", "name"), [(notebook, name) for notebook in LOOPS for name in LOOPS[notebook]])
def test_a_loop_that_nobody_repaired_is_refused_for_its_fault(notebook, name):
    cells = rules.code_cells(rules.read(FOLDER / f"{notebook}.ipynb"))
    (cell,) = [cell for cell in cells if cell.metadata.get("exercise") == name]
    loop, lines_deleted = re.subn(" *return .*# delete this line.*\n", "", cell.source)
    assert lines_deleted == 1
    module, _, function = name.partition(".")
    known = {"bt": bt, **vars(import_module(f"bigtrain_nb.series.exercises.{module}"))}
    bt.devices()  # splits the CPU before TensorFlow is initialized
    exec(loop, known)
    found = bt.check(name, known[function])
    _, reason = registry(name)[name].wrong[0]
    assert found.status == "wrong" and reason in found.message
