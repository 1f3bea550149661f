"""The formulas of a plan and its sums against numbers worked out by hand."""

from types import SimpleNamespace

import pytest

from bigtrain_nb.plan.breakdown import Breakdown, Line, Plan, step_time
from bigtrain_nb.plan.communication import all_reduce_seconds
from bigtrain_nb.plan.pipeline_ceiling import pipeline_ceiling


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


def test_pipeline_ceiling_of_a_diagnosis_knows_shared_threads():
    stages = [SimpleNamespace(rate=rate, thread=thread) for rate, thread in ((1000, 1), (1000, 1), (800, 2))]
    assert pipeline_ceiling(SimpleNamespace(stages=stages, ceiling=5000)) == pytest.approx(500)
    assert pipeline_ceiling(SimpleNamespace(stages=stages, ceiling=300)) == 300


def test_input_overlaps_and_communication_does_not():
    plan = Plan()
    cases = {"computing": (3, 1, 2), "communication": (1, 3, 2), "input": (1, 1, 5)}
    for (bound_by, parts), seconds in zip(cases.items(), (4, 4, 5), strict=True):
        plan.time = step_time(*parts)
        assert plan.time.total == seconds and plan.binding == bound_by


def test_input_takes_no_negative_time():
    with pytest.raises(ValueError, match="input_seconds=-1 must be a finite number of seconds, 0 or more"):
        step_time(1, 1, -1)
