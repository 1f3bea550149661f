"""Transformers given by a few numbers, against published counts and formulas."""

import pytest

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
    plain, attention = model.flops(batch), model.flops(batch, "attention")
    assert attention["attention"] / plain["attention"] == pytest.approx(8 / 6)
    assert attention["matrices"] == plain["matrices"]


def test_activations_are_those_of_korthikanti():
    model, batch = SIZES["GPT-3"], 1
    s, h, a = model.length, model.width, model.heads
    assert model.activations_of_a_layer(batch) == pytest.approx(s * batch * h * (34 + 5 * a * s / h))
    assert model.activations_of_a_layer(batch, recompute="attention") == 34 * s * batch * h
    assert model.activations_of_a_layer(batch, recompute="everything") == 2 * s * batch * h
    single = model.activations_of_a_layer(batch, "float32")
    assert single == s * batch * h * 66 + 9 * a * s * s * batch


@pytest.mark.parametrize(
    ("policy", "optimizer", "bytes_each"),
    [("mixed_bfloat16", "adamw", 18), ("mixed_float16", "sgd", 10), ("float32", "adamw", 16), ("float32", "lion", 12)],
)
def test_bytes_of_a_weight(policy, optimizer, bytes_each):
    assert SMALL.states(policy, optimizer).total == bytes_each * SMALL.weights


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"layers": 0}, "layers=0 must be a whole number of at least 1"),
        ({"width": 2.5}, "width=2.5"),
        ({"heads": 3}, "width=128 must be a multiple of heads=3"),
    ],
)
def test_impossible_shapes_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Transformer(**{"layers": 2, "width": 128, "heads": 4, **settings})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on": "H1000"}, "on='H1000' must be one of T4"),
        ({"policy": "float8"}, "policy='float8' must be one of float32"),
        ({"optimizer": "adamm"}, "optimizer='adamm' must be one of"),
        ({"micro_batches": 0}, "micro_batches=0 must be"),
        ({"batch": 0}, "batch=0 must be"),
        ({"recompute": "some"}, "recompute='some' must be one of none, attention, everything"),
        ({"mfu": 2}, "mfu=2 must be a number above 0 and at most 1"),
        ({"network": 0}, "network=0 must be"),
        ({"on": "T4"}, "T4 has no bfloat16: use mixed_float16 or float32"),
    ],
)
def test_a_cluster_refuses_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        plan_cluster(SIZES["GPT-2"], **{"batch": 8, **settings})


def test_only_a_transformer_can_be_planned_so():
    with pytest.raises(TypeError, match="takes a bt.Transformer"):
        plan_cluster("7 B", 8)


def test_a_model_that_fits_nowhere_says_what_to_try():
    with pytest.raises(ValueError, match="fit on no number of T4.*recompute"):
        plan_cluster(SIZES["GPT-3"], 8, on="T4", policy="mixed_float16")
    with pytest.raises(ValueError, match="needs at least 2 H100"):
        plan_cluster(SIZES["7 B"], 8, on="H100", devices=1, recompute="attention")


def test_a_small_model_takes_one_device_and_sends_nothing():
    plan = plan_cluster(SIZES["GPT-2"], 8, on="L4")
    assert (
        plan.fits and plan.layout == Layout() and plan.communication_volume.total == 0 and plan.binding == "computing"
    )
    assert "one device" in repr(plan) and "does not fit" not in repr(plan)


def test_a_trillion_weights_are_laid_out_as_they_were():
    """Narayanan et al. 2021 trained them with 8 x 64 devices for one copy, 3072 A100 in all."""
    plan = plan_cluster(SIZES["1 T"], 3072, on="A100 80 GB", devices=3072, recompute="attention")
    assert plan.layout == Layout(tensor_parallel_size=8, pipeline_parallel_size=64, data_parallel_size=6)
    assert plan.fits and plan.layout.model_parallel_size == 512


def test_tensor_parallelism_stays_in_a_node():
    for device in ACCELERATORS.values():
        chosen = parallelism.smallest_layout(SIZES["7 B"], device, recompute="everything")
        assert chosen is None or chosen.tensor_parallel_size <= device.node


