"""Communication between devices that share a transformer: volume per step, links, and time."""

import math
from dataclasses import dataclass

from bigtrain_nb.common.checks import integer, not_negative, positive
from bigtrain_nb.common.words import amount

NODE_LATENCY = 3.4e-6
NETWORK_LATENCY = 9.6e-6
"""Seconds from one device to the next, within a node and between nodes: NCCL 2's values for NVLink and for the
network when it chooses an algorithm (src/graph/tuning.cc at 01afd20, ring, protocol "Simple")."""


@dataclass(frozen=True)
class Sent:
    """Communication of a device per step for one ``kind`` of parallelism: bytes, seconds on the links, and ``how``."""

    kind: str
    size: float
    seconds: float
    how: str


@dataclass(frozen=True)
class Group:
    """``size`` devices in a collective, ``near`` of them per node; bytes/s of a ``link``, and of a NIC (``card``).

    A node sends through all NICs of the group's members in it, ``near`` of them, not through one: a ring per NIC, or
    first within the node and then between nodes, which is equivalent (Austin et al. 2025, "How to Scale Your Model",
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
        """Return the seconds of an all-gather that leaves ``whole`` bytes on each device, or of its reduce-scatter.

        Each device receives (m-1)/m of it from the m of its node, while each of M nodes receives (M-1)/M through its
        NICs; plus a hop for each other device of the node, and for each other node. By hand, for the 13.2 GB of 6.58 B
        parameters in 16 bits, on H100 (450 GB/s, eight NICs of 50 GB/s):

        - 8 devices: 7/8 x 13.2 GB / 450 GB/s = 25.6 ms;
        - 16: between nodes 1/2 x 13.2 GB / (8 x 50 GB/s) = 16.5 ms, less than the 25.6 ms within: 25.6 ms;
        - 128: 15/16 x 13.2 GB / (8 x 50 GB/s) = 30.8 ms.
        """
        hops = (self.near - 1) * NODE_LATENCY + (self.nodes - 1) * NETWORK_LATENCY
        return whole * max(self._seconds_per_byte) + hops

    @property
    def _seconds_per_byte(self):
        """Seconds per byte within a node, and between nodes."""
        within = (self.near - 1) / self.near / self.link
        return within, (self.nodes - 1) / self.nodes / (self.near * self.card)

    @property
    def words(self):
        """What `gather_seconds` multiplies bytes by."""
        within, between = self._seconds_per_byte
        if within >= between:
            return f"({self.near} - 1)/{self.near} within the node at {amount(self.link, 'B/s')}, plus latency"
        card = amount(self.card, "B/s")
        return f"({self.nodes} - 1)/{self.nodes} between nodes by {self.near} NICs of {card} each, plus latency"


def sent(model, layout, batch, number, recompute, slices, device, network, optimizer="adamw"):
    """Return a list of `Sent`: everything that a device sends in one training step.

    ``batch``: sequences per data-parallel replica and step, in ``slices`` micro-batches; ``number``: bytes per element
    in the layers' dtype; ``network``: bytes/s of a NIC.

    - data, over all devices with the same weights: gradients are reduce-scattered in float32, 4 bytes per parameter,
      and weights gathered: after the update in float32 without ZeRO, in the layers' dtype from stage 1 on. From stage 2
      on, gradients are reduced per micro-batch; at stage 3 each micro-batch also gathers twice (Rajbhandari et al.
      2020, section 7), block by block. With a pipeline this happens once per step: the weights stay gathered until its
      end, as in torchtitan and Megatron-LM. With hybrid sharding all this stays in a group of ``shard_size``, and the
      gradient shards are then summed across groups, once per step;
    - tensor: four times per block the output is reduce-scattered and gathered (Shoeybi et al. 2019; Korthikanti et al.
      2022, section 4.2.2), six times where blocks are recomputed, five where half of each is; the inputs that backward
      passes gather again (a quarter more), overlapped there with matmuls, are not counted;
    - pipeline: the output of a virtual stage to the next stage and its gradient back, per micro-batch, by one NIC;
    - orthogonalization, of Muon: each device has some full matrices: it gathers their gradients in 16 bits from the
      devices that share them, and sends the updates back.
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
    how = f"({scatters} x 4 + {gathers} x {gathered}) bytes x {amount(weights, 'parameters')} x {groups['data'].words}"
    across = groups["replicas"]
    if across.size > 1:
        size += 2 * 4 * weights / d * (across.size - 1) / across.size
        seconds += 2 * across.gather_seconds(4 * weights / d)
        shard = amount(weights / d, "parameters")
        how += f"; 2 x 4 bytes x {shard} x {across.words}"
    found = [Sent("data", size, seconds, how)]

    output = number * batch * model.length * model.width
    sums = {"none": 4, "selective": 5, "everything": 6}[recompute]
    seconds = sums * layers * slices * 2 * groups["tensor"].gather_seconds(output / slices)
    how = f"{sums} x {layers} blocks x 2 x {amount(output, 'bytes')} x {groups['tensor'].words}"
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
    ``latency``: seconds per message. Each device sends n-1 chunks of S/n to be summed and n-1 of the result; no
    algorithm sends less (Patarasuk & Yuan 2009). Between n nodes, B is that of all NICs of a node. Raises ValueError
    for a negative size or latency, a bandwidth that is not positive, and fewer than one device.

    Example::

        print(bt.all_reduce_seconds(1e9, devices=8, bandwidth=25e9))  # 0.07
    """
    integer("devices", devices, 1)
    not_negative("size", size, "bytes")
    not_negative("latency", latency, "seconds")
    positive("bandwidth", bandwidth, "bytes/s")
    return 2 * (devices - 1) / devices * size / bandwidth + 2 * (devices - 1) * latency
