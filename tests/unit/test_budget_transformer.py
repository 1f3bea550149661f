"""Transformers given by a few numbers, against published counts and formulas."""

import re
from dataclasses import replace

import pytest

from bigtrain_nb.plan import communication, parallelism
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.clusters import plan_cluster
from bigtrain_nb.plan.parallelism import Layout
from bigtrain_nb.plan.transformer import SIZES, Transformer
from bigtrain_nb.series import published

SMALL = Transformer(layers=2, width=128, heads=4, vocabulary=256, length=128, tied=False)


def bytes_sent(model, layout, batch, **more):
    return communication.communication_volume(layout, communication.sent(model, layout, batch, **more))


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
    """(0.9 x 16 GB - 0.40 GB of state) / 0.645 GB a sequence is 21.7, with all 16 GB it would be 24.2."""
    model = Transformer(layers=2, width=1024, heads=16, vocabulary=1000, length=8192)
    state = 10 * model.weights + 4 * model.weights_of_a_layer  # 2 + (4 + 4 + 8) / 2 bytes, and a block in one piece
    sequence = 34 * 2 * 8192 * 1024 + 4 * 8192 * 1000 + 5 * 16 * 8192**2 / 128  # and a chunk's scores
    assert int((0.9 * 16e9 - state) / sequence) == 21 and int((16e9 - state) / sequence) == 24
    settings = {"policy": "mixed_float16", "zero_stage": 2, "tensor_parallel": 1, "chunk_attention": 128}
    plan = plan_cluster(model, 200, on="T4", devices=2, pipeline_parallel=1, **settings)
    slices = 5  # of 21 for each of two devices with 100
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
        ({"sequence_parallel": "yes"}, "sequence_parallel='yes' must be True or False"),
        ({"overlap": 1.1}, "overlap=1.1 must be a number from 0 to 1"),
        ({"latency": -1}, "latency=-1 must be a finite number of seconds, 0 or more"),
        ({"chunk_attention": 0}, "chunk_attention=0 must be a whole number of at least 1"),
        ({"context_parallel": 3}, "context_parallel=3 must divide the 1024 tokens"),
        ({"context_parallel": 8, "devices": 4}, "needs at least 8 H100 .*: devices=4 is too few"),
        ({"expert_parallel": 2}, "expert_parallel=2 must divide the experts of a layer, of which this model has 1"),
        ({"interleave": 4, "pipeline_parallel": 4}, "interleave=4 must be .* at most 3"),
        (
            {"batch": 3, "interleave": 2, "pipeline_parallel": 4, "tensor_parallel": 1, "devices": 4},
            "interleave=2 needs a micro-batch for each of 4 pipeline stages at least, not 3",
        ),
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
        (Layout(2, 1, 4), r"tensor x data parallelism \(it has each alone; DTensor has meshes of both\)"),
        (Layout(2, 2, 2), "tensor x pipeline x data parallelism"),
        (Layout(1, 1, 2, zero_stage=2), r"ZeRO stage 2 \(it has stages 1 and 3\)"),
        (Layout(1, 1, 2, zero_stage=3), r"ZeRO stage 3 that keeps activations \(.* take recompute=\"everything\"\)"),
        (Layout(1, 2, interleave=2), "interleaved runs"),
        (Layout(2, sequence_parallel=True), r"sequence parallelism \(DTensor"),
        (Layout(context_parallel_size=2), r"context parallelism \(bt.chunk_attention divides the rows in time"),
    ],
)
def test_a_plan_says_what_cannot_be_built_and_not_that_it_fits(layout, what):
    untied = Transformer(layers=4, width=64, heads=4, length=32, tied=False)
    t, p, d = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    sizes = {"devices": layout.devices, "tensor_parallel": t, "pipeline_parallel": p, "zero_stage": layout.zero_stage}
    sizes["context_parallel"] = layout.context_parallel_size
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
        volume = bytes_sent(SMALL, layout, 6, recompute="everything", slices=slices)
        assert volume.total == pytest.approx(7 / 8 * (slices * 12 * 2 * block + 8 * others))
    plan = plan_cluster(
        SMALL, 8, devices=8, tensor_parallel=1, pipeline_parallel=1, zero_stage=3, recompute="everything"
    )
    assert plan.missing == [] and "bt.Model(..., fully_shard=" in " ".join(plan.words())


