"""What devices that share a transformer send each other in a step, by which link, and how long it takes."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.breakdown import Breakdown, Line
from bigtrain_nb.plan.parallelism import weights_of_a_stage
from bigtrain_nb.plan.transformer import BYTES_OF

NETWORK = 50e9
"""Bytes/s in one direction for each device between nodes: 400 Gbit/s InfiniBand each, as in NVIDIA's DGX H100."""
NODE_LATENCY = 3.4e-6
NETWORK_LATENCY = 9.6e-6
"""Seconds from one device of a ring to the next, within a node and between nodes: what NCCL 2 takes for NVLink and for
the network when it chooses an algorithm (src/graph/tuning.cc at 01afd20, ring, protocol "Simple")."""


@dataclass(frozen=True)
class Sent:
    """What a device sends in a step for one kind of parallelism.

    ``size`` bytes in ``count`` messages that wait for each other, by the ``link`` of the "node" or the "network".
    ``how``: the arithmetic of the bytes.
    """

    kind: str
    size: float
    count: float
    link: str
    how: str


def sent(model, layout, batch, policy="mixed_bfloat16", recompute="none", slices=1, node=8):
    """Return a list of `Sent`: all that a device sends in one training step.

    ``batch``: sequences that a group of tensor x context x pipeline devices takes in a step, in so many ``slices``;
    ``node``: devices of a node. A ring of n hands each part on n - 1 times.

    - data: for each weight a ring all-reduce of its gradient in float32, 2(d-1)/d * 4 bytes, over all d devices that
      have the same weights. With ZeRO a reduce-scatter of gradients and an all-gather of what layers compute with, each
      (d-1)/d: at stage 2 the first in each slice, at stage 3 in each slice both, and the gather again for the backward
      pass (Rajbhandari et al. 2020, section 7). What bigtrain_nb builds gathers float32 weights: at stage 1 all,
      at stage 3 those of the blocks, where it all-reduces the other gradients once;
    - tensor: four all-reduces of the layer's output a layer and micro-batch, two of them forward (Shoeybi et al. 2019),
      and those twice where layers are computed again. Sequence parallelism sends as much: an all-gather and a
      reduce-scatter in the place of each (Korthikanti et al. 2022, section 4.2.2);
    - context: keys and values of a layer go once round the c devices forward, once more backward, and their gradients
      with them: three times (c-1)/c of both (Liu et al. 2023, Ring Attention; an all-gather, as in Grattafiori et al.
      2024, sends as much), four times where layers are computed again;
    - experts: each token goes to the devices of its experts and comes back, forward and backward: four times
      (e-1)/e of them, all at once (Lepikhin et al. 2020, GShard), six times where layers are computed again. Of e
      devices those in the same node are reached by its links;
    - pipeline: the layer's output to the next stage and its gradient back (Narayanan et al. 2021), in each run.
    """
    t, p, c = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.context_parallel_size
    again = recompute == "everything"
    each = BYTES_OF[policy]
    layers = model.layers / p
    tokens = batch * model.length / c
    output = each * tokens * model.width
    link = links(layout, node)
    found = _gradients(model, layout, policy, recompute, slices, link["data"])

    reduces = 6 if again else 4
    how = f"{reduces} x {model.layers}/{p} layers x {amount(output, 'bytes')} x 2({t} - 1)/{t}"
    count = reduces * layers * slices * 2 * (t - 1)
    found.append(Sent("tensor", reduces * layers * output * _ring(t), count, link["tensor"], how))

    if c > 1:
        rounds = 4 if again else 3
        both = each * 2 * batch * model.length * model.key_value_width / t
        how = f"{rounds} x {model.layers}/{p} layers x {amount(both, 'bytes')} of keys and values x ({c} - 1)/{c}"
        count = rounds * layers * slices * (c - 1)
        found.append(Sent("context", rounds * layers * both * (c - 1) / c, count, link["context"], how))
    if layout.expert_parallel_size > 1:
        found += _exchanged(model, layout, output / t, 6 if again else 4, slices, node)

    ends = 2 * layout.interleave if p > 1 else 0
    how = f"{ends} x {amount(output, 'bytes')} / {t}"
    found.append(Sent("pipeline", ends * output / t, ends * slices, link["pipeline"], how))
    return found


