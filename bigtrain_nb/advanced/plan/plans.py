"""`plan_step`: predicts the cost of one training step of a Keras model from its graph."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.advanced.plan.accelerators import ACCELERATORS
from bigtrain_nb.advanced.plan.breakdown import Breakdown, Line
from bigtrain_nb.advanced.plan.graph import UNSEEN
from bigtrain_nb.advanced.plan.peak import peak_of
from bigtrain_nb.advanced.plan.step import PlannedStep
from bigtrain_nb.common import cards
from bigtrain_nb.common.checks import integer, one_of
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.words import amount

IDLE = 1.25
"""Fragmentation of TensorFlow's best-fit allocator (bfc_allocator.cc), in units of the largest tensor: it takes the
smallest free chunk that is large enough and splits it only if that is twice as large. Fitted to the models of
benchmarks/budget.py, which need from 0.2 to 8."""
IDLE_SMALL = 0.25
"""Overhead of tensors below 256 KiB, as a share of them: on CPUs they come from malloc, which keeps memory per thread
(mkl_cpu_allocator.h). Fitted to GRUs and LSTMs."""

PROCESS, NODE = 20 * 2**20, 29 * 2**10
"""Bytes of main memory that TensorFlow needs for threads and libraries, and per node traced, optimized and run:
steps of one example took 71 MiB with 1,900 nodes, 88 with 2,660 and 226 with 7,160 (TensorFlow 2.21). That is for
`bt.Model`; where TensorFlow traces a step twice, as with stock Keras, 95 to 327."""
IN_A_LOOP = 3
"""Weight of a node in a loop's body, for which TensorFlow keeps functions too. Fitted to GRUs and LSTMs."""
SLICES = 1.15
"""With four micro-batches 12 to 19 % more."""


@dataclass(frozen=True, repr=False)
class StepPlan(cards.Shown):
    """The predicted cost of a training step on each device. ``memory`` and ``activations`` in bytes, ``flops``.

    ``activations``: by layer, at the peak. ``communication_volume``: bytes that a device sends. ``device_memory``:
    bytes of a device, None unless it was named. ``uncounted_ops``: kinds of operations whose work is not fully
    counted. ``runtime``: bytes of main memory that the process needs in addition to tensors; on a CPU, add it to
    ``peak``. With several replicas in one process it is per replica, except for 20 MiB per process.
    ``memory_timeline``: bytes of activations, gradients and workspace at each operation of the forward and backward
    pass of a micro-batch.
    """

    title: str
    memory: Breakdown
    activations: Breakdown
    flops: Breakdown
    communication_volume: Breakdown
    device_memory: float | None
    runtime: float
    uncounted_ops: list[str]
    memory_timeline: list[float]

    @property
    def peak(self) -> float:
        """Peak memory of the step in bytes, without the runtime's own."""
        return self.memory.total

    def explain(self) -> cards.Card:
        """The arithmetic of all breakdowns, line by line."""
        parts = self.memory, self.activations, self.flops, self.communication_volume
        return cards.stacked(*self._notes(), *[part.explain() for part in parts])

    def words(self):
        return list(self._words())

    def _words(self):
        if self.uncounted_ops:
            yield f"Operations not counted, or of unknown size, so more is needed: {', '.join(self.uncounted_ops)}."
        of_room = f", {self.peak / self.device_memory:.0%} of the device" if self.device_memory else ""
        yield f"{self.title}: {amount(self.peak, 'bytes')} of memory{of_room}, {amount(self.flops.total, 'FLOP')}."

    def _card(self):
        return cards.stacked(*self._notes(), self.memory._card())

    def _notes(self):
        return [cards.note(words, "") for words in self.words()]


