"""`plan_step`: what one training step of a Keras model will take, from its graph."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.common.checks import not_negative, one_of, positive, whole_number
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.accelerators import ACCELERATORS
from bigtrain_nb.plan.bound import least_seconds
from bigtrain_nb.plan.breakdown import Breakdown, Line, Plan, step_time
from bigtrain_nb.plan.peak import peak_of
from bigtrain_nb.plan.step import Step
from bigtrain_nb.plan.this_machine import on_gpu, this_machine

IDLE = 1.25
"""What lies idle between tensors in TensorFlow's best-fit allocator (bfc_allocator.cc), in tensors of the largest size:
it takes the smallest free chunk that is large enough and splits it only if that is twice as large. Chosen on the
networks of benchmarks/budget.py, which need from 0.2 to 8."""
IDLE_SMALL = 0.25
"""What lies idle beside tensors below 256 KiB, as a part of them: on CPUs they come from malloc, of which each thread
keeps memory (mkl_cpu_allocator.h). Chosen on GRUs and LSTMs."""

PROCESS, NODE = 20 * 2**20, 29 * 2**10
"""Bytes of main memory that TensorFlow takes for threads and libraries, and for each node that it traces, optimizes and
runs: steps of one example took 71 MiB with 1,900 nodes, 88 with 2,660 and 226 with 7,160 (TensorFlow 2.21). That is for
`bt.Model`; where TensorFlow traces a step twice, as stock Keras', 95 to 327."""
IN_A_LOOP = 3
"""How often a node counts in the body of a loop, of which TensorFlow keeps functions too. Chosen on GRUs and LSTMs."""
SLICES = 1.15
"""With four slices 12 to 19 % more."""


