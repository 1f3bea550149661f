"""How a transformer is distributed over many devices: how they share the work, and what each stores."""

from dataclasses import dataclass

from bigtrain_nb.advanced.plan.breakdown import Breakdown, Line
from bigtrain_nb.advanced.plan.communication import Group
from bigtrain_nb.common.words import amount

BYTES_OF = {"float32": 4, "mixed_float16": 2, "mixed_bfloat16": 2, "float8": 2}
"""Bytes per element that layers keep and send, for each policy. Weights stay in float32; with "float8" only matmuls use
8 bits (Micikevicius et al. 2022), and activations and messages 16, as in torchtitan."""
SLOTS = {"sgd": 0, "momentum": 1, "lion": 1, "muon": 1, "adam": 2, "adamw": 2}
"""Float32 tensors that an optimizer keeps per weight; "momentum" is SGD(momentum=0.9). Adam: Kingma & Ba 2015; AdamW:
Loshchilov & Hutter 2019; Lion: Chen et al. 2023; Muon: Jordan et al. 2024, with AdamW outside of blocks' matrices."""
LOGITS = 8
"""Bytes per logit: 2 in 16 bits, 4 in float32, 2 for the gradient. Fitted to torchtitan's memory use of 2024, 2025."""
FRAGMENTS = 1.05
"""Bytes that an allocator reserves per byte in use. Fitted to the same figures, which are of reserved memory."""

CUTS = {
    "tensor": "in each layer (tensor parallel)",
    "pipeline": "along the layers (pipeline parallel)",
    "data": "over the batch (data parallel)",
}


