"""Published training runs of large models, beside what `bt.plan_cluster` predicts of them."""

from dataclasses import dataclass, replace

import bigtrain_nb as bt
from bigtrain_nb.common import cards

A100 = "A100 80 GB"
SELENE = 25e9
"""Bytes/s between nodes: NVIDIA's Selene has 200 Gbit/s for each of its A100 (Narayanan et al. 2021, section 5)."""


H100 = 989e12
"""FLOP/s of an H100 in bfloat16: what published TFLOP/s are divided by to get an MFU."""
ZOO = "Megatron-MoE-ModelZoo, best_practice/Qwen3/readme.md (commit c1ad0b5)"


@dataclass(frozen=True)
class Run:
    """One run: ``settings`` of `bt.plan_cluster`, and the MFU, or the bytes of a device, that ``source`` reports.

    ``differs``: what is in the run and not in the plan, or assumed in the plan. ``is_fitted``: whether the plans' one
    constant, `EFFICIENCY`, was worked out from the tables of this source.
    """

    name: str
    source: str
    differs: str
    model: bt.Transformer
    settings: dict
    mfu: float | None = None
    memory: float | None = None
    is_fitted: bool = False

    def plan(self):
        return bt.plan_cluster(self.model, **self.settings)

    @property
    def ratio(self):
        """What is planned divided by what is published."""
        plan = self.plan()
        return plan.memory.total / self.memory if self.mfu is None else plan.mfu / self.mfu

    @property
    def put_in(self):
        """The model and the settings in one line."""
        model = self.model
        shape = f"{model.layers} layers of {model.width:,}, {model.length:,} tokens"
        if model.experts > 1:
            shape += f", {model.experts} experts of {model.hidden_width:,}"
        chosen = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([shape, *chosen])


_TRILLION = bt.Transformer(128, 25_600, 160, 51_200, 2048)
_MT_NLG = bt.Transformer(105, 20_480, 128, 51_200, 2048)
_PALM = bt.Transformer(118, 18_432, 48, 256_000, 2048, gated=True, hidden=73_728, key_value_heads=1, head_width=256)
_LLAMA = bt.Transformer(80, 8192, 64, 32_000, 2048, tied=False, gated=True, hidden=22_016)
_LLAMA_3 = bt.SIZES["Llama 3 405 B"]
_LLAMA_3_8 = bt.Transformer(32, 4096, 32, 128_256, 8192, tied=False, gated=True, hidden=14_336, key_value_heads=8)
_QWEN_3 = bt.Transformer(
    *(94, 4096, 64, 151_936, 4096),
    tied=False,
    hidden=1536,
    gated=True,
    key_value_heads=4,
    head_width=128,
    experts=128,
    experts_per_token=8,
)
_GPT_OSS = bt.Transformer(
    *(36, 2880, 64, 201_088, 4096),
    tied=False,
    hidden=2880,
    gated=True,
    key_value_heads=8,
    head_width=64,
    experts=128,
    experts_per_token=4,
)

_TWICE = _TRILLION.flops(1).total / _TRILLION.flops(1, "everything").total
_FLOPS_OF_A_TOKEN = _LLAMA.flops(1).total / _LLAMA.length


def _flash(length):
    """Chunks of 128 rows, as flash kernels have them."""
    return length // 128


_OF_MT_NLG = {
    "batch": 2240,
    "on": A100,
    "devices": 2240,
    "tensor_parallel": 8,
    "pipeline_parallel": 35,
    "interleave": 3,
    "network": SELENE,
}
_OF_LLAMA_3 = {
    "on": "H100",
    "tensor_parallel": 8,
    "pipeline_parallel": 16,
    "interleave": 8,
    "sequence_parallel": True,
    "zero_stage": 1,
}
_A_LAYER_A_RUN = (
    "how many runs of layers a stage has, and what hides behind computing, is not published: a layer a run and nothing"
    " are assumed. By the plan it does not fit: the paper frees tensors early, and chooses how many micro-batches are"
    " in flight"
)

