"""The operations of a TensorFlow training step, read from its graph: which, on what, and how often.

The graph is that of `tf.function` and the gradient tape, before TensorFlow's own optimizer fuses parts of it. Nothing
is computed: shapes are enough.
"""

import re
from collections import Counter
from functools import cached_property
from graphlib import TopologicalSorter

from bigtrain_nb.advanced.shared.operations import LOOPS, WRITES, flops, is_sized, number_of_bytes
from bigtrain_nb.common.quiet import tf

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
UNSEEN = LOOPS | CALLS | {"If", "StatelessIf", "Case", "StatelessCase", "PyFunc", "PyFuncStateless", "EagerPyFunc"}
"""Their work is not in their own graph, or is in one that is not examined."""

FOLDED_FROM = 2**25
"""Bytes above which Grappler was observed to fold zeros: 34 MiB in `conv_net` were, 32 MiB and less were not."""
COPIES = 4
"""Of a folded constant, besides the one in use: measured 4.1 and 4.4 with TensorFlow 2.21 (gpt's masks)."""


class Operation:
    """One node of a graph.

    ``layer``: its Keras layer; ``times``: runs per step; ``flops``: per run, an undercount unless ``is_sized``. A loop
    or a call runs its ``body``, a `Graph`, ``rounds`` times.
    """

    def __init__(self, node, backward, layers, times):
        self.node = node
        self.kind = node.type
        self.backward = backward
        self.layer = _layer_of(node.name, layers)
        self.times = times
        self.flops = flops(node)
        self.is_sized = is_sized(node)
        self.body = None
        self.rounds = _rounds(node)
        if self.rounds is not None:
            body = function_graph(node, "body" if self.kind in LOOPS else "f")
            first_backward = 0 if backward else len(body.get_operations())
            self.body = Graph(body, body.outputs, first_backward, layers, times * self.rounds)


class Graph:
    """The nodes of a `tf.Graph` that its results need, in orders in which TensorFlow may start them.

    ``nodes``: on one thread; ``side_by_side``: on two, which run branches concurrently. ``first_backward``: index of
    the first node of the backward pass. ``layers``: names of the Keras layers. ``times``: runs per step.
    """

    def __init__(self, graph, results, first_backward=0, layers=(), times=1):
        self.inputs = [tensor.name for tensor in graph.inputs]
        self.results = [tensor.name for tensor in results]
        self.readers = Counter(self.results)
        self.read_backward = set()
        self.nodes = []
        backward = set(graph.get_operations()[first_backward:])
        needed = _needed(graph, results)
        for node in _in_running_order(needed, threads=1):
            op = Operation(node, node in backward, layers, times)
            self.nodes.append(op)
            read = [tensor.name for tensor in node.inputs]
            self.readers.update(read)
            if op.backward:
                self.read_backward.update(read)
        ops = {op.node: op for op in self.nodes}
        self.side_by_side = [ops[node] for node in _in_running_order(needed, threads=2)]

    @cached_property
    def operations(self):
        """All nodes, with loops and calls replaced by the nodes of their bodies."""
        found = []
        for op in self.nodes:
            found += op.body.operations if op.body else [op]
        return found

    @property
    def uncounted_ops(self):
        """Kinds of nodes whose work is not, or not fully, counted.

        They run Python or graphs that could not be examined, or read or write tensors of unknown size, such as results
        of `tf.boolean_mask`.
        """
        return sorted({op.kind for op in self.operations if op.kind in UNSEEN or not op.is_sized})

    @property
    def folded(self):
        """Bytes that TensorFlow's Grappler keeps permanently where all shapes are static.

        Its memory optimizer (memory_optimizer.cc, SchedulingPass) turns a large sum of more than two tensors into a
        temporary variable, and constant folding turns its initial value, zeros, into a constant of full size. It also
        folds whatever depends on no input, such as masks, into the graph's definition, of which `COPIES` remain.
        """
        largest_sum = 0
        constants = {}
        changing = set()
        for op in self.nodes:
            inputs = op.node.inputs
            fixed = [tensor for tensor in inputs if tensor.op not in changing]
            if op.kind == "AddN" and len(inputs) > 2:
                largest_sum = max(largest_sum, number_of_bytes(inputs[0]))
            is_given = op.kind in ("Placeholder", "PlaceholderWithDefault")
            if is_given or op.node.op_def.is_stateful or len(fixed) < len(inputs):
                changing.add(op.node)
                for tensor in fixed:
                    if tensor.op.type != "Const":
                        constants[tensor.name] = number_of_bytes(tensor)
        zeros = largest_sum if largest_sum > FOLDED_FROM else 0
        return zeros + COPIES * sum(constants.values())


