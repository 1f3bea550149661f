"""Published figures of accelerators: memory, bandwidth, and FLOP/s of dense matrices (not "with sparsity")."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """What a maker publishes. ``memory``: bytes; ``bandwidth``: bytes/s of memory; ``flops_16``: FLOP/s in 16 bits;

    ``flops_32``: FLOP/s in float32 without TF32; ``link``: bytes/s in one direction to the others of its node, half of
    what makers print for both; ``node``: how many are usually linked like that; ``bfloat16``: whether it has that.
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

    def flops(self, policy):
        """FLOP/s for a Keras dtype policy. Raises ValueError for bfloat16 on a device that has none."""
        if policy == "float32":
            return self.flops_32
        if policy == "mixed_bfloat16" and not self.bfloat16:
            raise ValueError(f"{self.name} has no bfloat16: use mixed_float16 or float32")
        return self.flops_16


def _one(name, gigabytes, bandwidth, tera_16, tera_32, link, node, source, bfloat16=True):
    rates = 1e12 * tera_16, 1e12 * tera_32
    return Accelerator(name, 1e9 * gigabytes, 1e9 * bandwidth, *rates, 1e9 * link, node, source, bfloat16)


_TPU = "Google Cloud documentation; node: a pod; float32 in one pass of bfloat16, as XLA does unless told otherwise"


_ALL = (
    _one("T4", 16, 320, 65, 8.1, 16, 1, "NVIDIA T4 datasheet; link: PCIe 3.0 x16", bfloat16=False),
    _one("L4", 24, 300, 121, 30.3, 32, 1, "NVIDIA L4 datasheet, half of its figures with sparsity; link: PCIe 4.0 x16"),
    _one("V100", 32, 900, 125, 15.7, 150, 8, "NVIDIA V100 datasheet, SXM2", bfloat16=False),
    _one("A100 40 GB", 40, 1555, 312, 19.5, 300, 8, "NVIDIA A100 datasheet, SXM"),
    _one("A100 80 GB", 80, 2039, 312, 19.5, 300, 8, "NVIDIA A100 datasheet, SXM"),
    _one("H100", 80, 3350, 989, 67, 450, 8, "NVIDIA H100 datasheet, SXM, half of its figures with sparsity"),
    _one("H200", 141, 4800, 989, 67, 450, 8, "NVIDIA H200 datasheet, SXM, half of its figures with sparsity"),
    _one("B200", 180, 8000, 2250, 80, 900, 8, "NVIDIA Blackwell architecture brief, half of its figures with sparsity"),
    _one("TPU v5e", 16, 819, 197, 197, 200, 256, _TPU),
    _one("TPU v5p", 95, 2765, 459, 459, 600, 8960, _TPU),
)
ACCELERATORS = {one.name: one for one in _ALL}
"""{name: `Accelerator`}, the smallest first."""


def accelerator(name, also=""):
    """Return the `Accelerator` of that name. Raises ValueError for others, which names what is ``also`` allowed."""
    if name not in tuple(ACCELERATORS):
        raise ValueError(f"on={name!r} must be one of {', '.join(ACCELERATORS)}{also}")
    return ACCELERATORS[name]
