"""How a transformer goes on many devices: what each holds, how the devices divide the work, what they send."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.breakdown import Breakdown, Line
from bigtrain_nb.plan.transformer import number_bytes

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime, its libraries and fragmentation take the rest."""
NETWORK = 50e9
"""Bytes/s in one direction for each device between nodes: 400 Gbit/s InfiniBand each, as in NVIDIA's DGX H100."""


@dataclass(frozen=True)
class Layout:
    """How many devices share each layer (tensor), the layers (pipeline) and the batch (data parallelism)."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def model_parallel_size(self):
        """Devices that hold one copy of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def devices(self):
        return self.model_parallel_size * self.data_parallel_size

    def __str__(self):
        kinds = {
            "in each layer (tensor parallel)": self.tensor_parallel_size,
            "along the layers (pipeline parallel)": self.pipeline_parallel_size,
            "over the batch (data parallel)": self.data_parallel_size,
        }
        return " x ".join(f"{size} {words}" for words, size in kinds.items() if size > 1) or "one device"

    def words(self):
        """What TensorFlow has for this, a sentence for each kind of parallelism in use."""
        if self.data_parallel_size > 1:
            yield "Data parallel: bt.strategy() or bt.mirrored(), and fit."
        if self.tensor_parallel_size > 1:
            yield "Tensor parallel: DTensor, layer by layer; no Keras layer does it by itself."
        if self.pipeline_parallel_size > 1:
            yield "Pipeline parallel: TensorFlow has none; place layers with tf.device and write the schedule."


def memory(model, layout, batch=1, policy="mixed_bfloat16", optimizer="adamw", recompute="none"):
    """Return a `Breakdown` of the bytes on the fullest device, which takes ``batch`` sequences at a time.

    Of a pipeline that is the first stage: it has the embeddings beside its share of the layers, and keeps as many
    micro-batches as there are stages (Narayanan et al. 2021), but no logits. Tensor parallelism divides it all, the
    activations together with sequence parallelism (Korthikanti et al. 2022, equation 4).
    """
    tensor, pipeline = layout.tensor_parallel_size, layout.pipeline_parallel_size
    parts = list(model.states(policy, optimizer, pipeline).lines)
    for line in model.activations(batch, policy, recompute).lines:
        if line.name != "logits" or pipeline == 1:
            parts.append(Line(f"activations: {line.name}", line.value, line.how))
    split = f" / {tensor}" if tensor > 1 else ""
    lines = tuple(Line(part.name, part.value / tensor, part.how + split) for part in parts)
    return Breakdown(f"Memory of a device, {layout}", "bytes", lines)


def smallest_layout(model, device, policy="mixed_bfloat16", optimizer="adamw", recompute="none"):
    """Return the `Layout` of fewest devices that holds the model with one sequence at a time, or None.

    Tensor parallelism stays within a node, in powers of two that divide the heads. Of layouts of as many devices the
    one with more of it wins, as its messages stay on the fastest links (Narayanan et al. 2021).
    """
    best = None
    tensor = 1
    while tensor <= device.node and model.heads % tensor == 0:
        for pipeline in _divisors(model.layers):
            layout = Layout(tensor, pipeline)
            if best and layout.devices > best.devices:
                break
            if memory(model, layout, 1, policy, optimizer, recompute).total <= USABLE * device.memory:
                best = layout
                break
        tensor *= 2
    return best


def communication_volume(model, layout, device, batch, policy="mixed_bfloat16", network=NETWORK, recompute="none"):
    """Return (`Breakdown` of bytes, `Breakdown` of seconds) that a device sends in one training step.

    ``batch``: sequences that a group of tensor x pipeline devices takes in a step, whatever the micro-batches.

    - data: a ring all-reduce of its gradients, 2(d-1)/d * S;
    - tensor: four all-reduces of the layer's output a layer and micro-batch, two of them forward (Shoeybi et al. 2019),
      and those twice where layers are computed again;
    - pipeline: the layer's output to the next stage and its gradient back (Narayanan et al. 2021).
    """
    network = positive("network", network, "bytes/s")
    t, p, d = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size
    own = model.weights_of_a_stage(p) / t
    output = number_bytes(policy) * batch * model.length * model.width
    reduces = 6 if recompute == "everything" else 4
    layers = model.layers / p

    data = _ring(d) * 4 * own
    tensor = reduces * layers * _ring(t) * output
    pipeline = 2 * output / t if p > 1 else 0.0
    how_data = f"4 bytes x {amount(own, 'weights')} x 2({d} - 1)/{d}"
    how_tensor = f"{reduces} x {model.layers}/{p} layers x 2({t} - 1)/{t} x {amount(output, 'bytes')}"
    how_pipeline = f"2 x {amount(output, 'bytes')} / {t}" if p > 1 else "one stage"
    volume = (
        Line("data", data, how_data),
        Line("tensor", tensor, how_tensor),
        Line("pipeline", pipeline, how_pipeline),
    )

    data_link = device.link if layout.devices <= device.node else network
    seconds = []
    for line, link in zip(volume, (data_link, device.link, network), strict=True):
        seconds.append(Line(line.name, line.value / link, f"at {amount(link, 'B/s')}"))
    title = f"Sent by a device in a step, {layout}"
    return Breakdown(title, "bytes", volume), Breakdown(title, "s", tuple(seconds))


def all_reduce_seconds(size, devices, bandwidth, latency=0.0):
    """Return the seconds of a ring all-reduce: 2(n-1)/n * S/B + 2(n-1) * latency; 0 for one device.

    ``size`` S: bytes on each device; ``devices`` n; ``bandwidth`` B: bytes/s that a device sends in one direction;
    ``latency``: seconds a message. Each device sends n-1 parts of S/n to add up and n-1 to hand round, which no
    algorithm does with less (Patarasuk & Yuan 2009). Raises ValueError for a size or latency below 0 and
    a bandwidth that is not above it.
    """
    devices = whole_number("devices", devices, 1)
    size = not_negative("size", size, "bytes")
    latency = not_negative("latency", latency, "seconds")
    bandwidth = positive("bandwidth", bandwidth, "bytes/s")
    return _ring(devices) * size / bandwidth + 2 * (devices - 1) * latency


def _ring(devices):
    """Return how many times its bytes a device sends in a ring all-reduce."""
    return 2 * (devices - 1) / devices


def _divisors(number):
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small)]
