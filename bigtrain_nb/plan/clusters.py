"""`plan_cluster`: how many devices a transformer given by a few numbers needs, and what its step takes there."""

from dataclasses import dataclass

from bigtrain_nb.common.checks import one_of, share_of, whole_number
from bigtrain_nb.plan import formulas
from bigtrain_nb.plan import parallelism as layout
from bigtrain_nb.plan.accelerators import ACCELERATORS, Accelerator
from bigtrain_nb.plan.breakdown import Account, Plan, amount
from bigtrain_nb.plan.parallelism import Layout
from bigtrain_nb.plan.transformer import MOST, Transformer

EFFICIENCY = 0.5
"""Share of the published FLOP/s that a device reaches while it computes. What large runs report has waiting in it: 0.46
for PaLM (Chowdhery et al. 2022), 0.52 for a trillion weights on A100 (Narayanan et al. 2021)."""


@dataclass(frozen=True, repr=False)
class ClusterPlan(Plan):
    """What a training step of a `Transformer` takes on many devices.

    Accounts of one device's ``memory`` and sending (``wire``), the ``flops`` of all and the ``time`` of the step.
    ``tokens``: in a step, over all devices. ``spare``: devices that the layout leaves over.
    """

    model: Transformer
    device: Accelerator
    layout: Layout
    memory: Account
    flops: Account
    wire: Account
    time: Account
    tokens: int
    spare: int = 0

    @property
    def fits(self):
        """Whether the memory suffices, with a tenth left to the runtime."""
        return self.memory.total <= layout.USABLE * self.device.memory

    @property
    def tokens_per_second(self):
        return self.tokens / self.time.total

    def words(self):
        fits = "fits" if self.fits else "does not fit"
        usable = amount(layout.USABLE * self.device.memory, "bytes")
        yield f"{amount(self.model.weights, 'weights')} on {self.layout.devices} x {self.device.name}: {self.layout}."
        yield f"It {fits}: {amount(self.memory.total, 'bytes')} of {usable} usable on each device."
        yield (
            f"{amount(self.time.total, 's')} a step of {amount(self.tokens, 'tokens')}, bound by {self.binding}: "
            f"{amount(self.tokens_per_second, 'tokens')}/s."
        )
        if self.spare:
            yield f"{self.spare} more devices have nothing to do: a copy of the model takes {self.layout.copy}."
        yield from self.layout.words()


def plan_cluster(
    model, batch, *, on="H100", devices=None, micro_batches=None, policy="mixed_bfloat16", optimizer="adamw",
    recompute="none", efficiency=EFFICIENCY, network=layout.NETWORK, input_seconds=0.0,
):  # fmt: skip
    """Predict a training step of a `Transformer` on devices of a kind; return a `ClusterPlan`.

    - ``batch``: sequences in a step, over all devices; ``on``: a name of `bt.ACCELERATORS`;
    - ``devices``: how many; default: the fewest that hold the model. Those share layers and pipeline as little as
      memory asks for, and the batch for the rest;
    - ``micro_batches``: slices of the batch that a group of devices takes; default: one for each sequence;
    - ``policy``, ``optimizer`` ("sgd", "momentum", "rmsprop", "lion", "adam", "adamw");
    - ``recompute``: "none", "attention" or "everything" is computed again in the backward pass instead of kept;
    - ``efficiency``: the share of the published FLOP/s that a device reaches while it computes; ``network``: bytes/s
      between nodes; ``input_seconds``: the time that it takes to make a batch.

    Computing, waiting for the pipeline to fill and sending are added up: nothing overlaps but the input.

    Raises ValueError for settings that make no sense, and where no layout holds the model; TypeError for what is no
    `Transformer`.
    """
    if not isinstance(model, Transformer):
        raise TypeError(f"plan_cluster takes a bt.Transformer(layers, width, heads, ...), not {type(model).__name__}")
    device, batch = ACCELERATORS[one_of("on", on, ACCELERATORS)], whole_number("batch", batch, 1, MOST)
    chosen, spare = _choose(model, device, devices, policy, optimizer, recompute)
    share = -(-batch // chosen.data)
    slice_size = -(-share // (share if micro_batches is None else whole_number("micro_batches", micro_batches, 1)))
    wire, sending = layout.on_the_wire(model, chosen, device, share, policy, network, recompute)
    rate = device.flops(policy) * share_of("efficiency", efficiency)
    work = model.flops(share, recompute).total
    busy = work / chosen.copy / rate
    waits = chosen.pipeline - 1
    bubble = waits / (-(-share // slice_size) + waits)  # the share of a step that stages wait, Huang et al. 2019
    how = f"{amount(work, 'FLOP')} / {chosen.copy} / {amount(rate, 'FLOP/s')}"
    how += f" / (1 - {bubble:.2f} waiting for the pipeline to fill)" if bubble else ""
    how += f"; {efficiency:g} of {device.source}"
    time = formulas.step_time(busy / (1 - bubble), sending.total, input_seconds, (how, _split(sending), "as given"))
    memory = layout.memory(model, chosen, slice_size, policy, optimizer, recompute)
    flops = model.flops(batch, recompute)
    return ClusterPlan(model, device, chosen, memory, flops, wire, time, batch * model.length, spare)


def _choose(model, device, devices, policy, optimizer, recompute):
    """Return the `Layout` for so many devices, and how many of them it leaves over."""
    least = layout.smallest_layout(model, device, policy, optimizer, recompute)
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
    return Layout(least.tensor, least.pipeline, devices // least.copy), devices % least.copy


def _split(sending):
    return ", ".join(f"{line.name} {amount(line.value, 's')} {line.how}" for line in sending.lines if line.value)