@dataclass(frozen=True, repr=False)
class StepPlan(Plan):
    """What a training step will take on each device. ``memory`` and ``activations`` in bytes, ``flops``, ``time``.

    ``activations``: by layer, at the fullest moment. ``communication_volume``: bytes that a device sends. ``time``: a
    lower bound, None unless asked for. ``unseen``: kinds of operations of which not all work is counted. ``runtime``:
    bytes of main memory that the process takes beside the tensors, on a CPU to be added to ``peak``. Where one process
    has several replicas it is that for each, but for 20 MiB, which it takes once. ``memory_course``: bytes of
    activations, gradients and work while each operation of the forward and backward pass of one slice runs, in turn.
    """

    title: str
    memory: Breakdown
    activations: Breakdown
    flops: Breakdown
    communication_volume: Breakdown
    time: Breakdown | None
    runtime: float
    unseen: list[str]
    memory_course: list[float]

    @property
    def peak(self) -> float:
        """Bytes of memory at the fullest moment of the step, without what the runtime itself takes."""
        return self.memory.total

    @property
    def seconds(self) -> float | None:
        """Seconds below which no step is done, or None."""
        return self.time and self.time.total

    def words(self):
        if self.unseen:
            yield f"Not looked into, or of no known size, so more is needed: {', '.join(self.unseen)}."
        yield f"{self.title}: {amount(self.peak, 'bytes')} of memory, {amount(self.flops.total, 'FLOP')}."
        if self.time:
            bound = "" if self.binding == "computing" else f", bound by {self.binding}"
            yield f"At least {amount(self.seconds, 's')} a step{bound}: no step is faster."


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
    link: float | None = None,
    waiting: int = 1,
    input_seconds: float = 0.0,
) -> StepPlan:
    """Predict memory and operations of one training step of a Keras model, and with ``on`` its least time.

    Returns a `StepPlan`.

    - ``model``: a built Keras model, or a function without arguments that returns one, called under ``policy``;
    - ``batch``: the whole batch: a number of examples, or where the model does not tell its shapes one batch (x, y), or
      a dataset as for `bt.profile`, of which the first batch is taken;
    - ``optimizer``, ``loss``: default: those of the model (else AdamW, sparse cross-entropy);
    - ``micro_batches``, ``shard_optimizer``, ``fully_shard``, ``reduce_dtype``: as of `bt.Model`; default: the model's;
    - ``on``: the name of an accelerator (published figures, `bt.ACCELERATORS`), or "here": large products of matrices
      and memory are measured on this machine, and on CPUs also what is slower than these tell, alone; once in a
      process, in two seconds and some tenth of a second for each shape. Each device is a machine like this one. The
      memory is that of a GPU for an accelerator and where TensorFlow has a GPU: constants are folded on CPUs only;
    - ``devices``: replicas that share the batch, default: those of the model's strategy; ``waiting``: batches that the
      input pipeline holds ready; ``input_seconds``: the time that it takes to make a batch;
    - ``link``: bytes/s that a device sends to the next, as measured between workers; default: what is published, or
      for "here" what memory allows.

    With ``shard_optimizer`` what is sent is what an all-reduce and a gathering send; workers on CPUs reduce-scatter and
    send a third less. With ``fully_shard`` each micro-batch gathers the weights of the chosen layers twice and
    reduce-scatters their gradients once: 1.5 times what
    an all-reduce sends (Rajbhandari et al. 2020, section 7.2). GPUs send a third more, for they all-reduce.

    ``flops`` counts products of matrices and convolutions, two for each multiply-add, as published figures do.

    The time is a lower bound: no step is faster. An operation takes at least its FLOPs at the rate of large products of
    matrices, the bytes that it surely moves, or its start (a roofline, Williams et al. 2009). Here, bytes count at the
    bandwidth of as many, in a cache or not; on an accelerator, what its cache may hold does not count. XLA, which Keras
    uses on GPUs, fuses operations: there only products, convolutions and the update of the variables count, and the
    bound does not hold for convolutions by Winograd's method, which take fewer FLOPs.

    On CPUs some operations in float32 take what they took alone: products of two matrices of at most 16 MiB as they
    are; and with as many examples as 4 MiB hold, products for each example, convolutions, averages, sums, pools, and
    what repeats numbers. That is noisy: for three 1-D convolutions the bound was once 5 % above the fastest of eight
    steps. benchmarks/README.md says how near it is.

    Each device holds: all weights and slots, or its shards of them, its share of the batch, and at the fullest moment
    of the traced graph what the backward pass still needs; what `bt.recompute` computes again is alive for one block at
    a time, and so is what a layer of ``fully_shard`` gathers and computes again. What the process takes beside it
    (tracing, graphs) is the plan's ``runtime``. benchmarks/README.md says how far off predictions were.

    Not in the plan is what workers take to talk to each other, which lives in main memory: the gradients joined into
    one message and split again, the buffers in which gRPC sends and receives that, which the process keeps, and the
    operations of the collectives. Each of two workers on CPUs that trained a GPT of 73 MiB of weights on eight examples
    took 1,037 MiB where 546 were planned: 340 more for buffers, 91 for the message and 60 for operations. With
    ``shard_optimizer`` it was 1,048 for 509; with ``fully_shard``, where most messages are of one layer, 589 for 386;
    with next to no weights 213 for 169.

    Raises ValueError for settings that make no sense, for a model that is not built, is tensor-parallel or has layers
    that are sharded already, for an optimizer that cannot be sharded, and where it is called in a strategy's scope;
    TypeError for no Keras model, for one with a `train_step` of its own, of which the plan would know nothing, and for
    what is no batch. Whether the layers can be sharded, `compile` tells.

    Example::

        plan = bt.plan_step(bt.conv_net(image_size=16), batch=64, on="A100 80 GB")
        print(plan.peak, plan.seconds, plan.binding)
        print(plan.memory.explain())
    """
    whole_number("waiting", waiting, 0)
    not_negative("input_seconds", input_seconds, "seconds")
    if link is not None:
        positive("link", link, "bytes/s")
    if on is not None:
        one_of("on", on, (*ACCELERATORS, "here"))
    settings = {
        "micro_batches": micro_batches,
        "shard_optimizer": shard_optimizer,
        "fully_shard": fully_shard,
        "reduce_dtype": reduce_dtype,
    }
    step = Step(model, batch, optimizer, policy, loss, devices, **settings)
    return plan_of(step, on, link, waiting, input_seconds)