def plan_step(
    model: Any,
    batch: Any,
    *,
    optimizer: Any = None,
    policy: str | None = None,
    loss: Any = None,
    micro_batches: int | None = None,
    shard_optimizer: bool | None = None,
    fully_shard: str | Callable | Sequence | None = None,
    reduce_dtype: str | None = None,
    on: str | None = None,
    devices: int | None = None,
    prefetched: int = 1,
) -> StepPlan:
    """Predict memory, operations and communication of one training step of a Keras model; return a `StepPlan`.

    The duration of a step is measured, not planned: `bt.throughput(step)`.

    - ``model``: a built Keras model, or a no-argument function that builds one under ``policy`` (default: current);
    - ``batch``: the full batch: a number of examples or, if the model does not define its shapes, one batch (x, y) or a
      dataset as for `bt.profile`, whose first batch is used;
    - ``optimizer``, ``loss``: default: those of the model (else AdamW, sparse cross-entropy);
    - ``micro_batches``, ``shard_optimizer``, ``fully_shard``, ``reduce_dtype``: as in `bt.Model`; default: the model's;
    - ``on``: an accelerator in `bt.ACCELERATORS`: the plan shows how much of its memory is used, and omits constants
      that only CPUs fold;
    - ``devices``: replicas that share the batch, default: those of the model's strategy; ``prefetched``: batches that
      the input pipeline prefetches.

    With ``shard_optimizer`` the volume is that of an all-reduce and an all-gather; workers on CPUs reduce-scatter and
    send a third less. With ``fully_shard`` each micro-batch gathers the weights of the chosen layers twice and
    reduce-scatters their gradients once: 1.5 times the volume of an all-reduce (Rajbhandari et al. 2020, section 7.2).
    GPUs send a third more, because they all-reduce.

    ``flops`` counts matmuls and convolutions, two per multiply-add, as published figures do.

    Each device stores all weights and optimizer state, or its shards of them, its share of the batch and, at the peak
    of the traced graph, what the backward pass still needs. What `bt.recompute` recomputes exists for one block at a
    time, and so does what a layer of ``fully_shard`` gathers and recomputes. The rest of the process (tracing, graphs)
    is the plan's ``runtime``. benchmarks/README.md lists the errors of predictions.

    The metrics of `compile` are included on one replica. Not included is what workers need to communicate, in main
    memory: the gradients joined into one message, and gRPC's buffers, which the process keeps. Each of two workers on
    CPUs that trained a GPT with 73 MiB of weights took 1,037 MiB where 546 were planned; with ``fully_shard``, whose
    messages are smaller, 589 for 386.

    Raises ValueError for invalid settings, for a model that is not built or has layers sharded already, for an
    optimizer that cannot be sharded, and inside a strategy's scope; TypeError if ``model`` is not a Keras model or has
    a custom `train_step`, which cannot be planned, and if ``batch`` is not a batch. Only `compile` checks whether the
    layers can be sharded.

    Example::

        plan = bt.plan_step(bt.conv_net(image_size=16), batch=64, on="A100 80 GB")
        print(plan.peak, plan.device_memory, plan.flops.total)
        print(plan.memory.explain())
    """
    integer("prefetched", prefetched, 0)
    if on is not None:
        one_of("on", on, tuple(ACCELERATORS))
    settings = {
        "micro_batches": micro_batches,
        "shard_optimizer": shard_optimizer,
        "fully_shard": fully_shard,
        "reduce_dtype": reduce_dtype,
    }
    step = PlannedStep(model, batch, optimizer, policy, loss, devices, **settings)
    title = f"A step of {step.examples} examples"
    if step.devices > 1:
        title += f" on each of {step.devices} devices"
    if step.slices > 1:
        title += f" in {step.slices} micro-batches of {step.slice_examples}"
    gradients = peak_of(step.gradients)
    fullest = gradients.fullest.most_common()
    layers = [Line(layer, size) for (kind, layer), size in fullest if kind == "activations" and size]
    of_gpu = on is not None or bool(tf.config.list_logical_devices("GPU"))
    of_update = UNSEEN.intersection(step.update.uncounted_ops)  # rows of sparse gradients are at most those given
    return StepPlan(
        title=f"{title}, {step.optimizer}, {' and '.join(step.policies)}",
        memory=_memory(step, gradients, prefetched, of_gpu),
        activations=Breakdown("Activations by layer", "bytes", layers),
        flops=_flops(step),
        communication_volume=_communication_volume(step),
        device_memory=ACCELERATORS[on].memory if on else None,
        runtime=PROCESS + NODE * _nodes(step),
        uncounted_ops=sorted(of_update.union(step.gradients.uncounted_ops)),
        memory_timeline=gradients.course,
    )


