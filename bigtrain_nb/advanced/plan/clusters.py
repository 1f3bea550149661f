"""`plan_cluster`: how to lay out a transformer, given by a few numbers, on many devices, and the cost of a step."""

import bisect
import itertools
import math
from dataclasses import dataclass, replace

from bigtrain_nb.advanced.plan.accelerators import ACCELERATORS, SIZE_LIMITS, Accelerator
from bigtrain_nb.advanced.plan.breakdown import Breakdown
from bigtrain_nb.advanced.plan.communication import Sent, sent
from bigtrain_nb.advanced.plan.goodput import DEVICE_MTBF_HOURS, goodput
from bigtrain_nb.advanced.plan.parallelism import BYTES_OF, SLOTS, Layout, memory
from bigtrain_nb.advanced.plan.transformer import RECOMPUTE, Transformer
from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import integer, not_negative, one_of, positive
from bigtrain_nb.common.words import amount, number

USABLE = 0.9
"""Share of a device's memory that a plan may use: the runtime and its libraries need the rest."""
LINK = 370 / 450
"""The share of a link's bytes/s that large collectives reach, on H100 with NVLink (Austin et al. 2025)."""
HIDDEN = {"data": 0.9, "tensor": 0.25, "pipeline": 0.25, "orthogonalization": 0.0}
"""The share of communication that overlaps with compute. With full sharding, three quarters to all of it: Llama 3.1 8 B
takes 0.03 to 0.08 s more per step on 128 H100 than on 8, and communicates for 0.2 s (torchtitan, December 2024). With
tensor parallelism, none to half of it: the next matmul waits, except where asynchronous tensor parallelism splits the
communication, which made steps 1.04 to 1.16 times as fast (torchtitan, December 2024, June 2025). Muon's is exposed."""
SPREAD = 1.25
"""A plan's range, no confidence interval, is from a typical step divided by this to one multiplied by it. It contains 9
in 10 of the 16-bit GPU runs in `bigtrain_nb.series.published`; in its blind test 10 of 15, the others being slower."""
_CLASSES = ("small (below 3 B)", "medium (3 to 20 B)", "large (over 20 B)")
AS_FAST = 1.1
"""Layouts within this factor count as equally fast: a plan is not more accurate."""


