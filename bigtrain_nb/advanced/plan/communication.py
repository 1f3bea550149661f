"""What devices that share a transformer send each other in a step, by which links, and how long the links take."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.checks import integer, not_negative, positive
from bigtrain_nb.common.words import amount

NODE_LATENCY = 3.4e-6
NETWORK_LATENCY = 9.6e-6
"""Seconds from one device to the next, within a node and between nodes: what NCCL 2 takes for NVLink and for the
network when it chooses an algorithm (src/graph/tuning.cc at 01afd20, ring, protocol "Simple")."""


@dataclass(frozen=True)
class Sent:
    """What a device sends in a step for one ``kind`` of parallelism: bytes, seconds of the links, and ``how``."""

    kind: str
    size: float
    seconds: float
    how: str


@dataclass(frozen=True)
class Group:
    """``size`` devices that have a collective together, of which ``near`` share a node; ``link`` and ``card``: bytes/s.

    A node sends by all cards of the group's members in it, ``near`` of them, and not by one: a ring for each card, or
    first within the node and then between nodes, which is the same (Austin et al. 2025, "How to Scale Your Model",
    chapter 12, which measures 370 of NVLink's 450 GB/s at best).
    """

    size: int
    near: int
    link: float
    card: float

    @property
    def nodes(self):
        return math.ceil(self.size / self.near)

    def gather_seconds(self, whole):
        """Return seconds of an all-gather that ends with ``whole`` bytes on each device, or of a reduce-scatter of it.

        Each device is to receive (m-1)/m of it from the m of its node, and each of M nodes (M-1)/M over its border, at
        the same time; a hop for each other device of the node, and for each other node. By hand, for the 13.2 GB that
        6.58 B weights take in 16 bits, on H100 (450 GB/s, eight cards of 50 GB/s):

        - 8 devices: 7/8 x 13.2 GB / 450 GB/s = 25.6 ms;
        - 16: over the border 1/2 x 13.2 GB / (8 x 50 GB/s) = 16.5 ms, less than the 25.6 ms within: 25.6 ms;
        - 128: 15/16 x 13.2 GB / (8 x 50 GB/s) = 30.8 ms.

        By one card it would be 8 times that: 247 ms.
        """
        within = (self.near - 1) / self.near / self.link
        border = (self.nodes - 1) / self.nodes / (self.near * self.card)
        hops = (self.near - 1) * NODE_LATENCY + (self.nodes - 1) * NETWORK_LATENCY
        return whole * max(within, border) + hops

    @property
    def words(self):
        if self.nodes == 1:
            return f"within the node at {amount(self.link, 'B/s')}"
        return f"between {self.nodes} nodes by {self.near} NICs of {amount(self.card, 'B/s')} each"


def sent(model, layout, batch, number, recompute, slices, device, network, optimizer="adamw"):
    """Return a list of `Sent`: all that a device sends in one training step.

    ``batch``: sequences that tensor x pipeline devices take in a step, in so many ``slices``; ``number``: bytes of a
    number that layers compute with; ``network``: bytes/s of a card.

    - data, over all devices that have the same weights: gradients in float32 are reduce-scattered, 4 bytes a weight,
      and weights gathered: after the update in float32 without ZeRO, and as layers compute with them from stage 1 on.
      From stage 2 on gradients go in each slice; at stage 3 each slice also gathers twice (Rajbhandari et al. 2020,
      section 7), block by block. With a pipeline they go once a step: the weights stay until its end, as in torchtitan
      and Megatron-LM. With hybrid sharding all this stays in a group of ``shard_size``, and the shards of gradients are
      then summed across groups, once a step;
    - tensor: four times a block the output is reduce-scattered and gathered (Shoeybi et al. 2019; Korthikanti et al.
      2022, section 4.2.2), six times where blocks run again, five where half of them does;
    - pipeline: the output of a run of layers to the next stage and its gradient back, in each slice, by one NIC;
    - orthogonalization, of Muon: each device has some whole matrices: their gradients come in 16 bits from those that
      share them, and the updates go back.
    """
    t, p, d = layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.sharers
    stage, layers = layout.zero_stage, layout.layers_of_a_stage(model.layers)
    groups = layout.groups(device, network)

    scatters = slices if stage >= 2 and p == 1 else 1
    gathers = 2 * slices if stage == 3 and p == 1 else 1
    gathered = number if stage else 4
    weights = layout.weights_of_a_stage(model)
    parts = layers + 1 if stage == 3 else 1  # that are gathered one by one
    size = (4 * scatters + gathered * gathers) * weights * (d - 1) / d
    seconds = groups["data"].gather_seconds(4 * weights / parts) * scatters * parts
    seconds += groups["data"].gather_seconds(gathered * weights / parts) * gathers * parts
    how = f"({scatters} x 4 + {gathers} x {gathered}) bytes x {amount(weights, 'parameters')} x ({d} - 1)/{d}"
    how = f"{how}, {groups['data'].words}"
    across = groups["replicas"]
    if across.size > 1:
        size += 2 * 4 * weights / d * (across.size - 1) / across.size
        seconds += 2 * across.gather_seconds(4 * weights / d)
        shard = amount(weights / d, "parameters")
        how += f"; 2 x 4 bytes x {shard} x ({across.size} - 1)/{across.size}, {across.words}"
    found = [Sent("data", size, seconds, how)]

    output = number * batch * model.length * model.width
    sums = {"none": 4, "selective": 5, "everything": 6}[recompute]
    seconds = sums * layers * slices * 2 * groups["tensor"].gather_seconds(output / slices)
    how = f"{sums} x {layers} blocks x {amount(output, 'bytes')} x 2({t} - 1)/{t}, {groups['tensor'].words}"
    found.append(Sent("tensor", sums * layers * output * 2 * (t - 1) / t, seconds, how))

    crossings = 2 * layout.runs(model.layers, slices) if p > 1 else 0
    speed, latency = (
        (network, NETWORK_LATENCY) if t * layout.data_parallel_size * p > device.node else (device.link, NODE_LATENCY)
    )
    seconds = crossings * (output / t / speed + slices * latency)
    how = f"{crossings} x {amount(output, 'bytes')} / {t}, by one link of {amount(speed, 'B/s')}"
    found.append(Sent("pipeline", crossings * output / t, seconds, how))

    if optimizer == "muon" and stage and t * d > 1:
        own = layers * model.matrices_of_a_layer / (t * d)
        speed = network if t * d > device.node else device.link
        how = f"2 x 2 bytes x {amount(own, 'parameters')}, by one link of {amount(speed, 'B/s')}"
        found.append(Sent("orthogonalization", 4 * own, 4 * own / speed, how))
    return [one for one in found if one.size]


def all_reduce_seconds(size: float, devices: int, bandwidth: float, latency: float = 0.0) -> float:
    """Return the seconds of a ring all-reduce: 2(n-1)/n * S/B + 2(n-1) * latency; 0 for one device.

    ``size`` S: bytes on each device; ``devices`` n; ``bandwidth`` B: bytes/s that a device sends in one direction;
    ``latency``: seconds a message. Each device sends n-1 parts of S/n to add up and n-1 to hand round, which no
    algorithm does with less (Patarasuk & Yuan 2009). Between n nodes B is that of all cards of a node. Raises
    ValueError for a size or latency below 0 and a bandwidth that is not above it.

    Example::

        print(bt.all_reduce_seconds(1e9, devices=8, bandwidth=25e9))  # 0.07
    """
    integer("devices", devices, 1)
    not_negative("size", size, "bytes")
    not_negative("latency", latency, "seconds")
    positive("bandwidth", bandwidth, "bytes/s")
    return 2 * (devices - 1) / devices * size / bandwidth + 2 * (devices - 1) * latency
