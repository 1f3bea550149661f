"""Two tiers: tests marked `more` run only in `make test-all`; the mark gives the reason."""

import pytest


def in_two_tiers(cases, first, more):
    """Return the cases for `parametrize`: those in ``first`` unmarked, all others with the mark ``more``."""
    cases, first = list(cases), list(first)
    gone = [case for case in first if case not in cases]
    assert not gone, f"no such case: {gone}"
    together = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        case if case in first else pytest.param(*values, marks=more)
        for case, values in zip(cases, together, strict=True)
    ]