def plan_of(step, on=None, link=None, waiting=1, input_seconds=0.0):
    """Return the `StepPlan` of a traced `Step`."""
    title = f"A step of {step.examples} examples"
    if step.devices > 1:
        title += f" on each of {step.devices} devices"
    if step.slices > 1:
        title += f" in {step.slices} slices of {step.slice_examples}"
    gradients = peak_of(step.gradients)
    layers = []
    for (kind, layer), size in gradients.fullest.most_common():
        if kind == "activations" and size:
            layers.append(Line(layer, size))
    volume = _communication_volume(step)
    return StepPlan(
        title=f"{title}, {step.optimizer}, {' and '.join(step.policies)}",
        memory=_memory(step, gradients, waiting, of_gpu=on in ACCELERATORS or on_gpu()),
        activations=Breakdown("Activations by layer", "bytes", layers),
        flops=_flops(step),
        communication_volume=volume,
        time=_time(step, volume.total, on, link, input_seconds) if on else None,
        runtime=PROCESS + NODE * _nodes(step),
        unseen=step.gradients.unseen,
        memory_course=gradients.course,
    )


def _nodes(step):
    """Return how many nodes TensorFlow keeps for a step."""
    nodes = IN_A_LOOP * len(step.gradients.operations) - (IN_A_LOOP - 1) * len(step.gradients.nodes)
    if step.slices > 1:
        nodes *= SLICES if step.in_a_loop else step.slices
    return nodes + len(step.update.operations)


_HOW = {
    "weights": "all variables of the model, or the replica's shards of those that are fully sharded",
    "optimizer slots": "all variables of the optimizer, or the replica's shards of them",
    "weight shards": "what a sharded optimizer updates, beside the weights",
    "input": "the batch, those that wait, and a slice where the batch is cut",
    "gradients": "of a slice, and the sums over slices in float32, old ones beside new ones",
    "cast copies": "weights in the layers' own precision",
    "layer in one piece": "weights of a fully sharded layer as they are gathered, gradients as they are reduced",
    "activations": "what the backward pass reads of what the forward pass made",
    "work": "what operations hand on and write over, and what bt.recompute or fully_shard makes again",
    "folded": "what Grappler keeps on a CPU if it knows the batch's size: not after batch(n) without drop_remainder",
    "idle": f"between tensors in the allocator: {IDLE:g} x the largest tensor, {IDLE_SMALL:g} x those below 256 KiB",
}
"""The parts of a step's memory in the order in which they are shown."""


def _memory(step, gradients, waiting, of_gpu):
    """Return the breakdown of the fuller one of two moments: within the gradients of a slice, or in the update."""
    moment = gradients.kinds
    if step.slices > 1:
        sums = 2 if step.in_a_loop else 1  # of the slices before and, in a loop, those that it returns
        moment["gradients"] += sums * step.trainable
    fullest = gradients
    total_how = f"most at {gradients.at}"
    update = peak_of(step.update)
    if step.applied + update.total > moment.total():
        moment = Counter(gradients=step.applied, work=update.total)
        fullest = update
        total_how = "most when weights are updated"
    parts = {
        "weights": step.weights,
        "optimizer slots": step.slots,
        "weight shards": step.shards,
        "input": step.batch * (1 + waiting) + step.slice,
        **moment,
        "folded": 0 if of_gpu else step.folded,  # GPUs keep none: measured, see benchmarks/README.md
        "idle": IDLE * fullest.largest + IDLE_SMALL * fullest.small,
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
    devices, settings = step.devices, step.settings
    ring = (devices - 1) / devices  # of a reduce-scatter or an all-gather; an all-reduce is both
    lines = [Line("gradients", 2 * ring * step.sent, f"2({devices}-1)/{devices} x {amount(step.sent, 'bytes')}")]
    for what, times, size in (("gathered weights", 2, step.gathered), ("scattered gradients", 1, step.scattered)):
        if size:
            how = f"{step.slices} x {times}({devices}-1)/{devices} x {amount(size, 'bytes')} of fully sharded layers"
            lines.append(Line(what, step.slices * times * ring * size, how))
    if settings["shard_optimizer"]:
        how = f"({devices}-1)/{devices} x {amount(step.trainable, 'bytes')}, gathered from their shards"
        lines.append(Line("weights", ring * step.trainable, how))
    return Breakdown("Sent by a device in a step", "bytes", lines)


def _time(step, sent, on, link, input_seconds):
    machine = this_machine() if on == "here" else ACCELERATORS[on]
    slices = step.examples / step.slice_examples
    computing = slices * least_seconds(step.gradients, machine) + least_seconds(step.update, machine)
    speed = link or machine.link
    how = f"each operation at its fastest, by {machine.source}"
    return step_time(computing, sent / speed, input_seconds, how, f"{amount(sent, 'bytes')} / {amount(speed, 'B/s')}")