def test_the_first_stage_of_a_pipeline_is_the_fullest():
    model = SIZES["GPT-2"]
    embeddings = (model.vocabulary + model.length) * model.width
    assert model.weights_of_a_stage(1) == model.weights
    assert model.weights_of_a_stage(12) == model.weights_of_a_layer + embeddings
    last = parallelism.memory(model, Layout(pipeline_parallel_size=12))
    assert last["weights"] == 4 * (model.weights_of_a_layer + embeddings) and "activations: logits" not in last.parts


def test_devices_without_a_sequence_do_not_make_a_step_faster():
    each, spread = (plan_cluster(SIZES["GPT-2"], 8, devices=n) for n in (8, 256))
    assert spread.time["computing"] == each.time["computing"] and spread.flops.total == each.flops.total
    uneven = plan_cluster(SIZES["GPT-2"], 9, devices=8)
    assert uneven.time["computing"] == pytest.approx(2 * each.time["computing"])


def test_devices_that_are_left_over_are_named():
    plan = plan_cluster(SIZES["70 B"], 64, devices=60, recompute="attention")
    assert (plan.layout.devices, plan.spare) == (32, 28) and "28 more devices have nothing to do" in repr(plan)


def test_slices_are_as_many_as_run():
    """10 sequences in at most 6 slices are 5 slices of 2."""
    plans = [plan_cluster(SIZES["70 B"], 10, micro_batches=K, recompute="attention") for K in (5, 6)]
    assert plans[0].time["computing"] == plans[1].time["computing"]


def test_numbers_of_numpy_do_not_overflow():
    import numpy as np

    model = SIZES["GPT-3"]
    small = Transformer(*(np.int32(n) for n in (model.layers, model.width, model.heads)), np.int32(model.vocabulary))
    assert small.weights == model.weights and small.flops(1536).total == model.flops(1536).total


def test_communication_volume_by_hand():
    model, device = Transformer(layers=4, width=64, heads=4, vocabulary=100, length=32), ACCELERATORS["A100 80 GB"]
    volume, seconds = parallelism.communication_volume(model, Layout(2, 2, 3), device, batch=5)
    output = 2 * 5 * 32 * 64
    assert volume["data"] == pytest.approx(2 * 2 / 3 * 4 * model.weights_of_a_stage(2) / 2)
    assert volume["tensor"] == pytest.approx(4 * 2 * 1.0 * output)
    again, _ = parallelism.communication_volume(model, Layout(2, 2, 3), device, 5, recompute="everything")
    assert again["tensor"] == pytest.approx(1.5 * volume["tensor"])
    assert volume["pipeline"] == pytest.approx(output)
    assert seconds["tensor"] == pytest.approx(volume["tensor"] / 300e9)
    assert seconds["data"] == pytest.approx(volume["data"] / parallelism.NETWORK)


def test_more_devices_are_faster_until_communication_binds():
    model = SIZES["7 B"]
    few, many = (plan_cluster(model, 256, devices=n, recompute="attention") for n in (8, 64))
    assert many.time.total < few.time.total and few.layout.devices == 8
    slow = plan_cluster(model, 16, devices=16, recompute="attention", network=1e8)
    assert slow.binding == "communication"
    assert plan_cluster(model, 256, devices=8, recompute="attention", input_seconds=1e6).binding == "input"


def test_a_cluster_plan_explains_itself():
    plan = plan_cluster(SIZES["70 B"], 64, recompute="attention")
    words = str(plan.explain())
    assert "H100 datasheet" in words and "Korthikanti" in words and "16-bit copies" in words and "FLOP" in words
    assert "<table" in plan._repr_html_()


def test_accelerators_are_published_figures_in_order():
    for name, device in ACCELERATORS.items():
        assert device.name == name and device.source and device.flops_16 >= device.flops_32
        assert 1e11 < device.bandwidth < 1e13 and 1e10 < device.memory < 1e12
