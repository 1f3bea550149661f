"""`plan_cluster`: how a transformer given by a few numbers is laid out on many devices, and what a step takes there."""

import itertools
from dataclasses import dataclass

from bigtrain_nb.advanced.plan.accelerators import ACCELERATORS, Accelerator
from bigtrain_nb.advanced.plan.breakdown import Breakdown
from bigtrain_nb.advanced.plan.communication import Sent, sent
from bigtrain_nb.advanced.plan.parallelism import BYTES_OF, SLOTS, Layout, memory
from bigtrain_nb.advanced.plan.transformer import RECOMPUTE, Transformer
from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import integer, one_of, positive
from bigtrain_nb.common.words import amount, number

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime and its libraries take the rest."""
LINK = 370 / 450
"""The share of a link's bytes/s that collectives reach at worst: large ones, of H100 by NVLink (Austin et al. 2025)."""
HIDDEN = {"data": (0.75, 1.0), "tensor": (0.0, 0.5), "pipeline": (0.0, 0.5)}
"""The least and the greatest share of sending that hides behind computing. Of what fully sharded devices send, half and
more: Llama 3.1 8 B takes 0.03 to 0.08 s more a step on 128 H100 than on 8, and sends for 0.2 s (torchtitan, December
2024). The next product waits for what tensor parallelism sends, but for what asynchronous tensor parallelism cuts into
parts, which made steps 1.09 to 1.16 times as fast (torchtitan, June 2025)."""
AS_FAST = 1.1
"""Layouts this close are as fast as each other: a plan is not that exact."""