@dataclass(frozen=True)
class Layout:
    """How many devices share each layer (tensor), the layers (pipeline) and the batch (data).

    ``zero_stage``: what data-parallel devices shard: 1 the optimizer state, 2 also the gradients, 3 also the weights
    (ZeRO, Rajbhandari et al. 2020; 3 is FSDP). Devices that share a layer also shard the activations between its parts
    (sequence parallelism, Korthikanti et al. 2022). ``shard_size``: the number of data-parallel devices over which that
    is sharded, None for all: with fewer, groups of that size hold the same shards (hybrid sharding, HSDP).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    shard_size: int | None = None

    @property
    def sharers(self):
        """The number of data-parallel devices over which the state is sharded."""
        return self.shard_size or self.data_parallel_size

    @property
    def devices(self):
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def sizes(self):
        """{"tensor", "pipeline" or "data": number of devices}, for the kinds of parallelism in use."""
        sizes = {kind: getattr(self, f"{kind}_parallel_size") for kind in CUTS}
        return {kind: size for kind, size in sizes.items() if size > 1}

    def __str__(self):
        text = " x ".join(f"{size} {CUTS[kind]}" for kind, size in self.sizes.items()) or "one device"
        names = {0: "", 1: ", ZeRO stage 1", 2: ", ZeRO stage 2", 3: ", fully sharded (ZeRO stage 3)"}
        text += names[self.zero_stage] if self.data_parallel_size > 1 else ""
        groups = f" in groups of {self.sharers}, replicated across groups (hybrid sharding)"
        return text + (groups if self.sharers < self.data_parallel_size else "")

    def groups(self, device, network):
        """Return {"tensor", "data", "replicas": `Group`}: devices of a node go to tensor parallelism first, then to
        those that share the state, then to the groups that hold the same shards."""
        t, s = self.tensor_parallel_size, self.sharers
        replicas = self.data_parallel_size // s
        near = {"tensor": device.node, "data": device.node // t, "replicas": device.node // (t * s)}
        sizes = {"tensor": t, "data": s, "replicas": replicas}
        return {kind: Group(size, min(size, max(1, near[kind])), device.link, network) for kind, size in sizes.items()}

    def layers_of_a_stage(self, layers):
        """The number of layers in the largest pipeline stage."""
        return -(-layers // self.pipeline_parallel_size)

    def weights_of_a_stage(self, model):
        """The parameters on a device before ZeRO shards them: of several stages, the first has the embeddings too."""
        weights = self.layers_of_a_stage(model.layers) * model.weights_of_a_layer
        weights += model.weights_outside_of_layers if self.pipeline_parallel_size == 1 else model.embeddings
        return weights / self.tensor_parallel_size

    def runs(self, layers, slices):
        """The virtual stages per pipeline stage, of two layers each where there are enough micro-batches.

        As in NVIDIA's recipes (Megatron Bridge, 26.04): Llama 3 70 B has 5 on each of 8 stages, 405 B 8 on 8.
        """
        if self.pipeline_parallel_size == 1 or slices < self.pipeline_parallel_size:
            return 1
        return max(1, self.layers_of_a_stage(layers) // 2)

    def bubble_fraction(self, layers, slices):
        """The idle share of a step, with p stages, m micro-batches and v virtual stages: (p-1)/(vm+p-1).

        Huang et al. 2019 (GPipe); with virtual stages, Narayanan et al. 2021.
        """
        others = self.pipeline_parallel_size - 1
        return others / (self.runs(layers, slices) * slices + others)

    def blocks_in_flight(self, layers, slices):
        """The number of blocks whose activations the first pipeline stage keeps, counted once per micro-batch.

        1F1B keeps p micro-batches there (Narayanan et al. 2021), with virtual stages 1 + (p-1)/(pv) times as many
        (Korthikanti et al. 2022, section 4.2.3), and no schedule more than there are.
        """
        p, v = self.pipeline_parallel_size, self.runs(layers, slices)
        return min(p + (p - 1) / v if v > 1 else p, slices) * self.layers_of_a_stage(layers)


def memory(model, layout, batch, slices, policy, optimizer, recompute):
    """Return a `Breakdown` of the bytes on the most loaded device, for ``slices`` micro-batches of ``batch`` sequences.

    As in PyTorch's FSDP and Megatron-LM. ZeRO counts the float32 weights as optimizer state where layers compute in 16
    bits. At stage 3 there are also, temporarily, two unsharded blocks, the current one and a prefetched one, one
    block's gradients, and everything outside of blocks; with a pipeline the full stage stays gathered, and its
    gradients unsharded, until the last micro-batch. The current block has its activations and as many bytes for their
    gradients. In a pipeline the first stage has the embeddings and the last the logits: both are counted.
    """
    t, d = layout.tensor_parallel_size, layout.sharers
    stage = layout.zero_stage if d > 1 else 0
    number = BYTES_OF[policy]
    lines = []
    weights = layout.weights_of_a_stage(model)
    matrices = layout.layers_of_a_stage(model.layers) * model.matrices_of_a_layer / t
    slots = SLOTS[optimizer] + (1 - matrices / weights if optimizer == "muon" else 0)
    state = {"weights": (4, 1), "16-bit copies": (number, 3), "gradients": (4, 2), "optimizer state": (4 * slots, 1)}
    if layout.pipeline_parallel_size > 1:
        state["gradients"] = (4, 3)  # unsharded until the last micro-batch
    if policy == "float32":
        state["weights"] = (4, 3)
    if policy == "float32" or stage == 3:
        del state["16-bit copies"]
    for name, (size, divided_from) in state.items():
        sharers = d if stage >= divided_from else 1
        how = f"{amount(weights, 'parameters')} x {size:.3g} bytes / {sharers}"
        lines.append(Line(name, size * weights / sharers, how))
    if stage == 3:
        lines.append(_gathered(model, layout, weights, number))

    kept = model.activations_of_a_layer(batch, recompute, number) / t
    blocks = layout.blocks_in_flight(model.layers, slices)
    lines.append(Line("activations: blocks", blocks * kept, f"{blocks:g} blocks x {amount(kept, 'bytes')}"))
    one = model.activations_of_a_layer(batch, "none", number) / t
    whole = 3 * number * batch * model.length * model.width if t > 1 else 0
    # What is kept of the current block is already counted above.
    how = f"2 x {amount(one, 'bytes')}, with gradients, less {amount(kept, 'bytes')} counted above"
    if whole:
        how += f", and {amount(whole, 'bytes')} of all devices that share it"
    lines.append(Line("activations: current block", 2 * one - kept + whole, how))
    logits = batch * model.length * model.vocabulary / t
    lines.append(Line("activations: logits", LOGITS * logits, f"{LOGITS} bytes x {amount(logits, 'logits')}"))
    used = sum(line.value for line in lines)
    lines.append(Line("fragments", (FRAGMENTS - 1) * used, f"{FRAGMENTS - 1:.0%} of {amount(used, 'bytes')}"))
    return Breakdown(f"Memory of a device, {layout}", "bytes", lines)


def _gathered(model, layout, weights, number):
    """Return the line of what stage 3 has unsharded temporarily, or with a pipeline for a full step."""
    if layout.pipeline_parallel_size > 1:
        return Line("gathered", (number + 4) * weights, f"{amount(weights, 'parameters')} x ({number} + 4) bytes")
    block = model.weights_of_a_layer / layout.tensor_parallel_size
    others = model.weights_outside_of_layers / layout.tensor_parallel_size
    how = f"{amount(block, 'parameters')} x (2 x {number} + 4) bytes, and {amount(others, 'parameters')} x {number}"
    return Line("gathered", (2 * number + 4) * block + number * others, how)
