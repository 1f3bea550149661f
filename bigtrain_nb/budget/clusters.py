"""`plan_cluster`: how many devices a transformer given by a few numbers needs, and what its step takes there."""

from dataclasses import dataclass

from bigtrain_nb.budget import formulas, layout
from bigtrain_nb.budget.accelerators import Accelerator, accelerator
from bigtrain_nb.budget.account import Account, Plan, amount
from bigtrain_nb.budget.layout import Layout
from bigtrain_nb.budget.transformer import Transformer
from bigtrain_nb.settings import fraction, whole_number

EFFICIENCY = 0.5
"""Share of the published FLOP/s that matrices reach; large runs report 0.4 to 0.55 of it, waiting included: 0.46 for
PaLM (Chowdhery et al. 2022), 0.52 for a trillion parameters on A100 (Narayanan et al. 2021)."""


@dataclass(frozen=True, repr=False)
class ClusterPlan(Plan):
    """What a training step of a `Transformer` takes on many devices.

    Accounts of one device's ``memory`` and sending (``wire``), the ``flops`` of all and the ``time`` of the step.
    ``tokens``: in a step, over all devices.
    """

    model: Transformer
    device: Accelerator
    layout: Layout
    memory: Account
    flops: Account
    wire: Account
    time: Account
    tokens: int

    @property
    def fits(self):
        """Whether the memory suffices, with a tenth left to the runtime."""
        return self.memory.total <= layout.USABLE * self.device.memory

    @property
    def binding(self):
        """What binds the step: "computing", "communication" or "input"."""
        return formulas.binding(self.time)

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
        yield from self.layout.words()

    @property
    def accounts(self):
        return [self.memory, self.flops, self.wire, self.time]


def plan_cluster(
    model, batch, *, on="H100", devices=None, micro_batches=None, policy="mixed_bfloat16", optimizer="adamw",
    recompute="none", layout_is=None, efficiency=EFFICIENCY, network=layout.NETWORK, input_seconds=0.0,
):  # fmt: skip
    """Predict a training step of a `Transformer` on devices of a kind; return a `ClusterPlan`.

    - ``batch``: sequences in a step, over all devices; ``on``: a name of `bt.ACCELERATORS`;
    - ``devices``: how many; default: the fewest that hold the model. Those share layers and pipeline as little as
      memory asks for, and the batch for the rest; ``layout_is`` sets a `Layout` instead;
    - ``micro_batches``: slices of the batch that a group of devices takes; default: one for each sequence;
    - ``policy``, ``optimizer`` ("sgd", "momentum", "rmsprop", "lion", "adam", "adamw");
    - ``recompute``: "none", "attention" or "everything" is computed again in the backward pass instead of kept;
    - ``efficiency``: the share of the published FLOP/s that is reached; ``network``: bytes/s between nodes.

    Raises ValueError for settings that make no sense, and where no layout holds the model; TypeError for what is no
    `Transformer` or `Layout`.
    """
    if not isinstance(model, Transformer):
        raise TypeError(f"plan_cluster takes a bt.Transformer(layers, width, heads, ...), not {type(model).__name__}")
    if not isinstance(layout_is, Layout | None):
        raise TypeError(f"layout_is={layout_is!r} must be a bt.Layout(tensor, pipeline, data), or None")
    device, batch = accelerator(on), whole_number("batch", batch, 1)
    chosen = layout_is or _choose(model, device, devices, policy, optimizer, recompute)
    share = -(-batch // chosen.data)
    micro_batches = share if micro_batches is None else whole_number("micro_batches", micro_batches, 1)
    slices = min(share, micro_batches)
    flops = model.flops(batch, recompute)
    wire, sending = layout.on_the_wire(model, chosen, device, share, policy, network)
    rate = device.flops(policy) * (efficiency if efficiency == 1 else fraction("efficiency", efficiency))
    busy = flops.total / chosen.devices / rate
    bubble = formulas.pipeline_bubble(chosen.pipeline, slices)
    how = f"{amount(flops.total, 'FLOP')} / {chosen.devices} / {amount(rate, 'FLOP/s')}"
    how += f" / (1 - {bubble:.2f} waiting for the pipeline to fill)" if bubble else ""
    how += f"; {efficiency:g} of {device.source}"
    time = formulas.step_time(busy / (1 - bubble), sending.total, input_seconds, (how, _split(sending), "as given"))
    memory = layout.memory(model, chosen, -(-share // slices), policy, optimizer, recompute)
    return ClusterPlan(model, device, chosen, memory, flops, wire, time, batch * model.length)


def _choose(model, device, devices, policy, optimizer, recompute):
    least = layout.smallest_layout(model, device, policy, optimizer, recompute)
    if least is None:
        raise ValueError(
            f"{amount(model.weights, 'weights')} fit on no number of {device.name} with one sequence at a time:"
            ' try recompute="everything", shorter sequences or a larger device'
        )
    if devices is None:
        return least
    devices = whole_number("devices", devices, 1)
    if devices < least.devices:
        needed = f"the model needs at least {least.devices} {device.name} ({least})"
        raise ValueError(f"{needed}: devices={devices} is too few")
    return Layout(least.tensor, least.pipeline, devices // (least.tensor * least.pipeline))


def _split(sending):
    return ", ".join(f"{line.name} {amount(line.value, 's')} {line.how}" for line in sending.lines if line.value)
