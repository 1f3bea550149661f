"""Published training runs of large models, beside what `bt.plan_cluster` predicts of them."""

from dataclasses import dataclass

import bigtrain_nb as bt
from bigtrain_nb.common import cards

A100 = "A100 80 GB"
SELENE = 25e9
"""Bytes/s between nodes: NVIDIA's Selene has 200 Gbit/s for each of its A100 (Narayanan et al. 2021, section 5)."""


@dataclass(frozen=True)
class Run:
    """One run: ``settings`` of `bt.plan_cluster`, and the MFU that ``source`` reports.

    ``differs``: what is in the run and not in the plan, or assumed in the plan.
    """

    name: str
    source: str
    mfu: float
    differs: str
    model: bt.Transformer
    settings: dict

    def plan(self):
        return bt.plan_cluster(self.model, **self.settings)

    @property
    def put_in(self):
        """The model and the settings in one line."""
        model = self.model
        shape = f"{model.layers} layers of {model.width:,}, {model.length:,} tokens"
        chosen = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([shape, *chosen])


def _run(name, source, mfu, differs, model, **settings):
    return Run(name, source, mfu, differs, model, settings)


_TRILLION = bt.Transformer(128, 25_600, 160, 51_200, 2048)
_MT_NLG = bt.Transformer(105, 20_480, 128, 51_200, 2048)
_PALM = bt.Transformer(118, 18_432, 48, 256_000, 2048)
_LLAMA = bt.Transformer(80, 8192, 64, 32_000, 2048, tied=False)
_LLAMA_3 = bt.Transformer(126, 16_384, 128, 128_256, 8192, tied=False)

_TWICE = _TRILLION.flops(1).total / _TRILLION.flops(1, "everything").total
_FLOPS_OF_A_TOKEN = _LLAMA.flops(1).total / _LLAMA.length

RUNS = (
    _run(
        "a trillion, 3072 A100",
        "Narayanan et al. 2021, table 1: 163 TFLOP/s a device, the second forward pass counted",
        163e12 / 312e12 * _TWICE,
        "two runs of layers a stage are assumed: 128 layers on 64 stages allow no more",
        _TRILLION,
        batch=3072,
        on=A100,
        devices=3072,
        tensor_parallel=8,
        pipeline_parallel=64,
        interleave=2,
        recompute="everything",
        network=SELENE,
    ),
    _run(
        "530 B, 2240 A100, all recomputed",
        "Korthikanti et al. 2022, abstract",
        0.421,
        "the plan's efficiency is worked out from other tables of this paper",
        _MT_NLG,
        batch=2240,
        on=A100,
        devices=2240,
        tensor_parallel=8,
        pipeline_parallel=35,
        interleave=3,
        recompute="everything",
        network=SELENE,
    ),
    _run(
        "530 B, 2240 A100, attention recomputed",
        "Korthikanti et al. 2022, section 6.3",
        0.542,
        "the plan's efficiency is worked out from other tables of this paper",
        _MT_NLG,
        batch=2240,
        on=A100,
        devices=2240,
        tensor_parallel=8,
        pipeline_parallel=35,
        interleave=3,
        recompute="attention",
        network=SELENE,
    ),
    _run(
        "PaLM 540 B, 3072 TPU v4",
        "Chowdhery et al. 2022, sections 4 and 4.1",
        0.462,
        "one of two pods; attention and feed-forward layers run side by side there, with half of the all-reduces",
        _PALM,
        batch=1024,
        on="TPU v4",
        devices=3072,
        tensor_parallel=12,
        pipeline_parallel=1,
        zero_stage=3,
        micro_batches=1,
        recompute="everything",
    ),
    _run(
        "LLaMA 65 B, 2048 A100",
        "Touvron et al. 2023, section 2.4: 380 tokens/s a device",
        380 * _FLOPS_OF_A_TOKEN / 312e12,
        "it sends while it computes; its layout and network are not published: the plan's own layout, 200 Gbit/s",
        _LLAMA,
        batch=2048,
        on=A100,
        devices=2048,
        zero_stage=1,
        recompute="attention",
        network=SELENE,
    ),
    _run(
        "Llama 3 405 B, 8192 H100",
        "Grattafiori et al. 2024, table 4",
        0.43,
        "how many runs of layers a stage has is not published: a layer a run is assumed",
        _LLAMA_3,
        batch=2048,
        on="H100",
        devices=8192,
        tensor_parallel=8,
        pipeline_parallel=16,
        interleave=8,
        zero_stage=1,
        recompute="attention",
    ),
    _run(
        "Llama 3 405 B, 16,384 H100",
        "Grattafiori et al. 2024, table 4",
        0.41,
        "how many runs of layers a stage has is not published: a layer a run is assumed",
        _LLAMA_3,
        batch=2048,
        on="H100",
        devices=16_384,
        tensor_parallel=8,
        pipeline_parallel=16,
        interleave=8,
        zero_stage=1,
        recompute="attention",
    ),
)
"""What the plan cannot have: feed-forward layers of another form than 4 h, heads that share keys and values. It takes
PaLM for 486 B weights and Llama 3 for 410 B, which changes work and time alike, so that MFU hardly moves."""


def compare(runs=RUNS):
    """Return a table: the MFU that each run reports, what the plan says, and what differs."""
    rows = []
    for run in runs:
        planned = run.plan().mfu
        rows.append([run.name, f"{run.mfu:.1%}", f"{planned:.1%}", f"{planned / run.mfu:.2f}", run.differs, run.source])
    columns = ["run", "MFU published", "MFU planned", "ratio", "what differs", "source"]
    return cards.table("Published runs beside their plans", columns, rows)
