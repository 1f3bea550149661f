"""Published figures of accelerators: memory, links, and FLOP/s of dense matmuls (not "with sparsity")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """Published specifications. ``memory``: bytes; ``bandwidth``: its bytes/s; ``flops_16``: FLOP/s in 16 bits.

    ``flops_32``: FLOP/s in float32, with TF32 where available, because TensorFlow uses it by default
    (`tf.config.experimental.enable_tensor_float_32_execution`). ``link``: bytes/s in one direction to other devices of
    the node, half of what vendors print for both directions; ``node``: how many are usually linked this way;
    ``bfloat16``: whether it is supported.

    For cluster plans: ``network``: bytes/s in one direction from a device's NIC to other nodes; ``efficiency``: the
    typical share of ``flops_16`` that published 16-bit trainings reach while computing, for models in each class of
    `SIZE_LIMITS`, including recomputed operations; ``mfu``: (lowest, highest) MFU of those trainings, excluding
    recomputed operations; ``speedup_8``: the speedup of a step in float8, from published pairs of runs. None where no
    such training was found.
    """

    name: str
    memory: float
    bandwidth: float
    flops_16: float
    flops_32: float
    link: float
    node: int
    source: str
    bfloat16: bool = True
    network: float = 0.0
    efficiency: tuple[float, float, float] | None = None
    mfu: tuple[tuple[float, float] | None, ...] = (None, None, None)
    speedup_8: tuple[float, float, float] | None = None

    def flops(self, policy: str) -> float:
        """FLOP/s for a Keras dtype policy. Raises ValueError for types without a figure, such as float64."""
        dtype = policy.removeprefix("mixed_")
        if dtype == "float32":
            return self.flops_32
        if dtype not in ("bfloat16", "float16"):
            raise ValueError(f"{self.name} has no FLOP/s for {policy!r} here: use mixed_float16 or float32")
        if dtype == "bfloat16" and not self.bfloat16:
            raise ValueError(f"{self.name} has no bfloat16: use mixed_float16 or float32")
        return self.flops_16


_HALF = "half of its figures with sparsity"
_DGXC = "NVIDIA/dgxc-benchmarking, README of 30 July 2026"
_TPU = "Google Cloud documentation; node: a pod; float32 in one pass of bfloat16, as XLA does unless told otherwise"
SIZE_LIMITS = (3e9, 20e9)
"""Parameter counts that separate small, medium and large models: small matmuls use less of a device."""
FLOAT_8 = (1.15, 1.3, 1.48)
"""Speedup of a step in float8 over 16 bits: medians of published pairs of runs, the same model on the same devices
(`bigtrain_nb.series.published.PAIRS`). Small: 1.00 to 1.35 (MosaicML, 1 and 3 B, 512 to 32,768 tokens)."""

_HOPPER = {
    "efficiency": (0.40, 0.52, 0.58),
    "mfu": ((0.37, 0.42), (0.28, 0.60), (0.24, 0.54)),
    "speedup_8": FLOAT_8,
    "network": 50e9,
}
"""16 bits, including recomputed operations, excluding communication and bubble; about the geometric mean of the lowest
and the highest source, each by its median. Small: 0.37 to 0.43 (MosaicML, 0.8 to 2.7 B). Medium: 0.42 (MosaicML, 7 B),
0.5 (IBM, 7 and 13 B), 0.60 to 0.64 (NVIDIA, 8 and 15 B), 0.65 (Kempner, 8 B). Large: 0.5 (IBM, 34 B), 0.56 (MosaicML
and Meta), 0.56 to 0.64 (NVIDIA, 70 to 405 B), 0.69 (MaxText, 70 B). One 400 Gbit/s NIC per GPU."""
_HOPPER_500_W = {
    "efficiency": (0.36, 0.42, 0.45),
    "mfu": (None, (0.26, 0.39), (0.29, 0.29)),
    "speedup_8": FLOAT_8,
    "network": 50e9,
}
"""Only torchtitan's cut-down GPUs: 0.35 (8 B, TP 8), 0.38 not compiled and 0.44 compiled (8 B), 0.45 (70 B), relative
to the FLOP/s of a full H100, which these do not reach."""
_BLACKWELL = {"efficiency": (0.40, 0.52, 0.60), "speedup_8": FLOAT_8, "network": 50e9}
"""Large: 0.48 (NVIDIA, 340 B on GB200 in 16 bits) to 0.75 (405 B, from its float8 run by the median pair). Small and
medium as for Hopper: the only 16-bit run that was found has 0.24 (torchao, 8 B, GPUs with less power)."""
_BLACKWELL_ULTRA = {"efficiency": (0.40, 0.57, 0.70), "speedup_8": FLOAT_8, "network": 100e9}
"""GB300 is published in float8 only: derived from those runs by the median pair, and reduced by the factor by which
NVIDIA's own runs on H100 are faster than typical ones."""
_AMPERE = {"efficiency": (0.50, 0.60, 0.62), "mfu": (None, (0.46, 0.67), (0.36, 0.55)), "network": 25e9}
"""Small: 0.39 to 0.62 (MosaicML, 0.1 to 2.7 B). Medium: 0.46 to 0.53 (Meta's LLaMA), 0.54 to 0.77 (MosaicML), 0.73
(IBM). Large: 0.5 to 0.6 (Meta), 0.49 to 0.75 (MosaicML), 0.7 to 0.75 (IBM). 200 Gbit/s per GPU, as in DGX A100."""
_V5P = {"efficiency": (0.78, 0.78, 0.78), "mfu": (None, None, (0.67, 0.67))}
_V6E = {"efficiency": (0.52, 0.52, 0.54), "mfu": (None, (0.45, 0.45), (0.50, 0.50))}
_V7 = {"efficiency": (0.67, 0.67, 0.67), "mfu": (None, None, (0.56, 0.57))}
"""Efficiency of TPUs, assuming that half of a block's matmuls are recomputed. v5p: Llama 2 70 B (MaxText,
docs/reference/models/tiering.md); v6e: Llama 3.1 8 B, 70 B and 405 B; v7: Llama 3.1 70 B and 405 B, in float8 1.53
times as fast (AI-Hypercomputer/tpu-recipes, training, August 2026). Sizes without a run use the next larger."""

