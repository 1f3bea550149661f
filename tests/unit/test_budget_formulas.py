"""A plan's formulas and sums, against values computed by hand."""

import pytest

from bigtrain_nb.advanced.plan.breakdown import Breakdown, Line
from bigtrain_nb.advanced.plan.communication import all_reduce_seconds


def test_a_breakdown_adds_up_and_shows_itself():
    lunch = Breakdown("Lunch", "bytes", [Line("bread", 1024, "2 x 512"), Line("salt & pepper", 1)])
    assert lunch.total == 1025 and lunch["bread"] == 1024
    assert "1.00 KiB" in repr(lunch) and "2 x 512" not in repr(lunch)
    assert "2 x 512" in str(lunch.explain())
    assert "salt &amp; pepper" in lunch._repr_html_()


def test_ring_all_reduce():
    assert all_reduce_seconds(1e9, 1, 1e9) == 0
    assert all_reduce_seconds(1e9, 2, 1e9) == pytest.approx(1.0)
    assert all_reduce_seconds(4e9, 8, 25e9, latency=1e-5) == pytest.approx(1.75 * 0.16 + 14e-5)
