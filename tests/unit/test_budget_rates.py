"""Operations that run alone to be measured: they must be those of the step."""

from collections import Counter

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.plans import plan_step
from bigtrain_nb.plan.rates import arguments, measure_rates
from bigtrain_nb.plan.step import trace


@pytest.fixture(scope="module")
def step():
    return trace(bt.conv_net(), 4, "adamw")


def test_a_step_gets_a_time_of_the_right_size():
    plan = plan_step(bt.gpt(), 8, on="here")
    assert 1e-3 < plan.seconds < 60 and plan.binding == "computing"


KINDS = ["Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Sum", "Mean", "Mul", "Tile"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_makes_what_it_makes_in_the_step(step, kind):
    nodes = [op.node for op in step.gradients.nodes if op.kind == kind]
    for node in nodes:
        made = getattr(tf.raw_ops, kind)(**arguments(node))
        assert made.dtype == node.outputs[0].dtype and node.outputs[0].shape.is_compatible_with(made.shape), node.name
        assert tf.size(made) > 0
    assert nodes


def test_group_norms_means_are_taken_over_its_own_axes(step):
    means = [op.node for op in step.gradients.nodes if op.kind == "Mean" and op.node.inputs[0].shape.rank == 5]
    assert {tuple(arguments(node)["axis"].numpy()) for node in means} == {(1, 2, 4)}


def test_what_changes_a_variable_reads_and_writes_it_too(step):
    kinds = ("AssignAddVariableOp", "AssignSubVariableOp")
    changes = [op for op in step.update.nodes if op.kind in kinds and op.node.inputs[1].dtype == tf.float32]
    assert {op.kind for op in changes} == set(kinds)
    for op in changes:
        assert op.moved == 3 * 4 * op.node.inputs[1].shape.num_elements()


def test_what_weighs_most_is_measured_one_by_one(step):
    rates = measure_rates(step.gradients, step.update, seconds=0)
    measured = Counter(kind for kind, *_ in rates.of)
    assert measured["Conv2D"] >= 4 and measured["Mean"] >= 3  # of different shapes
    assert all(seconds > 0 for seconds in rates.of.values())
    assert rates.seconds([*step.gradients.nodes, *step.update.nodes]) >= sum(rates.of.values())


def test_an_operation_that_cannot_run_alone_is_taken_for_a_copy():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    update = trace(model, 4, "sgd").update
    rates = measure_rates(update, seconds=0)
    writes = [op for op in update.nodes if op.kind == "AssignSubVariableOp"]
    assert writes and "AssignSubVariableOp" not in rates.kinds
    assert rates.seconds(writes) == pytest.approx(sum(op.moved for op in writes) / rates.copying)
