"""Peak memory: simulates the nodes of a `Graph` in order, and tracks the lifetimes of their tensors."""

from collections import Counter
from dataclasses import dataclass, field

from bigtrain_nb.advanced.plan.fully_sharded import IN_ONE_PIECE
from bigtrain_nb.advanced.shared.operations import ALIASES, IN_PLACE, number_of_bytes

OUTSIDE = {"ReadVariableOp", "Placeholder"}
"""The memory of their outputs is outside of the run."""
PUT = {"TensorListPushBack", "TensorListSetItem"}
TAKE = {"TensorListPopBack", "TensorListGetItem"}
SMALL = 2**18
"""Bytes up to which TensorFlow on CPUs uses malloc (mkl_cpu_allocator.h)."""


@dataclass(eq=False)
class Buffer:
    """Memory that tensors share, or a list of tensors (``items``). ``readers``: outstanding reads and holds."""

    size: int
    label: tuple = ("workspace", "")  # kind, layer
    readers: int = 0
    items: list = field(default_factory=list)


def peak_of(graph):
    """Return the higher `PlannedPeak` of the two orders in which the nodes may run."""
    return max((PlannedPeak(graph, side_by_side) for side_by_side in (False, True)), key=lambda peak: peak.total)


class PlannedPeak:
    """The peak memory of a `Graph`, without variables and inputs, with its branches ``side_by_side`` or not.

    ``fullest``: {(kind of buffer, layer): bytes} at the peak; ``at``: the node that runs then; ``largest``: bytes of
    the largest buffer; ``small``: peak bytes of buffers up to `SMALL`; ``course``: bytes while each node runs.
    """

    def __init__(self, graph, side_by_side):
        self.graph = graph
        self.side_by_side = side_by_side
        self.alive = Counter()
        self.fullest = Counter()
        self.at = ""
        self.largest = 0
        self.small = self._small_alive = 0
        self.course = []
        self._run(graph, {})
        self.total = self.fullest.total()

    @property
    def kinds(self):
        """Bytes by kind of buffer."""
        kinds = Counter()
        for (kind, _), size in self.fullest.items():
            kinds[kind] += size
        return kinds

    def _run(self, graph, buffers):
        """Run a graph on {name of an input: `Buffer`}; return its results' buffers, with one hold each."""
        for name, buffer in buffers.items():
            buffer.readers += graph.readers[name]
        for op in graph.side_by_side if self.side_by_side else graph.nodes:
            outputs = op.node.outputs
            if op.kind == "Placeholder" and outputs[0].name in buffers:
                continue
            inputs = [buffers[tensor.name] for tensor in op.node.inputs]
            if op.body:
                made = self._rounds(op, inputs)
            else:
                made = [self._output(op, tensor, graph, inputs) for tensor in outputs]
            for tensor, buffer in zip(outputs, made, strict=True):
                buffers[tensor.name] = buffer
                buffer.readers += graph.readers[tensor.name]
            self.course.append(self.alive.total())
            if self.course[-1] > self.fullest.total():
                self.fullest = self.alive.copy()
                self.at = op.node.name
            self._release(inputs + made)
        return [buffers[name] for name in graph.results]

    def _rounds(self, op, carried):
        """Run a body repeatedly on its own results; return the last ones, with one hold each."""
        for buffer in carried:
            buffer.readers += 1
        for _ in range(op.rounds):
            made = self._run(op.body, dict(zip(op.body.inputs, carried, strict=True)))
            self._release(carried)
            carried = made
        return carried

    def _output(self, op, tensor, graph, inputs):
        """Return the buffer of an output, with one hold: an input's, one that an input frees, or a new one."""
        kind = "workspace"
        if graph is self.graph and tensor.name in graph.results:
            kind = "gradients"
        elif IN_ONE_PIECE in op.node.name:
            kind = "unsharded layer"
        elif op.kind == "Cast" and op.node.inputs[0].op.type == "ReadVariableOp":
            kind = "cast copies"
        elif tensor.name in graph.read_backward and not op.backward:
            kind = "activations"

        buffer = self._handed_on(op, tensor.value_index, inputs)
        if buffer is None:
            buffer = self._left_over(op, tensor, inputs) or self._fresh(op, tensor)
            self._label(buffer, kind, op.layer)
        elif buffer.label[0] == "workspace":
            self._label(buffer, kind, buffer.label[1])
        buffer.readers += 1
        return buffer

    def _handed_on(self, op, place, inputs):
        """Return the buffer of an input, or of a tensor in a list, that an output aliases; or None."""
        if op.kind in ALIASES and place < len(inputs):
            return inputs[place]
        if op.kind in PUT:
            held, item = inputs[0], inputs[-1]
            if not op.backward:
                self._label(item, "activations", op.layer)
            item.readers += 1
            held.items.append(item)
            return held
        if op.kind in TAKE:
            held = inputs[0]
            if place < len(op.node.outputs) - 1 or not held.items:
                return held
            item = held.items[0]
            if op.kind == "TensorListPopBack":
                item = held.items.pop()
                item.readers -= 1
            return item
        return None

    def _left_over(self, op, tensor, inputs):
        """Return the buffer of an input that nothing else needs, if the operation can overwrite it with its result."""
        if op.kind in IN_PLACE:
            for given, buffer in zip(op.node.inputs, inputs, strict=True):
                fits = given.dtype == tensor.dtype and given.shape == tensor.shape
                if fits and buffer.size and buffer.readers == 1:
                    return buffer
        return None

    def _fresh(self, op, tensor):
        buffer = Buffer(0 if op.kind in OUTSIDE else number_of_bytes(tensor))
        self.alive[buffer.label] += buffer.size
        self.largest = max(self.largest, buffer.size)
        if buffer.size <= SMALL:
            self._small_alive += buffer.size
            self.small = max(self.small, self._small_alive)
        return buffer

    def _label(self, buffer, kind, layer):
        self.alive[buffer.label] -= buffer.size
        buffer.label = kind, layer
        self.alive[buffer.label] += buffer.size

    def _release(self, buffers):
        for buffer in buffers:
            buffer.readers -= 1
            if buffer.readers == 0:
                self.alive[buffer.label] -= buffer.size
                if buffer.size <= SMALL:
                    self._small_alive -= buffer.size
                self._release(buffer.items)
