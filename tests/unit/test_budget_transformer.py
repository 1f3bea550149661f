"""Transformers given by a few numbers, against published counts and formulas."""

import re

import pytest

from bigtrain_nb.plan import parallelism
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.clusters import plan_cluster
from bigtrain_nb.plan.parallelism import Layout
from bigtrain_nb.plan.transformer import SIZES, Transformer
from bigtrain_nb.series import published

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
    ("sequence_parallel", "recompute", "bytes_each"),
    [
        (False, "none", 10 + 24 / 8 + 5 * 96 * 2048 / (12_288 * 8)),  # their equation 2
        (False, "attention", 10 + 24 / 8),
        (False, "everything", 2),
        (True, "none", (34 + 5 * 96 * 2048 / 12_288) / 8),  # their equation 4
        (True, "attention", 34 / 8),
        (True, "everything", 2 / 8),
    ],
)
def test_activations_on_devices_that_share_a_layer(sequence_parallel, recompute, bytes_each):
    block = SIZES["GPT-3"].activations_of_a_layer(3, "mixed_bfloat16", recompute, 8, sequence_parallel)
    assert block == pytest.approx(bytes_each * 2048 * 3 * 12_288)
    if recompute == "attention":
        memory = parallelism.memory(
            SIZES["GPT-3"], Layout(8, sequence_parallel=sequence_parallel), 3, recompute=recompute
        )
        assert memory["activations: blocks"] == 96 * block


def test_the_first_stage_keeps_several_micro_batches():
    """Korthikanti et al. 2022, section 4.2.3: interleaved, 1 + (p-1)/(pv) times as many as 1F1B, which keeps p."""
    assert Layout().blocks_in_flight(12) == 12
    assert Layout(pipeline_parallel_size=4).blocks_in_flight(12) == 4 * 3
    assert Layout(pipeline_parallel_size=4, interleave=3).blocks_in_flight(12) == pytest.approx(12 * (1 + 3 / (4 * 3)))
    assert Layout(pipeline_parallel_size=5).blocks_in_flight(12) == 5 * 3  # the fullest stage has three
    plain, runs = (parallelism.memory(SIZES["GPT-2"], Layout(1, 4, interleave=v)) for v in (1, 3))
    assert runs["activations: blocks"] / plain["activations: blocks"] == pytest.approx(1.25)


def test_logits_stand_where_the_last_layer_is():
    assert parallelism.memory(SMALL, Layout(), 3)["activations: logits"] == 4 * 3 * 128 * 256
    assert parallelism.memory(SMALL, Layout(2), 3)["activations: logits"] == 4 * 3 * 128 * 256 / 2
    assert "activations: logits" not in parallelism.memory(SMALL, Layout(1, 2), 3).parts


def test_a_layout_is_chosen_with_what_its_runs_keep():
    plain, runs = (plan_cluster(SIZES["70 B"], 64, recompute="attention", interleave=v) for v in (1, 2))
    assert plain.fits and runs.fits
    assert runs.layout.pipeline_parallel_size > plain.layout.pipeline_parallel_size


