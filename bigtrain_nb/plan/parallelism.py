"""How a transformer goes on many devices: how they divide the work, and what each holds."""

import itertools
import math
from dataclasses import dataclass, replace

from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.breakdown import Breakdown, Line
from bigtrain_nb.plan.transformer import BYTES_OF, training_state

USABLE = 0.9
"""Share of a device's memory that a plan may fill: the runtime, its libraries and fragmentation take the rest."""

CUTS = {
    "tensor": "in each layer (tensor parallel)",
    "context": "over each sequence (context parallel)",
    "pipeline": "along the layers (pipeline parallel)",
    "data": "over the batch (data parallel)",
}

HERE = "bigtrain_nb"
TENSORFLOW = "elsewhere in TensorFlow"
NOWHERE = "nowhere known in TensorFlow"


@dataclass(frozen=True)
class Part:
    """A part of a layout, ``where`` there is code for it, and ``how`` it is called, or what to do instead."""

    what: str
    where: str
    how: str


@dataclass(frozen=True)
class Layout:
    """How many devices share each layer (tensor), each sequence (context), the layers (pipeline) and the batch (data).

    ``zero_stage``: what the copies of the model divide among them: 1 the optimizer's state, 2 also the gradients, 3
    also the weights (ZeRO, Rajbhandari et al. 2020). Devices that share a sequence have copies of the weights, and
    divide with those that share the batch. ``interleave``: runs of layers that a pipeline stage has, which divide the
    time that it waits (Narayanan et al. 2021). ``sequence_parallel``: whether devices that share a layer also share
    what lies between its parts (Korthikanti et al. 2022). ``expert_parallel_size``: of the tensor x context x data
    devices of a stage, how many share out the experts, each of which is whole on its device (Lepikhin et al. 2020,
    GShard; in such a group also the devices of tensor parallelism: Liu et al. 2025, MoE Parallel Folding).
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    zero_stage: int = 0
    interleave: int = 1
    sequence_parallel: bool = False
    context_parallel_size: int = 1
    expert_parallel_size: int = 1

    @property
    def model_parallel_size(self):
        """Devices that work on a sequence together. Without context parallelism they hold one copy of the model."""
        return self.tensor_parallel_size * self.context_parallel_size * self.pipeline_parallel_size

    @property
    def devices(self):
        return self.model_parallel_size * self.data_parallel_size

    @property
    def copies(self):
        """Devices that have the same weights, but for the experts."""
        return self.context_parallel_size * self.data_parallel_size

    @property
    def sharers_of_experts(self):
        """Devices that share the experts of a layer: by whole experts, or else like any layer."""
        return self.expert_parallel_size if self.expert_parallel_size > 1 else self.tensor_parallel_size

    @property
    def copies_of_experts(self):
        """Devices that have the same experts."""
        return self.tensor_parallel_size * self.copies // self.sharers_of_experts

    def layers_of_a_stage(self, layers):
        """The layers of the fullest pipeline stage, all its runs together."""
        runs = self.pipeline_parallel_size * self.interleave
        return self.interleave * -(-layers // runs)

    def blocks_in_flight(self, layers, slices=math.inf):
        """Of how many blocks the first pipeline stage keeps activations at a time, those of each micro-batch counted.

        1F1B keeps p micro-batches there (Narayanan et al. 2021), interleaved runs 1 + (p-1)/(pv) times as many
        (Korthikanti et al. 2022, section 4.2.3), and no schedule more than there are.
        """
        p, v = self.pipeline_parallel_size, self.interleave
        micro_batches = p + (p - 1) / v if v > 1 else p
        return min(micro_batches, slices) * self.layers_of_a_stage(layers)

    def waiting(self, slices):
        """The share of a step in which a pipeline stage waits: (p-1)/(vm+p-1) for m micro-batches and v runs.

        Huang et al. 2019 (GPipe); with runs, Narayanan et al. 2021.
        """
        others = self.pipeline_parallel_size - 1
        return others / (self.interleave * slices + others)

    @property
    def sizes(self):
        """{"tensor", "context", "pipeline" or "data": how many devices}, of the kinds of parallelism in use."""
        sizes = {kind: getattr(self, f"{kind}_parallel_size") for kind in CUTS}
        return {kind: size for kind, size in sizes.items() if size > 1}

    def __str__(self):
        text = " x ".join(f"{size} {CUTS[kind]}" for kind, size in self.sizes.items()) or "one device"
        if self.expert_parallel_size > 1:
            text += f", experts over {self.expert_parallel_size}"
        if self.sequence_parallel:
            text += ", sequence parallel"
        return f"{text}, ZeRO stage {self.zero_stage}" if self.zero_stage else text

    def parts(self, model, recompute="none"):
        """Return the `Part`s of this layout for a `Transformer`: what is needed, and where there is code for it."""
        found = []
        if self.tensor_parallel_size > 1:
            how = "bt.Model.of(model, tensor_parallel=...), or bt.gpt(tensor_parallel=...)"
            found.append(Part("tensor parallelism", HERE, how))
        if self.context_parallel_size > 1:
            how = "bt.chunk_attention divides the rows in time, on one device"
            found.append(Part("context parallelism", NOWHERE, how))
        if self.pipeline_parallel_size > 1:
            found.append(Part("pipeline parallelism", HERE, "bt.Pipelined"))
        if self.data_parallel_size > 1:
            found.append(Part("data parallelism", HERE, "bt.strategy() or bt.mirrored(), and fit"))
        if len(self.sizes) > 1:
            found.append(self._several_at_once())
        found += self._zero(recompute)
        if self.interleave > 1:
            found.append(Part("interleaved runs of layers", NOWHERE, "bt.Pipelined has one run a stage"))
        if self.sequence_parallel:
            how = "DTensor (tf.experimental.dtensor), which shards any axis of a tensor"
            found.append(Part("sequence parallelism", TENSORFLOW, how))
        if model.experts > 1:
            how = "in KerasHub's Mixtral all experts compute all tokens; Mesh TensorFlow, for TensorFlow 1, sends them"
            found.append(Part("experts that compute their own tokens alone", TENSORFLOW, how))
        if self.expert_parallel_size > 1:
            how = "Mesh TensorFlow (Shazeer et al. 2018), for TensorFlow 1"
            found.append(Part("expert parallelism", TENSORFLOW, how))
        if self.pipeline_parallel_size > 1 and model.tied:
            found.append(Part("a matrix in two stages of a pipeline", NOWHERE, "take tied=False"))
        return found

    def _several_at_once(self):
        names = f"{' x '.join(self.sizes)} parallelism"
        if set(self.sizes) == {"tensor", "data"}:
            return Part(names, TENSORFLOW, "it has each alone; DTensor has meshes of both")
        return Part(names, NOWHERE, "it has each alone")

    def _zero(self, recompute):
        if self.zero_stage == 1:
            return [Part("ZeRO stage 1", HERE, "bt.Model(..., shard_optimizer=True)")]
        if self.zero_stage == 2:
            return [Part("ZeRO stage 2", NOWHERE, "it has stages 1 and 3")]
        if self.zero_stage == 3 and recompute == "everything":
            how = r'bt.Model(..., fully_shard=r"transformer_layer_\d+"), or bt.gpt(fully_shard=True)'
            return [Part("ZeRO stage 3", HERE, how)]
        if self.zero_stage == 3:
            how = 'fully_shard does not: take recompute="everything"'
            return [Part("ZeRO stage 3 that keeps activations", NOWHERE, how)]
        return []

    def missing(self, model, recompute="none"):
        """Return what bigtrain_nb cannot build of it for a `Transformer`, a list of words; empty if it can."""
        return [f"{part.what} ({part.how})" for part in self.parts(model, recompute) if part.where != HERE]


def memory(
    model,
    layout,
    batch=1,
    policy="mixed_bfloat16",
    optimizer="adamw",
    recompute="none",
    chunk_attention=1,
    slices=math.inf,
):
    """Return a `Breakdown` of the bytes on the fullest device, which takes ``batch`` sequences at a time.

    Of a pipeline that is the first stage: it has the embeddings beside its share of the layers, and keeps the
    activations of several micro-batches (`Layout.blocks_in_flight`), at most of all ``slices``, but no logits. Tensor
    parallelism divides the states, the embeddings among them, and of the activations what
    `Transformer.activations_of_a_layer` says. Context parallelism divides the activations, and has the keys and values
    of all places for one block at a time (Grattafiori et al. 2024, section 3.3.2; Ring Attention, Liu et al. 2023,
    would have two parts of them). Expert parallelism divides the experts, and no activations: a device sends away as
    many tokens as it gets.

    What bigtrain_nb can build is counted as it builds it: its tensor parallelism leaves embeddings and logits whole,
    its ZeRO stage 1 the float32 weights. Its stage 3 shards the blocks and leaves the embeddings, the last
    normalization and the output projection whole.

    Where layers compute in 16 bits, ZeRO counts the float32 weights as part of the optimizer's state. From stage 2 on a
    block's gradients, at 3 also its weights, are in one piece for a moment.
    """
    tensor, context, pipeline = (
        layout.tensor_parallel_size,
        layout.context_parallel_size,
        layout.pipeline_parallel_size,
    )
    is_built_here = not layout.missing(model, recompute)
    kept_in = "float32" if layout.zero_stage == 3 and is_built_here else policy  # it casts what it has gathered
    lines = _state(model, layout, kept_in, optimizer)
    if layout.zero_stage >= 2:
        each = 4 + (BYTES_OF[policy] if layout.zero_stage == 3 else 0)
        block = (model.weights_of_a_layer - model.weights_of_the_experts) / tensor
        block += model.weights_of_the_experts / layout.sharers_of_experts
        lines.append(Line("a block in one piece", each * block, f"{amount(block, 'weights')} x {each} bytes"))

    blocks = layout.blocks_in_flight(model.layers, slices)
    shards = tensor, layout.sequence_parallel, blocks, context, chunk_attention
    activations = model.activations(batch, policy, recompute, *shards)
    for part in activations.lines:
        if part.name != "logits" or pipeline == 1:
            lines.append(Line(f"activations: {part.name}", part.value, part.how))
    if context > 1:
        numbers = 2 * batch * model.length * model.key_value_width / tensor
        how = f"{amount(BYTES_OF[policy] * numbers, 'bytes')} of one block x ({context} - 1)/{context}"
        lines.append(Line("keys and values of others", BYTES_OF[policy] * numbers * (context - 1) / context, how))
    if is_built_here:
        states = model.states(kept_in, optimizer, pipeline).total
        lines += _not_sharded_here(model, layout, policy, states, activations["logits"])
    return Breakdown(f"Memory of a device, {layout}", "bytes", lines)


def _state(model, layout, policy, optimizer):
    """Return lines for the weights of the fullest stage, their gradients and the optimizer's state, on a device."""
    computed_with = "weights" if policy == "float32" else "16-bit copies"
    divided_from = {computed_with: 3, "gradients": 2}
    dense, experts = weights_of_a_stage(model, layout)
    groups = [("", dense, layout.tensor_parallel_size, layout.copies)]
    if experts:
        groups.append((" of experts", experts, layout.sharers_of_experts, layout.copies_of_experts))
    lines = []
    for kind, weights, sharers, copies in groups:
        for part in training_state(weights, policy, optimizer).lines:
            value, how = part.value, part.how
            is_divided = layout.zero_stage >= divided_from.get(part.name, 1)
            for size in (sharers, copies if is_divided else 1):
                if size > 1:
                    value /= size
                    how += f" / {size}"
            lines.append(Line(part.name + kind, value, how))
    return lines


