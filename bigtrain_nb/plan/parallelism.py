"""How a transformer goes on many devices: what each holds, how the devices divide the work, what they send."""

import itertools
from dataclasses import dataclass

from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.breakdown import Breakdown, Line
from bigtrain_nb.plan.transformer import BYTES_OF

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime, its libraries and fragmentation take the rest."""
NETWORK = 50e9
"""Bytes/s in one direction for each device between nodes: 400 Gbit/s InfiniBand each, as in NVIDIA's DGX H100."""

CUTS = "in each layer (tensor parallel)", "along the layers (pipeline parallel)", "over the batch (data parallel)"


@dataclass(frozen=True)
class Layout:
    """How many devices share each layer (tensor), the layers (pipeline) and the batch (data parallelism).

    ``zero_stage``: what the copies of the model divide among them: 1 the optimizer's state, 2 also the gradients, 3
    also the weights (ZeRO, Rajbhandari et al. 2020). ``interleave``: runs of layers that a pipeline stage has, which
    divide the time that it waits (Narayanan et al. 2021).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    interleave: int = 1

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

    def waiting(self, slices):
        """The share of a step in which a pipeline stage waits: (p-1)/(vm+p-1) for m micro-batches and v runs.

        Huang et al. 2019 (GPipe); with runs, Narayanan et al. 2021.
        """
        others = self.pipeline_parallel_size - 1
        return others / (self.interleave * slices + others)

    def __str__(self):
        sizes = self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size
        cuts = [f"{size} {words}" for size, words in zip(sizes, CUTS, strict=True) if size > 1]
        text = " x ".join(cuts) or "one device"
        return f"{text}, ZeRO stage {self.zero_stage}" if self.zero_stage else text

    def words(self):
        """What there is for this in TensorFlow, a sentence for each kind of parallelism in use."""
        if self.data_parallel_size > 1:
            yield "Data parallel: bt.strategy() or bt.mirrored(), and fit."
        if self.zero_stage == 1:
            yield "ZeRO stage 1: bt.Model(..., shard_optimizer=True), which keeps the float32 weights whole."
        if self.zero_stage > 1:
            yield f"ZeRO stage {self.zero_stage}: TensorFlow has none."
        if self.tensor_parallel_size > 1:
            yield "Tensor parallel: bt.ColumnDense and bt.RowDense."
        if self.pipeline_parallel_size > 1:
            yield "Pipeline parallel: bt.Pipelined."


def memory(model, layout, batch=1, policy="mixed_bfloat16", optimizer="adamw", recompute="none"):
    """Return a `Breakdown` of the bytes on the fullest device, which takes ``batch`` sequences at a time.

    Of a pipeline that is the first stage: it has the embeddings beside its share of the layers, and keeps as many
    micro-batches as there are stages (Narayanan et al. 2021), but no logits. Tensor parallelism divides it all, the
    activations together with sequence parallelism (Korthikanti et al. 2022, equation 4).

    Where layers compute in 16 bits, ZeRO counts the float32 weights as part of the optimizer's state. From stage 2 on a
    block's gradients, at 3 also its weights, are in one piece for a moment.
    """
    pipeline = layout.pipeline_parallel_size
    computed_with = "weights" if policy == "float32" else "16-bit copies"
    divided_from = {computed_with: 3, "gradients": 2}
    lines = []

    def add(name, value, how, copies=1):
        for size in (layout.tensor_parallel_size, copies):
            if size > 1:
                value /= size
                how += f" / {size}"
        lines.append(Line(name, value, how))

    for part in model.states(policy, optimizer, pipeline).lines:
        is_divided = layout.zero_stage >= divided_from.get(part.name, 1)
        add(part.name, part.value, part.how, layout.data_parallel_size if is_divided else 1)
    if layout.zero_stage >= 2:
        each = 4 + (BYTES_OF[policy] if layout.zero_stage == 3 else 0)
        block = model.weights_of_a_layer
        add("a block in one piece", each * block, f"{amount(block, 'weights')} x {each} bytes")
    for part in model.activations(batch, policy, recompute).lines:
        if part.name != "logits" or pipeline == 1:
            add(f"activations: {part.name}", part.value, part.how)
    return Breakdown(f"Memory of a device, {layout}", "bytes", lines)


def choose_layout(model, device, devices=None, tensor=None, pipeline=None, zero_stage=0, **settings):
    """Return the `Layout` that holds the model with one sequence at a time, or None.

    With ``devices``: the fewest for a copy of the model, and as many copies as there are devices for. Without: the
    fewest in all, which is one copy, or with a ``zero_stage`` a power of two. A given ``tensor`` or ``pipeline`` size
    is kept; with both, whatever memory that takes. ``settings``: as of `memory`.
    """
    is_given = devices and tensor and pipeline
    for layout in _layouts(model, device, devices, tensor, pipeline, zero_stage):
        if is_given or memory(model, layout, 1, **settings).total <= USABLE * device.memory:
            return layout
    return None


def _layouts(model, device, devices, tensor, pipeline, zero_stage):
    """Return all that can be, the fewest devices first: of a copy of the model with ``devices``, and else in all.

    Tensor parallelism stays within a node, in powers of two that divide the heads. Of as many devices more of it comes
    first, as its messages stay on the fastest links (Narayanan et al. 2021). ZeRO takes at least two copies.
    """
    powers = [2**n for n in range(15)]
    tensors = [tensor] if tensor else [n for n in powers if n <= device.node and model.heads % n == 0]
    pipelines = [pipeline] if pipeline else [n for n in range(1, model.layers + 1) if model.layers % n == 0]
    least = 2 if zero_stage else 1
    found = []
    for t, p in itertools.product(tensors, pipelines):
        numbers = powers if zero_stage else [1]
        if devices:
            numbers = [devices // (t * p)]
        found += [Layout(t, p, copies, zero_stage) for copies in numbers if copies >= least]

    def fewest(layout):
        of_all = 0 if devices else layout.devices
        return of_all, layout.model_parallel_size, layout.pipeline_parallel_size

    return sorted(found, key=fewest)


def communication_volume(model, layout, batch, policy="mixed_bfloat16", recompute="none", slices=1):
    """Return a `Breakdown` of the bytes that a device sends in one training step.

    ``batch``: sequences that a group of tensor x pipeline devices takes in a step, in so many ``slices``.

    - data: for each weight a ring all-reduce of its gradient in float32, 2(d-1)/d * 4 bytes. With ZeRO a reduce-scatter
      of gradients and an all-gather of what layers compute with, each (d-1)/d: at stage 2 the first in each slice, at
      stage 3 in each slice both, and the gather again for the backward pass (Rajbhandari et al. 2020, section 7);
    - tensor: four all-reduces of the layer's output a layer and micro-batch, two of them forward (Shoeybi et al. 2019),
      and those twice where layers are computed again;
    - pipeline: the layer's output to the next stage and its gradient back (Narayanan et al. 2021), in each run.
    """
    t, p, d = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    weights = model.weights_of_a_stage(p) / t
    gathered = BYTES_OF[policy]
    each = (2 * 4, 4 + gathered, 4 * slices + gathered, (4 + 2 * gathered) * slices)[layout.zero_stage]
    data = each * weights * (d - 1) / d

    output = gathered * batch * model.length * model.width
    reduces = 6 if recompute == "everything" else 4
    tensor = reduces * model.layers / p * output * _ring(t)
    how_tensor = f"{reduces} x {model.layers}/{p} layers x {amount(output, 'bytes')} x 2({t} - 1)/{t}"

    ends = 2 * layout.interleave if p > 1 else 0
    lines = [
        Line("data", data, f"{each} bytes x {amount(weights, 'weights')} x ({d} - 1)/{d}"),
        Line("tensor", tensor, how_tensor),
        Line("pipeline", ends * output / t, f"{ends} x {amount(output, 'bytes')} / {t}"),
    ]
    return Breakdown(f"Sent by a device in a step, {layout}", "bytes", lines)


def links(layout, device, network=NETWORK):
    """Return the bytes/s of each kind of communication: within a node the device's own, between nodes the network's."""
    positive("network", network, "bytes/s")
    data = device.link if layout.devices <= device.node else network
    tensor = device.link if layout.tensor_parallel_size <= device.node else network
    return {"data": data, "tensor": tensor, "pipeline": network}


def all_reduce_seconds(size, devices, bandwidth, latency=0.0):
    """Return the seconds of a ring all-reduce: 2(n-1)/n * S/B + 2(n-1) * latency; 0 for one device.

    ``size`` S: bytes on each device; ``devices`` n; ``bandwidth`` B: bytes/s that a device sends in one direction;
    ``latency``: seconds a message. Each device sends n-1 parts of S/n to add up and n-1 to hand round, which no
    algorithm does with less (Patarasuk & Yuan 2009). Raises ValueError for a size or latency below 0 and
    a bandwidth that is not above it.
    """
    whole_number("devices", devices, 1)
    not_negative("size", size, "bytes")
    not_negative("latency", latency, "seconds")
    positive("bandwidth", bandwidth, "bytes/s")
    return _ring(devices) * size / bandwidth + 2 * (devices - 1) * latency


def _ring(devices):
    """Return how many times its bytes a device sends in a ring all-reduce."""
    return 2 * (devices - 1) / devices
