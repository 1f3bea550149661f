"""How a transformer goes on many devices: how they divide the work, and what each holds."""

from dataclasses import dataclass

from bigtrain_nb.advanced.plan.breakdown import Breakdown, Line
from bigtrain_nb.advanced.plan.communication import Group
from bigtrain_nb.common.words import amount

BYTES_OF = {"float32": 4, "mixed_float16": 2, "mixed_bfloat16": 2, "float8": 2}
"""Bytes of a number that layers keep and send, for each policy. Weights stay in float32; with "float8" only products of
matrices have 8 bits (Micikevicius et al. 2022), and activations and messages 16, as in torchtitan."""
SLOTS = {"sgd": 0, "momentum": 1, "lion": 1, "muon": 1, "adam": 2, "adamw": 2}
"""Tensors in float32 that an optimizer keeps for each weight. Adam: Kingma & Ba 2015; AdamW: Loshchilov & Hutter 2019;
Lion: Chen et al. 2023; Muon (Jordan et al. 2024) keeps one for each matrix; "momentum" is SGD(momentum=0.9)."""
LOGITS = 8
"""Bytes a logit: 2 in 16 bits, 4 in float32, 2 for the gradient. Chosen beside torchtitan's memories of 2024, 2025."""
FRAGMENTS = 1.05
"""What an allocator reserves for each byte in use. Chosen beside the same memories, which are of what is reserved."""

CUTS = {
    "tensor": "in each layer (tensor parallel)",
    "pipeline": "along the layers (pipeline parallel)",
    "data": "over the batch (data parallel)",
}


@dataclass(frozen=True)
class Layout:
    """How many devices share each layer (tensor), the layers (pipeline) and the batch (data).

    ``zero_stage``: what those that share the batch divide among them: 1 the optimizer's state, 2 also the gradients, 3
    also the weights (ZeRO, Rajbhandari et al. 2020; 3 is FSDP). Devices that share a layer also share what lies between
    its parts (sequence parallelism, Korthikanti et al. 2022). ``shard_size``: the data-parallel devices among which
    that is divided, None for all: with fewer, groups of so many hold the same shards (hybrid sharding, HSDP).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    shard_size: int | None = None

    @property
    def sharers(self):
        """The data-parallel devices that divide the state among them."""
        return self.shard_size or self.data_parallel_size

    @property
    def devices(self):
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def sizes(self):
        """{"tensor", "pipeline" or "data": how many devices}, of the kinds of parallelism in use."""
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
        """The layers of the fullest pipeline stage."""
        return -(-layers // self.pipeline_parallel_size)

    def weights_of_a_stage(self, model):
        """The weights on a device before ZeRO divides them: of several stages, the first has the embeddings too."""
        weights = self.layers_of_a_stage(model.layers) * model.weights_of_a_layer
        weights += model.weights_outside_of_layers if self.pipeline_parallel_size == 1 else model.embeddings
        return weights / self.tensor_parallel_size

    def runs(self, layers, slices):
        """The runs of layers that a pipeline stage takes in turn, of two layers each where there are micro-batches.

        As in NVIDIA's recipes (Megatron Bridge, 26.04): Llama 3 70 B has 5 runs on each of 8 stages, 405 B 8 on 8.
        """
        if self.pipeline_parallel_size == 1 or slices < self.pipeline_parallel_size:
            return 1
        return max(1, self.layers_of_a_stage(layers) // 2)

    def bubble_fraction(self, layers, slices):
        """The share of a step in which a stage of p waits, with m micro-batches and v runs: (p-1)/(vm+p-1).

        Huang et al. 2019 (GPipe); with runs, Narayanan et al. 2021.
        """
        others = self.pipeline_parallel_size - 1
        return others / (self.runs(layers, slices) * slices + others)

    def blocks_in_flight(self, layers, slices):
        """Of how many blocks the first pipeline stage keeps activations at a time, those of each micro-batch counted.

        1F1B keeps p micro-batches there (Narayanan et al. 2021), runs 1 + (p-1)/(pv) times as many (Korthikanti et al.
        2022, section 4.2.3), and no schedule more than there are.
        """
        p, v = self.pipeline_parallel_size, self.runs(layers, slices)
        return min(p + (p - 1) / v if v > 1 else p, slices) * self.layers_of_a_stage(layers)


def memory(model, layout, batch, slices, policy, optimizer, recompute):
    """Return a `Breakdown` of the bytes on the fullest device: ``batch`` sequences at a time, in so many ``slices``.

    As frameworks have it that are made for such models (PyTorch's FSDP, Megatron-LM). ZeRO counts the float32 weights
    as part of the optimizer's state where layers compute in 16 bits. At stage 3 there are also, for a moment, two whole
    blocks, the one that is computed and one gathered ahead, one block's gradients, and all that lies outside of blocks;
    with a pipeline the whole stage stays gathered, and its gradients whole, until the last micro-batch. The block that
    is computed has its activations and as much for their gradients. Of a pipeline the first stage has the embeddings,
    and the last the logits: both are counted.
    """
    t, d = layout.tensor_parallel_size, layout.sharers
    stage = layout.zero_stage if d > 1 else 0
    number = BYTES_OF[policy]
    lines = []
    weights = layout.weights_of_a_stage(model)
    state = {
        "weights": (4, 1),
        "16-bit copies": (number, 3),
        "gradients": (4, 2),
        "optimizer state": (4 * SLOTS[optimizer], 1),
    }
    if layout.pipeline_parallel_size > 1:
        state["gradients"] = (4, 3)  # whole until the last micro-batch
    if policy == "float32":
        state["weights"] = (4, 3)
    if policy == "float32" or stage == 3:
        del state["16-bit copies"]
    for name, (size, divided_from) in state.items():
        sharers = d if stage >= divided_from else 1
        how = f"{amount(weights, 'parameters')} x {size} bytes / {sharers}"
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
    """Return the line of what stage 3 has in one piece for a moment, or with a pipeline for a step."""
    if layout.pipeline_parallel_size > 1:
        return Line("gathered", (number + 4) * weights, f"{amount(weights, 'parameters')} x ({number} + 4) bytes")
    block = model.weights_of_a_layer / layout.tensor_parallel_size
    others = model.weights_outside_of_layers / layout.tensor_parallel_size
    how = f"{amount(block, 'parameters')} x (2 x {number} + 4) bytes, and {amount(others, 'parameters')} x {number}"
    return Line("gathered", (2 * number + 4) * block + number * others, how)