def weights_of_a_stage(model, layout):
    """Return the weights of the fullest pipeline stage: those of its experts apart."""
    stages = layout.pipeline_parallel_size
    experts = -(-model.layers // stages) * model.weights_of_the_experts
    return model.weights_of_a_stage(stages) - experts, experts


def _not_sharded_here(model, layout, policy, states, logits):
    """Return lines for what a layout of bigtrain_nb keeps beside the shards that others have in its place.

    ``states``: bytes of the training state of the whole model; ``logits``: bytes of a shard of them.
    """
    lines = []
    sharers, copies = layout.tensor_parallel_size, layout.data_parallel_size
    if sharers > 1:
        whole = model.weights_of_the_vocabulary / model.weights * states + sharers * logits
        how = f"({sharers} - 1)/{sharers} of both, for layers of tensor parallelism shard blocks only"
        lines.append(Line("embeddings and logits, whole", whole * (sharers - 1) / sharers, how))
    if layout.zero_stage == 1:
        size = 4 * model.weights if policy != "float32" else 4 * model.weights / copies
        how = "shard_optimizer=True keeps the float32 weights whole, and a shard of them"
        lines.append(Line("weights beside their shards", size, how))
    if layout.zero_stage == 3:
        whole = model.weights_outside_of_layers / model.weights * states
        how = f"({copies} - 1)/{copies} of their state, for fully_shard=... shards the blocks only"
        lines.append(Line("all but the blocks, whole", whole * (copies - 1) / copies, how))
        if policy != "float32":
            how = f"{amount(model.weights_of_a_layer, 'weights')} x 4 bytes, which are gathered before they are cast"
            lines.append(Line("a block's float32 weights", 4 * model.weights_of_a_layer, how))
    return lines


def choose_layout(model, device, devices=None, tensor=None, pipeline=None, like=None, **settings):
    """Return the `Layout` that holds the model with one sequence at a time, or None.

    With ``devices``: the fewest for a copy of the model, and as many copies as there are devices for. Without: the
    fewest in all, which is one copy, or with a ``zero_stage`` or shared experts a power of two. A given ``tensor`` or
    ``pipeline`` size is kept; with both, whatever memory that takes. All else is as in the layout ``like``.
    ``settings``: as of `memory`.
    """
    is_given = devices and tensor and pipeline
    for layout in _layouts(model, device, devices, tensor, pipeline, like or Layout()):
        if is_given or memory(model, layout, 1, **settings).total <= USABLE * device.memory:
            return layout
    return None


def _layouts(model, device, devices, tensor, pipeline, like):
    """Return all that can be, the fewest devices first: of a copy of the model with ``devices``, and else in all.

    Tensor parallelism stays within a node, in powers of two that divide the heads. Of as many devices more of it comes
    first, as its messages stay on the fastest links (Narayanan et al. 2021). ZeRO takes at least two copies. Experts
    are shared out over whole groups of devices.
    """
    powers = [2**n for n in range(15)]
    tensors = [tensor] if tensor else [n for n in powers if n <= device.node and model.heads % n == 0]
    pipelines = [pipeline] if pipeline else [n for n in range(1, model.layers + 1) if model.layers % n == 0]
    context, experts = like.context_parallel_size, like.expert_parallel_size
    least = 2 if like.zero_stage and context == 1 else 1
    found = []
    for t, p in itertools.product(tensors, pipelines):
        numbers = powers if like.zero_stage or experts > 1 else [1]
        if devices:
            numbers = [devices // (t * context * p)]
        in_use = replace(
            like,
            tensor_parallel_size=t,
            pipeline_parallel_size=p,
            interleave=like.interleave if p > 1 else 1,
            sequence_parallel=like.sequence_parallel and t > 1,
        )
        found += [
            replace(in_use, data_parallel_size=copies)
            for copies in numbers
            if copies >= least and t * context * copies % experts == 0
            if experts == 1 or t == 1 or in_use.sequence_parallel
        ]

    def fewest(layout):
        of_all = 0 if devices else layout.devices
        return of_all, layout.model_parallel_size, layout.pipeline_parallel_size

    return sorted(found, key=fewest)
