"""Tests left out of `make test` have a reason, and are not too many."""

import ast
from pathlib import Path

import pytest
from tiers import in_two_tiers

TESTS = Path(__file__).parents[1]


def test_every_test_of_the_second_tier_says_why():
    reasons = []
    for path in sorted(TESTS.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = {id(call.func): call for call in ast.walk(tree) if isinstance(call, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.more":
                call = calls.get(id(node))
                words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)] if call else []
                place = f"{path.relative_to(TESTS)}:{node.lineno}"
                assert len(words) == 1 and len(words[0].split()) > 2, f"{place}: say why, in words, in the mark"
                reasons += words
    assert len(reasons) > 10


def test_of_many_cases_those_that_are_not_the_first_are_marked():
    mark = pytest.mark.more("for a test of the marks")
    assert in_two_tiers(["a", "b"], ["b"], mark) == [pytest.param("a", marks=mark), "b"]
    assert in_two_tiers([("a", 1), ("b", 2)], [("a", 1)], mark) == [("a", 1), pytest.param("b", 2, marks=mark)]
    with pytest.raises(AssertionError, match="no such case: \\['c'\\]"):
        in_two_tiers(["a"], ["c"], mark)
