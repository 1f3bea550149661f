"""Published trainings of dense models, beside what `bt.plan_cluster` says of them.

`RUNS` were known when the constants of a plan were chosen, also those that chose none. `AFTERWARDS` were listed
after they were; some of them had been tried before.
"""

from dataclasses import dataclass, replace

import bigtrain_nb as bt
from bigtrain_nb.common import cards

TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
ASYNC = "torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md"
IBM = "foundation-model-stack/fms-fsdp, README"
MOSAIC = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
NVIDIA = "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md"
META = "Grattafiori et al. 2024, table 4"
GOOGLE = "AI-Hypercomputer/tpu-recipes, training; its recomputation is not said in these words: half is assumed"


@dataclass(frozen=True)
class Run:
    """One training: ``settings`` of `bt.plan_cluster`, and what its ``source`` reports.

    ``rate``: tokens/s of a device; ``memory``: GiB of a device, None where it is not said. ``chose``: which constant of
    a plan was chosen by it, "" for none. ``differs``: what is in the run and not in the plan, or assumed in the plan.
    """

    name: str
    source: str
    model: bt.Transformer
    settings: dict
    rate: float
    memory: float | None = None
    chose: str = ""
    differs: str = ""

    def plan(self):
        return bt.plan_cluster(self.model, **{"tensor_parallel": 1, "pipeline_parallel": 1, **self.settings})

    @property
    def planned(self):
        """(lowest, highest) tokens/s of a device."""
        plan = self.plan()
        lowest, highest = (rate / plan.layout.devices for rate in plan.tokens_per_second)
        return lowest, highest

    @property
    def holds(self):
        """Whether the range holds the published rate."""
        lowest, highest = self.planned
        return lowest <= self.rate <= highest

    @property
    def memory_ratio(self):
        """Planned divided by published memory."""
        return self.plan().memory.total / 2**30 / self.memory


_8, _70, _405 = (bt.SIZES[f"Llama 3 {size} B"] for size in (8, 70, 405))
_LLAMA_2 = {"vocabulary": 32_000, "length": 4096, "tied": False, "gated": True}
_LLAMA_34 = bt.Transformer(48, 8192, 64, hidden=22_016, key_value_heads=8, **_LLAMA_2)
_LLAMA_70 = bt.Transformer(80, 8192, 64, hidden=28_672, key_value_heads=8, **_LLAMA_2)
_LLAMA_65 = replace(_LLAMA_34, layers=80, key_value_heads=None, length=2048)
_MPT_7, _MPT_30, _MPT_70 = (
    bt.Transformer(layers, width, heads, 50_368, 2048)
    for layers, width, heads in ((32, 4096, 32), (48, 7168, 56), (80, 8192, 64))
)
_HALF = {"recompute": "selective", "micro_batches": 1}
_AGAIN = {"recompute": "everything", "micro_batches": 1}
_OF_IBM = {"on": "A100 80 GB", "devices": 128, "network": 50e9 / 8, **_AGAIN}
_FLOAT_8 = {"policy": "float8"}
_A_NODE = "400 Gbit/s are taken to be those of a node"


def _by_mfu(model, mfu):
    """Return the tokens/s of an H100 at a given MFU."""
    return mfu * bt.ACCELERATORS["H100"].flops_16 / (model.flops(1).total / model.length)