RUNS = (
    Run(
        "a trillion, 3072 A100",
        "Narayanan et al. 2021, table 1: 163 TFLOP/s a device, the second forward pass counted",
        "two runs of layers a stage are assumed: 128 layers on 64 stages allow no more",
        _TRILLION,
        {
            "batch": 3072,
            "on": A100,
            "devices": 3072,
            "tensor_parallel": 8,
            "pipeline_parallel": 64,
            "interleave": 2,
            "recompute": "everything",
            "network": SELENE,
        },
        mfu=163e12 / 312e12 * _TWICE,
    ),
    Run(
        "530 B, 2240 A100, all recomputed",
        "Korthikanti et al. 2022, abstract",
        "the plan's efficiency is worked out from other tables of this paper",
        _MT_NLG,
        {**_OF_MT_NLG, "recompute": "everything"},
        mfu=0.421,
        is_fitted=True,
    ),
    Run(
        "530 B, 2240 A100, attention recomputed",
        "Korthikanti et al. 2022, section 6.3",
        "the plan's efficiency is worked out from other tables of this paper",
        _MT_NLG,
        {**_OF_MT_NLG, "recompute": "attention", "sequence_parallel": True},
        mfu=0.542,
        is_fitted=True,
    ),
    Run(
        "PaLM 540 B, 3072 TPU v4",
        "Chowdhery et al. 2022, sections 4 and 4.1",
        "one of two pods; attention and feed-forward layers run side by side there, with half of the all-reduces",
        _PALM,
        {
            "batch": 1024,
            "on": "TPU v4",
            "devices": 3072,
            "tensor_parallel": 12,
            "pipeline_parallel": 1,
            "zero_stage": 3,
            "micro_batches": 1,
            "recompute": "everything",
        },
        mfu=0.462,
    ),
    Run(
        "LLaMA 65 B, 2048 A100",
        "Touvron et al. 2023, section 2.4: 380 tokens/s a device",
        "it sends while it computes as much as possible: all is assumed; its layout and network are not published: the"
        " plan's own layout, 200 Gbit/s",
        _LLAMA,
        {
            "batch": 2048,
            "on": A100,
            "devices": 2048,
            "zero_stage": 1,
            "recompute": "attention",
            "overlap": 1,
            "network": SELENE,
        },
        mfu=380 * _FLOPS_OF_A_TOKEN / 312e12,
    ),
    Run(
        "Llama 3 405 B, 8192 H100",
        "Grattafiori et al. 2024, table 4",
        _A_LAYER_A_RUN,
        _LLAMA_3,
        {"batch": 2048, "devices": 8192, **_OF_LLAMA_3, "chunk_attention": _flash(8192)},
        mfu=0.43,
    ),
    Run(
        "Llama 3 405 B, 16,384 H100",
        "Grattafiori et al. 2024, table 4",
        _A_LAYER_A_RUN,
        _LLAMA_3,
        {"batch": 2048, "devices": 16_384, **_OF_LLAMA_3, "chunk_attention": _flash(8192)},
        mfu=0.41,
    ),
    Run(
        "Llama 3 405 B, 16,384 H100, 131,072 tokens",
        "Grattafiori et al. 2024, table 4",
        _A_LAYER_A_RUN + ". Whether its MFU counts the masked half of the scores is not said; the plan's does",
        replace(_LLAMA_3, length=131_072),
        {
            "batch": 128,
            "devices": 16_384,
            "context_parallel": 16,
            **_OF_LLAMA_3,
            "chunk_attention": _flash(131_072),
        },
        mfu=0.38,
    ),
)
"""Dense models. A plan cannot have layers of unequal kinds, nor stages of unequal length but for the last."""


_OF_QWEN_3 = {
    "on": "H100",
    "devices": 256,
    "zero_stage": 1,
    "sequence_parallel": True,
    "recompute": "attention",
}
_ALSO_NORMALIZATIONS = "normalizations and activations of the experts are computed again there, which saves memory"
_SMALL = "each device has many small products of matrices a step, and reaches less than 0.6 of its FLOP/s"


def _qwen(name, teraflops, differs, length=4096, batch=2048, **settings):
    settings = {"batch": batch, **_OF_QWEN_3, "chunk_attention": _flash(length), **settings}
    source = f"{ZOO}: {teraflops} TFLOP/s a device"
    return Run(name, source, differs, replace(_QWEN_3, length=length), settings, mfu=teraflops * 1e12 / H100)


def _long(length, context, teraflops):
    return _qwen(
        f"Qwen3 235 B, 256 H100, {length:,} tokens",
        teraflops,
        f"normalizations and experts are computed again there, which takes less memory and more operations; {_SMALL}",
        length,
        256,
        tensor_parallel=4,
        pipeline_parallel=8,
        interleave=4,
        expert_parallel=8,
        context_parallel=context,
    )


