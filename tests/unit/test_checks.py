"""Checks of settings: accepted values, their types, and error messages."""

import math

import pytest

from bigtrain_nb.common import checks


def test_numbers_that_may_be_0_are_taken_and_negative_ones_are_not():
    assert checks.not_negative("wait", 0, "seconds") == 0.0 and checks.not_negative("wait", 2, "seconds") == 2.0
    for value in (-1, -1e-9, math.nan, math.inf, True, "3", None):
        with pytest.raises(ValueError, match="^wait=.* must be a finite number of seconds, 0 or more$"):
            checks.not_negative("wait", value, "seconds")


def test_positive_numbers_and_fractions_end_before_their_limits():
    assert checks.positive("rate", 1) == 1.0 and checks.fraction("share", 0.5) == 0.5
    for value in (0, -1, math.inf, False, "1"):
        with pytest.raises(ValueError, match="^rate=.* must be a positive, finite number of s$"):
            checks.positive("rate", value, "s")
    for value in (0, 1, -0.5, math.nan):
        with pytest.raises(ValueError, match="^share=.* must be a number between 0 and 1, exclusive$"):
            checks.fraction("share", value)


def test_integers_have_both_their_ends():
    assert [checks.integer("n", value, 1, 3) for value in (1, 3)] == [1, 3]
    for value in (0, 4, 1.0, True, "2"):
        with pytest.raises(ValueError, match="^n=.* must be an integer of at least 1 and at most 3$"):
            checks.integer("n", value, 1, 3)


def test_one_of_names_what_is_allowed():
    assert checks.one_of("size", 2, (1, 2)) == 2
    with pytest.raises(ValueError, match="^size='2' must be one of 1, 2$"):
        checks.one_of("size", "2", (1, 2))