def test_communication_volume_by_hand():
    model = Transformer(layers=4, width=64, heads=4, vocabulary=100, length=32)
    layout = Layout(2, 2, 3)
    volume = bytes_sent(model, layout, batch=5)
    output = 2 * 5 * 32 * 64
    assert volume["data"] == pytest.approx(2 * 2 / 3 * 4 * model.weights_of_a_stage(2) / 2)
    assert volume["tensor"] == pytest.approx(4 * 2 * 1.0 * output)
    again = bytes_sent(model, layout, 5, recompute="everything")
    assert again["tensor"] == pytest.approx(1.5 * volume["tensor"])
    assert volume["pipeline"] == pytest.approx(output)


def test_stage_1_here_gathers_float32_weights_and_elsewhere_what_layers_compute_with():
    alone = Layout(1, 1, 4)
    here = bytes_sent(SMALL, replace(alone, zero_stage=1), 8)
    assert here["data"] == bytes_sent(SMALL, alone, 8)["data"]
    elsewhere = bytes_sent(SMALL, Layout(2, 1, 4, zero_stage=1), 8)
    assert elsewhere["data"] == pytest.approx(6 / 8 * bytes_sent(SMALL, Layout(2, 1, 4), 8)["data"])


def test_each_message_takes_the_link_that_reaches_its_device():
    """Tensor first, then context, data and pipeline, as long as all their devices are in one node of eight."""
    assert set(communication.links(Layout(2, 2, 2), 8).values()) == {"node"}
    assert communication.links(Layout(2, 2, 3), 8)["data"] == "node"
    assert communication.links(Layout(2, 2, 3), 8)["pipeline"] == "network"
    wide = communication.links(Layout(4, 1, 2, context_parallel_size=4), 8)
    assert wide == {"tensor": "node", "context": "network", "data": "network", "pipeline": "network"}


def test_a_message_takes_its_bytes_and_its_latency():
    model, device = Transformer(layers=4, width=64, heads=4, vocabulary=100, length=32), ACCELERATORS["A100 80 GB"]
    all_sent = communication.sent(model, Layout(4), batch=5, slices=5)
    output = 2 * 5 * 32 * 64
    messages = 4 * 4 * 5 * 2 * 3  # all-reduces of a layer, layers, micro-batches, steps of a ring of four
    seconds = 4 * 4 * output * 2 * 3 / 4 / 300e9 + messages * 3.4e-6
    assert communication.seconds_to_send(all_sent, device)[0] == pytest.approx(seconds)
    across = communication.sent(model, Layout(1, 1, 16), batch=5)
    seconds = 2 * 15 / 16 * 4 * model.weights / 1e9 + 2 * 15 * 5e-6
    assert communication.seconds_to_send(across, device, 1e9, 5e-6)[0] == pytest.approx(seconds)


def test_overlap_hides_sending_behind_computing():
    settings = {"devices": 16, "recompute": "attention", "network": 1e11}
    none, half, most = (plan_cluster(SIZES["7 B"], 16, overlap=share, **settings) for share in (0, 0.5, 1))
    computing, sending = none.time["computing"], none.time["communication"]
    assert computing < sending and half.time["communication"] == pytest.approx(sending / 2)
    assert most.time["communication"] == pytest.approx(sending - computing)  # no more than there is computing
    assert "0.5)" in half.time.lines[1].how and "overlap" not in none.time.lines[1].how


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


LLAMA_2 = Transformer(2, 64, 8, 1000, 32, tied=False, hidden=96, gated=True, key_value_heads=2)
MIXTURE = replace(LLAMA_2, experts=8, experts_per_token=2, shared_experts=1)


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        (published._LLAMA, 65.3, 65.3),  # Touvron et al. 2023 round to 65.2
        (SIZES["Llama 3 405 B"], 405.9, 405.9),
        (published._PALM, 540.35, 540.35),  # Chowdhery et al. 2022, table 1
        (SIZES["Mixtral 8x7B"], 46.7, 12.9),  # Jiang et al. 2024: 47 B and 13 B
        (published._QWEN_3, 235.1, 22.2),  # Qwen3-235B-A22B
        (published._GPT_OSS, 116.8, 5.7),  # 116.8 and 5.1, the embeddings not among the active
    ],
)
def test_published_counts_of_gated_models_and_of_experts(model, billions, active):
    assert model.weights / 1e9 == pytest.approx(billions, rel=0.002)
    assert model.active_weights / 1e9 == pytest.approx(active, rel=0.005)


