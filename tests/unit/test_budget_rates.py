"""Operations that run alone to be measured: they must be those of the step."""

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.plans import plan_step
from bigtrain_nb.plan.rates import arguments, measure_rates
from bigtrain_nb.plan.step import Step


@pytest.fixture(scope="module")
def step():
    return Step(bt.conv_net(), 4, "adamw")


def test_a_step_gets_a_time_of_the_right_size():
    plan = plan_step(bt.gpt(layers=1), 8, on="here")
    assert 1e-3 < plan.seconds < 60 and plan.binding == "computing" and not plan.is_bound


@pytest.mark.parametrize("kind", ["Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Sum", "Mean", "Tile"])
def test_it_makes_what_it_makes_in_the_step(step, kind):
    nodes = [op.node for op in step.gradients.operations if op.kind == kind]
    for node in nodes:
        made = getattr(tf.raw_ops, kind)(**arguments(node))
        assert made.dtype == node.outputs[0].dtype and node.outputs[0].shape.is_compatible_with(made.shape), node.name
        assert tf.size(made) > 0
    assert nodes


def test_what_a_loop_does_takes_its_time_each_time():
    short, long = (keras.Sequential([keras.Input((length, 16)), keras.layers.LSTM(64)]) for length in (10, 200))
    short, long = Step(short, 64).gradients, Step(long, 64).gradients
    rates = measure_rates(1, short, long)
    assert rates.seconds(long) > 3 * rates.seconds(short)
