"""Transformers given by a few numbers, against published counts and formulas."""

import pytest
from workbook import published

from bigtrain_nb.plan import parallelism
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.clusters import plan_cluster
from bigtrain_nb.plan.parallelism import Layout
from bigtrain_nb.plan.transformer import SIZES, Transformer

SMALL = Transformer(layers=2, width=128, heads=4, vocabulary=256, length=128, tied=False)


@pytest.mark.parametrize(
    ("size", "billions"),
    [("GPT-2", 0.124), ("7 B", 6.58), ("GPT-3", 174.6), ("1 T", 1008.0)],  # Radford 2019 to Narayanan 2021
)
def test_published_counts(size, billions):
    assert SIZES[size].weights / 1e9 == pytest.approx(billions, rel=0.005)


def test_gpt_of_this_package_has_as_many_weights_but_for_the_biases():
    import bigtrain_nb as bt

    h, in_layer = SMALL.width, 4 + 4 + 1 + 2  # widths: attention, hidden layer, the way back, two normalizations
    assert SMALL.weights - SMALL.layers * in_layer * h - h == bt.gpt().count_params()


def test_flops_are_those_of_narayanan():
    model, batch = SIZES["GPT-3"], 7
    s, layers, h, v = model.length, model.layers, model.width, model.vocabulary
    formula = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert model.flops(batch).total == pytest.approx(formula)
    again = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert model.flops(batch, "everything").total == pytest.approx(again)


def test_activations_are_those_of_korthikanti():
    model, batch = SIZES["GPT-3"], 1
    s, h, a = model.length, model.width, model.heads
    assert model.activations_of_a_layer(batch) == pytest.approx(s * batch * h * (34 + 5 * a * s / h))
    assert model.activations_of_a_layer(batch, recompute="attention") == 34 * s * batch * h
    assert model.activations_of_a_layer(batch, recompute="everything") == 2 * s * batch * h


@pytest.mark.parametrize(
    ("policy", "optimizer", "bytes_each"),
    [("mixed_bfloat16", "adamw", 18), ("mixed_float16", "sgd", 10), ("float32", "lion", 12)],
)
def test_bytes_of_a_weight(policy, optimizer, bytes_each):
    assert SMALL.states(policy, optimizer).total == bytes_each * SMALL.weights


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on": "H1000"}, "on='H1000' must be one of T4"),
        ({"optimizer": "adamm"}, "optimizer='adamm' must be one of"),
        ({"recompute": "some"}, "recompute='some' must be one of none, attention, everything"),
        ({"efficiency": 2}, "efficiency=2 must be a number between 0 and 1, both excluded"),
        ({"zero_stage": 1, "devices": 1}, "needs at least 2 H100 .*ZeRO stage 1.*: devices=1 is too few"),
        ({"tensor_parallel": 5}, "tensor_parallel=5 must divide the 12 heads"),
        ({"interleave": 4, "pipeline_parallel": 4}, "interleave=4 must be .* at most 3"),
        ({"on": "T4"}, "T4 has no bfloat16: use mixed_float16 or float32"),
    ],
)
def test_a_cluster_refuses_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        plan_cluster(SIZES["GPT-2"], **{"batch": 8, **settings})


def test_a_model_that_fits_nowhere_says_what_to_try():
    with pytest.raises(TypeError, match="takes a bt.Transformer"):
        plan_cluster("7 B", 8)
    with pytest.raises(ValueError, match="fit on no number of T4.*recompute"):
        plan_cluster(SIZES["GPT-3"], 8, on="T4", policy="mixed_float16")


def test_a_trillion_weights_are_laid_out_as_they_were():
    """Narayanan et al. 2021 trained them with 8 x 64 devices for one copy, 3072 A100 in all."""
    plan = plan_cluster(SIZES["1 T"], 3072, on="A100 80 GB", devices=3072, recompute="attention")
    assert plan.layout == Layout(tensor_parallel_size=8, pipeline_parallel_size=64, data_parallel_size=6)
    assert plan.fits and plan.layout.model_parallel_size == 512


def test_communication_volume_by_hand():
    model, device = Transformer(layers=4, width=64, heads=4, vocabulary=100, length=32), ACCELERATORS["A100 80 GB"]
    layout = Layout(2, 2, 3)
    volume = parallelism.communication_volume(model, layout, batch=5)
    output = 2 * 5 * 32 * 64
    assert volume["data"] == pytest.approx(2 * 2 / 3 * 4 * model.weights_of_a_stage(2) / 2)
    assert volume["tensor"] == pytest.approx(4 * 2 * 1.0 * output)
    again = parallelism.communication_volume(model, layout, 5, recompute="everything")
    assert again["tensor"] == pytest.approx(1.5 * volume["tensor"])
    assert volume["pipeline"] == pytest.approx(output)
    network = parallelism.NETWORK
    assert parallelism.links(layout, device) == {"data": network, "tensor": 300e9, "pipeline": network}


def test_more_devices_are_faster_until_communication_binds():
    model = SIZES["7 B"]
    few, many = (plan_cluster(model, 256, devices=n, recompute="attention") for n in (8, 64))
    assert many.time.total < few.time.total and few.layout.devices == 8
    slow = plan_cluster(model, 16, devices=16, recompute="attention", network=1e8)
    assert slow.binding == "communication"


N = 8
PAPER = {1: 4 + 12 / N, 2: 2 + 14 / N, 3: 16 / N}
"""Bytes a weight with Adam on N devices: Rajbhandari et al. 2020, figure 1. Gradients in 16 bits, ours in 32."""


@pytest.mark.parametrize("stage", PAPER)
def test_stages_of_zero_leave_what_the_paper_says(stage):
    states = parallelism.memory(SMALL, Layout(1, 1, N, stage), 1, optimizer="adamw").parts
    left = sum(states[name] for name in ("weights", "16-bit copies", "gradients", "adamw slots"))
    more = 2 / N if stage >= 2 else 2  # of a gradient
    assert left / SMALL.weights == pytest.approx(PAPER[stage] + more)
    assert ("a block in one piece" in states) == (stage >= 2)


def test_a_given_layout_is_kept_and_judged():
    plan = plan_cluster(SIZES["70 B"], 64, devices=8, tensor_parallel=8, pipeline_parallel=1)
    assert plan.layout == Layout(8, 1, 1) and not plan.fits and "does not fit" in repr(plan)
    uneven = plan_cluster(SIZES["GPT-2"], 8, devices=5, pipeline_parallel=5, tensor_parallel=1)
    words = str(uneven.explain())
    assert "1.25 in the fullest stage" in words and "H100 datasheet" in words and "Korthikanti" in words


def test_mfu_counts_what_the_model_needs_and_not_what_is_computed_again():
    plain, again = (plan_cluster(SMALL, 8, recompute=recompute) for recompute in ("none", "everything"))
    assert plain.mfu == pytest.approx(0.6) and "MFU 60%" in repr(plain)
    assert again.mfu < 0.85 * plain.mfu


@pytest.mark.parametrize("run", published.RUNS, ids=lambda run: run.name)
def test_published_runs_are_predicted(run):
    assert run.plan().mfu == pytest.approx(run.mfu, rel=0.3)
    assert run.name in str(published.compare([run]))
