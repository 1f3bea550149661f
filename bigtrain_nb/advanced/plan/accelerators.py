"""Published figures of accelerators: memory, links, and FLOP/s of dense matrices (not "with sparsity")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """What a maker publishes. ``memory``: bytes; ``bandwidth``: bytes/s of it; ``flops_16``: FLOP/s in 16 bits.

    ``flops_32``: FLOP/s in float32, with TF32 where there is such a thing, for TensorFlow uses it unless told otherwise
    (`tf.config.experimental.enable_tensor_float_32_execution`). ``link``: bytes/s in one direction to the others of its
    node, half of what makers print for both; ``node``: how many are usually linked like that; ``bfloat16``: whether it
    has that.

    For plans of clusters: ``flops_8``: FLOP/s of float8, None where it is no faster; ``network``: bytes/s in one
    direction of a device's card to other nodes; ``efficiency``: the least and the greatest share of ``flops_16`` that
    published trainings of 2023 to 2026 reach while they compute, ``efficiency_8`` the same of ``flops_8``; None where
    no such training was found.
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
    flops_8: float | None = None
    network: float = 0.0
    efficiency: tuple[float, float] | None = None
    efficiency_8: tuple[float, float] | None = None

    def flops(self, policy: str) -> float:
        """FLOP/s for a Keras dtype policy. Raises ValueError for bfloat16 on a device that has none."""
        if policy == "float32":
            return self.flops_32
        if policy == "mixed_bfloat16" and not self.bfloat16:
            raise ValueError(f"{self.name} has no bfloat16: use mixed_float16 or float32")
        return self.flops_16


_HALF = "half of its figures with sparsity"
_TPU = "Google Cloud documentation; node: a pod; float32 in one pass of bfloat16, as XLA does unless told otherwise"
_HOPPER = {"efficiency": (0.37, 0.585), "efficiency_8": (0.315, 0.52), "network": 50e9}
"""Of all operations, those that run again among them. In 16 bits between Llama 3.1 8 B in PyTorch that is not compiled
(torchtitan, December 2024: 5,762 tokens/s a GPU) and MPT 30 B on 32 H100 (MosaicML, llm-foundry: 59 %). In float8
between Llama 3.1 8 B on 128 (torchtitan: 8,380) and on 8 (NVIDIA, Megatron Bridge 25.11: 14,451). A card of 400 Gbit/s
for each GPU, as in DGX H100."""
_BLACKWELL = {"efficiency": (0.37, 0.585), "efficiency_8": (0.32, 0.55), "network": 50e9}
"""In 16 bits as Hopper: no dense training was found. In float8 the greatest is of Llama 3.1 405 B on 256 GB200
(Megatron Bridge 26.04: 864 tokens/s a GPU)."""
_AMPERE = {"efficiency": (0.52, 0.75), "network": 25e9}
"""Between LLaMA 65 B (Touvron et al. 2023: 380 tokens/s a GPU) and MPT 30 B (MosaicML: 74 %). 200 Gbit/s each, as in
DGX A100."""

_ALL = (
    Accelerator("T4", 16e9, 320e9, 65e12, 8.1e12, 16e9, 1, "NVIDIA T4 datasheet; link: PCIe 3.0 x16", bfloat16=False),
    Accelerator("L4", 24e9, 300e9, 121e12, 60.5e12, 32e9, 1, f"NVIDIA L4 datasheet, {_HALF}; link: PCIe 4.0 x16"),
    Accelerator("V100", 32e9, 900e9, 125e12, 15.7e12, 150e9, 8, "NVIDIA V100 datasheet, SXM2", bfloat16=False),
    Accelerator("A100 40 GB", 40e9, 1555e9, 312e12, 156e12, 300e9, 8, "NVIDIA A100 datasheet, SXM", **_AMPERE),
    Accelerator("A100 80 GB", 80e9, 2039e9, 312e12, 156e12, 300e9, 8, "NVIDIA A100 datasheet, SXM", **_AMPERE),
    Accelerator(
        *("H100", 80e9, 3350e9, 989e12, 494.5e12, 450e9, 8),
        f"NVIDIA H100 datasheet, SXM, {_HALF}",
        flops_8=1979e12,
        **_HOPPER,
    ),
    Accelerator(
        *("H200", 141e9, 4800e9, 989e12, 494.5e12, 450e9, 8),
        f"NVIDIA H200 datasheet, SXM, {_HALF}",
        flops_8=1979e12,
        **_HOPPER,
    ),
    Accelerator(
        *("B200", 180e9, 8000e9, 2250e12, 1125e12, 900e9, 8),
        f"NVIDIA Blackwell architecture brief, DGX B200 datasheet, {_HALF}",
        flops_8=4500e12,
        **_BLACKWELL,
    ),
    Accelerator(
        *("GB200 NVL72", 186e9, 8000e9, 2500e12, 1250e12, 900e9, 72),
        f"NVIDIA GB200 NVL72 datasheet, a 72nd of it, {_HALF}; node: a rack",
        flops_8=5000e12,
        **_BLACKWELL,
    ),
    Accelerator("TPU v4", 32e9, 1200e9, 275e12, 275e12, 300e9, 4096, _TPU),
    Accelerator("TPU v5e", 16e9, 819e9, 197e12, 197e12, 200e9, 256, _TPU),
    Accelerator(*("TPU v5p", 95e9, 2765e9, 459e12, 459e12, 600e9, 8960, _TPU), network=6.25e9, efficiency=(0.60, 0.90)),
    Accelerator(*("TPU v6e", 32e9, 1600e9, 918e12, 918e12, 400e9, 256, _TPU), network=12.5e9, efficiency=(0.42, 0.65)),
    Accelerator(
        *("TPU v7", 206e9, 7380e9, 2307e12, 2307e12, 600e9, 9216),
        f"{_TPU}, which says that TensorFlow is not supported there",
        network=12.5e9,
        flops_8=4614e12,
        efficiency=(0.45, 0.70),
        efficiency_8=(0.38, 0.60),
    ),
)
"""The efficiency of TPUs, where half of a block's products are taken to run again. v5p: MaxText's Llama 2 70 B (65 %
MFU) and Llama 3.1 405 B (69 %); v6e: Llama 3.1 405 B on two pods (43 %) and 70 B (50 %); v7: Llama 3.1 70 B and 405 B,
in 16 and 8 bits (AI-Hypercomputer/tpu-recipes, training, August 2026; MaxText, docs/reference/models/tiering.md). Their
network is that of a host, shared by its chips. What makers say is as of August 2026."""


class _ByName(dict):
    def __missing__(self, name):
        raise KeyError(f"{name!r} is none of {', '.join(self)}")


ACCELERATORS: dict[str, Accelerator] = _ByName((one.name, one) for one in _ALL)
"""{name: `Accelerator`}, GPUs first, then TPUs. KeyError for another name.

Example::

    for name, one in bt.ACCELERATORS.items():
        print(name, one.memory, one.flops_16, one.source)
"""