FULLY_SHARDED = (
    Run(
        "Llama 3.1 8 B, 8 H100, not compiled",
        TITAN,
        _8,
        {"batch": 16, "devices": 8, **_HALF},
        5762,
        82.4,
        "Hopper, 16 bits",
    ),
    Run("Llama 3.1 8 B, 8 H100", TITAN, _8, {"batch": 16, "devices": 8, **_HALF}, 6667, 77.0, "memory"),
    Run("Llama 3.1 8 B, 8 H100, float8", TITAN, _8, {"batch": 16, "devices": 8, **_HALF, **_FLOAT_8}, 8532, 76.8),
    Run(
        "Llama 3.1 8 B, 128 H100", TITAN, _8, {"batch": 256, "devices": 128, **_HALF}, 6514, 62.0, "memory, overlapped"
    ),
    Run(
        *("Llama 3.1 8 B, 128 H100, float8", TITAN, _8, {"batch": 256, "devices": 128, **_HALF, **_FLOAT_8}),
        *(8380, 61.8, "Hopper, 8 bits"),
    ),
    Run(
        *("Llama 3.1 8 B, 32 H200, float8", "torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md", _8),
        *({"on": "H200", "batch": 64, "devices": 32, **_HALF, **_FLOAT_8}, 10_938, 47.96, "memory"),
    ),
    Run(
        *("Llama 3 8 B, 8 H100, float8", f"{NVIDIA}, 25.11", _8),
        *({"batch": 128, "devices": 8, "micro_batches": 16, "recompute": "none", **_FLOAT_8}, 14_451),
        chose="Hopper, 8 bits",
    ),
    Run(
        *("Llama 3 8 B, 8 B200, float8", f"{NVIDIA}, 25.11", _8),
        *({"on": "B200", "batch": 128, "devices": 8, "micro_batches": 8, "recompute": "none", **_FLOAT_8}, 30_624),
    ),
    Run(
        "Llama 2 34 B, 128 A100", f"{IBM} of February 2024", _LLAMA_34, {"batch": 256, **_OF_IBM}, 700, differs=_A_NODE
    ),
    Run(
        "Llama 2 70 B, 128 A100", f"{IBM} of February 2024", _LLAMA_70, {"batch": 256, **_OF_IBM}, 370, differs=_A_NODE
    ),
    Run(
        *("Llama 2 70 B, 96 H100", f"{IBM} of May 2024", _LLAMA_70),
        *({"batch": 192, "devices": 96, "network": 100e9 / 8, **_AGAIN}, 890),
        differs="800 Gbit/s are taken to be those of a node; by its HFU three quarters of the blocks run again",
    ),
    Run(
        "MPT 7 B, 512 H100",
        MOSAIC,
        _MPT_7,
        {"batch": 3072, "devices": 512, "micro_batches": 1, "recompute": "none"},
        9670,
    ),
    Run(
        *("MPT 30 B, 32 H100", MOSAIC, _MPT_30, {"batch": 1344, "devices": 32, "recompute": "everything"}, 2308),
        chose="Hopper, 16 bits",
    ),
    Run("MPT 70 B, 512 H100", MOSAIC, _MPT_70, {"batch": 4096, "devices": 512, **_AGAIN}, 1007),
    Run(
        *("MPT 30 B, 8 A100", MOSAIC, _MPT_30),
        *({"on": "A100 80 GB", "batch": 504, "devices": 8, "micro_batches": 21, "recompute": "everything"}, 916),
        chose="Ampere",
    ),
)
"""On GPUs, fully sharded alone."""

SEVERAL_CUTS = (
    Run(
        *(
            "Llama 3 8 B, 64 H100, 8 a layer",
            ASYNC,
            _8,
            {"batch": 96, "devices": 64, "tensor_parallel": 8, **_HALF},
            4378,
        ),
        differs="matmuls of a model this small, split in eight, are small",
    ),
    Run(
        "Llama 3 70 B, 256 H100, 8 a layer",
        ASYNC,
        _70,
        {"batch": 512, "devices": 256, "tensor_parallel": 8, **_AGAIN},
        597,
    ),
    Run(
        *("Llama 3.1 70 B, 256 H100, 8 a layer, float8", TITAN, _70),
        *({"batch": 512, "devices": 256, "tensor_parallel": 8, **_AGAIN, **_FLOAT_8}, 829, 71.9),
    ),
    Run(
        *("LLaMA 65 B, 2048 A100", "Touvron et al. 2023, section 2.4", _LLAMA_65),
        *({"on": "A100 80 GB", "batch": 2048, "devices": 2048, "tensor_parallel": 8, "recompute": "none"}, 380),
        chose="Ampere",
        differs="its layout is not given: 8 per layer are assumed",
    ),
)
_CUT = {"tensor_parallel": 8, "pipeline_parallel": 8, "recompute": "everything", **_FLOAT_8}
_OF_META = {"batch": 2048, "tensor_parallel": 8, "pipeline_parallel": 16, "recompute": "none"}
PIPELINES = (
    Run(
        *("Llama 3.1 405 B, 512 H100, float8, 1F1B", TITAN, _405, {"batch": 256, "devices": 512, **_CUT}, 100, 82.5),
        differs="one virtual stage per stage: the bubble is 18 % of the step; a plan has virtual stages of two layers",
    ),
    Run(
        *("Llama 3.1 405 B, 512 H100, float8, interleaved", TITAN, _405, {"batch": 256, "devices": 512, **_CUT}),
        *(128, 72.7),
        differs="virtual stages of more than two layers, or few: its bubble is not given",
    ),
    Run("Llama 3 405 B, 8192 H100", META, _405, {"devices": 8192, **_OF_META}, _by_mfu(_405, 0.43)),
    Run("Llama 3 405 B, 16,384 H100", META, _405, {"devices": 16_384, **_OF_META}, _by_mfu(_405, 0.41)),
    Run(
        *("Llama 3 70 B, 64 H100, float8", f"{NVIDIA}, 26.04.01", _70),
        {
            **{"batch": 256, "devices": 64, "tensor_parallel": 4, "pipeline_parallel": 8},
            **{"zero_stage": 1, "recompute": "none", **_FLOAT_8},
        },
        1664,
    ),
    Run(
        *("Llama 3.1 405 B, 256 GB200, float8", f"{NVIDIA}, 26.04.01", _405),
        {
            **{"on": "GB200 NVL72", "batch": 1536, "devices": 256, "tensor_parallel": 4, "pipeline_parallel": 16},
            **{"zero_stage": 1, "recompute": "none", **_FLOAT_8},
        },
        864,
        chose="Blackwell, 8 bits",
    ),
)
TPUS = (
    Run(
        *("Llama 2 70 B, 512 TPU v5p", "MaxText, docs/reference/models/tiering.md", _LLAMA_70),
        *({"on": "TPU v5p", "batch": 2048, "devices": 512, "recompute": "selective"}, 692),
        chose="TPU v5p",
        differs="how many sequences, and what is recomputed, is not given",
    ),
    Run(
        *("Llama 3.1 70 B, 256 TPU v6e", GOOGLE, _70),
        *({"on": "TPU v6e", "batch": 1280, "devices": 256, "recompute": "selective"}, 960),
        chose="TPU v6e",
    ),
    Run(
        *("Llama 3.1 405 B, 256 TPU v7", GOOGLE, _405),
        *({"on": "TPU v7", "batch": 1536, "devices": 256, "recompute": "selective"}, 500),
        chose="TPU v7",
    ),
)
RUNS = FULLY_SHARDED + SEVERAL_CUTS + PIPELINES + TPUS