_ALL = (
    Accelerator("T4", 16e9, 320e9, 65e12, 8.1e12, 16e9, 1, "NVIDIA T4 datasheet; link: PCIe 3.0 x16", bfloat16=False),
    Accelerator("L4", 24e9, 300e9, 121e12, 60.5e12, 32e9, 1, f"NVIDIA L4 datasheet, {_HALF}; link: PCIe 4.0 x16"),
    Accelerator("V100", 32e9, 900e9, 125e12, 15.7e12, 150e9, 8, "NVIDIA V100 datasheet, SXM2", bfloat16=False),
    Accelerator("A100 40 GB", 40e9, 1555e9, 312e12, 156e12, 300e9, 8, "NVIDIA A100 datasheet, SXM", **_AMPERE),
    Accelerator("A100 80 GB", 80e9, 2039e9, 312e12, 156e12, 300e9, 8, "NVIDIA A100 datasheet, SXM", **_AMPERE),
    Accelerator("H100", 80e9, 3350e9, 989e12, 494.5e12, 450e9, 8, f"NVIDIA H100 datasheet, SXM, {_HALF}", **_HOPPER),
    Accelerator(
        *("H100 96 GB, 500 W", 96e9, 2400e9, 989e12, 494.5e12, 450e9, 8),
        "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: HBM2e and a limit of 500 W; FLOP/s of the full card",
        **_HOPPER_500_W,
    ),
    Accelerator("H200", 141e9, 4800e9, 989e12, 494.5e12, 450e9, 8, f"NVIDIA H200 datasheet, SXM, {_HALF}", **_HOPPER),
    Accelerator(
        *("B200", 180e9, 8000e9, 2250e12, 1125e12, 900e9, 8),
        f"NVIDIA Blackwell architecture brief, DGX B200 datasheet, {_HALF}",
        **_BLACKWELL,
    ),
    Accelerator(
        *("B300", 270e9, 7700e9, 2250e12, 1125e12, 900e9, 8),
        f"{_DGXC}; 8 NICs of 800 Gbit/s; TF32 half of 16 bits, as in B200",
        **{**_BLACKWELL, "network": 100e9},
    ),
    Accelerator(
        *("GB200 NVL72", 186e9, 8000e9, 2500e12, 1250e12, 900e9, 72),
        f"NVIDIA GB200 NVL72 datasheet, a 72nd of it, {_HALF}; node: a rack",
        mfu=(None, None, (0.42, 0.46)),
        **_BLACKWELL,
    ),
    Accelerator(
        *("GB300 NVL72", 279e9, 8000e9, 2500e12, 1250e12, 900e9, 72),
        f"memory: {_DGXC}; FLOP/s as GB200; a NIC of 800 Gbit/s each (NVIDIA NVL72 AI Factory); node: a rack",
        **_BLACKWELL_ULTRA,
    ),
    Accelerator(
        *("MI300X", 192e9, 5300e9, 1307.4e12, 653.7e12, 448e9, 8),
        "AMD Instinct MI300X data sheet; 7 links of 64 GB/s in one direction",
    ),
    Accelerator(
        *("MI355X", 288e9, 8000e9, 2500e12, 157.3e12, 538e9, 8),
        "AMD Instinct MI355X data sheet; 7 links of 76.8 GB/s in one direction; no TF32",
    ),
    Accelerator(
        *("Trainium 2", 96 * 2**30, 2900e9, 667e12, 667e12, 640e9, 16),
        "AWS Neuron documentation, Trainium2 architecture; float32 as TF32; node: 16 chips of a trn2.48xlarge",
    ),
    Accelerator("TPU v4", 32e9, 1200e9, 275e12, 275e12, 300e9, 4096, _TPU),
    Accelerator("TPU v5e", 16e9, 819e9, 197e12, 197e12, 200e9, 256, _TPU),
    Accelerator(*("TPU v5p", 95e9, 2765e9, 459e12, 459e12, 600e9, 8960, _TPU), network=6.25e9, **_V5P),
    Accelerator(*("TPU v6e", 32e9, 1600e9, 918e12, 918e12, 400e9, 256, _TPU), network=12.5e9, **_V6E),
    Accelerator(
        *("TPU v7", 206e9, 7380e9, 2307e12, 2307e12, 600e9, 9216),
        f"{_TPU}, which says that TensorFlow is not supported there",
        network=12.5e9,
        speedup_8=(1.53, 1.53, 1.53),
        **_V7,
    ),
)
"""Vendor data is as of August 2026. MI300X, MI355X and Trainium 2 have no ``efficiency``: no published multi-node
pretraining of a dense model on them was found. The network of a TPU is that of a host, shared by its chips."""


class _ByName(dict):
    def __missing__(self, name):
        raise KeyError(f"{name!r} is not one of {', '.join(self)}")


ACCELERATORS: dict[str, Accelerator] = _ByName((one.name, one) for one in _ALL)
"""{name: `Accelerator`}, GPUs first, then Trainium 2 and TPUs. KeyError for unknown names.

Example::

    for name, one in bt.ACCELERATORS.items():
        print(name, one.memory, one.flops_16, one.source)
"""