def _nodes(step):
    """Return how many nodes TensorFlow keeps for a step."""
    nodes = IN_A_LOOP * len(step.gradients.operations) - (IN_A_LOOP - 1) * len(step.gradients.nodes)
    if step.slices > 1:
        nodes *= SLICES if step.in_a_loop else step.slices
    return nodes + len(step.update.operations)


_HOW = {
    "weights": "all variables of the model, or the replica's shards of those that are fully sharded",
    "optimizer state": "all variables of the optimizer, or the replica's shards of them",
    "weight shards": "what a sharded optimizer updates, in addition to the weights",
    "input": "the batch, prefetched ones, and a micro-batch where the batch is split",
    "gradients": "of a micro-batch, and their sums in float32, old and new ones",
    "cast copies": "weights in the layers' own precision",
    "unsharded layer": "weights of a fully sharded layer as they are gathered, gradients as they are reduced",
    "activations": "what the backward pass reads of what the forward pass made",
    "workspace": "temporary tensors, and what bt.recompute or fully_shard recomputes",
    "constants": "what Grappler folds on a CPU if it knows the batch's size: not after batch(n) without drop_remainder",
    "allocator overhead": f"free between tensors: {IDLE:g} x the largest tensor, {IDLE_SMALL:g} x those below 256 KiB",
}
"""The parts of a step's memory in display order."""


def _memory(step, gradients, prefetched, of_gpu):
    """Return the breakdown at the higher of two peaks: in the gradients of a micro-batch, or in the update."""
    moment = gradients.kinds
    if step.slices > 1:
        sums = 2 if step.in_a_loop else 1  # of earlier micro-batches and, in a loop, those that it returns
        moment["gradients"] += sums * step.sums
    fullest = gradients
    total_how = f"most at {gradients.at}"
    update = peak_of(step.update)
    if step.applied + update.total > moment.total():
        moment = Counter(gradients=step.applied, workspace=update.total)
        fullest = update
        total_how = "most when weights are updated"
    parts = {
        "weights": step.weights,
        "optimizer state": step.slots,
        "weight shards": step.shards,
        "input": step.batch * (1 + prefetched) + step.slice,
        **moment,
        "constants": 0 if of_gpu else step.folded,  # GPUs keep none: measured, see benchmarks/README.md
        "allocator overhead": IDLE * fullest.largest + IDLE_SMALL * fullest.small,
    }
    lines = [Line(name, parts[name], how) for name, how in _HOW.items() if parts.get(name)]
    return Breakdown("Memory of a step", "bytes", lines, total_how=total_how)


def _flops(step):
    forward, both = Counter(), Counter()
    for op in step.gradients.operations:
        if op.flops:
            count = step.examples / step.slice_examples * op.times * op.flops
            both[op.layer] += count
            forward[op.layer] += 0 if op.backward else count
    lines = [Line(layer, count, f"forward {amount(forward[layer], 'FLOP')}") for layer, count in both.most_common()]
    times = f"{both.total() / max(1, forward.total()):.2f} times the forward pass (rule of thumb: 3)"
    return Breakdown("Operations of a step, forward and backward", "FLOP", lines, total_how=times)


def _communication_volume(step):
    """Return a `Breakdown` of the bytes that a device sends in a step, as `all_reduce_seconds` counts."""
    devices = step.devices
    ring = (devices - 1) / devices  # of a reduce-scatter or an all-gather; an all-reduce is both
    lines = [Line("gradients", 2 * ring * step.sent, f"2({devices}-1)/{devices} x {amount(step.sent, 'bytes')}")]
    for what, times, size in (("gathered weights", 2, step.gathered), ("scattered gradients", 1, step.scattered)):
        if size:
            how = f"{step.slices} x {times}({devices}-1)/{devices} x {amount(size, 'bytes')} of fully sharded layers"
            lines.append(Line(what, step.slices * times * ring * size, how))
    if step.settings["shard_optimizer"]:
        how = f"({devices}-1)/{devices} x {amount(step.trainable, 'bytes')}, gathered from their shards"
        lines.append(Line("weights", ring * step.trainable, how))
    return Breakdown("Communication volume of a device in a step", "bytes", lines)
