"""The formulas of a budget against numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest

from bigtrain_nb.plan.breakdown import Account, Line, Plan, amount
from bigtrain_nb.plan.formulas import (
    all_reduce_seconds,
    pipeline_ceiling,
    step_time,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0, "bytes", "0 bytes"),
        (1000, "bytes", "1,000 bytes"),
        (1024, "bytes", "1.00 KiB"),
        (80 * 2**30, "bytes", "80.0 GiB"),
        (312e12, "FLOP/s", "312 TFLOP/s"),
        (6.58e9, "weights", "6.58 B weights"),
        (12, "weights", "12.0 weights"),
        (0.0125, "s", "12.5 ms"),
        (3e-6, "s", "3.00 µs"),
        (90, "s", "90.0 s"),
        (200_000, "s", "2.31 days"),
        (math.inf, "s", "unknown"),
    ],
)
def test_amounts_in_words(value, unit, words):
    assert amount(value, unit) == words


def test_an_account_adds_up_shows_itself_and_can_be_asked():
    account = Account("Lunch", "bytes", (Line("bread", 1024, "2 x 512"), Line("salt & pepper", 1)))
    assert account.total == 1025 and account["bread"] == 1024
    assert "1.00 KiB" in repr(account) and "2 x 512" not in repr(account)
    assert "2 x 512" in str(account.explain())
    assert "salt &amp; pepper" in account._repr_html_()
    with pytest.raises(KeyError, match="has no line 'wine'; it has bread"):
        account["wine"]


def test_ring_all_reduce():
    assert all_reduce_seconds(1e9, 1, 1e9) == 0
    assert all_reduce_seconds(1e9, 2, 1e9) == pytest.approx(1.0)
    assert all_reduce_seconds(4e9, 8, 25e9, latency=1e-5) == pytest.approx(1.75 * 0.16 + 14e-5)


@pytest.mark.parametrize("arguments", [(-1, 2, 1), (1, 0, 1), (1, 2, 0), (1, 2, NAN), (1, 2.5, 1), (1, 2, 1, -1)])
def test_all_reduce_refuses_nonsense(arguments):
    with pytest.raises(ValueError, match="must be a"):
        all_reduce_seconds(*arguments)


def test_pipeline_ceiling_is_the_slowest_stage_or_the_cores():
    rates = {"read": 4000, "decode": 1000, "copy": 2000}
    assert pipeline_ceiling(rates) == 1000
    assert pipeline_ceiling(rates, cores=1) == pytest.approx(1 / (1 / 4000 + 1 / 1000 + 1 / 2000))
    assert pipeline_ceiling(rates, cores=64) == 1000


def test_pipeline_ceiling_of_a_diagnosis_knows_shared_threads():
    stages = [SimpleNamespace(rate=1000, thread=(1,)), SimpleNamespace(rate=1000, thread=(1,))]
    stages.append(SimpleNamespace(rate=800, thread=(2,)))
    assert pipeline_ceiling(SimpleNamespace(stages=stages, ceiling=5000)) == pytest.approx(500)
    assert pipeline_ceiling(SimpleNamespace(stages=stages, ceiling=300)) == 300


@pytest.mark.parametrize("stages", [{}, {"read": 0}, {"read": NAN}])
def test_pipeline_ceiling_refuses_nonsense(stages):
    with pytest.raises(ValueError, match="stages|rate of read"):
        pipeline_ceiling(stages)


@pytest.mark.parametrize(
    ("parts", "seconds", "bound_by"),
    [
        ((3, 1, 2), 4, "computing"),
        ((1, 3, 2), 4, "communication"),
        ((1, 1, 5), 5, "input"),
        ((3, 1, 4), 4, "computing"),
    ],
)
def test_input_overlaps_and_communication_does_not(parts, seconds, bound_by):
    plan = Plan()
    plan.time = step_time(*parts)
    assert plan.time.total == seconds and plan.binding == bound_by
    assert "max(" in str(plan.time.explain())


def test_a_step_takes_no_negative_time():
    with pytest.raises(ValueError, match="communication=-1 must be"):
        step_time(1, -1)