_MPT_1, _MPT_3, _MPT_13 = (
    bt.Transformer(layers, width, heads, 50_368, 2048)
    for layers, width, heads in ((24, 2048, 16), (32, 2560, 20), (40, 5120, 40))
)
_H100, _A100, _A100_40 = "H100", "A100 80 GB", "A100 40 GB"
_MORE = (  # model, length, devices, their kind, batch, micro-batches, what runs again, tokens/s of a device
    (_MPT_1, 2048, 128, _H100, 1536, 1, "none", 44_123),
    (_MPT_1, 2048, 512, _H100, 6144, 1, "none", 39_837),
    (_MPT_3, 2048, 128, _H100, 1024, 1, "none", 23_422),
    (_MPT_3, 2048, 512, _H100, 4096, 1, "none", 21_664),
    (_MPT_30, 2048, 16, _H100, 480, 3, "everything", 2263),
    (_MPT_70, 2048, 32, _H100, 1024, 16, "everything", 882),
    (_MPT_70, 2048, 64, _H100, 2048, 4, "everything", 1039),
    (_MPT_7, 65_536, 8, _H100, 16, 2, "everything", 1956),
    (_MPT_13, 32_768, 8, _H100, 24, 3, "everything", 1976),
    (_MPT_30, 4096, 8, _A100, 168, 21, "everything", 814),
    (_MPT_30, 8192, 8, _A100, 168, 21, "everything", 574),
    (_MPT_70, 2048, 32, _A100, 1024, 16, "everything", 373),
    (_MPT_7, 2048, 128, _A100_40, 2304, 1, "everything", 3623),
    (_MPT_30, 2048, 128, _A100_40, 768, 1, "everything", 865),
    (_MPT_70, 2048, 64, _A100_40, 128, 1, "everything", 276),
)
AFTERWARDS = tuple(
    Run(
        f"MPT of {model.weights / 1e9:.1f} B, {devices} {on}, {length:,} tokens",
        MOSAIC,
        replace(model, length=length),
        {
            **{"on": on, "devices": devices, "batch": batch, "micro_batches": slices, "recompute": again},
            **{"zero_stage": 2 if model in (_MPT_1, _MPT_3) else 3},
        },
        rate,
    )
    for model, length, devices, on, batch, slices, again, rate in _MORE
)
"""Fully sharded, on GPUs: these rows of the source's tables, whether the range holds them or not."""


def compare(runs=RUNS):
    """Return a table: what each run reports, what the plan says, and what differs."""
    rows = []
    for run in runs:
        lowest, highest = run.planned
        memory = ["", "", ""]
        if run.memory:
            memory = [f"{run.memory:g}", f"{run.memory * run.memory_ratio:.0f}", f"{run.memory_ratio:.2f}"]
        rates = [f"{run.rate:,.0f}", f"{lowest:,.0f} to {highest:,.0f}", "yes" if run.holds else "no"]
        rows.append([run.name, *rates, *memory, run.chose, run.differs, run.source])
    head = ["run", "tokens/s per device", "planned", "held", "GiB", "planned", "ratio", "chose", "what differs", "source"]
    return cards.table("Published runs compared with their plans", head, rows)
