"""Every exercise: untouched it is "not attempted", and typical mistakes are refused with a reason.

tests/notebooks/test_solved.py tests in the notebooks that the solution is right and that the answer itself is run.
"""

import inspect
from pathlib import Path

import pytest

from bigtrain_nb.workbook.exercises import registry
from bigtrain_nb.workbook.workbook import check

MODULES = (Path(__file__).parents[2] / "bigtrain_nb/series/exercises").glob("[!_]*.py")
EXERCISES = {}
for module in sorted(MODULES):
    EXERCISES |= registry(module.stem)


SLOW = ("many_workers.train", "feed_the_model.pipeline", "all_of_it.next_step", "mirror_it_step.train_step")


def assert_refused(name, wrong):
    for answer, reason in wrong:
        found = check(name, answer)
        assert found.status == "wrong", answer.__name__
        assert reason in found.message


@pytest.mark.parametrize("name", EXERCISES)
def test_untouched_and_mistaken(name):
    wrong = EXERCISES[name].wrong
    assert check(name, lambda *_: ...).status == "not attempted"
    assert len(wrong) >= 2
    assert_refused(name, wrong[-2:] if name in SLOW else wrong)


@pytest.mark.more("seconds for each wrong answer of four exercises: two of each are in the first tier")
@pytest.mark.parametrize("name", SLOW)
def test_mistaken_in_more_ways(name):
    assert_refused(name, EXERCISES[name].wrong[:-2])


@pytest.mark.parametrize("junk", [None, float("nan")], ids=repr)
def test_a_value_that_never_changes_is_no_answer(junk):
    for name in EXERCISES:
        assert check(name, lambda *_, junk=junk: junk).status == "wrong", name


def test_each_exercise_says_what_it_gives_to_a_function():
    for name, exercise in EXERCISES.items():
        arguments = inspect.signature(exercise.reference).parameters
        named = exercise.takes if exercise.takes.startswith("as ") else exercise.takes.split(";")
        assert exercise.returns and (isinstance(named, str) or len(named) == len(arguments)), name


def test_a_function_of_another_project_is_checked_by_position():
    def of_another_project(parameters, numbers):
        return parameters // numbers + 1

    assert check("half_the_bits.smallest_batch", of_another_project).status == "right"
    with pytest.raises(TypeError, match="it gets weights; activations of an example, and returns an integer"):
        check("half_the_bits.smallest_batch", None)