def test_a_mixture_by_hand():
    attention, expert = 2 * 64 * (64 + 16), 3 * 64 * 96
    layer = attention + 9 * expert + 64 * 8 + 2 * 64
    assert MIXTURE.weights_of_a_layer == layer
    assert MIXTURE.weights == 2 * layer + 2 * 1000 * 64 + 64
    assert MIXTURE.active_weights == MIXTURE.weights - 2 * 6 * expert
    matrices = 2 * (attention + 3 * expert + 64 * 8)
    flops = 6 * (matrices + 1000 * 64) + 12 * 2 * 64 * 32
    assert MIXTURE.flops(5).total == pytest.approx(flops * 5 * 32)
    # between the parts: 4 numbers, and what two experts read and give; within: queries, keys, hidden numbers
    kept = 2 * (4 * 64 + 4 * 64) + 2 * (2 * 64 + 2 * 16 + 4 * 3 * 96)
    assert MIXTURE.activations_of_a_layer(1, chunk_attention=4) == 32 * kept
    assert MIXTURE.activations_of_a_layer(1) == 32 * kept + 2 * 8 * 32**2  # no dropout: the softmax alone


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token=3 must be at most experts=2"),
        ({"key_value_heads": 3}, "heads=8 must be a multiple of key_value_heads=3"),
        ({"hidden": 0}, "hidden=0 must be a whole number of at least 1"),
        ({"gated": 1}, "gated=1 must be True or False"),
        ({"shared_experts": -1}, "shared_experts=-1 must be a whole number of at least 0"),
    ],
)
def test_a_model_that_cannot_be_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        replace(LLAMA_2, **settings)


def test_chunks_keep_a_part_of_one_block_of_scores():
    model = SIZES["GPT-3"]
    scores = 5 * 96 * 2048**2
    whole, chunks = (model.activations(1, chunk_attention=count) for count in (1, 8))
    assert whole["blocks"] - chunks["blocks"] == pytest.approx(96 * scores) and "scores" not in whole.parts
    assert chunks["scores"] == scores / 8 and model.activations(1, recompute="attention")["scores"] == scores
    twice = model.activations(1, recompute="everything")
    again = model.activations(1, recompute="everything", chunk_attention=8)
    assert twice.total - again.total == pytest.approx(scores * 7 / 8)
    attention = [
        model.flops(1, recompute, chunks)["attention"]
        for recompute, chunks in [("none", 1), ("none", 8), ("attention", 1), ("everything", 1), ("everything", 8)]
    ]
    assert [each / attention[0] * 12 for each in attention] == pytest.approx([12, 14, 16, 16, 18])


def test_context_parallelism_divides_activations_and_sends_keys_and_values():
    """As in Ring Attention: both once round forward, once backward, and their gradients."""
    model = replace(LLAMA_2, length=4096)
    alone, shared = Layout(1, 1, 4), Layout(1, 1, 1, context_parallel_size=4)
    one, four = (parallelism.memory(model, layout, 1, chunk_attention=32) for layout in (alone, shared))
    for part in ("blocks", "scores", "logits"):
        assert four[f"activations: {part}"] == one[f"activations: {part}"] / 4
    assert four["weights"] == one["weights"]
    both = 2 * 2 * 4096 * 16  # keys and values of 16 numbers, in 2 bytes
    assert four["keys and values of others"] == both * 3 / 4
    volume = bytes_sent(model, shared, 1)
    assert volume["context"] == 3 * 2 * both * 3 / 4
    assert bytes_sent(model, shared, 1, recompute="everything")["context"] == 4 * 2 * both * 3 / 4
    assert volume["data"] == bytes_sent(model, alone, 1)["data"]  # gradients of the same weights
    with_zero = parallelism.memory(model, replace(shared, zero_stage=1), 1)
    assert with_zero["adamw slots"] == 8 * model.weights / 4


def test_expert_parallelism_divides_the_experts_and_sends_tokens():
    layout = Layout(1, 1, 16, expert_parallel_size=4)
    memory = parallelism.memory(MIXTURE, layout, 3)
    experts = 2 * 8 * 3 * 64 * 96
    assert memory["gradients of experts"] == 4 * experts / 4
    assert memory["gradients"] == 4 * (MIXTURE.weights - experts)
    sharded = parallelism.memory(MIXTURE, replace(layout, zero_stage=1), 3)
    assert sharded["adamw slots of experts"] == 8 * experts / 4 / 4  # 16 / 4 devices have the same experts
    volume = bytes_sent(MIXTURE, layout, 3)
    tokens = 2 * 3 * 32 * 64  # bytes of them
    assert volume["experts in the node"] == 4 * 2 * 2 * tokens * 3 / 4 and "experts between nodes" not in volume.parts
    assert volume["data, experts"] == pytest.approx(2 * 4 * experts / 4 * 3 / 4)
    far = bytes_sent(replace(MIXTURE, experts=16), replace(layout, expert_parallel_size=16), 3)
    assert far["experts in the node"] == 4 * 2 * 2 * tokens * 7 / 16
    assert far["experts between nodes"] == 4 * 2 * 2 * tokens * 8 / 16
    in_layers = parallelism.memory(MIXTURE, Layout(4), 3)  # without: shared like any layer
    assert in_layers["gradients of experts"] == 4 * experts / 4


