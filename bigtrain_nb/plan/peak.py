"""The peak of memory: the nodes of a `Graph` run in turn without computing, and how long their tensors live."""

from collections import Counter
from dataclasses import dataclass, field

from bigtrain_nb.plan.operations import ALIASES, IN_PLACE, number_of_bytes

OUTSIDE = {"ReadVariableOp", "Placeholder"}
"""What their outputs show lives outside of the run."""


@dataclass(eq=False)
class Buffer:
    """Memory that tensors share, or a list of tensors (``items``). ``readers``: reads and holds that are to come."""

    size: int
    kind: str = "work"
    layer: str = ""
    readers: int = 0
    items: list = field(default_factory=list)


@dataclass(frozen=True)
class Peak:
    """Bytes alive at the fullest moment, by kind of buffer, and those of activations by layer."""

    kinds: Counter
    layers: Counter
    at: str

    @property
    def total(self):
        return self.kinds.total()


def peak_of(graph):
    """Return the `Peak` of the memory that a `Graph` takes, without variables and inputs."""
    run = _Run(graph)
    run.run(graph, {})
    kinds, layers = Counter(), Counter()
    for (kind, layer), size in run.fullest.items():
        kinds[kind] += size
        if kind == "activations":
            layers[layer] += size
    return Peak(+kinds, +layers, run.at)


class _Run:
    """Buffers come, are handed on, and go. ``sizes``: bytes that are alive, by kind and layer."""

    def __init__(self, step):
        self.step = step
        self.sizes, self.fullest, self.at = Counter(), Counter(), ""

    def run(self, graph, buffers):
        """Run a graph on {name of an input: `Buffer`}; return the buffers of its results, each held once."""
        for name, buffer in buffers.items():
            buffer.readers += graph.readers[name]
        for op in graph.nodes:
            names = [tensor.name for tensor in op.node.outputs]
            if op.kind == "Placeholder" and names[0] in buffers:
                continue
            inputs = [buffers[tensor.name] for tensor in op.node.inputs]
            if op.body:
                made = self._rounds(op, inputs)
            else:
                made = [self._output(op, place, graph, inputs) for place in range(len(names))]
            for name, buffer in zip(names, made, strict=True):
                buffers[name] = buffer
                buffer.readers += graph.readers[name]
                if graph is self.step and name in graph.results:
                    self._label(buffer, "gradients", op.layer)
            if self.sizes.total() > self.fullest.total():
                self.fullest, self.at = self.sizes.copy(), op.node.name
            self._release(inputs + made)
        return [buffers[name] for name in graph.results]

    def _rounds(self, op, carried):
        """Run a body again and again on what it has returned; return that, each buffer held once."""
        for buffer in carried:
            buffer.readers += 1
        for _ in range(op.rounds):
            made = self.run(op.body, dict(zip(op.body.inputs, carried, strict=True)))
            self._release(carried)
            carried = made
        return carried

    def _output(self, op, place, graph, inputs):
        """Return the buffer of an output, held once: one of an input, one that an input leaves, or a fresh one."""
        tensor = op.node.outputs[place]
        kind = "work"
        if op.kind == "Cast" and op.node.inputs[0].op.type == "ReadVariableOp":
            kind = "cast copies"
        elif tensor.name in graph.read_backward and not op.backward:
            kind = "activations"
        buffer = self._handed_on(op, place, inputs)
        if buffer is None:
            buffer = self._left_over(op, tensor, inputs) or self._fresh(op, tensor)
            self._label(buffer, kind, op.layer)
        elif buffer.kind == "work":
            self._label(buffer, kind, buffer.layer)
        buffer.readers += 1
        return buffer

    def _handed_on(self, op, place, inputs):
        """Return the buffer of an input, or of a tensor in a list, that an output is another name of; or None."""
        if op.kind in ALIASES and place < len(inputs):
            return inputs[place]
        if op.kind == "TensorListFromTensor":
            return _put(inputs[0], Buffer(0))  # its items share the tensor's memory
        if op.kind == "TensorListPushBack" and not op.backward:
            self._label(inputs[1], "activations", op.layer)
        if op.kind in ("TensorListPushBack", "TensorListSetItem"):
            return _put(inputs[-1], inputs[0])
        if op.kind == "TensorListPopBack":
            return _take(inputs[0]) if place == 1 else inputs[0]
        if op.kind == "TensorListGetItem" and inputs[0].items:
            return inputs[0].items[0]
        return None

    def _left_over(self, op, tensor, inputs):
        """Return the buffer of an input that nothing else needs, if the operation can write its result over it."""
        if op.kind in IN_PLACE:
            for given, buffer in zip(op.node.inputs, inputs, strict=True):
                fits = given.dtype == tensor.dtype and given.shape == tensor.shape
                if fits and buffer.size and buffer.readers == 1:
                    return buffer
        return None

    def _fresh(self, op, tensor):
        buffer = Buffer(0 if op.kind in OUTSIDE else number_of_bytes(tensor))
        self.sizes[buffer.kind, buffer.layer] += buffer.size
        return buffer

    def _label(self, buffer, kind, layer):
        self.sizes[buffer.kind, buffer.layer] -= buffer.size
        buffer.kind, buffer.layer = kind, layer
        self.sizes[kind, layer] += buffer.size

    def _release(self, buffers):
        for buffer in buffers:
            buffer.readers -= 1
            if buffer.readers == 0:
                self.sizes[buffer.kind, buffer.layer] -= buffer.size
                self._release(buffer.items)


def _put(item, items):
    """Let a list hold a tensor; return the list."""
    item.readers += 1
    items.items.append(item)
    return items


def _take(items):
    """Return the last tensor of a list, which no longer holds it, or None."""
    if not items.items:
        return None
    item = items.items.pop()
    item.readers -= 1
    return item
