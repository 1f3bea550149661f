"""Every exercise: untouched it is not attempted, its solution is right, typical mistakes are refused with a reason."""

import pytest

from bigtrain_nb.workbook import workbook
from bigtrain_nb.workbook.exercises import registry

EXERCISES = registry()
MISTAKES = [(name, *mistake) for name, exercise in EXERCISES.items() for mistake in exercise.wrong]


@pytest.mark.parametrize("name", EXERCISES)
def test_untouched_it_is_not_attempted(name):
    assert workbook.check(name, lambda *args, **kwargs: ...).status == "not attempted"


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right(name):
    assert workbook.check(name, EXERCISES[name].reference).status == "right"


@pytest.mark.parametrize("name", EXERCISES)
def test_there_are_typical_mistakes(name):
    assert len(EXERCISES[name].wrong) >= 2


@pytest.mark.parametrize(("name", "answer", "reason"), MISTAKES)
def test_mistakes_are_refused_with_a_reason(name, answer, reason):
    found = workbook.check(name, answer)
    assert found.status == "wrong" and reason in found.message