def test_experts_need_whole_groups_and_tokens_of_their_own():
    plan = plan_cluster(MIXTURE, 16, expert_parallel=8)
    assert plan.layout == Layout(1, 1, 8, expert_parallel_size=8)
    assert "(active: " in repr(plan) and "experts over 8" in str(plan.layout)
    settings = {"tensor_parallel": 2, "expert_parallel": 8}
    assert plan_cluster(MIXTURE, 16, sequence_parallel=True, **settings).layout.data_parallel_size == 4
    with pytest.raises(ValueError, match="with tensor_parallel=2 needs sequence_parallel=True: otherwise"):
        plan_cluster(MIXTURE, 16, **settings)
    with pytest.raises(ValueError, match="expert_parallel=3 must divide the experts .* has 8"):
        plan_cluster(MIXTURE, 16, expert_parallel=3)
    with pytest.raises(ValueError, match="expert_parallel=8 must divide the devices of a pipeline stage"):
        plan_cluster(MIXTURE, 16, expert_parallel=8, devices=12, pipeline_parallel=1)


def test_no_schedule_keeps_more_micro_batches_than_there_are():
    assert Layout(pipeline_parallel_size=4).blocks_in_flight(12, slices=1) == 3
    few, many = (
        plan_cluster(SIZES["GPT-2"], 8, devices=4, tensor_parallel=1, pipeline_parallel=4, micro_batches=count)
        for count in (1, 8)
    )
    assert few.memory["activations: blocks"] == 2 * many.memory["activations: blocks"]  # 8 at once, and 4 of 1


def test_a_plan_says_where_there_is_code_for_each_part():
    model = replace(MIXTURE, length=4096)
    layout = {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2, "expert_parallel": 4}
    plan = plan_cluster(model, 8, devices=8, pipeline_parallel=1, interleave=1, **layout)
    rows = [line.split("  ")[0] for line in str(plan.where()).splitlines()]
    assert {"tensor parallelism", "context parallelism", "sequence parallelism", "expert parallelism"} < set(rows)
    words = " ".join(plan.words())
    in_tensorflow = "sequence parallelism, experts that compute their own tokens alone, expert parallelism."
    assert f"Elsewhere in TensorFlow: {in_tensorflow}" in words
    assert "Nowhere known in TensorFlow: context parallelism, tensor x context x data parallelism." in words
    where = {part.what: part.where for part in plan.layout.parts(model)}
    assert where["tensor parallelism"] == "bigtrain_nb"
    alone = plan_cluster(model, 8, devices=1)
    assert "It fits" not in repr(alone) and "in KerasHub's Mixtral all experts compute all tokens" in repr(alone)


@pytest.mark.parametrize("run", published.RUNS, ids=lambda run: run.name)
def test_published_runs_are_predicted(run):
    assert run.plan().mfu == pytest.approx(run.mfu, rel=0.2)
    assert run.name in str(published.compare([run]))


MET = ("Mixtral 8x7B, 64 H100", "Qwen3 235 B, 256 H100, experts over 32")


@pytest.mark.parametrize("run", published.EXPERTS, ids=lambda run: run.name)
def test_mixtures_of_experts_are_predicted_or_listed_as_missed(run):
    """Those that are missed are planned up to three times too fast, as the text says, one just over 20 % too slow."""
    is_met = 0.8 < run.ratio < 1.2
    assert is_met == (run.name in MET) and 0.75 < run.ratio < 3
    assert run.name in str(published.compare([run])) and not run.is_fitted


def test_published_memory_stays_when_twice_as_many_devices_share_a_sequence_of_twice_the_length():
    ratios = [run.ratio for run in published.MEMORIES]
    assert max(ratios) / min(ratios) < 1.05 and all(0.5 < ratio < 0.6 for ratio in ratios)
    assert "memory published" in str(published.compare(published.MEMORIES))


def test_the_constant_was_worked_out_from_one_paper_alone():
    fitted = [run for run in published.RUNS + published.EXPERTS + published.MEMORIES if run.is_fitted]
    assert {run.source.split(",")[0] for run in fitted} == {"Korthikanti et al. 2022"}