EXPERTS = (
    Run(
        "Mixtral 8x7B, 64 H100",
        "Megatron-LM v0.8, megatron/core/transformer/moe/README.md: 438 TFLOP/s a device",
        "gradients and weights are sent while it computes, of which the plan hides nothing",
        bt.SIZES["Mixtral 8x7B"],
        {
            "batch": 256,
            "on": "H100",
            "devices": 64,
            "tensor_parallel": 1,
            "pipeline_parallel": 4,
            "interleave": 8,
            "expert_parallel": 8,
            "zero_stage": 1,
            "chunk_attention": _flash(4096),
        },
        mfu=438e12 / H100,
    ),
    _qwen(
        "Qwen3 235 B, 256 H100, experts over 32",
        245,
        f"a token goes to each node once (DeepEP), and not to each expert; {_ALSO_NORMALIZATIONS}",
        tensor_parallel=2,
        pipeline_parallel=8,
        interleave=4,
        expert_parallel=32,
    ),
    _qwen(
        "Qwen3 235 B, 256 H100, experts over 32, overlapped",
        276,
        f"the plan hides all messages, of all kinds; {_ALSO_NORMALIZATIONS}; {_SMALL}",
        tensor_parallel=2,
        pipeline_parallel=8,
        interleave=4,
        expert_parallel=32,
        overlap=1,
    ),
    _qwen(
        "Qwen3 235 B, 256 H100, fully sharded",
        276,
        "sends while it computes: all of it, as far as computing lasts, is assumed",
        tensor_parallel=2,
        pipeline_parallel=1,
        expert_parallel=8,
        zero_stage=3,
        micro_batches=4,
        recompute="everything",
        overlap=1,
    ),
    _qwen(
        "Qwen3 235 B, 256 H100, 32 stages",
        200,
        f"{_ALSO_NORMALIZATIONS}; {_SMALL}",
        tensor_parallel=2,
        pipeline_parallel=32,
        interleave=3,
        expert_parallel=8,
    ),
    _qwen(
        "Qwen3 235 B, 256 H100, 4 a layer",
        167,
        _SMALL,
        tensor_parallel=4,
        pipeline_parallel=8,
        interleave=4,
        expert_parallel=8,
    ),
    _long(16_384, 1, 295),
    _long(32_768, 2, 335),
    _long(65_536, 4, 368),
    _long(131_072, 8, 389),
    Run(
        "GPT OSS 120 B, 64 H100",
        "NVIDIA Megatron Bridge, performance summary, 26.02: 163 TFLOP/s a device",
        f"every other layer sees 128 tokens only; {_SMALL}",
        _GPT_OSS,
        {
            "batch": 1280,
            "on": "H100",
            "devices": 64,
            "tensor_parallel": 1,
            "pipeline_parallel": 4,
            "expert_parallel": 8,
            "zero_stage": 1,
            "chunk_attention": _flash(4096),
        },
        mfu=163e12 / H100,
    ),
)
"""Mixtures of experts: all rows in bfloat16 on H100 whose layout the three sources say in full.

Of eleven plans two are within 20 %: the one with wide experts (14,336), and one where messages bind. Two are off by
just over 20 %. With narrow experts (1,536 and 2,880 wide) a plan is up to three times too fast: products of small
matrices reach less than 0.6 of the FLOP/s, and what it takes to choose and sort tokens is not in it. DeepSeek-V3 is not
here: its attention has matrices of another form (multi-head latent attention), it computes in 8 bits, and a plan has
neither."""


def _titan(context, gibibytes):
    length = 32_768 * context
    return Run(
        f"Llama 3.1 8 B, 8 H100, {length:,} tokens",
        "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 2 (96 GB a device)",
        "what PyTorch's allocator has reserved, and not what is in use; logits in several forms at once (16 bits,"
        " float32, logarithms, gradients) and not in one",
        replace(_LLAMA_3_8, length=length),
        {
            "batch": 8 // context,
            "on": "H100",
            "devices": 8,
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
            "context_parallel": context,
            "zero_stage": 3,
            "micro_batches": 1,
            "recompute": "everything",
            "chunk_attention": _flash(length),
        },
        memory=gibibytes * 2**30,
    )


MEMORIES = (_titan(2, 84.2), _titan(4, 84.0), _titan(8, 84.5))
"""Published bytes of a device with context parallelism. Planned are 0.56 to 0.58 of them: `Run.differs` says why. What
does hold is that memory stays the same when the length doubles and twice as many devices share it. Of mixtures of
experts no source was found that gives both a layout in full and its memory."""


def compare(runs=RUNS):
    """Return a table: what each run reports, what the plan says, and what differs."""
    rows = []
    for run in runs:
        ratio = run.ratio
        if run.mfu is None:
            reported, planned = (f"{size / 2**30:.1f} GiB" for size in (run.memory, ratio * run.memory))
        else:
            reported, planned = f"{run.mfu:.1%}", f"{ratio * run.mfu:.1%}"
        fitted = "yes" if run.is_fitted else "no"
        rows.append([run.name, reported, planned, f"{ratio:.2f}", fitted, run.differs, run.source])
    unit = "memory" if all(run.mfu is None for run in runs) else "MFU"
    columns = ["run", f"{unit} published", f"{unit} planned", "ratio", "efficiency from it", "what differs", "source"]
    return cards.table("Published runs beside their plans", columns, rows)