def test_as_many_sequences_at_a_time_as_the_usable_memory_holds():
    """(0.9 x 16 GB - 0.40 GB of state) / 0.603 GB a sequence is 23.2, with all 16 GB it would be 25.9."""
    model = Transformer(layers=2, width=1024, heads=16, vocabulary=1000, length=8192)
    state = 10 * model.weights + 4 * model.weights_of_a_layer  # 2 + (4 + 4 + 8) / 2 bytes, and a block in one piece
    sequence = 34 * 2 * 8192 * 1024 + 4 * 8192 * 1000
    assert int((0.9 * 16e9 - state) / sequence) == 23 and int((16e9 - state) / sequence) == 25
    settings = {"policy": "mixed_float16", "recompute": "attention", "zero_stage": 2, "tensor_parallel": 1}
    plan = plan_cluster(model, 200, on="T4", devices=2, pipeline_parallel=1, **settings)
    slices = 5  # of 23 for each of two devices with 100; four of 25 would do
    assert plan.communication_volume["data"] == (4 * slices + 2) * model.weights / 2


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
        ({"sequence_parallel": "yes"}, "sequence_parallel must be True or False, not 'yes'"),
        ({"interleave": 4, "pipeline_parallel": 4}, "interleave=4 must be .* at most 3"),
        ({"on": "T4"}, "T4 has no bfloat16: use mixed_float16 or float32"),
    ],
)
def test_a_cluster_refuses_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        plan_cluster(SIZES["GPT-2"], **{"batch": 8, **settings})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.flops(0), "batch=0 must be a whole number of at least 1"),
        (
            lambda model: model.activations(8, policy="float16"),
            "policy='float16' must be one of float32, mixed_float16",
        ),
        (
            lambda model: model.activations(8, recompute="some"),
            "recompute='some' must be one of none, attention, every",
        ),
        (lambda model: model.activations(8, tensor_parallel=0.5), "tensor_parallel=0.5 must be a whole number"),
        (lambda model: model.states(optimizer="adamm"), "optimizer='adamm' must be one of sgd"),
        (lambda model: model.states(stages=0), "stages=0 must be a whole number"),
    ],
)
def test_a_transformer_refuses_bad_settings(call, words):
    with pytest.raises(ValueError, match=words):
        call(SMALL)


def test_an_unknown_accelerator_says_which_there_are():
    with pytest.raises(KeyError, match="'a100 80 gb' is none of T4, .*, A100 80 GB, H100"):
        ACCELERATORS["a100 80 gb"]


def test_float32_is_that_of_tensorflow_which_uses_tf32():
    assert ACCELERATORS["A100 80 GB"].flops("float32") == 312e12 / 2
    assert ACCELERATORS["V100"].flops("float32") == 15.7e12  # has no TF32


def test_a_model_that_fits_nowhere_says_what_to_try():
    with pytest.raises(TypeError, match="takes a bt.Transformer"):
        plan_cluster("7 B", 8)
    with pytest.raises(ValueError, match="fit on no number of T4.*recompute"):
        plan_cluster(SIZES["GPT-3"], 8, on="T4", policy="mixed_float16")


def test_a_trillion_weights_are_laid_out_as_they_were():
    """Narayanan et al. 2021 trained them with 8 x 64 devices for one copy, 3072 A100 in all."""
    plan = plan_cluster(SIZES["1 T"], 3072, on="A100 80 GB", devices=3072, recompute="everything")
    assert plan.layout == Layout(tensor_parallel_size=8, pipeline_parallel_size=64, data_parallel_size=6)
    assert plan.fits and plan.layout.model_parallel_size == 512


def test_a_trillion_weights_with_attention_recomputed_need_sequence_parallelism():
    """13 s h bytes a layer and 128 layers are 87 GB on each of 8 devices that share them, 34/8 s h are 28.5 GB."""
    each = 2048 * 25_600 * 128
    settings = {"devices": 512, "tensor_parallel": 8, "pipeline_parallel": 64, "recompute": "attention"}
    whole, shared = (plan_cluster(SIZES["1 T"], 256, sequence_parallel=sp, **settings) for sp in (False, True))
    assert whole.memory["activations: blocks"] == 13 * each and not whole.fits
    assert shared.memory["activations: blocks"] == 34 / 8 * each and shared.fits
    with pytest.raises(ValueError, match='fit on no number of H100 .* try recompute="everything"'):
        plan_cluster(SIZES["1 T"], 256, recompute="attention")


BOTH = r"tensor x pipeline parallelism \(it has each alone\)"


@pytest.mark.parametrize(
    ("layout", "what"),
    [
        (Layout(2, 2), BOTH),
        (Layout(2, 1, 4), "tensor x data parallelism"),
        (Layout(2, 2, 2), "tensor x pipeline x data parallelism"),
        (Layout(1, 1, 2, zero_stage=2), r"ZeRO stage 2 \(it has stages 1 and 3\)"),
        (Layout(1, 1, 2, zero_stage=3), r"ZeRO stage 3 that keeps activations \(.* take recompute=\"everything\"\)"),
        (Layout(1, 2, interleave=2), "interleaved runs"),
        (Layout(2, sequence_parallel=True), "sequence parallelism"),
    ],
)
def test_a_plan_says_what_cannot_be_built_and_not_that_it_fits(layout, what):
    untied = Transformer(layers=4, width=64, heads=4, length=32, tied=False)
    t, p, d = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    sizes = {"devices": layout.devices, "tensor_parallel": t, "pipeline_parallel": p, "zero_stage": layout.zero_stage}
    plan = plan_cluster(
        untied, 8 * d, interleave=layout.interleave, sequence_parallel=layout.sequence_parallel, **sizes
    )
    assert plan.layout == layout and plan.fits and len(plan.missing) == 1
    words = " ".join(plan.words())
    assert "It fits" not in words and "bt.Pipelined." not in words and "The memory would do: " in words
    assert re.search(f"bigtrain_nb cannot build it. What it does not have: {what}", words)