def _gradients(model, layout, policy, recompute, slices, link):
    """Return what devices with the same weights send: gradients, and with ZeRO weights."""
    stage = layout.zero_stage
    gathered = BYTES_OF[policy] if layout.missing(model, recompute) else BYTES_OF["float32"]
    each = (2 * 4, 4 + gathered, 4 * slices + gathered, (4 + 2 * gathered) * slices)[stage]
    dense, experts = weights_of_a_stage(model, layout)
    groups = [("data", dense / layout.tensor_parallel_size, layout.copies)]
    if experts:
        groups.append(("data, experts", experts / layout.sharers_of_experts, layout.copies_of_experts))
    found = []
    for kind, weights, copies in groups:
        layers = layout.layers_of_a_stage(model.layers)
        rings = (2, 2, slices + 1, 3 * slices * layers)[stage]  # at stage 3 each layer is gathered by itself
        size = each * weights * (copies - 1) / copies
        how = f"{each} bytes x {amount(weights, 'weights')} x ({copies} - 1)/{copies}"
        if stage == 3 and not layout.missing(model, recompute):
            size, how = _sent_here(model, weights, copies, slices)
        found.append(Sent(kind, size, rings * (copies - 1), link, how))
    return found


def _sent_here(model, weights, copies, slices):
    """Return bytes and arithmetic of ``fully_shard``: of the blocks two gatherings and a reduce-scatter a slice."""
    others = model.weights_outside_of_layers
    blocks = weights - others
    size = (3 * 4 * slices * blocks + 2 * 4 * others) * (copies - 1) / copies
    how = (
        f"({slices} x 12 bytes x {amount(blocks, 'weights')} + 8 bytes x {amount(others, 'weights')})"
        f" x ({copies} - 1)/{copies}"
    )
    return size, how


def _exchanged(model, layout, output, exchanges, slices, node):
    """Return what goes to the experts and back, within the node and between nodes. ``output``: bytes of all tokens."""
    e, p = layout.expert_parallel_size, layout.pipeline_parallel_size
    layers, near = model.layers / p, min(e, node)
    each_layer = exchanges * model.experts_per_token * output
    count = exchanges * layers * slices
    found = []
    for kind, others, link in (
        ("experts in the node", near - 1, "node"),
        ("experts between nodes", e - near, "network"),
    ):
        if others:
            how = f"{exchanges} x {model.layers}/{p} layers x {model.experts_per_token} experts x"
            how += f" {amount(output, 'bytes')} x {others}/{e}"
            found.append(Sent(kind, layers * each_layer * others / e, count, link, how))
    return found


def links(layout, node):
    """Return {kind of parallelism: "node" or "network"}: the link that its messages take, with ``node`` devices a node.

    Devices of a node are given to tensor parallelism first, then to context, data and pipeline parallelism, as
    Megatron-LM ranks them. A kind whose devices do not all fit into a node with those before them uses the network.
    """
    taken_by, group = {}, 1
    for kind in ("tensor", "context", "data", "pipeline"):
        group *= getattr(layout, f"{kind}_parallel_size")
        taken_by[kind] = "node" if group <= node else "network"
    return taken_by


def communication_volume(layout, all_sent):
    """Return a `Breakdown` of the bytes that a device sends in one training step: a list of `Sent`."""
    lines = [Line(one.kind, one.size, f"{one.how}, by the {one.link}") for one in all_sent]
    return Breakdown(f"Sent by a device in a step, {layout}", "bytes", lines)


def seconds_to_send(all_sent, device, network=NETWORK, latency=NETWORK_LATENCY):
    """Return seconds for a list of `Sent`, and how: bytes / (bytes/s) + messages x latency, of the link of each."""
    speeds = {"node": device.link, "network": positive("network", network, "bytes/s")}
    latencies = {"node": NODE_LATENCY, "network": not_negative("latency", latency, "seconds")}
    total, how = 0.0, []
    for one in all_sent:
        if one.size:
            seconds = one.size / speeds[one.link] + one.count * latencies[one.link]
            total += seconds
            words = f"{one.kind} {amount(seconds, 's')} by the {one.link} at {amount(speeds[one.link], 'B/s')}"
            how.append(f"{words}, {one.count:,.0f} messages of {amount(latencies[one.link], 's')}")
    return total, "; ".join(how)


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
