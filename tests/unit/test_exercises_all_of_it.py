"""Exercises of notebook 06: the package agrees with the solutions."""

import pytest
from workbook.exercises import all_of_it

import bigtrain_nb as bt


def test_the_days_are_those_of_the_plan_without_attention_and_waiting():
    model = bt.Transformer(32, 4096, 32, vocabulary=1, length=1)
    plan = bt.plan_cluster(model, 1024, devices=8, mfu=0.5)
    days = all_of_it.days(model.weights, plan.tokens, 8, plan.device.flops("mixed_bfloat16"), 0.5)
    assert 86_400 * days == pytest.approx(plan.time["computing"], rel=0.01)


@pytest.mark.parametrize(("overhead", "each"), [(0.01, 0.001), (0.0, 0.002), (0.02, 0.0)])
def test_a_rate_follows_from_overhead_and_seconds_an_example(overhead, each):
    def measured(batch):
        return batch / (overhead + batch * each)

    for batch in (1, 8, 20, 64, 1000):
        assert all_of_it.rate(batch, measured(8), measured(512)) == pytest.approx(measured(batch))


@pytest.mark.parametrize("memory", [110, 117, 131, 150, 164, 300])
def test_slices_are_the_fewest_that_fit(memory):
    def fits(count):
        return 100 + 5 * -(-64 // count) <= memory

    count = all_of_it.slices(64, 100, 5, memory)
    assert fits(count) and not any(fits(fewer) for fewer in range(1, count))
