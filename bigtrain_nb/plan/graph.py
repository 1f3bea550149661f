"""What TensorFlow does in a training step, read from its graph: which operations, on what, and how long tensors live.

The graph is what `tf.function` and the gradient tape make of a model, before TensorFlow's own optimizer fuses some of
it. Nothing is computed: shapes are enough.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from bigtrain_nb.plan.operations import ALIASES, IN_PLACE, flops, number_of_bytes, scratch

OUTSIDE = {"ReadVariableOp", "Placeholder"}
"""What their outputs show lives outside of the run."""
WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
CHANGES = WRITES - {"AssignVariableOp"}
FOLDED_FROM = 2**25
"""Bytes from which on Grappler was seen to fold zeros: 34 MiB in `conv_net` were, 32 MiB and less were not."""
COPIES = 4
"""Of a folded constant, beside the one that the step reads: seen as 4.1 and 4.4 with TensorFlow 2.21 (gpt's masks)."""
INSIDE_UNSEEN = {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "Case"}


@dataclass(eq=False)
class Buffer:
    """Memory that one or more tensors share. ``kind``: what it is for; ``readers``: reads that are still to come."""

    size: int
    kind: str
    owner: str
    readers: int = 0
    kept: bool = False


@dataclass(eq=False)
class Operation:
    """One node. ``layer``: the Keras layer it belongs to; ``moved``: bytes read and written; ``scratch``: bytes."""

    name: str
    kind: str
    layer: str
    backward: bool
    flops: int
    moved: int
    scratch: int
    node: object


@dataclass(frozen=True)
class Peak:
    """Bytes alive at the fullest moment, by kind of buffer, and those of activations by layer."""

    kinds: dict
    layers: dict
    at: str

    @property
    def total(self):
        return sum(self.kinds.values())


class Graph:
    """The nodes of a `tf.Graph` that its results need, in the order in which TensorFlow starts them.

    ``first_backward``: how many nodes there were when the tape was asked for gradients. ``layers``: names of the Keras
    layers. ``results`` outlive the run if ``keep``.
    """

    def __init__(self, graph, results, first_backward, layers=(), keep=True):
        nodes = graph.get_operations()
        needed = _needed(nodes, results)
        backward = {node.name for node in nodes[first_backward:]}
        layers = set(layers)
        self.nodes = [
            _operation(node, _layer_of(node.name, layers), node.name in backward)
            for node in _in_running_order([node for node in nodes if node.name in needed])
        ]
        self.results, self.keep = {tensor.name for tensor in results}, keep

    @property
    def unseen(self):
        """Kinds of nodes that hold graphs of their own, which are not looked into."""
        return sorted({op.kind for op in self.nodes} & INSIDE_UNSEEN)

    @cached_property
    def peak(self):
        """The `Peak` of the memory that is alive as the nodes run in turn, without variables and inputs."""
        return _Run(self).peak()

    @cached_property
    def folded(self):
        """Bytes that TensorFlow's Grappler holds for good where all shapes are known beforehand.

        Its memory optimizer (memory_optimizer.cc, SchedulingPass) makes a large sum of more than two tensors a
        temporary variable, and its constant folding makes that one's first value, zeros, a constant of full size.
        And it folds what depends on no input, such as masks, into the graph's definition, of which `COPIES` stay.
        """
        zeros, constants, changing = 0, {}, set()
        for op in self.nodes:
            if op.kind == "AddN" and len(op.node.inputs) > 2 and number_of_bytes(op.node.outputs[0]) > FOLDED_FROM:
                zeros = max(zeros, number_of_bytes(op.node.outputs[0]))
            fixed = [tensor for tensor in op.node.inputs if tensor.op.name not in changing]
            if op.kind == "Placeholder" or op.node.op_def.is_stateful or len(fixed) < len(op.node.inputs):
                changing.add(op.name)
                constants |= {tensor.name: number_of_bytes(tensor) for tensor in fixed if tensor.op.type != "Const"}
        return zeros + COPIES * sum(constants.values())


class _Run:
    """The nodes of a `Graph` run in turn, without computing: buffers come, are taken over, and go."""

    def __init__(self, graph):
        self.graph = graph
        self.readers, self.for_backward = {}, set()
        for op in graph.nodes:
            for tensor in op.node.inputs:
                self.readers[tensor.name] = self.readers.get(tensor.name, 0) + 1
                if op.backward:
                    self.for_backward.add(tensor.name)
        self.buffers, self.alive, self.now = {}, set(), 0

    def peak(self):
        best, fullest = -1, None
        for op in self.graph.nodes:
            inputs = [self.buffers[tensor.name] for tensor in op.node.inputs]
            made = [self._output(op, place, tensor, inputs) for place, tensor in enumerate(op.node.outputs)]
            if self.now + op.scratch > best:
                best = self.now + op.scratch
                fullest = self._snapshot(op)
            for buffer in inputs:
                buffer.readers -= 1
            for buffer in {*inputs, *made} & self.alive:
                if buffer.readers <= 0 and not buffer.kept:
                    self.alive.discard(buffer)
                    self.now -= buffer.size
        return fullest

    def _output(self, op, place, tensor, inputs):
        """Return the buffer of an output: an input's own, one that an input leaves, or a fresh one."""
        kind = _kind(op)
        if kind == "work" and tensor.name in self.for_backward and not op.backward:
            kind = "activations"
        buffer = inputs[place] if op.kind in ALIASES and place < len(inputs) else None
        if buffer is None:
            buffer = self._left_over(op, tensor, inputs) or self._fresh(op, tensor)
            buffer.kind, buffer.owner = kind, op.layer
        elif buffer.kind == "work":
            buffer.kind = kind
        buffer.readers += self.readers.get(tensor.name, 0)
        if tensor.name in self.graph.results and buffer.kind != "outside":
            buffer.kind, buffer.kept = "gradients", self.graph.keep
        self.buffers[tensor.name] = buffer
        return buffer

    def _left_over(self, op, tensor, inputs):
        """Return the buffer of an input that nothing else needs, if the operation can write its result over it."""
        if op.kind not in IN_PLACE:
            return None
        for given, buffer in zip(op.node.inputs, inputs, strict=True):
            free = buffer.readers == 1 and not buffer.kept and buffer.kind != "outside"
            if free and given.dtype == tensor.dtype and given.shape == tensor.shape and buffer.size:
                return buffer
        return None

    def _fresh(self, op, tensor):
        buffer = Buffer(0 if op.kind in OUTSIDE else number_of_bytes(tensor), "", "")
        self.alive.add(buffer)
        self.now += buffer.size
        return buffer

    def _snapshot(self, op):
        kinds, layers = {}, {}
        for buffer in [*self.alive, Buffer(op.scratch, "work", op.layer)]:
            if buffer.size:
                kinds[buffer.kind] = kinds.get(buffer.kind, 0) + buffer.size
                if buffer.kind == "activations":
                    layers[buffer.owner] = layers.get(buffer.owner, 0) + buffer.size
        return Peak(kinds, layers, op.name)


def _layer_of(name, layers):
    """Return the layer that a node's name speaks of: "gradient_tape/gpt/dense_1/MatMul" -> "dense_1"."""
    parts = (one for part in name.split("/") for one in (part, re.sub(r"_\d+$", "", part)))
    return next((one for one in parts if one in layers), "the rest")


def _operation(node, layer, backward):
    moved = sum(map(number_of_bytes, [*node.inputs, *node.outputs]))
    moved = 0 if node.type in {*ALIASES, "ReadVariableOp", "Placeholder", "Const"} else moved
    moved *= 3 if node.type in CHANGES else 1  # the variable, which is no input, is read and written
    return Operation(node.name, node.type, layer, backward, flops(node), moved, scratch(node), node)


def _kind(op):
    if op.kind in OUTSIDE:
        return "outside"
    if op.kind == "Cast" and op.node.inputs[0].op.type == "ReadVariableOp":
        return "cast copies"
    return "work"


def _needed(nodes, results):
    """Return the names of the nodes that results or variables depend on."""
    stack = [tensor.op for tensor in results] + [node for node in nodes if node.type in WRITES]
    found = set()
    while stack:
        node = stack.pop()
        if node.name not in found:
            found.add(node.name)
            stack += [tensor.op for tensor in node.inputs] + list(node.control_inputs)
    return found


def _in_running_order(nodes):
    """Return nodes as TensorFlow's executor tends to run them: what has become ready last comes first.

    A thread goes on with what its last node made ready, so that the updates of variables run nearly one by one.
    """
    followers, missing = {node.name: [] for node in nodes}, {}
    for node in nodes:
        before = [tensor.op for tensor in node.inputs] + list(node.control_inputs)
        missing[node.name] = len(before)
        for other in before:
            followers[other.name].append(node)
    ready, order = [node for node in reversed(nodes) if not missing[node.name]], []
    while ready:
        node = ready.pop()
        order.append(node)
        for follower in reversed(followers[node.name]):
            missing[follower.name] -= 1
            if not missing[follower.name]:
                ready.append(follower)
    return order
