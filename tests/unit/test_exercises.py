"""Every exercise: untouched it is not attempted, typical mistakes are refused with a reason, the answer is what is run.

That its solution is right is tested where it stands, in tests/notebooks/test_solved.py.
"""

import inspect
import sys
import textwrap
from pathlib import Path

import pytest

from bigtrain_nb.workbook.exercises import registry
from bigtrain_nb.workbook.expected import EXPECTED
from bigtrain_nb.workbook.workbook import check

MODULES = (Path(__file__).parents[2] / "bigtrain_nb/series/exercises").glob("[!_]*.py")
EXERCISES = {}
for module in sorted(MODULES):
    EXERCISES |= registry(module.stem)
COMPARE = {
    *("cut_the_model.split", "cut_the_model.sending", "pay_with_time.segment"),
    *("pay_with_time.fewest", "when_it_goes_wrong.interval", "ask_a_server.workers_allowed"),
    *("ask_a_server.asynchronous", "ask_a_server.feeders", "choose_it.without_conflict", "shrink_it.break_even"),
    "hand_it_on.batches",
}
"""Exercises whose check asks the solution, too, what is right."""
SLOW = {"many_workers.train", "all_of_it.next_step"}
"""Exercises whose check of a right answer takes 20 s, or measures a speed."""


@pytest.mark.parametrize("name", EXERCISES)
def test_untouched_and_mistaken(name):
    exercise = EXERCISES[name]
    assert check(name, lambda *_: ...).status == "not attempted"
    assert len(exercise.wrong) >= 2
    for answer, reason in exercise.wrong:
        found = check(name, answer)
        assert found.status == "wrong", answer.__name__
        assert reason in found.message


@pytest.mark.parametrize("name", sorted(set(EXERCISES) - SLOW))
def test_the_answer_is_run_and_not_the_solution_in_its_place(name, monkeypatch, tmp_path):
    solution = EXERCISES[name].reference
    file = tmp_path / "answer.py"
    file.write_text(textwrap.dedent(inspect.getsource(solution)))
    module = sys.modules[solution.__module__]
    known = dict(vars(module))
    exec(compile(file.read_text(), str(file), "exec"), known)
    calls = {"answer": 0, "solution": 0}

    def counted(function, which):
        def call(*args, **kwargs):
            calls[which] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(module, solution.__name__, counted(solution, "solution"))
    assert check(name, counted(known[solution.__name__], "answer")).status == "right"
    assert calls["answer"] >= 1
    assert (calls["solution"] > 0) == (name in COMPARE)
    assert calls["answer"] >= calls["solution"]


@pytest.mark.parametrize("name", sorted(COMPARE))
def test_where_the_solution_is_asked_too_each_call_of_the_answer_counts(name):
    """Right but for one call, the first or the last, is wrong: nothing else stands in for that call."""
    solution = EXERCISES[name].reference
    total = 0

    def count(*args):
        nonlocal total
        total += 1
        return solution(*args)

    assert check(name, count).status == "right"
    for bad in (1, total):
        number = 0

        def spoilt(*args, bad=bad):
            nonlocal number
            number += 1
            return object() if number == bad else solution(*args)

        assert check(name, spoilt).status == "wrong"


@pytest.mark.parametrize("junk", [None, float("nan")], ids=repr)
def test_a_value_that_never_changes_is_no_answer(junk):
    for name in EXERCISES:
        assert check(name, lambda *_, junk=junk: junk).status == "wrong", name


def test_the_table_says_what_each_exercise_expects_of_a_function():
    assert set(EXPECTED) == set(EXERCISES)
    for name, (takes, returns) in EXPECTED.items():
        arguments = inspect.signature(EXERCISES[name].reference).parameters
        named = takes if takes.startswith("as ") else takes.split(";")
        assert returns and (isinstance(named, str) or len(named) == len(arguments)), name


def test_a_function_of_another_project_is_checked_by_position():
    def of_another_project(how_many, parts):
        most = -(-how_many // parts)
        return [max(0, min(most, how_many - most * part)) for part in range(parts)]

    assert check("mirror_it.shares", of_another_project).status == "right"
    with pytest.raises(TypeError, match="it gets the global batch; replicas, and returns a list of whole numbers"):
        check("mirror_it.shares", None)
