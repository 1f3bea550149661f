"""How a transformer goes on many devices: what each holds, how the devices divide the work, what is on the wire."""

from dataclasses import dataclass

from bigtrain_nb.budget.account import Account, Line, amount
from bigtrain_nb.budget.formulas import all_reduce_seconds, positive
from bigtrain_nb.budget.transformer import number_bytes
from bigtrain_nb.settings import whole_number

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime, its libraries and fragmentation take the rest."""
NETWORK = 50e9
"""Bytes/s in one direction for each device between nodes: 400 Gbit/s InfiniBand each, as in NVIDIA's DGX H100."""


@dataclass(frozen=True)
class Layout:
    """``tensor`` devices share each layer, ``pipeline`` groups of them the layers, ``data`` such groups the batch.

    ``sharded``: the devices of ``data`` also share weights, gradients and slots (ZeRO stage 3, FSDP).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    sharded: bool = False

    def __post_init__(self):
        for name in ("tensor", "pipeline", "data"):
            whole_number(name, getattr(self, name), 1)

    @property
    def devices(self):
        return self.tensor * self.pipeline * self.data

    def __str__(self):
        kinds = [
            (self.tensor, "in each layer (tensor parallel)"),
            (self.pipeline, "along the layers (pipeline parallel)"),
            (self.data, "over the batch (data parallel" + (", sharded state)" if self.sharded else ")")),
        ]
        return " x ".join(f"{count} {words}" for count, words in kinds if count > 1) or "one device"

    def words(self):
        """What TensorFlow has for this, a sentence for each kind of parallelism in use."""
        if self.data > 1 and not self.sharded:
            yield "Data parallel: bt.strategy() or bt.mirrored(), and fit."
        if self.sharded:
            yield (
                "Sharded state (ZeRO, FSDP): TensorFlow has no such strategy and keras.distribution acts on JAX only;"
                " DTensor can lay out each variable by hand."
            )
        if self.tensor > 1:
            yield "Tensor parallel: DTensor, layer by layer; no Keras layer does it by itself."
        if self.pipeline > 1:
            yield "Pipeline parallel: TensorFlow has none; place layers with tf.device and write the schedule."


def memory(model, layout, batch=1, policy="mixed_bfloat16", optimizer="adamw", recompute="none"):
    """Return an `Account` of the bytes on the fullest device, which takes ``batch`` sequences at a time.

    State is divided by tensor, pipeline and, if sharded, data. Activations are divided by tensor alone (with sequence
    parallelism, Korthikanti et al. 2022, equation 4): the first stage of a pipeline keeps as many micro-batches
    as there are stages, each with its share of the layers (Narayanan et al. 2021).
    """
    state = model.states(policy, optimizer)
    kept = model.activations(batch, policy, recompute)
    parts = layout.tensor * layout.pipeline * (layout.data if layout.sharded else 1)
    shared = f" / {parts}" if parts > 1 else ""
    lines = [Line(line.name, line.value / parts, line.how + shared) for line in state.lines]
    if layout.sharded:
        each = number_bytes(policy)
        whole = 2 * each * model.weights_of_a_layer / layout.tensor
        lines.append(Line("gathered layers", whole, f"two layers at a time, {each} bytes x 2 x 12h² + 13h"))
    split = f" / {layout.tensor}" if layout.tensor > 1 else ""
    lines += [Line(f"activations: {a.name}", a.value / layout.tensor, a.how + split) for a in kept.lines]
    return Account(f"Memory of a device, {layout}", "bytes", tuple(lines))


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


def on_the_wire(model, layout, device, batch, policy="mixed_bfloat16", network=NETWORK):
    """Return (`Account` of bytes, `Account` of seconds) that a device sends in one training step.

    ``batch``: sequences that a group of tensor x pipeline devices takes in a step, whatever the micro-batches.

    - data: a ring all-reduce of its gradients, 2(d-1)/d * S; sharded: weights gathered twice and gradients
      scattered, 3(d-1)/d * S (Rajbhandari et al. 2020);
    - tensor: four all-reduces of the layer's output a layer and micro-batch (Shoeybi et al. 2019);
    - pipeline: the layer's output to the next stage and its gradient back (Narayanan et al. 2021).
    """
    positive("network", network, "bytes/s")
    each, (t, p, d) = number_bytes(policy), (layout.tensor, layout.pipeline, layout.data)
    own = model.weights / (t * p)
    output = each * batch * model.length * model.width
    data_link = device.link if layout.devices <= device.node else network
    rounds = 1.5 if layout.sharded else 1.0
    size = (each if layout.sharded else 4) * own
    gradient = rounds * 2 * (d - 1) / d * size
    tensor = 4 * model.layers / p * 2 * (t - 1) / t * output
    between = 2 * output / t if p > 1 else 0.0
    lines = (
        Line("data", gradient, f"{amount(size, 'bytes')} of {amount(own, 'weights')}, x {2 * rounds:g}({d} - 1)/{d}"),
        Line("tensor", tensor, f"4 x {model.layers}/{p} layers x 2({t} - 1)/{t} x {amount(output, 'bytes')}"),
        Line("pipeline", between, f"2 x {amount(output, 'bytes')} / {t}" if p > 1 else "one stage"),
    )
    seconds = (
        Line("data", rounds * all_reduce_seconds(size, d, data_link), f"at {amount(data_link, 'B/s')}"),
        Line("tensor", tensor / device.link, f"at {amount(device.link, 'B/s')}"),
        Line("pipeline", between / network, f"at {amount(network, 'B/s')}"),
    )
    title = f"Sent by a device in a step, {layout}"
    return Account(title, "bytes", lines), Account(title, "s", seconds)


def _divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]