@pytest.mark.parametrize("layout", [Layout(), Layout(4), Layout(1, 4), Layout(1, 1, 4), Layout(1, 1, 4, zero_stage=1)])
def test_what_can_be_built_fits(layout):
    untied = Transformer(layers=4, width=64, heads=4, length=32, tied=False)
    assert layout.missing(untied) == []
    assert Layout(1, 1, 4, zero_stage=3).missing(untied, recompute="everything") == []
    tied = Transformer(layers=4, width=64, heads=4, length=32)
    assert bool(layout.missing(tied)) == (layout.pipeline_parallel_size > 1)  # Pipelined refuses a weight in two stages


def test_it_fits_in_the_usable_memory():
    plan = plan_cluster(SIZES["7 B"], 256, recompute="everything")
    assert "It fits: " in repr(plan) and "of 67.1 GiB usable on each device" in repr(plan)  # 0.9 x 80e9 / 2**30
    replicas = {"devices": 64, "tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 1}
    nearly = plan_cluster(SIZES["7 B"], 64, recompute="attention", **replicas)
    assert 0.9 < nearly.memory.total / 80e9 < 1 and not nearly.fits


def test_layers_here_leave_embeddings_and_float32_weights_whole():
    vocabulary = (2 * 256 + 128) * 128  # weights of SMALL: two matrices, and places
    shared = parallelism.memory(SMALL, Layout(4), 3)
    logits = 4 * 3 * 128 * 256
    assert shared["embeddings and logits, whole"] == pytest.approx(3 / 4 * (18 * vocabulary + logits))
    sharded = parallelism.memory(SMALL, Layout(1, 1, 8, zero_stage=1))
    assert sharded["weights"] + sharded["weights beside their shards"] == (4 + 4 / 8) * SMALL.weights
    single = parallelism.memory(SMALL, Layout(1, 1, 8, zero_stage=1), policy="float32")
    assert single["weights"] + single["weights beside their shards"] == (4 + 4 / 8) * SMALL.weights
    published = parallelism.memory(SMALL, Layout(4, 1, 2, zero_stage=1))  # which no layers here build
    assert not {"embeddings and logits, whole", "weights beside their shards"} & set(published.parts)


def test_stage_3_here_is_that_of_fully_shard():
    """It shards the blocks, gathers their float32 weights and computes them again; all else is whole."""
    layout, block = Layout(1, 1, 8, zero_stage=3), 12 * 128**2 + 13 * 128  # weights of a block of SMALL
    others = (2 * 256 + 128) * 128 + 2 * 128
    memory = parallelism.memory(SMALL, layout, 1, recompute="everything").parts
    assert "16-bit copies" not in memory
    states = sum(memory[name] for name in ("weights", "gradients", "adamw slots", "all but the blocks, whole"))
    assert states == pytest.approx(16 * (2 * block / 8 + others))
    assert memory["a block in one piece"] + memory["a block's float32 weights"] == (4 + 2 + 4) * block
    for slices in (1, 3):
        volume = parallelism.communication_volume(SMALL, layout, 6, recompute="everything", slices=slices)
        assert volume.total == pytest.approx(7 / 8 * (slices * 12 * 2 * block + 8 * others))
    plan = plan_cluster(
        SMALL, 8, devices=8, tensor_parallel=1, pipeline_parallel=1, zero_stage=3, recompute="everything"
    )
    assert plan.missing == [] and "bt.Model(..., fully_shard=" in " ".join(plan.words())


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
