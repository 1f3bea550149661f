"""The peak of memory: the nodes of a `Graph` run in turn without computing, and how long their tensors live."""

from collections import Counter
from dataclasses import dataclass, field

from bigtrain_nb.plan.operations import ALIASES, IN_PLACE, number_of_bytes

OUTSIDE = {"ReadVariableOp", "Placeholder"}
"""What their outputs show lives outside of the run."""
LIST_WRITES = {"TensorListPushBack", "TensorListSetItem"}


@dataclass(eq=False)
class Buffer:
    """Memory that tensors share, or a list of tensors. ``kind``: what for; ``readers``: reads and holds to come."""

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
    """Buffers come, are handed on, and go."""

    def __init__(self, graph):
        self.step = graph
        self.sizes, self.now = Counter(), 0
        self.fullest, self.most, self.at = Counter(), -1, ""

    def run(self, graph, buffers):
        """Run a graph on {name of an input: `Buffer`}; return the buffers of its results."""
        for name, buffer in buffers.items():
            buffer.readers += graph.readers[name]
        for op in graph.nodes:
            if op.kind == "Placeholder" and op.node.outputs[0].name in buffers:
                continue
            inputs = [buffers[tensor.name] for tensor in op.node.inputs]
            if op.body:
                made = self._rounds(op, inputs)
            else:
                made = [self._output(op, place, graph, inputs) for place in range(len(op.node.outputs))]
            for tensor, buffer in zip(op.node.outputs, made, strict=True):
                if graph is self.step and tensor.name in graph.results and buffer.kind != "outside":
                    self._label(buffer, "gradients", op.layer)
                buffer.readers += graph.readers[tensor.name]
                buffers[tensor.name] = buffer
            if self.now + op.scratch > self.most:
                self.most, self.at = self.now + op.scratch, op.node.name
                self.fullest = self.sizes + Counter({("work", op.layer): op.scratch})
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
        if op.kind in OUTSIDE:
            kind = "outside"
        elif op.kind == "Cast" and op.node.inputs[0].op.type == "ReadVariableOp":
            kind = "cast copies"
        elif tensor.name in graph.read_backward and not op.backward:
            kind = "activations"
        else:
            kind = "work"
        buffer = self._same(op, place, inputs)
        if buffer and buffer.kind == "work":
            self._label(buffer, kind, buffer.layer)
        if not buffer:
            buffer = self._left_over(op, tensor, inputs) or self._fresh(op, tensor, inputs)
            self._label(buffer, kind, op.layer)
        buffer.readers += 1
        return buffer

    def _same(self, op, place, inputs):
        """Return the buffer of which an output is another name or, of lists, one that was put in before; or None."""
        if op.kind in ALIASES and place < len(inputs):
            return inputs[place]
        if op.kind in LIST_WRITES:
            self._put(inputs[-1], inputs[0])
            if op.kind == "TensorListPushBack" and inputs[-1].kind == "work" and not op.backward:
                self._label(inputs[-1], "activations", op.layer)
            return inputs[0]
        if op.kind == "TensorListPopBack" and place == 0:
            return inputs[0]
        if op.kind == "TensorListPopBack" and inputs[0].items:
            item = inputs[0].items.pop()
            item.readers -= 1
            return item
        if op.kind == "TensorListGetItem" and inputs[0].items:
            return inputs[0].items[0]
        return None

    def _left_over(self, op, tensor, inputs):
        """Return the buffer of an input that nothing else needs, if the operation can write its result over it."""
        if op.kind not in IN_PLACE:
            return None
        for given, buffer in zip(op.node.inputs, inputs, strict=True):
            free = buffer.readers == 1 and buffer.size
            if free and given.dtype == tensor.dtype and given.shape == tensor.shape:
                return buffer
        return None

    def _fresh(self, op, tensor, inputs):
        buffer = Buffer(0 if op.kind in OUTSIDE else number_of_bytes(tensor))
        self.now += buffer.size
        self.sizes[buffer.kind, buffer.layer] += buffer.size
        if op.kind == "TensorListFromTensor":
            self._put(inputs[0], buffer)  # the parts of a tensor share its memory
        return buffer

    def _put(self, item, into):
        item.readers += 1
        into.items.append(item)

    def _label(self, buffer, kind, layer):
        self.sizes[buffer.kind, buffer.layer] -= buffer.size
        self.sizes[kind, layer] += buffer.size
        buffer.kind, buffer.layer = kind, layer

    def _release(self, buffers):
        for buffer in buffers:
            buffer.readers -= 1
            if buffer.readers == 0:
                self.now -= buffer.size
                self.sizes[buffer.kind, buffer.layer] -= buffer.size
                self._release(buffer.items)