@dataclass(frozen=True, repr=False)
class ClusterPlan(cards.Shown):
    """A predicted training step of a `Transformer` on many devices.

    ``memory``: a `Breakdown` of one device's bytes; ``flops`` of all; ``communication_volume``: of one device.
    ``time``: the typical seconds of each part of a step, excluding communication that overlaps with compute.
    ``typical_seconds`` per step and ``typical_mfu`` are single numbers; ``seconds``, ``tokens_per_second`` of all
    devices and ``mfu`` are pairs (low, high), 1.25 times less and more. ``tokens``: per step, over all devices.
    """

    model: Transformer
    device: Accelerator
    layout: Layout
    memory: Breakdown
    flops: Breakdown
    communication_volume: list[Sent]
    time: dict[str, float]
    tokens: int
    policy: str
    optimizer: str
    recompute: str
    micro_batches: int

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, with a tenth left for the runtime; see also `unsupported`."""
        return self.memory.total <= USABLE * self.device.memory

    @property
    def typical_seconds(self) -> float:
        return sum(self.time.values())

    @property
    def seconds(self) -> tuple[float, float]:
        return self.typical_seconds / SPREAD, self.typical_seconds * SPREAD

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        low, high = self.seconds
        return self.tokens / high, self.tokens / low

    @property
    def typical_mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al. 2022), relative to ``flops_16``, without recomputation."""
        peak = self.device.flops_16 * self.layout.devices
        return self.model.flops(1).total / self.model.length * self.tokens / self.typical_seconds / peak

    @property
    def mfu(self) -> tuple[float, float]:
        return self.typical_mfu / SPREAD, self.typical_mfu * SPREAD

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: as the typical MFU, with recomputation."""
        return self.typical_mfu * self.flops.total / self.model.flops(self.tokens // self.model.length).total

    @property
    def unsupported(self) -> list[str]:
        """Parts of the plan that bigtrain_nb does not support, or implements with more bytes; a list of strings."""
        stage = self.layout.zero_stage if self.layout.data_parallel_size > 1 else 0
        whole = amount(4 * self.model.weights, "bytes")
        slots = SLOTS["adamw" if self.optimizer == "muon" else self.optimizer]  # Muon is for the blocks' matrices
        others = amount((8 + 4 * slots) * self.model.weights_outside_of_layers, "bytes")
        gathers = "gathers in 32 bits and prefetches no block: twice the bytes, none of it overlapped"
        if self.policy == "float32":
            gathers = "prefetches no block: none of it is overlapped"
        cuts = [kind for kind in self.layout.sizes if kind != "data"]
        cases = [
            (bool(cuts), f"{' and '.join(cuts)} parallelism: by hand in notebook 09"),
            (stage == 1, f"shard_optimizer=True keeps full float32 weights, {whole} on each device"),
            (stage == 2, "ZeRO stage 2: it has stages 1 and 3"),
            (stage == 3, f"fully_shard=... does not shard what is outside of the blocks, {others} on each device"),
            (stage == 3, gathers),
            (stage == 3 and self.recompute != "everything", 'fully_shard=... needs recompute="everything"'),
            (self.layout.sharers < self.layout.data_parallel_size, "hybrid sharding"),
            (stage in (1, 3) and self.optimizer == "muon", "Muon with shard_optimizer or fully_shard"),
            (self.optimizer == "muon", "Muon on 3-D kernels, as of MultiHeadAttention: Keras' leaves them to AdamW"),
            (self.policy == "float8", "float8"),
        ]
        return [words for holds, words in cases if holds]

    def training(
        self,
        tokens: float,
        price_per_hour: float | None = None,
        *,
        spares: float = 0.0,
        evaluation: float = 0.01,
        mtbf_hours: float = DEVICE_MTBF_HOURS,
        checkpoint_seconds: float = 60.0,
        interval_seconds: float | None = None,
        restart_seconds: float = 600.0,
    ) -> cards.Card:
        """A table of the time, devices and money that training on ``tokens`` takes, including failures.

        The defaults are examples for a cluster whose figures you do not know:

        - ``price_per_hour``: of one device, in your currency; ``spares``: standby devices, as a share of those in use;
        - ``evaluation``: tokens evaluated per token trained, forward only, which takes a third of the FLOPs;
        - ``mtbf_hours``: of one device, default: that of Llama 3; ``checkpoint_seconds``: per checkpoint;
          ``interval_seconds``: between two, default: the optimum; ``restart_seconds``: per failure.

        Experiments before the training are not included. Raises ValueError for negative values, and for 0 except in
        ``spares``, ``evaluation`` and ``restart_seconds``.
        """
        seconds = positive("tokens", tokens, "tokens") * self.typical_seconds / self.tokens
        spares = not_negative("spares", spares, "spare devices per device in use")
        evaluation = not_negative("evaluation", evaluation, "evaluation tokens per training token")
        losses = mtbf_hours, checkpoint_seconds, interval_seconds, restart_seconds
        share, of_failures = goodput(self.layout.devices, *losses)
        wall = seconds * (1 + evaluation / 3) / share
        ends = " to ".join(amount(each, "s") for each in (wall / SPREAD, wall * SPREAD))
        hours = wall / 3600 * self.layout.devices * (1 + spares)
        rows = [
            ["tokens", f"{amount(tokens, 'tokens')}, {number(tokens / self.model.weights)} per parameter"],
            ["", _per_parameter(tokens / self.model.weights)],
            ["training", f"about {amount(seconds, 's')}"],
            *of_failures,
            ["evaluation", f"{evaluation:.1%} as many tokens, forward only: {evaluation / 3:.2%} more time"],
            ["all together", f"about {amount(wall, 's')} ({ends})"],
            ["device-hours", f"about {number(hours)}, with {spares:.0%} spares"],
            ["inference", f"{amount(3 * tokens, 'tokens')} served take as many FLOPs as the training"],
        ]
        if price_per_hour is not None:
            price = positive("price_per_hour", price_per_hour)
            rows.insert(-1, ["cost", f"about {number(hours * price)}"])
        return cards.table("A training", ["what", "amount"], rows)

    def words(self):
        return list(self._words())

    def _words(self):
        full = f"{self.memory.total / self.device.memory:.0%} of the memory of each {self.device.name} is full"
        sizes = f"{amount(self.memory.total, 'bytes')} of {amount(self.device.memory, 'bytes')}"
        yield f"{full}, {sizes}." if self.fits else f"{full}, {sizes}: that does not fit."
        weights, again = amount(self.model.weights, "parameters"), f"recompute={self.recompute!r}"
        yield f"{weights} on {self.layout.devices} x {self.device.name}: {self.layout}; {again}."
        size = _size_class(self.model)
        seen = self.device.mfu[size]
        models = f"of {_CLASSES[size]} models on such cards"
        runs = f"seen {seen[0]:.2f} to {seen[1]:.2f} in published 16-bit runs" if seen else "no published 16-bit run"
        peak = " of the 16-bit FLOP/s" if self.policy in ("float8", "float32") else ""
        hfu = f" (HFU {self.hfu:.2f}, recomputation counted)" if self.recompute != "none" else ""
        yield f"MFU typically {self.typical_mfu:.2f}{peak}{hfu}; {runs} {models}."
        if self.policy == "float8":
            yield f"float8: {self.device.speedup_8[size]:.2f} times as fast as 16 bits in published pairs of runs."
        tokens = amount(self.tokens, "tokens")
        rate = amount(self.tokens / self.typical_seconds, "tokens")
        yield f"About {amount(self.typical_seconds, 's')} a step of {tokens}: {rate}/s in all."
        if self.unsupported:
            yield f"Not supported by bigtrain_nb, or implemented differently: {'; '.join(self.unsupported)}."

    def _card(self):
        notes = [cards.note(words, "") for words in self.words()]
        return cards.stacked(*notes, self.memory.explain(), self._steps())

    def _steps(self):
        peak = self.device.flops("mixed_bfloat16" if self.policy == "float8" else self.policy)
        reached = self.flops.total / (self.layout.devices * peak * self.time["computing"])
        how = {
            "computing": f"{amount(self.flops.total, 'FLOP')}; {reached:.0%} of {amount(peak, 'FLOP/s')} per device"
            f" (bubble included), by {self.device.source}"
        }
        if self.optimizer == "muon":
            how["orthogonalization"] = "five steps of Newton-Schulz on whole matrices"
        for one in self.communication_volume:
            overlap = (
                f"{amount(one.seconds, 's')}: {one.how}; typically {LINK:.0%} of the bandwidth, up to"
                f" {HIDDEN[one.kind]:.0%} overlapped"
            )
            how[one.kind] = "; ".join(filter(None, (how.get(one.kind), overlap)))
        rows = [[name, amount(value, "s"), how.get(name, "")] for name, value in self.time.items()]
        rows.append(["a step", amount(self.typical_seconds, "s"), "together"])
        return cards.table("Typical time of a training step", ["part", "seconds", "how"], rows)


def plan_cluster(
    model: Transformer,
    batch: int,
    *,
    on: str = "H100",
    devices: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    zero_stage: int = 3,
    shard_size: int | None = None,
    devices_per_node: int | None = None,
    micro_batches: int | None = None,
    recompute: str | None = None,
    policy: str = "mixed_bfloat16",
    optimizer: str = "adamw",
    network: float | None = None,
) -> ClusterPlan:
    """Predict a training step of a `Transformer` on many devices of one kind; return a `ClusterPlan`.

    - ``batch``: sequences per step, over all devices; ``on``: a name in `bt.ACCELERATORS` that has an efficiency;
      ``devices``: how many; default: the fewest of 1, 8, 16, 32, ... that fit the model;
    - ``tensor_parallel``, ``pipeline_parallel``: devices that share each layer, and stages; ``recompute``: "none",
      "selective" or "everything": how much of a block is recomputed in the backward pass. Default of each: the fastest
      that fits in memory; of equally fast ones the first of fully sharded, tensor parallel within the node, pipeline.
      With all three and ``devices`` given, exactly that layout is planned, whether it fits or not;
    - ``zero_stage``: what data-parallel replicas shard, each stage including those before: 1 optimizer state, 2
      gradients, 3 weights (Rajbhandari et al. 2020; 3 is FSDP); 0: nothing;
    - ``shard_size``: over how many replicas they shard it; groups of that size hold the same shards (hybrid sharding,
      HSDP). Default: all, or full nodes where that is much faster;
    - ``devices_per_node``: devices that ``on``'s links connect; default: as usual for ``on``, such as 8 or 72;
    - ``micro_batches``: per data-parallel replica; default: as few as memory allows, with a pipeline one per sequence;
    - ``policy``: "float32", "mixed_float16", "mixed_bfloat16" or "float8" (matmuls only); ``optimizer``: "sgd",
      "momentum", "lion", "muon", "adam" or "adamw";
    - ``network``: bytes/s in one direction from each device's NIC to other nodes; default: that of ``on``.

    The result is typical of published trainings, based on the efficiency of `Accelerator` for models of this size; the
    range around it contains most of them. Attention is fused.

    Raises ValueError for invalid settings, and where no layout fits the model; TypeError if ``model`` is not a
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
    if policy == "float8" and device.speedup_8 is None:
        raise ValueError(f"policy='float8' is no faster on {on}: use mixed_bfloat16")
    one_of("optimizer", optimizer, SLOTS)
    integer("zero_stage", zero_stage, 0, 3)
    network = device.network if network is None else positive("network", network, "bytes/s")
    if devices_per_node is not None:
        device = replace(device, node=integer("devices_per_node", devices_per_node, 1))
    counts = {"devices": devices, "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel}
    for name, value in {**counts, "micro_batches": micro_batches, "shard_size": shard_size}.items():
        if value is not None:
            integer(name, value, 1, model.layers if name == "pipeline_parallel" else 2**20)
    if shard_size and not zero_stage:
        raise ValueError("shard_size needs zero_stage=1, 2 or 3: at stage 0 nothing is sharded")
    heads = model.key_value_heads or model.heads
    if tensor_parallel and heads % tensor_parallel:
        kind = "KV heads" if model.key_value_heads else "heads"
        raise ValueError(f"tensor_parallel={tensor_parallel} must divide the {heads} {kind}: heads are not split")
    again = RECOMPUTE if recompute is None else [one_of("recompute", recompute, RECOMPUTE)]
    settings = {"policy": policy, "optimizer": optimizer}

    def plans(count):
        sizes = tensor_parallel, pipeline_parallel, shard_size
        for layout in _layouts(model, device, batch // (micro_batches or 1), count, sizes, zero_stage):
            for each in again:
                yield _plan(model, device, layout, batch, micro_batches, network, {**settings, "recompute": each})

    if devices and tensor_parallel and pipeline_parallel and recompute:
        for plan in plans(devices):
            return plan
    for count in [devices] if devices else [1, *(2**n for n in range(3, 16))]:
        fitting = [plan for plan in plans(count) if plan.fits]
        if fitting:
            fastest = min(plan.typical_seconds for plan in fitting)
            return next(plan for plan in fitting if plan.typical_seconds <= AS_FAST * fastest)
    raise ValueError(
        f"{amount(model.weights, 'parameters')} in batches of {batch} fit in no layout on devices={devices or 'any'}"
        f" {on}: use more devices (a multiple of tensor_parallel x pipeline_parallel x shard_size), a sequence or more"
        ' per data-parallel replica and micro-batch, recompute="everything", shorter sequences or a larger device'
    )


def _layouts(model, device, most, devices, sizes, zero_stage):
    """Yield layouts of at most ``most`` data-parallel replicas, those without a pipeline first.

    Tensor parallelism stays within a node, on at most 8 devices.
    """
    powers = [2**n for n in range(16)]
    heads = model.key_value_heads or model.heads
    tensor, pipeline, shard = sizes
    tensors = [tensor] if tensor else [n for n in powers if n <= min(device.node, 8) and heads % n == 0]
    stages = [pipeline] if pipeline else [n for n in powers if n <= model.layers]
    for p, t in itertools.product(stages, tensors):
        copies = devices // (t * p)
        if devices % (t * p) or copies > most:
            continue
        if shard:
            groups = [shard]
        else:  # all, or full nodes, most first; of a rack of 72, only 64: a power of two
            node = 2 ** int(math.log2(max(1, device.node // t)))
            groups = [copies, *(n * node for n in reversed(powers) if n * node < copies and zero_stage)]
        for group in groups:
            if copies % group == 0:
                yield Layout(t, p, copies, zero_stage, group if group < copies else None)


def _plan(model, device, layout, batch, micro_batches, network, settings):
    share = -(-batch // layout.data_parallel_size)  # sequences per data-parallel replica
    at_a_time = -(-share // (micro_batches or share))
    if micro_batches is None and layout.pipeline_parallel_size == 1:
        one, two = (memory(model, layout, n, share, **settings).total for n in (1, 2))
        at_a_time = max(1, min(share, 1 + int((USABLE * device.memory - one) / (two - one))))
    slices = micro_batches or -(-share // at_a_time)
    policy, recompute = settings["policy"], settings["recompute"]
    flops = model.flops(batch, recompute)
    messages = sent(model, layout, share, BYTES_OF[policy], recompute, slices, device, network, settings["optimizer"])

    busy = 1 - layout.bubble_fraction(model.layers, slices)
    fullest = layout.layers_of_a_stage(model.layers) * layout.pipeline_parallel_size / model.layers
    shared = fullest * share * layout.data_parallel_size / batch / layout.devices / busy  # of the total compute
    own = _size_class(model, layout.tensor_parallel_size)
    rate = device.flops("mixed_bfloat16" if policy == "float8" else policy) * device.efficiency[own]
    computing = shared * flops.total / rate
    time = {"computing": computing}
    for one in messages:
        seconds = one.seconds / LINK / (1 if one.kind in ("data", "orthogonalization") else busy)
        time[one.kind] = seconds - min(HIDDEN[one.kind] * seconds, computing)  # at most the compute time
    if policy == "float8":  # a ratio of full steps; compute is at most twice as fast
        exposed = sum(time.values()) - computing
        time["computing"] = max((computing + exposed) / device.speedup_8[_size_class(model)] - exposed, computing / 2)
    if settings["optimizer"] == "muon":
        orthogonal = layout.layers_of_a_stage(model.layers) * sum(model.orthogonalization_flops())
        if layout.zero_stage:  # each has some of the matrices
            sharers = layout.tensor_parallel_size * layout.sharers
            orthogonal = max(orthogonal / sharers, max(model.orthogonalization_flops()))
        time["orthogonalization"] = time.get("orthogonalization", 0) + orthogonal / rate
    needed = memory(model, layout, at_a_time, slices, **settings)
    tokens = batch * model.length
    return ClusterPlan(
        model, device, layout, needed, flops, messages, time, tokens, policy, settings["optimizer"], recompute, slices
    )


def _size_class(model, sharers=1):
    """Return the class in `SIZE_LIMITS`: tensor parallelism makes matmuls as small as those of a smaller model."""
    return bisect.bisect(SIZE_LIMITS, model.weights / sharers)


def _per_parameter(ratio):
    """Describe a ratio of tokens to parameters (Hoffmann et al. 2022: 20 is compute-optimal)."""
    if ratio < 10:
        return "fewer than the 20 of Hoffmann et al. 2022: a smaller model on more tokens has less loss for the FLOPs"
    if ratio <= 40:
        return "about the 20 of Hoffmann et al. 2022, the least loss for the FLOPs of training"
    return "more than the 20 of Hoffmann et al. 2022: more FLOPs of training, for a smaller model, cheaper in inference"