def _rounds(node):
    """Return how often a loop or a call runs its body; None for loops of dynamic length, and for other nodes.

    The length of a loop is known if it counts up in integers while a condition i < n holds.
    """
    if node.type in CALLS:
        return 1
    if node.type not in LOOPS:
        return None
    condition, body = function_graph(node, "cond"), function_graph(node, "body")
    if condition is None:
        return None
    places = {inner.name: place for place, inner in enumerate(condition.inputs)}
    rounds = []
    for comparison in condition.get_operations():
        if comparison.type != "Less" or not comparison.inputs[0].dtype.is_integer:
            continue
        counter, limit = comparison.inputs
        place = places.get(counter.name)
        step = None if place is None else _added_in_a_round(body, place)
        if step is None:
            continue
        start = tf.get_static_value(node.inputs[place])
        if limit.name in places:
            outside = places[limit.name]
            if _made_in_a_round(body, outside) is not body.inputs[outside]:
                continue  # the limit changes
            limit = node.inputs[outside]
        # the gradient of a loop runs as often as the loop
        end = _rounds(limit.op) if limit.op.type in LOOPS else tf.get_static_value(limit)
        if start is not None and end is not None:
            rounds.append(max(0, -(-(int(end) - int(start)) // step)))
    return min(rounds, default=None)


def _added_in_a_round(body, place):
    """Return the positive integer that a loop's body adds to the variable at an index; None otherwise."""
    after = _made_in_a_round(body, place)
    if after.op.type not in ("Add", "AddV2"):
        return None
    added = [tensor for tensor in after.op.inputs if tensor is not body.inputs[place]]
    step = tf.get_static_value(added[0]) if len(added) == 1 else None
    return int(step) if step is not None and step > 0 else None


def _made_in_a_round(body, place):
    """Return a loop variable's value after the body, given its index: the body's own input where it is unchanged."""
    after = body.outputs[place]
    while after.op.type == "Identity":
        after = after.op.inputs[0]
    return after


def _layer_of(name, layers):
    """Return the layer that a node's name contains: "gradient_tape/gpt/dense_1/MatMul" -> "dense_1"."""
    for part in name.split("/"):
        for candidate in (part, re.sub(r"_\d+$", "", part)):
            if candidate in layers:
                return candidate
    return "the rest"


def _needed(graph, results):
    """Return {node: its predecessors} for the nodes that results or variables depend on, or may depend on."""
    needed = {}
    left = [tensor.op for tensor in results]
    left += [node for node in graph.get_operations() if node.type in WRITES or _may_write(node)]
    while left:
        node = left.pop()
        if node not in needed:
            needed[node] = before(node)
            left += needed[node]
    return {node: needed[node] for node in graph.get_operations() if node in needed}


def _may_write(node):
    return node.type in UNSEEN and node.op_def.is_stateful


def _in_running_order(needed, threads):
    """Return the nodes in the order in which TensorFlow's executor tends to run them on ``threads`` threads.

    The threads alternate, node by node. Each continues with what its last node made ready, so that variable updates run
    nearly one by one. An idle thread takes the node that has waited longest.
    """
    sorter = TopologicalSorter(needed)
    sorter.prepare()
    ready = [[] for _ in range(threads)]
    order = []
    ready[0] += reversed(sorter.get_ready())
    while sorter.is_active():
        for own in ready:
            longest = max(ready, key=len)
            if own or longest:
                order.append(own.pop() if own else longest.pop(0))
                sorter.done(order[-1])
                own += reversed(sorter.get_ready())
    return order


def before(node):
    """Return the direct predecessors of a node."""
    return [tensor.op for tensor in node.inputs] + list(node.control_inputs)


def function_graph(node, name):  # private: Keras
    """Return the graph of the function that an attribute names, such as "body"; `tf.nn.ctc_loss` has loops without."""
    return getattr(node.graph._get_function(node.get_attr(name).name), "graph", None)
