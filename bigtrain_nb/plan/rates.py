"""How long this machine takes for the operations of a model: those that weigh most, alone, on random numbers.

The least time of several runs counts: whatever else the machine does only adds to it. In a step operations can run
over what is still in a cache and write over their inputs, which none does alone. They also run side by side, as far as
none waits for the other and cores are free, so it counts too how long all cores together work on each.
"""

import inspect
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.plan.graph import before
from bigtrain_nb.plan.operations import number_of_bytes

COVERED = 0.95
"""The share of all work, of contractions and of the rest, whose operations are measured one by one."""
COPIED = 2**26  # bytes
CACHE = 2**26  # bytes, more than a processor keeps close to two cores
MOST_SETS = 16
SECONDS = 0.03  # spent on each that weighs enough


@dataclass(frozen=True)
class Rates:
    """Seconds of the operations that were measured, and what the others run at.

    ``alike``: {what `_alike` says of an operation: (seconds, seconds of all cores together)}; ``bandwidth``: bytes/s of
    a plain copy, for what was not measured. ``turns``: replicas that share the same cores.
    """

    alike: dict
    bandwidth: float
    turns: int
    source: str

    @property
    def link(self):
        """Bytes/s that a replica sends to the next, each read and written."""
        return self.bandwidth / 2

    def seconds(self, graph):
        """Return the seconds that the operations of a `Graph` take.

        On a GPU one after the other. On cores no less than their longest chain, and no less than all work takes when no
        core rests (span and work, Brent 1974): one of the two is nearly reached.
        """
        if _on_gpu():
            return sum(op.times * self._of(op)[0] for op in graph.operations)
        work = sum(op.times * self._of(op)[1] for op in graph.operations)
        return max(self._longest_chain(graph), self.turns * work / cores())

    def _of(self, op):
        """Return the seconds of an operation, and those of all cores together."""
        copying = op.moved / self.bandwidth
        return self.alike.get(_alike(op), (copying, cores() * copying))

    def _longest_chain(self, graph):
        ends = {}
        for op in graph.nodes:
            start = max((ends.get(node, 0.0) for node in before(op.node)), default=0.0)
            took = op.rounds * self._longest_chain(op.body) if op.body else self._of(op)[0]
            ends[op.node] = start + took
        return max(ends.values(), default=0.0)


def measure_rates(replicas, *graphs):
    """Return the `Rates` of the operations in these graphs, which so many ``replicas`` run at once."""
    contractions, others = Counter(), Counter()
    example = {}
    for graph in graphs:
        for op in graph.operations:
            alike = _alike(op)
            example[alike] = op.node
            contractions[alike] += op.times * op.flops
            others[alike] += 0 if op.flops else op.times * op.moved

    one = tf.ones([])
    many = tf.random.uniform([COPIED // 4])
    calling = _least(lambda: tf.raw_ops.Neg(x=one))  # from Python, which a graph's step does not do
    bandwidth = 2 * COPIED / _least(lambda: tf.raw_ops.Neg(x=many))[0]
    measured = {}
    for alike in _heaviest(contractions) + _heaviest(others):
        alone = _seconds_alone(example[alike])
        if alone is not None:
            pairs = zip(alone, calling, strict=True)
            measured[alike] = tuple(max(whole - call, whole / 10) for whole, call in pairs)
    turns = 1 if _on_gpu() else replicas
    source = f"the heaviest measured alone on this machine, for {turns} on the same cores"
    return Rates(measured, bandwidth, turns, source)


def _on_gpu():
    return bool(tf.config.list_logical_devices("GPU"))


def _heaviest(weights):
    """Return the names of the heaviest of {name: weight}, as many as make up nearly all of the sum."""
    left = weights.total()
    end = (1 - COVERED) * left
    chosen = []
    for name, weight in weights.most_common():
        if left > end:
            chosen.append(name)
            left -= weight
    return chosen


def _alike(op):
    """Return what operations that take the same time have in common: kind, shapes, types, constants, attributes."""
    node = op.node
    inputs = []
    for tensor in node.inputs:
        constant = None if tensor.dtype.is_floating else str(tf.get_static_value(tensor))
        inputs.append((str(tensor.shape), tensor.dtype.name, constant))
    return op.kind, tuple(inputs), str([node.get_attr(attribute.name) for attribute in node.op_def.attr])


def _least(run):
    """Return the least seconds of several runs, and the least seconds of all cores together."""
    end = time.perf_counter() + SECONDS
    took, worked = [], []
    while len(took) < 3 or time.perf_counter() < end:
        began, busy = time.perf_counter(), time.process_time()
        run()
        tf.test.experimental.sync_devices()  # waits for GPUs
        took.append(time.perf_counter() - began)
        worked.append(time.process_time() - busy)
    return min(took), min(worked)


def _seconds_alone(node):
    """Return what `_least` says of a node on random inputs, each time others: in a step no cache holds them.

    None if it cannot run: it needs a handle, or inputs that fit together.
    """
    run = getattr(tf.raw_ops, node.type)
    size = max(1, sum(number_of_bytes(tensor) for tensor in node.inputs))
    try:
        first = arguments(node)
        copies = [tf.nest.map_structure(_copy, first) for _ in range(min(MOST_SETS, 1 + CACHE // size))]
        run(**first)
        turns = cycle(copies)
        return _least(lambda: run(**next(turns)))
    except (tf.errors.OpError, TypeError, ValueError, AttributeError):
        return None


def _copy(value):
    """Return the same numbers elsewhere in memory: to draw others takes some twenty times as long."""
    return value * 1 if tf.is_tensor(value) and value.dtype.is_floating else value


def arguments(node):
    """Return what `tf.raw_ops` needs to run a node alone: its shapes and axes as they are, else random numbers."""
    return _by_name(node, [_example(tensor) for tensor in node.inputs])


def _example(tensor):
    known = _known(tensor)
    if known is not None:
        return known
    if tensor.dtype.is_floating:
        return tf.cast(tf.random.uniform(tensor.shape, 0.1, 1.0), tensor.dtype)
    return tf.zeros(tensor.shape, tensor.dtype)


def _by_name(node, values):
    """Return {name: value} of a node's inputs and attributes, as its function in `tf.raw_ops` calls them.

    Python finds attributes such as types and the length of a list from the inputs. An input that Python calls by
    another name than the node is an "axis", as of "reduction_indices".
    """
    wanted = inspect.signature(getattr(tf.raw_ops, node.type)).parameters
    names = [attribute.name for attribute in node.op_def.attr if attribute.name in wanted]
    given = {name: node.get_attr(name) for name in names}
    for argument in node.op_def.input_arg:
        name = argument.name if argument.name in wanted else "axis"
        length = node.get_attr(argument.number_attr) if argument.number_attr else 1
        given[name] = values[:length] if argument.number_attr else values[0]
        values = values[length:]
    return given


def _known(tensor):
    """Return the value of a constant, of a shape, or of integers that follow from constants; None for all else."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return tf.constant(value, tensor.dtype)
    node = tensor.op
    if node.type == "ShapeN":
        return tf.constant(node.inputs[tensor.value_index].shape.as_list(), tensor.dtype)
    if not tensor.dtype.is_integer or not node.inputs:
        return None
    values = [_known(given) for given in node.inputs]
    if any(value is None for value in values):
        return None
    made = getattr(tf.raw_ops, node.type)(**_by_name(node, values))
    return made[tensor.value_index] if isinstance(made, list | tuple) else made
