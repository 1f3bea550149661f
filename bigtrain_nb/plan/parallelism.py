"""How a transformer goes on many devices: what each holds, how the devices divide the work, what they send."""

import itertools
from dataclasses import dataclass, replace

from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.breakdown import Breakdown, Line
from bigtrain_nb.plan.transformer import BYTES_OF

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime, its libraries and fragmentation take the rest."""
NETWORK = 50e9
"""Bytes/s in one direction for each device between nodes: 400 Gbit/s InfiniBand each, as in NVIDIA's DGX H100."""

CUTS = {
    "tensor": "in each layer (tensor parallel)",
    "pipeline": "along the layers (pipeline parallel)",
    "data": "over the batch (data parallel)",
}


@dataclass(frozen=True)
class Layout:
    """How many devices share each layer (tensor), the layers (pipeline) and the batch (data parallelism).

    ``zero_stage``: what the copies of the model divide among them: 1 the optimizer's state, 2 also the gradients, 3
    also the weights (ZeRO, Rajbhandari et al. 2020). ``interleave``: runs of layers that a pipeline stage has, which
    divide the time that it waits (Narayanan et al. 2021). ``sequence_parallel``: whether devices that share a layer
    also share what lies between its parts (Korthikanti et al. 2022).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    interleave: int = 1
    sequence_parallel: bool = False

    @property
    def model_parallel_size(self):
        """Devices that hold one copy of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def devices(self):
        return self.model_parallel_size * self.data_parallel_size

    def layers_of_a_stage(self, layers):
        """The layers of the fullest pipeline stage, all its runs together."""
        runs = self.pipeline_parallel_size * self.interleave
        return self.interleave * -(-layers // runs)

    def blocks_in_flight(self, layers):
        """Of how many blocks the first pipeline stage keeps activations at a time, those of each micro-batch counted.

        1F1B keeps p micro-batches there (Narayanan et al. 2021), interleaved runs 1 + (p-1)/(pv) times as many
        (Korthikanti et al. 2022, section 4.2.3).
        """
        p, v = self.pipeline_parallel_size, self.interleave
        micro_batches = p + (p - 1) / v if v > 1 else p
        return micro_batches * self.layers_of_a_stage(layers)

    def waiting(self, slices):
        """The share of a step in which a pipeline stage waits: (p-1)/(vm+p-1) for m micro-batches and v runs.

        Huang et al. 2019 (GPipe); with runs, Narayanan et al. 2021.
        """
        others = self.pipeline_parallel_size - 1
        return others / (self.interleave * slices + others)

    @property
    def sizes(self):
        """{"tensor", "pipeline" or "data": how many devices}, of those kinds of parallelism that are in use."""
        sizes = self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size
        return {kind: size for kind, size in zip(CUTS, sizes, strict=True) if size > 1}

    def __str__(self):
        text = " x ".join(f"{size} {CUTS[kind]}" for kind, size in self.sizes.items()) or "one device"
        if self.sequence_parallel:
            text += ", sequence parallel"
        return f"{text}, ZeRO stage {self.zero_stage}" if self.zero_stage else text

    def missing(self, model, recompute="none"):
        """Return what bigtrain_nb cannot build of it for a `Transformer`, a list of words; empty if it can."""
        words = []
        if len(self.sizes) > 1:
            words.append(f"{' x '.join(self.sizes)} parallelism (it has each alone)")
        if self.zero_stage == 2:
            words.append("ZeRO stage 2 (it has stages 1 and 3)")
        if self.zero_stage == 3 and recompute != "everything":
            words.append('ZeRO stage 3 that keeps activations (fully_shard does not: take recompute="everything")')
        if self.interleave > 1:
            words.append("interleaved runs of layers (bt.Pipelined has one run a stage)")
        if self.sequence_parallel:
            words.append("sequence parallelism")
        if self.pipeline_parallel_size > 1 and model.tied:
            words.append("a matrix in two stages of a pipeline (take tied=False)")
        return words

    def words(self):
        """With what of bigtrain_nb it is built, where it can be."""
        if self.tensor_parallel_size > 1:
            yield "Tensor parallel: bt.Model.of(model, tensor_parallel=...), or bt.gpt(tensor_parallel=...)."
        if self.pipeline_parallel_size > 1:
            yield "Pipeline parallel: bt.Pipelined."
        if self.data_parallel_size > 1:
            yield "Data parallel: bt.strategy() or bt.mirrored(), and fit."
        if self.zero_stage == 1:
            yield "ZeRO stage 1: bt.Model(..., shard_optimizer=True)."
        if self.zero_stage == 3:
            yield r'ZeRO stage 3: bt.Model(..., fully_shard=r"transformer_layer_\d+"), or bt.gpt(fully_shard=True).'


def memory(model, layout, batch=1, policy="mixed_bfloat16", optimizer="adamw", recompute="none"):
    """Return a `Breakdown` of the bytes on the fullest device, which takes ``batch`` sequences at a time.

    Of a pipeline that is the first stage: it has the embeddings beside its share of the layers, and keeps the
    activations of several micro-batches (`Layout.blocks_in_flight`), but no logits. Tensor parallelism divides the
    states, the embeddings among them, and of the activations what `Transformer.activations_of_a_layer` says. What
    bigtrain_nb can build is counted as it builds it: its tensor parallelism leaves embeddings and logits whole, its
    ZeRO stage 1 the float32 weights. Its stage 3 shards the blocks and leaves the embeddings, the last normalization
    and the output projection whole.

    Where layers compute in 16 bits, ZeRO counts the float32 weights as part of the optimizer's state. From stage 2 on a
    block's gradients, at 3 also its weights, are in one piece for a moment.
    """
    tensor, pipeline = layout.tensor_parallel_size, layout.pipeline_parallel_size
    is_built_here = not layout.missing(model, recompute)
    kept_in = "float32" if layout.zero_stage == 3 and is_built_here else policy  # it casts what it has gathered
    computed_with = "weights" if kept_in == "float32" else "16-bit copies"
    divided_from = {computed_with: 3, "gradients": 2}
    lines = []

    def add(name, value, how, copies=1):
        for size in (tensor, copies):
            if size > 1:
                value /= size
                how += f" / {size}"
        lines.append(Line(name, value, how))

    states = model.states(kept_in, optimizer, pipeline)
    for part in states.lines:
        is_divided = layout.zero_stage >= divided_from.get(part.name, 1)
        add(part.name, part.value, part.how, layout.data_parallel_size if is_divided else 1)
    if layout.zero_stage >= 2:
        each = 4 + (BYTES_OF[policy] if layout.zero_stage == 3 else 0)
        block = model.weights_of_a_layer
        add("a block in one piece", each * block, f"{amount(block, 'weights')} x {each} bytes")

    blocks = layout.blocks_in_flight(model.layers)
    activations = model.activations(batch, policy, recompute, tensor, layout.sequence_parallel, blocks)
    for part in activations.lines:
        if part.name != "logits" or pipeline == 1:
            lines.append(Line(f"activations: {part.name}", part.value, part.how))
    if is_built_here:
        lines += _not_sharded_here(model, layout, policy, states.total, activations["logits"])
    return Breakdown(f"Memory of a device, {layout}", "bytes", lines)


def _not_sharded_here(model, layout, policy, states, logits):
    """Return lines for what a layout of bigtrain_nb keeps beside the shards that others have in its place.

    ``states``: bytes of the training state of the whole model; ``logits``: bytes of a shard of them.
    """
    lines = []
    sharers, copies = layout.tensor_parallel_size, layout.data_parallel_size
    if sharers > 1:
        whole = model.weights_of_the_vocabulary / model.weights * states + sharers * logits
        how = f"({sharers} - 1)/{sharers} of both, for layers of tensor parallelism shard blocks only"
        lines.append(Line("embeddings and logits, whole", whole * (sharers - 1) / sharers, how))
    if layout.zero_stage == 1:
        size = 4 * model.weights if policy != "float32" else 4 * model.weights / copies
        how = "shard_optimizer=True keeps the float32 weights whole, and a shard of them"
        lines.append(Line("weights beside their shards", size, how))
    if layout.zero_stage == 3:
        whole = model.weights_outside_of_layers / model.weights * states
        how = f"({copies} - 1)/{copies} of their state, for fully_shard=... shards the blocks only"
        lines.append(Line("all but the blocks, whole", whole * (copies - 1) / copies, how))
        if policy != "float32":
            how = f"{amount(model.weights_of_a_layer, 'weights')} x 4 bytes, which are gathered before they are cast"
            lines.append(Line("a block's float32 weights", 4 * model.weights_of_a_layer, how))
    return lines


def choose_layout(model, device, devices=None, tensor=None, pipeline=None, like=None, **settings):
    """Return the `Layout` that holds the model with one sequence at a time, or None.

    With ``devices``: the fewest for a copy of the model, and as many copies as there are devices for. Without: the
    fewest in all, which is one copy, or with a ``zero_stage`` a power of two. A given ``tensor`` or ``pipeline`` size
    is kept; with both, whatever memory that takes. All else is as in the layout ``like``. ``settings``: as of `memory`.
    """
    is_given = devices and tensor and pipeline
    for layout in _layouts(model, device, devices, tensor, pipeline, like or Layout()):
        if is_given or memory(model, layout, 1, **settings).total <= USABLE * device.memory:
            return layout
    return None


def _layouts(model, device, devices, tensor, pipeline, like):
    """Return all that can be, the fewest devices first: of a copy of the model with ``devices``, and else in all.

    Tensor parallelism stays within a node, in powers of two that divide the heads. Of as many devices more of it comes
    first, as its messages stay on the fastest links (Narayanan et al. 2021). ZeRO takes at least two copies.
    """
    powers = [2**n for n in range(15)]
    tensors = [tensor] if tensor else [n for n in powers if n <= device.node and model.heads % n == 0]
    pipelines = [pipeline] if pipeline else [n for n in range(1, model.layers + 1) if model.layers % n == 0]
    least = 2 if like.zero_stage else 1
    found = []
    for t, p in itertools.product(tensors, pipelines):
        numbers = powers if like.zero_stage else [1]
        if devices:
            numbers = [devices // (t * p)]
        in_use = replace(
            like,
            tensor_parallel_size=t,
            pipeline_parallel_size=p,
            interleave=like.interleave if p > 1 else 1,
            sequence_parallel=like.sequence_parallel and t > 1,
        )
        found += [replace(in_use, data_parallel_size=copies) for copies in numbers if copies >= least]

    def fewest(layout):
        of_all = 0 if devices else layout.devices
        return of_all, layout.model_parallel_size, layout.pipeline_parallel_size

    return sorted(found, key=fewest)


def communication_volume(model, layout, batch, policy="mixed_bfloat16", recompute="none", slices=1):
    """Return a `Breakdown` of the bytes that a device sends in one training step.

    ``batch``: sequences that a group of tensor x pipeline devices takes in a step, in so many ``slices``.

    - data: for each weight a ring all-reduce of its gradient in float32, 2(d-1)/d * 4 bytes. With ZeRO a reduce-scatter
      of gradients and an all-gather of what layers compute with, each (d-1)/d: at stage 2 the first in each slice, at
      stage 3 in each slice both, and the gather again for the backward pass (Rajbhandari et al. 2020, section 7).
      Where bigtrain_nb builds stage 3, it gathers the float32 weights of the blocks, and all-reduces the other
      gradients once;
    - tensor: four all-reduces of the layer's output a layer and micro-batch, two of them forward (Shoeybi et al. 2019),
      and those twice where layers are computed again;
    - pipeline: the layer's output to the next stage and its gradient back (Narayanan et al. 2021), in each run.
    """
    t, p, d = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    weights = model.weights_of_a_stage(p) / t
    gathered = BYTES_OF[policy]
    each = (2 * 4, 4 + gathered, 4 * slices + gathered, (4 + 2 * gathered) * slices)[layout.zero_stage]
    data = Line("data", each * weights * (d - 1) / d, f"{each} bytes x {amount(weights, 'weights')} x ({d} - 1)/{d}")
    if layout.zero_stage == 3 and not layout.missing(model, recompute):
        data = _sent_here(model, d, slices)

    output = gathered * batch * model.length * model.width
    reduces = 6 if recompute == "everything" else 4
    tensor = reduces * model.layers / p * output * _ring(t)
    how_tensor = f"{reduces} x {model.layers}/{p} layers x {amount(output, 'bytes')} x 2({t} - 1)/{t}"

    ends = 2 * layout.interleave if p > 1 else 0
    lines = [
        data,
        Line("tensor", tensor, how_tensor),
        Line("pipeline", ends * output / t, f"{ends} x {amount(output, 'bytes')} / {t}"),
    ]
    return Breakdown(f"Sent by a device in a step, {layout}", "bytes", lines)


def _sent_here(model, copies, slices):
    """Return what ``fully_shard`` sends: for each weight of the blocks two gatherings and a reduce-scatter a slice."""
    others = model.weights_outside_of_layers
    blocks = model.weights - others
    size = (3 * 4 * slices * blocks + 2 * 4 * others) * (copies - 1) / copies
    how = (
        f"({slices} x 12 bytes x {amount(blocks, 'weights')} + 8 bytes x {amount(others, 'weights')})"
        f" x ({copies} - 1)/{copies}"
    )
    return Line("data", size, how)


def links(layout, device, network=NETWORK):
    """Return the bytes/s of each kind of communication: within a node the device's own, between nodes the network's."""
    positive("network", network, "bytes/s")
    data = device.link if layout.devices <= device.node else network
    tensor = device.link if layout.tensor_parallel_size <= device.node else network
    return {"data": data, "tensor": tensor, "pipeline": network}


def all_reduce_seconds(size: float, devices: int, bandwidth: float, latency: float = 0.0) -> float:
    """Return the seconds of a ring all-reduce: 2(n-1)/n * S/B + 2(n-1) * latency; 0 for one device.

    ``size`` S: bytes on each device; ``devices`` n; ``bandwidth`` B: bytes/s that a device sends in one direction;
    ``latency``: seconds a message. Each device sends n-1 parts of S/n to add up and n-1 to hand round, which no
    algorithm does with less (Patarasuk & Yuan 2009). Raises ValueError for a size or latency below 0 and
    a bandwidth that is not above it.

    Example::

        print(bt.all_reduce_seconds(1e9, devices=8, bandwidth=25e9))  # 0.07
    """
    whole_number("devices", devices, 1)
    not_negative("size", size, "bytes")
    not_negative("latency", latency, "seconds")
    positive("bandwidth", bandwidth, "bytes/s")
    return _ring(devices) * size / bandwidth + 2 * (devices - 1) * latency


def _ring(devices):
    """Return how many times its bytes a device sends in a ring all-reduce."""
    return 2 * (devices - 1) / devices
