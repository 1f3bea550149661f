"""What TensorFlow does in a training step, read from its graph: which operations, on what, and how often.

The graph is what `tf.function` and the gradient tape make of a model, before TensorFlow's own optimizer fuses some of
it. Nothing is computed: shapes are enough.
"""

import re
from collections import Counter
from functools import cached_property

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.plan.operations import LOOPS, bytes_moved, flops, number_of_bytes
from bigtrain_nb.train.keras_gaps import function_graph

WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
UNSEEN = LOOPS | CALLS | {"If", "StatelessIf", "Case", "StatelessCase"}

FOLDED_FROM = 2**25
"""Bytes from which on Grappler was seen to fold zeros: 34 MiB in `conv_net` were, 32 MiB and less were not."""
COPIES = 4
"""Of a folded constant, beside the one that the step reads: seen as 4.1 and 4.4 with TensorFlow 2.21 (gpt's masks)."""


class Operation:
    """One node of a graph.

    ``layer``: the Keras layer it belongs to; ``times``: how often a step runs it; ``flops`` and ``moved``, bytes read
    and written: of one run. A loop or a call runs its ``body``, a `Graph`, in ``rounds``.
    """

    def __init__(self, node, layer, backward, times):
        self.node = node
        self.kind = node.type
        self.layer = layer
        self.backward = backward
        self.times = times
        self.flops = flops(node)
        self.moved = bytes_moved(node)
        self.body = None
        self.rounds = None


class Graph:
    """The nodes of a `tf.Graph` that its results need, in the order in which TensorFlow starts them.

    ``first_backward``: how many nodes there were when the tape was asked for gradients. ``layers``: names of the Keras
    layers. ``times``: how often a step runs it. ``keep``: whether results are still needed after the last node.
    """

    def __init__(self, graph, results, first_backward=0, layers=(), times=1, keep=True):
        self.inputs = [tensor.name for tensor in graph.inputs]
        self.results = [tensor.name for tensor in results]
        self.nodes = []
        backward = {node.name for node in graph.get_operations()[first_backward:]}
        for node in _in_running_order(_needed(graph, results)):
            op = Operation(node, _layer_of(node.name, layers), node.name in backward, times)
            self._look_into(op, layers)
            self.nodes.append(op)
        self.readers = Counter(self.results if keep else ())
        self.read_backward = set()
        for op in self.nodes:
            names = [tensor.name for tensor in op.node.inputs]
            self.readers.update(names)
            if op.backward:
                self.read_backward.update(names)

    def _look_into(self, op, layers):
        if op.kind in CALLS:
            op.rounds = 1
            body = function_graph(op.node, "f")
        elif op.kind in LOOPS:
            op.rounds = _rounds(op.node)
            body = function_graph(op.node, "body")
        if op.rounds is not None:
            first_backward = 0 if op.backward else len(body.get_operations())
            op.body = Graph(body, body.outputs, first_backward, layers, op.times * op.rounds)

    @cached_property
    def operations(self):
        """All nodes, those of loops and calls in place of the node that runs them."""
        found = []
        for op in self.nodes:
            found += op.body.operations if op.body else [op]
        return found

    @property
    def unseen(self):
        """Kinds of nodes that hold graphs of their own, which could not be looked into."""
        return sorted({op.kind for op in self.operations} & UNSEEN)

    @property
    def folded(self):
        """Bytes that TensorFlow's Grappler holds for good where all shapes are known beforehand.

        Its memory optimizer (memory_optimizer.cc, SchedulingPass) makes a large sum of more than two tensors a
        temporary variable, and its constant folding makes that one's first value, zeros, a constant of full size.
        And it folds what depends on no input, such as masks, into the graph's definition, of which `COPIES` stay.
        """
        zeros = 0
        constants = {}
        changing = set()
        for op in self.nodes:
            size = sum(number_of_bytes(tensor) for tensor in op.node.outputs)
            if op.kind == "AddN" and len(op.node.inputs) > 2 and size > FOLDED_FROM:
                zeros = max(zeros, size)
            fixed = [tensor for tensor in op.node.inputs if tensor.op.name not in changing]
            if op.kind == "Placeholder" or op.node.op_def.is_stateful or len(fixed) < len(op.node.inputs):
                changing.add(op.node.name)
                for tensor in fixed:
                    if tensor.op.type != "Const":
                        constants[tensor.name] = number_of_bytes(tensor)
        return zeros + COPIES * sum(constants.values())


def _rounds(loop):
    """Return how often a loop that counts up from 0 runs, or None if only the run knows: its condition is i < n."""
    condition = function_graph(loop, "cond")
    outside = {inner.name: outer for inner, outer in zip(condition.inputs, loop.inputs, strict=True)}
    limits = []
    for node in condition.get_operations():
        if node.type == "Less":
            limit = node.inputs[1]
            limit = outside.get(limit.name, limit)
            if limit.op.type in LOOPS:  # the gradient of a loop runs as often as that did
                limits.append(_rounds(limit.op))
            else:
                limits.append(tf.get_static_value(limit))
    return min((int(limit) for limit in limits if limit is not None), default=None)


def _layer_of(name, layers):
    """Return the layer that a node's name speaks of: "gradient_tape/gpt/dense_1/MatMul" -> "dense_1"."""
    for part in name.split("/"):
        for candidate in (part, re.sub(r"_\d+$", "", part)):
            if candidate in layers:
                return candidate
    return "the rest"


def _needed(graph, results):
    """Return the nodes that results or variables depend on, in the order of the graph."""
    nodes = graph.get_operations()
    stack = [tensor.op for tensor in results] + [node for node in nodes if node.type in WRITES]
    found = set()
    while stack:
        node = stack.pop()
        if node.name not in found:
            found.add(node.name)
            stack += _before(node)
    return [node for node in nodes if node.name in found]


def _in_running_order(nodes):
    """Return nodes as TensorFlow's executor tends to run them: what has become ready last comes first.

    A thread goes on with what its last node made ready, so that the updates of variables run nearly one by one.
    """
    followers = {node.name: [] for node in nodes}
    missing = {}
    for node in nodes:
        before = _before(node)
        missing[node.name] = len(before)
        for other in before:
            followers[other.name].append(node)
    ready = [node for node in reversed(nodes) if not missing[node.name]]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for follower in reversed(followers[node.name]):
            missing[follower.name] -= 1
            if not missing[follower.name]:
                ready.append(follower)
    return order


def _before(node):
    return [tensor.op for tensor in node.inputs] + list(node.control_inputs)