@dataclass(frozen=True, repr=False)
class ClusterPlan(cards.Shown):
    """What a training step of a `Transformer` takes on many devices.

    ``memory``: a `Breakdown` of one device's bytes; ``flops`` of all; ``communication_volume``: what a device sends.
    ``time``: the parts of a step as pairs of seconds (lowest, highest), of communication only what does not overlap
    with compute; ``seconds`` of a step, ``tokens_per_second`` of all devices and ``mfu`` are such pairs too.
    ``tokens``: of all in a step. ``unsupported``: what bigtrain_nb does not have of it.
    """

    model: Transformer
    device: Accelerator
    layout: Layout
    memory: Breakdown
    flops: Breakdown
    communication_volume: list[Sent]
    time: dict[str, tuple[float, float]]
    tokens: int
    policy: str
    optimizer: str
    recompute: str
    micro_batches: int

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, with a tenth left to the runtime; see also `unsupported`."""
        return self.memory.total <= USABLE * self.device.memory

    @property
    def seconds(self) -> tuple[float, float]:
        lowest, highest = zip(*self.time.values(), strict=True)
        return sum(lowest), sum(highest)

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        lowest, highest = self.seconds
        return self.tokens / highest, self.tokens / lowest

    @property
    def mfu(self) -> tuple[float, float]:
        """Model FLOPs utilization (Chowdhery et al. 2022): of ``flops_16``; what runs again does not count."""
        of_a_token = self.model.flops(1).total / self.model.length
        lowest, highest = (rate * of_a_token / self.device.flops_16 for rate in self.tokens_per_second)
        return lowest / self.layout.devices, highest / self.layout.devices

    @property
    def unsupported(self) -> list[str]:
        """What bigtrain_nb does not have of it, or does with more bytes; a list of words, empty for neither."""
        stage = self.layout.zero_stage if self.layout.data_parallel_size > 1 else 0
        whole = amount(4 * self.model.weights, "bytes")
        others = amount((8 + 4 * SLOTS[self.optimizer]) * self.model.weights_outside_of_layers, "bytes")
        gathers = "gathers in 32 bits and prefetches no block: twice the bytes, none of it overlapped"
        if self.policy == "float32":
            gathers = "prefetches no block: none of it is overlapped"
        kinds = self.layout.sizes
        cuts = [kind for kind in kinds if kind != "data"]
        cases = [
            (bool(cuts), f"{' and '.join(cuts)} parallelism: by hand in notebook 09"),
            (stage == 1, f"shard_optimizer=True keeps full float32 weights, {whole} on each device"),
            (stage == 2, "ZeRO stage 2: it has stages 1 and 3"),
            (stage == 3, f"fully_shard=... does not shard what is outside of the blocks, {others} on each device"),
            (stage == 3, gathers),
            (stage == 3 and self.recompute != "everything", 'fully_shard=... needs recompute="everything"'),
            (self.policy == "float8", "float8"),
        ]
        return [words for holds, words in cases if holds]

    def training(self, tokens: float, price_per_hour: float | None = None) -> cards.Card:
        """A table: what so many ``tokens`` take in hours and cost, without failures and what is tried before.

        ``price_per_hour``: of one device, in the reader's money. Raises ValueError for numbers that are not above 0.
        """
        seconds = [positive("tokens", tokens, "tokens") / rate for rate in reversed(self.tokens_per_second)]
        hours = [each / 3600 * self.layout.devices for each in seconds]
        of_a_weight = f"{number(tokens / self.model.weights)} per parameter (compute-optimal: 20, Hoffmann et al. 2022)"
        rows = [
            ["tokens", f"{amount(tokens, 'tokens')}, {of_a_weight}"],
            ["time", _range(seconds, "s")],
            ["device hours", " to ".join(map(number, hours))],
        ]
        if price_per_hour is not None:
            price = positive("price_per_hour", price_per_hour, "an hour")
            rows.append(["cost", " to ".join(number(each * price) for each in hours)])
        return cards.table("A training", ["what", "amount"], rows)

    def words(self):
        full = f"{self.memory.total / self.device.memory:.0%} of the memory of each {self.device.name} is full"
        sizes = f"{amount(self.memory.total, 'bytes')} of {amount(self.device.memory, 'bytes')}"
        yield f"{full}, {sizes}." if self.fits else f"{full}, {sizes}: that does not fit."
        weights, again = amount(self.model.weights, "parameters"), f"recompute={self.recompute!r}"
        yield f"{weights} on {self.layout.devices} x {self.device.name}: {self.layout}; {again}."
        low, high = self.mfu
        rate = f"{_range(self.tokens_per_second, 'tokens')}/s in all, MFU {low:.0%} to {high:.0%}"
        yield f"{_range(self.seconds, 's')} a step of {amount(self.tokens, 'tokens')}: {rate}."
        if self.unsupported:
            yield f"Not supported by bigtrain_nb, or implemented differently: {'; '.join(self.unsupported)}."

    def _card(self):
        notes = [cards.note(words, "") for words in self.words()]
        return cards.stacked(*notes, self.memory.explain(), self._steps())

    def _steps(self):
        how = {"computing": f"{amount(self.flops.total, 'FLOP')}; {self.device.source}"}
        for one in self.communication_volume:
            least, most = HIDDEN[one.kind]
            how[one.kind] = f"{amount(one.seconds, 's')}, {least:.0%} to {most:.0%} of it overlapped; {one.how}"
        how["a step"] = "together"
        parts = {**self.time, "a step": self.seconds}
        rows = [[name, *(amount(value, "s") for value in pair), how[name]] for name, pair in parts.items()]
        return cards.table("Time of a training step", ["part", "at best", "at worst", "how"], rows)


def plan_cluster(
    model: Transformer,
    batch: int,
    *,
    on: str = "H100",
    devices: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    zero_stage: int = 3,
    micro_batches: int | None = None,
    recompute: str | None = None,
    policy: str = "mixed_bfloat16",
    optimizer: str = "adamw",
    network: float | None = None,
) -> ClusterPlan:
    """Predict a training step of a `Transformer` on devices of a kind; return a `ClusterPlan`.

    - ``batch``: sequences in a step, over all devices; ``on``: a name of `bt.ACCELERATORS` that has an efficiency;
      ``devices``: how many; default: the fewest of 1, 8, 16, 32, ... that hold the model;
    - ``tensor_parallel``, ``pipeline_parallel``: devices that share each layer, and stages; ``recompute``: "none",
      "selective" or "everything" of a block runs again in the backward pass instead of being kept; default of each: the
      fastest within memory, and of two as fast the first of: fully sharded, tensor parallel within the node, pipeline.
      With all three and ``devices`` given the layout is as you say, and the plan tells how full the memory is;
    - ``zero_stage``: what the copies of the model divide among them, each stage with what the one before has: 1 the
      optimizer's state, 2 gradients, 3 weights (Rajbhandari et al. 2020; 3 is FSDP); 0: each has all;
    - ``micro_batches``: slices of the batch that a copy of the model takes; default: as few as memory allows, of a
      pipeline one for each sequence;
    - ``policy``: a Keras dtype policy, or "float8": products of matrices in 8 bits, all else as in bfloat16;
      ``optimizer``: "sgd", "momentum", "lion", "muon", "adam" or "adamw";
    - ``network``: bytes/s in one direction of each device's card to other nodes; default: that of ``on``.

    The result is a range, from one training that was published to another: the efficiency of `Accelerator`, and the
    share of sending that hides behind computing. Attention is one kernel.

    Raises ValueError for settings that make no sense, and where no layout holds the model; TypeError for what is no
    `Transformer`.

    Example::

        plan = bt.plan_cluster(bt.SIZES["7 B"], batch=512, on="H100", devices=16)
        print(plan.layout, plan.memory.total, plan.seconds, plan.tokens_per_second)
        print(plan.training(tokens=140e9, price_per_hour=2.5))
    """
    if not isinstance(model, Transformer):
        raise TypeError(f"plan_cluster takes a bt.Transformer(layers, width, heads, ...), not {type(model).__name__}")
    batch = integer("batch", batch, 1)
    device = ACCELERATORS[one_of("on", on, [name for name, one in ACCELERATORS.items() if one.efficiency])]
    one_of("policy", policy, BYTES_OF)
    if policy == "float8" and device.flops_8 is None:
        raise ValueError(f"policy='float8' is no faster on {on}: use mixed_bfloat16")
    one_of("optimizer", optimizer, SLOTS)
    integer("zero_stage", zero_stage, 0, 3)
    network = device.network if network is None else positive("network", network, "bytes/s")
    counts = {"devices": devices, "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel}
    for name, value in {**counts, "micro_batches": micro_batches}.items():
        if value is not None:
            integer(name, value, 1, model.layers if name == "pipeline_parallel" else 2**20)
    heads = _fewest_heads(model)
    if tensor_parallel and heads % tensor_parallel:
        kind = "heads of keys and values" if model.key_value_heads else "heads"
        raise ValueError(f"tensor_parallel={tensor_parallel} must divide the {heads} {kind}: each has whole heads")
    again = RECOMPUTE if recompute is None else [one_of("recompute", recompute, RECOMPUTE)]
    settings = {"policy": policy, "optimizer": optimizer}

    def plans(count):
        for layout in _layouts(model, device, batch, count, tensor_parallel, pipeline_parallel, zero_stage):
            for each in again:
                yield _plan(model, device, layout, batch, micro_batches, network, {**settings, "recompute": each})

    if devices and tensor_parallel and pipeline_parallel and recompute:
        for plan in plans(devices):
            return plan
    for count in [devices] if devices else [1, *(2**n for n in range(3, 16))]:
        fitting = [plan for plan in plans(count) if plan.fits]
        if fitting:
            fastest = min(plan.seconds[1] for plan in fitting)
            return next(plan for plan in fitting if plan.seconds[1] <= AS_FAST * fastest)
    raise ValueError(
        f"{amount(model.weights, 'parameters')} in batches of {batch} fit in no layout on devices={devices or 'any'}"
        f" {on}: take more devices, which tensor_parallel x pipeline_parallel must divide, a sequence for each"
        ' data-parallel replica, recompute="everything", shorter sequences or a larger device'
    )


def _fewest_heads(model):
    return model.key_value_heads or model.heads


def _layouts(model, device, batch, devices, tensor, pipeline, zero_stage):
    """Yield layouts, without a pipeline first; tensor parallelism stays within a node, 8 devices at most."""
    powers = [2**n for n in range(13)]
    heads = _fewest_heads(model)
    tensors = [tensor] if tensor else [n for n in powers if n <= min(device.node, 8) and heads % n == 0]
    stages = [pipeline] if pipeline else [n for n in powers if n <= model.layers]
    for p, t in itertools.product(stages, tensors):
        if devices % (t * p) == 0 and devices // (t * p) <= batch:
            yield Layout(t, p, devices // (t * p), zero_stage)


def _plan(model, device, layout, batch, micro_batches, network, settings):
    share, size = -(-batch // layout.data_parallel_size), 1  # sequences that a copy of the model takes, and at a time
    if micro_batches is not None:
        size = -(-share // micro_batches)
    elif layout.pipeline_parallel_size == 1:
        one, two = (memory(model, layout, n, share, **settings).total for n in (1, 2))
        size = max(1, min(share, 1 + int((USABLE * device.memory - one) / (two - one))))
    slices = -(-share // size)
    policy, recompute = settings["policy"], settings["recompute"]
    flops = model.flops(batch, recompute)
    messages = sent(model, layout, share, BYTES_OF[policy], recompute, slices, device, network)

    busy = 1 - layout.bubble_fraction(model.layers, slices)
    fullest = layout.layers_of_a_stage(model.layers) * layout.pipeline_parallel_size / model.layers
    shared = fullest * share * layout.data_parallel_size / batch / layout.devices / busy  # of what all compute
    computing = tuple(shared * _seconds(flops, device, policy, best) for best in (1, 0))
    time = {"computing": computing}
    for one in messages:
        least, most = HIDDEN[one.kind]
        fast = one.seconds if one.kind == "data" else one.seconds / busy
        slow, (lowest, highest) = fast / LINK, computing  # no more hides than there is computing
        time[one.kind] = fast - min(most * fast, lowest), slow - min(least * slow, highest)
    needed = memory(model, layout, size, slices, **settings)
    tokens = batch * model.length
    return ClusterPlan(
        model, device, layout, needed, flops, messages, time, tokens, policy, settings["optimizer"], recompute, slices
    )


def _seconds(flops, device, policy, best):
    """Return the seconds in which one device would compute all of it, at its greatest efficiency or its least."""
    in_8_bits = flops["matrices"] if policy == "float8" else 0.0
    rate = device.flops("mixed_bfloat16" if in_8_bits else policy) * device.efficiency[best]
    seconds = (flops.total - in_8_bits) / rate
    return seconds + in_8_bits / (device.flops_8 * device.efficiency_8[best]) if in_8_bits else seconds


def _range(pair, unit):
    low, high = (amount(value, unit) for value in pair)
    return f"{low} to {high}"
