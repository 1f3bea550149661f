"""`plan_cluster`: how many devices a transformer given by a few numbers needs, and what its step takes there."""

from dataclasses import dataclass

from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import fraction, from_0_to_1, one_of, switch, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.accelerators import ACCELERATORS, Accelerator
from bigtrain_nb.plan.breakdown import Breakdown, Plan, step_time
from bigtrain_nb.plan.communication import NETWORK, NETWORK_LATENCY, communication_volume, seconds_to_send, sent
from bigtrain_nb.plan.parallelism import HERE, TENSORFLOW, USABLE, Layout, choose_layout, memory
from bigtrain_nb.plan.transformer import BYTES_OF, RECOMPUTE, SLOTS, Transformer

EFFICIENCY = 0.6
"""Share of the published FLOP/s that a device reaches while it computes: between a layer of 22 B weights and steps of a
trillion on A100, without the time to send and to wait. Worked out from Korthikanti et al. 2022, tables 4 and 5."""


@dataclass(frozen=True, repr=False)
class ClusterPlan(Plan):
    """What a training step of a `Transformer` takes on many devices.

    Breakdowns of one device's ``memory`` and of what it sends (``communication_volume``), the ``flops`` of all and the
    ``time`` of the step. ``tokens``: in a step, over all devices. ``spare``: devices that the layout leaves over.
    """

    model: Transformer
    device: Accelerator
    layout: Layout
    memory: Breakdown
    flops: Breakdown
    communication_volume: Breakdown
    time: Breakdown
    tokens: int
    policy: str
    recompute: str
    spare: int = 0

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, with a tenth left to the runtime. Not whether it can be built: see `missing`."""
        return self.memory.total <= USABLE * self.device.memory

    @property
    def missing(self) -> list[str]:
        """What of the layout bigtrain_nb cannot build, a list of words; empty if it can."""
        return self.layout.missing(self.model, self.recompute)

    def where(self) -> cards.Card:
        """A table: each part of the layout, where there is code for it, and how it is called or what to do instead."""
        parts = self.layout.parts(self.model, self.recompute)
        rows = [[part.what, part.where, part.how] for part in parts]
        return cards.table("Where is there code for it?", ["part", "where", "how"], rows)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.time.total

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al. 2022): the share of the published FLOP/s that the step needs.

        What is computed again does not count.
        """
        needed = self.model.flops(self.tokens // self.model.length).total
        return needed / self.time.total / self.layout.devices / self.device.flops(self.policy)

    def words(self):
        verdict = ("It fits" if not self.missing else "The memory would do") if self.fits else "It does not fit"
        usable = amount(USABLE * self.device.memory, "bytes")
        step = f"{amount(self.time.total, 's')} a step of {amount(self.tokens, 'tokens')}"
        weights = amount(self.model.weights, "weights")
        if self.model.experts > 1:
            weights += f" (active: {amount(self.model.active_weights, 'weights')})"
        yield f"{weights} on {self.layout.devices} x {self.device.name}: {self.layout}."
        yield f"{verdict}: {amount(self.memory.total, 'bytes')} of {usable} usable on each device."
        rate = f"{amount(self.tokens_per_second, 'tokens')}/s, MFU {self.mfu:.0%}"
        yield f"{step}, bound by {self.binding}: {rate}."
        if self.spare:
            needed = self.layout.model_parallel_size
            yield f"{self.spare} more devices have nothing to do: a copy of the model takes {needed}."
        parts = self.layout.parts(self.model, self.recompute)
        if self.missing:
            yield f"bigtrain_nb cannot build it. What it does not have: {'; '.join(self.missing)}."
            elsewhere = [part.what for part in parts if part.where == TENSORFLOW]
            nowhere = [part.what for part in parts if part.where not in (HERE, TENSORFLOW)]
            if elsewhere:
                yield f"Elsewhere in TensorFlow: {', '.join(elsewhere)}."
            if nowhere:
                yield f"Nowhere known in TensorFlow: {', '.join(nowhere)}."
        else:
            for part in parts:
                yield f"{part.what[0].upper()}{part.what[1:]}: {part.how}."


def plan_cluster(
    model: Transformer,
    batch: int,
    *,
    on: str = "H100",
    devices: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    interleave: int = 1,
    sequence_parallel: bool = False,
    context_parallel: int = 1,
    expert_parallel: int = 1,
    zero_stage: int = 0,
    micro_batches: int | None = None,
    policy: str = "mixed_bfloat16",
    optimizer: str = "adamw",
    recompute: str = "none",
    chunk_attention: int = 1,
    efficiency: float = EFFICIENCY,
    overlap: float = 0.0,
    network: float = NETWORK,
    latency: float = NETWORK_LATENCY,
    input_seconds: float = 0.0,
) -> ClusterPlan:
    """Predict a training step of a `Transformer` on devices of a kind; return a `ClusterPlan`.

    - ``batch``: sequences in a step, over all devices; ``on``: a name of `bt.ACCELERATORS`;
    - ``devices``: how many; default: the fewest that hold the model. Those share layers and pipeline as little as
      memory asks for, and the batch for the rest;
    - ``tensor_parallel``, ``pipeline_parallel``: devices that share each layer, and stages; default: as few as hold the
      model. With both given the layout is as you say, and the plan tells whether it fits;
    - ``interleave``: runs of layers that each pipeline stage has, so that it waits less and keeps more activations
      (Narayanan et al. 2021);
    - ``sequence_parallel``: whether the devices of ``tensor_parallel`` share also the activations between the parts of
      a layer (Korthikanti et al. 2022). No layer of bigtrain_nb does so;
    - ``context_parallel``: devices that share each sequence, and with it all activations. They send each other keys and
      values (Liu et al. 2023, Ring Attention; Grattafiori et al. 2024, section 3.3.2);
    - ``expert_parallel``: devices that share out the experts of each layer, of those that share layers, sequences and
      batch. They send each other tokens (Lepikhin et al. 2020, GShard);
    - ``zero_stage``: what the copies of the model divide among them, each stage with what the one before has: 1 the
      optimizer's state, 2 gradients, 3 weights (Rajbhandari et al. 2020); 0: each has all. bigtrain_nb has 1
      (``shard_optimizer``) and, with ``recompute="everything"``, 3 (``fully_shard``);
    - ``micro_batches``: slices of the batch that a group of devices takes; default: one for each sequence, but from
      ``zero_stage`` 2 on, which sends in each of them, as few as memory allows;
    - ``policy``, ``optimizer`` ("sgd", "momentum", "rmsprop", "lion", "adam", "adamw");
    - ``recompute``: "none", "attention" or "everything" is computed again in the backward pass instead of kept;
    - ``chunk_attention``: parts in which attention is computed, of which one at a time has its scores
      (`bt.chunk_attention`); for a flash kernel, which has some 128 rows of them at a time, take length // 128;
    - ``efficiency``: the share of the published FLOP/s that a device reaches while it computes (0.6);
    - ``overlap``: the share of sending that hides behind computing, from 0 to 1; default 0: none, as `bt.Model` sends;
    - ``network``: bytes/s between nodes (50e9); ``latency``: seconds that a message between nodes takes beside its
      bytes (9.6e-6); within a node both are the device's: its ``link``, and 3.4e-6 s;
    - ``input_seconds``: the time that it takes to make a batch.

    Computing, waiting for the pipeline to fill and sending are added up, less the share of ``overlap``; the input
    overlaps with all of them. Each message takes the links of the node, or of the network where its devices are not all
    in one node (``plan.communication_volume`` says which). The plan says what bigtrain_nb cannot build of the layout
    (`ClusterPlan.missing`), as more than one kind of parallelism at once, and where else there is code for it
    (`ClusterPlan.where`).

    Raises ValueError for settings that make no sense, and where no layout holds the model; TypeError for what is no
    `Transformer`.

    Example::

        plan = bt.plan_cluster(bt.SIZES["7 B"], batch=512, on="H100")
        print(plan.layout, plan.memory.total, plan.time.total, plan.mfu)
        print(plan.where())
    """
    if not isinstance(model, Transformer):
        raise TypeError(f"plan_cluster takes a bt.Transformer(layers, width, heads, ...), not {type(model).__name__}")
    device = ACCELERATORS[one_of("on", on, ACCELERATORS)]
    one_of("policy", policy, BYTES_OF)
    one_of("optimizer", optimizer, SLOTS)
    one_of("recompute", recompute, RECOMPUTE)
    settings = {
        "policy": policy,
        "optimizer": optimizer,
        "recompute": recompute,
        "chunk_attention": whole_number("chunk_attention", chunk_attention, 1, model.length),
    }
    batch = whole_number("batch", batch, 1)
    rate = device.flops(policy) * fraction("efficiency", efficiency)
    from_0_to_1("overlap", overlap)
    like = Layout(
        zero_stage=whole_number("zero_stage", zero_stage, 0, 3),
        interleave=whole_number("interleave", interleave, 1),
        sequence_parallel=switch("sequence_parallel", sequence_parallel),
        context_parallel_size=whole_number("context_parallel", context_parallel, 1),
        expert_parallel_size=whole_number("expert_parallel", expert_parallel, 1),
    )
    layout = _layout(model, device, devices, tensor_parallel, pipeline_parallel, like, settings)
    stages = layout.pipeline_parallel_size
    whole_number("interleave", interleave, 1, -(-model.layers // stages) if stages > 1 else 1)

    share = -(-batch // layout.data_parallel_size)
    slice_size = _slice_size(model, device, layout, share, micro_batches, settings)
    slices = -(-share // slice_size)
    if interleave > 1 and slices < stages:
        raise ValueError(
            f"interleave={interleave} needs a micro-batch for each of {stages} pipeline stages at least, not {slices}"
            " in all: take a larger batch, more micro_batches or interleave=1"
        )

    work = model.flops(share, recompute, chunk_attention).total
    computing, how = _computing(model, layout, work, slices, rate)
    how += f"; {efficiency:g} of {device.source}"

    all_sent = sent(model, layout, share, policy, recompute, slices, device.node)
    sending, how_sent = seconds_to_send(all_sent, device, network, latency)
    hidden = min(overlap * sending, computing)
    if hidden:
        how_sent += f"; {amount(hidden, 's')} of it behind computing (overlap={overlap:g})"
    return ClusterPlan(
        model=model,
        device=device,
        layout=layout,
        memory=memory(model, layout, slice_size, **settings, slices=slices),
        flops=model.flops(batch, recompute, chunk_attention),
        communication_volume=communication_volume(layout, all_sent),
        time=step_time(computing, sending - hidden, input_seconds, how, how_sent),
        tokens=batch * model.length,
        policy=policy,
        recompute=recompute,
        spare=(devices or layout.devices) - layout.devices,
    )


def _slice_size(model, device, layout, share, micro_batches, settings):
    """Return how many of a group's sequences are a micro-batch."""
    if micro_batches is not None:
        return -(-share // whole_number("micro_batches", micro_batches, 1))
    if layout.zero_stage >= 2:
        return min(share, _sequences_that_fit(model, device, layout, settings))
    return 1


def _computing(model, layout, work, slices, rate):
    """Return the seconds that the fullest stage computes and waits for the pipeline, and how they come about."""
    waiting = layout.waiting(slices)
    fullest = layout.layers_of_a_stage(model.layers) * layout.pipeline_parallel_size / model.layers
    seconds = fullest * work / layout.model_parallel_size / rate / (1 - waiting)
    how = f"{amount(work, 'FLOP')} / {layout.model_parallel_size} / {amount(rate, 'FLOP/s')}"
    if fullest > 1:
        how += f" x {fullest:.2f} in the fullest stage"
    if waiting:
        how += f" / (1 - {waiting:.2f} waiting for the pipeline to fill)"
    return seconds, how


def _layout(model, device, devices, tensor, pipeline, like, settings):
    """Return the `Layout` for so many devices. Raises ValueError where there is none."""
    if devices is not None:
        whole_number("devices", devices, 1)
    if tensor is not None and model.heads % whole_number("tensor_parallel", tensor, 1):
        raise ValueError(f"tensor_parallel={tensor} must divide the {model.heads} heads: each device has whole heads")
    if pipeline is not None:
        whole_number("pipeline_parallel", pipeline, 1, model.layers)
    if model.length % like.context_parallel_size:
        raise ValueError(f"context_parallel={like.context_parallel_size} must divide the {model.length} tokens")
    _check_experts(model, tensor, like)
    layout = choose_layout(model, device, devices, tensor, pipeline, like, **settings)
    if layout:
        return layout
    least = choose_layout(model, device, None, tensor, pipeline, like, **settings)
    if least is None:
        raise ValueError(
            f"{amount(model.weights, 'weights')} fit on no number of {device.name} with one sequence at a time:"
            ' try recompute="everything", zero_stage=3, shorter sequences or a larger device'
        )
    grouped = like.context_parallel_size * (tensor or 1) * (pipeline or 1)
    if devices >= least.devices and devices >= grouped and like.expert_parallel_size > 1:
        raise ValueError(
            f"expert_parallel={like.expert_parallel_size} must divide the devices of a pipeline stage: with"
            f" devices={devices} no layout that holds the model has such a number; {least.devices} devices would do"
            f" ({least})"
        )
    needed = f"the model needs at least {least.devices} {device.name} ({least})"
    raise ValueError(f"{needed}: devices={devices} is too few")


def _check_experts(model, tensor, like):
    size = like.expert_parallel_size
    if size == 1:
        return
    if model.experts % size or model.experts == 1:
        raise ValueError(
            f"expert_parallel={size} must divide the experts of a layer, of which this model has {model.experts}"
        )
    if tensor and tensor > 1 and not like.sequence_parallel:
        raise ValueError(
            f"expert_parallel={size} with tensor_parallel={tensor} needs sequence_parallel=True: otherwise all devices"
            " that share a layer have the same tokens, and would send each of them"
        )


def _sequences_that_fit(model, device, layout, settings):
    """Return how many sequences a copy of the model can take at a time, at least 1."""
    one, two = (memory(model, layout, sequences, **settings).total for sequences in (1, 2))
    left = USABLE * device.memory - one
    return 1 + max(0, int(left / (two - one)))
