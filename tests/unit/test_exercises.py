"""Every exercise: untouched it is not attempted, typical mistakes are refused with a reason.

That its solution is right is tested where it stands, in tests/notebooks/test_solved.py.
"""

from pathlib import Path

import pytest

from bigtrain_nb.workbook.exercises import registry
from bigtrain_nb.workbook.workbook import check

MODULES = (Path(__file__).parents[2] / "bigtrain_nb/series/exercises").glob("[!_]*.py")
EXERCISES = {}
for module in sorted(MODULES):
    EXERCISES |= registry(module.stem)


@pytest.mark.parametrize("name", EXERCISES)
def test_untouched_and_mistaken(name):
    exercise = EXERCISES[name]
    assert check(name, lambda *_: ...).status == "not attempted"
    assert len(exercise.wrong) >= 2
    for answer, reason in exercise.wrong:
        found = check(name, answer)
        assert found.status == "wrong", answer.__name__
        assert reason in found.message
