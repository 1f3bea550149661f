"""`plan_cluster`: how many devices a transformer given by a few numbers needs, and what its step takes there."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import one_of, share_of, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan import parallelism
from bigtrain_nb.plan.accelerators import ACCELERATORS, Accelerator
from bigtrain_nb.plan.breakdown import Breakdown, Plan, step_time
from bigtrain_nb.plan.parallelism import Layout
from bigtrain_nb.plan.transformer import MOST, Transformer

MFU = 0.5
"""Share of the published FLOP/s that a device reaches while it computes. What large runs report has waiting in it: 0.46
for PaLM (Chowdhery et al. 2022), 0.52 for a trillion weights on A100 (Narayanan et al. 2021)."""


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
    spare: int = 0

    @property
    def fits(self):
        """Whether the memory suffices, with a tenth left to the runtime."""
        return self.memory.total <= parallelism.USABLE * self.device.memory

    @property
    def tokens_per_second(self):
        return self.tokens / self.time.total

    def words(self):
        fits = "fits" if self.fits else "does not fit"
        usable = amount(parallelism.USABLE * self.device.memory, "bytes")
        step = f"{amount(self.time.total, 's')} a step of {amount(self.tokens, 'tokens')}"
        yield f"{amount(self.model.weights, 'weights')} on {self.layout.devices} x {self.device.name}: {self.layout}."
        yield f"It {fits}: {amount(self.memory.total, 'bytes')} of {usable} usable on each device."
        yield f"{step}, bound by {self.binding}: {amount(self.tokens_per_second, 'tokens')}/s."
        if self.spare:
            needed = self.layout.model_parallel_size
            yield f"{self.spare} more devices have nothing to do: a copy of the model takes {needed}."
        yield from self.layout.words()


def plan_cluster(
    model, batch, *, on="H100", devices=None, micro_batches=None, policy="mixed_bfloat16", optimizer="adamw",
    recompute="none", mfu=MFU, network=parallelism.NETWORK, input_seconds=0.0,
):  # fmt: skip
    """Predict a training step of a `Transformer` on devices of a kind; return a `ClusterPlan`.

    - ``batch``: sequences in a step, over all devices; ``on``: a name of `bt.ACCELERATORS`;
    - ``devices``: how many; default: the fewest that hold the model. Those share layers and pipeline as little as
      memory asks for, and the batch for the rest;
    - ``micro_batches``: slices of the batch that a group of devices takes; default: one for each sequence;
    - ``policy``, ``optimizer`` ("sgd", "momentum", "rmsprop", "lion", "adam", "adamw");
    - ``recompute``: "none", "attention" or "everything" is computed again in the backward pass instead of kept;
    - ``mfu``: the share of the published FLOP/s that a device reaches while it computes; ``network``: bytes/s
      between nodes; ``input_seconds``: the time that it takes to make a batch.

    Computing, waiting for the pipeline to fill and sending are added up: nothing overlaps but the input.

    Raises ValueError for settings that make no sense, and where no layout holds the model; TypeError for what is no
    `Transformer`.
    """
    if not isinstance(model, Transformer):
        raise TypeError(f"plan_cluster takes a bt.Transformer(layers, width, heads, ...), not {type(model).__name__}")
    device = ACCELERATORS[one_of("on", on, ACCELERATORS)]
    batch = whole_number("batch", batch, 1, MOST)
    rate = device.flops(policy) * share_of("mfu", mfu)
    layout, spare = _choose(model, device, devices, policy, optimizer, recompute)

    share = -(-batch // layout.data_parallel_size)
    micro_batches = share if micro_batches is None else whole_number("micro_batches", micro_batches, 1)
    slice_size = -(-share // micro_batches)
    slices = -(-share // slice_size)

    work = model.flops(share, recompute).total
    waits = layout.pipeline_parallel_size - 1
    bubble = waits / (slices + waits)  # the share of a step that stages wait, Huang et al. 2019
    computing = work / layout.model_parallel_size / rate / (1 - bubble)
    how = f"{amount(work, 'FLOP')} / {layout.model_parallel_size} / {amount(rate, 'FLOP/s')}"
    if bubble:
        how += f" / (1 - {bubble:.2f} waiting for the pipeline to fill)"
    how += f"; {mfu:g} of {device.source}"

    volume, sending = parallelism.communication_volume(model, layout, device, share, policy, network, recompute)
    sent = [f"{line.name} {amount(line.value, 's')} {line.how}" for line in sending.lines if line.value]
    return ClusterPlan(
        model=model,
        device=device,
        layout=layout,
        memory=parallelism.memory(model, layout, slice_size, policy, optimizer, recompute),
        flops=model.flops(batch, recompute),
        communication_volume=volume,
        time=step_time(computing, sending.total, input_seconds, (how, ", ".join(sent), "as given")),
        tokens=batch * model.length,
        spare=spare,
    )


def _choose(model, device, devices, policy, optimizer, recompute):
    """Return the `Layout` for so many devices, and how many of them it leaves over."""
    least = parallelism.smallest_layout(model, device, policy, optimizer, recompute)
    if least is None:
        raise ValueError(
            f"{amount(model.weights, 'weights')} fit on no number of {device.name} with one sequence at a time:"
            ' try recompute="everything", shorter sequences or a larger device'
        )
    if devices is None:
        return least, 0
    devices = whole_number("devices", devices, 1, MOST)
    if devices < least.devices:
        needed = f"the model needs at least {least.devices} {device.name} ({least})"
        raise ValueError(f"{needed}: devices={devices} is too few")
    copies, spare = divmod(devices, least.model_parallel_size)
    return Layout(least.tensor_parallel_size, least.pipeline_parallel_size, copies), spare
