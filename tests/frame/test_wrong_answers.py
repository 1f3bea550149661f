"""The tool that generates wrong answers, and its results: enough are refused; the others have a reason."""

import pytest
import wrong_answers

NAMES = wrong_answers.exercise_names()
FOUND, REASONS = wrong_answers.read()


def mean_of_others(numbers, index):
    total = 0
    for place, number in enumerate(numbers):
        if not place == index:
            total += number
    return total / (len(numbers) - 1)


def test_one_small_change_each_and_none_twice():
    changes = {one.change for one in wrong_answers.wrong_answers(mean_of_others)}
    for expected in (
        "6: return total / (len(numbers) - 1) -> return total * (len(numbers) - 1)",
        "6: return total / (len(numbers) - 1) -> return total / (len(numbers) - 2)",
        "6: return total / (len(numbers) - 1) -> return total / len(numbers)",
        "4: if not place == index: -> if place == index:",
        "2: total = 0 -> total = 1",
        "5: total += number -> pass",
    ):
        assert expected in changes
    sources = [one.source for one in wrong_answers.wrong_answers(mean_of_others)]
    assert len(sources) == len(set(sources)) >= 20


def test_a_changed_solution_is_a_function_that_behaves_otherwise(tmp_path):
    values = set()
    for answer in wrong_answers.wrong_answers(mean_of_others):
        try:
            values.add(wrong_answers.made_function(mean_of_others, answer.source, tmp_path)([1, 2, 6, 11], 3))
        except Exception:
            values.add("raised")
    assert mean_of_others([1, 2, 6, 11], 3) == 3 and len(values) > 8


def test_every_exercise_was_held_to_wrong_answers_and_every_reason_is_about_one_that_survives():
    assert set(NAMES) <= set(FOUND)
    for name, reasons in REASONS.items():
        assert set(reasons) <= set(FOUND[name]["survived"]), name


@pytest.mark.parametrize("name", sorted(FOUND))
def test_at_least_95_of_100_wrong_answers_of_an_exercise_are_refused(name):
    assert wrong_answers.share(name, FOUND, REASONS) >= wrong_answers.ENOUGH
    made = wrong_answers.wrong_answers(wrong_answers.registry(name)[name].reference)
    assert FOUND[name]["made"] == len(made), "its solution was changed: run tools/wrong_answers.py"
