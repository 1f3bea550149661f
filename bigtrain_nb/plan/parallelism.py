"""How a transformer goes on many devices: what each holds, how the devices divide the work, what is on the wire."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.checks import positive
from bigtrain_nb.plan.breakdown import Account, Line, amount
from bigtrain_nb.plan.transformer import number_bytes

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime, its libraries and fragmentation take the rest."""
NETWORK = 50e9
"""Bytes/s in one direction for each device between nodes: 400 Gbit/s InfiniBand each, as in NVIDIA's DGX H100."""


@dataclass(frozen=True)
class Layout:
    """``tensor`` devices share each layer, ``pipeline`` groups of them the layers, ``data`` such groups the batch."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def copy(self):
        """Devices that hold one copy of the model."""
        return self.tensor * self.pipeline

    @property
    def devices(self):
        return self.copy * self.data

    def __str__(self):
        kinds = [
            (self.tensor, "in each layer (tensor parallel)"),
            (self.pipeline, "along the layers (pipeline parallel)"),
            (self.data, "over the batch (data parallel)"),
        ]
        return " x ".join(f"{count} {words}" for count, words in kinds if count > 1) or "one device"

    def words(self):
        """What TensorFlow has for this, a sentence for each kind of parallelism in use."""
        if self.data > 1:
            yield "Data parallel: bt.strategy() or bt.mirrored(), and fit."
        if self.tensor > 1:
            yield "Tensor parallel: DTensor, layer by layer; no Keras layer does it by itself."
        if self.pipeline > 1:
            yield "Pipeline parallel: TensorFlow has none; place layers with tf.device and write the schedule."


def memory(model, layout, batch=1, policy="mixed_bfloat16", optimizer="adamw", recompute="none"):
    """Return an `Account` of the bytes on the fullest device, which takes ``batch`` sequences at a time.

    Of a pipeline that is the first stage: it has the embeddings beside its share of the layers, and keeps as many
    micro-batches as there are stages (Narayanan et al. 2021), but no logits. Tensor parallelism divides it all, the
    activations together with sequence parallelism (Korthikanti et al. 2022, equation 4).
    """
    kept = model.activations(batch, policy, recompute).lines
    kept = [Line(f"activations: {a.name}", a.value, a.how) for a in kept if a.name != "logits" or layout.pipeline == 1]
    split = f" / {layout.tensor}" if layout.tensor > 1 else ""
    lines = [*model.states(policy, optimizer, layout.pipeline).lines, *kept]
    lines = tuple(Line(line.name, line.value / layout.tensor, line.how + split) for line in lines)
    return Account(f"Memory of a device, {layout}", "bytes", lines)


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
            if memory(model, layout, 1, policy, optimizer, recompute).total <= USABLE * device.memory:
                if best is None or layout.devices <= best.devices:
                    best = layout
                break
        tensor *= 2
    return best


def on_the_wire(model, layout, device, batch, policy="mixed_bfloat16", network=NETWORK, recompute="none"):
    """Return (`Account` of bytes, `Account` of seconds) that a device sends in one training step.

    ``batch``: sequences that a group of tensor x pipeline devices takes in a step, whatever the micro-batches.

    - data: a ring all-reduce of its gradients, 2(d-1)/d * S;
    - tensor: four all-reduces of the layer's output a layer and micro-batch, two of them forward (Shoeybi et al. 2019),
      and those twice where layers are computed again;
    - pipeline: the layer's output to the next stage and its gradient back (Narayanan et al. 2021).
    """
    network = positive("network", network, "bytes/s")
    each, (t, p, d) = number_bytes(policy), (layout.tensor, layout.pipeline, layout.data)
    own = model.weights_of_a_stage(p) / t
    output = each * batch * model.length * model.width
    data_link = device.link if layout.devices <= device.node else network
    gradient = 2 * (d - 1) / d * 4 * own
    reduced = 6 if recompute == "everything" else 4
    tensor = reduced * model.layers / p * 2 * (t - 1) / t * output
    between = 2 * output / t if p > 1 else 0.0
    lines = (
        Line("data", gradient, f"4 bytes x {amount(own, 'weights')} x 2({d} - 1)/{d}"),
        Line("tensor", tensor, f"{reduced} x {model.layers}/{p} layers x 2({t} - 1)/{t} x {amount(output, 'bytes')}"),
        Line("pipeline", between, f"2 x {amount(output, 'bytes')} / {t}" if p > 1 else "one stage"),
    )
    links = zip(lines, (data_link, device.link, network), strict=True)
    seconds = tuple(Line(line.name, line.value / link, f"at {amount(link, 'B/s')}") for line, link in links)
    title = f"Sent by a device in a step, {layout}"
    return Account(title, "bytes", lines), Account(title, "s", seconds)


def _divisors(number):
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
