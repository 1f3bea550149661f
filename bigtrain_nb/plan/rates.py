"""How long this machine takes for the operations of a model: those that weigh most, alone, on random numbers.

The least time of several runs counts. Whatever else the machine does only adds to it, and in a step operations can run
over what is still in a cache, write over their inputs and run side by side, which none does alone.
"""

import inspect
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.plan.operations import CONTRACTIONS, number_of_bytes

COVERED = 0.95
"""The share of all work, of contractions and of the rest, whose operations are measured one by one."""
COPIED = 2**26  # bytes
CACHE = 2**26  # bytes, more than a processor keeps close to two cores
MOST_SETS = 16


@dataclass(frozen=True)
class Rates:
    """Seconds of the operations that were measured, and what the others run at.

    ``of``: {operation as `_alike` tells them apart: seconds}; ``kinds``: {kind: work in FLOP or bytes a second}, over
    what was measured of a kind; ``copying``: bytes/s of a plain copy, for kinds that were not measured and for what
    replicas exchange. ``shared``: replicas run on the same cores, so that they compute in turn.
    """

    of: dict = field(repr=False)
    kinds: dict = field(repr=False)
    copying: float
    shared: bool

    def seconds(self, ops):
        """Return the seconds that operations take one after the other."""
        return sum(op.times * self._one(op) for op in ops)

    def _one(self, op):
        measured = self.of.get(_alike(op))
        if measured:
            return measured
        return _work(op) / self.kinds[op.kind] if op.kind in self.kinds else op.moved / self.copying


def measure_rates(*graphs, seconds=0.03):
    """Return the `Rates` of the operations in these graphs; ``seconds`` are spent on each that weighs enough."""
    took, work, spent = {}, Counter(), Counter()
    numbers, one = tf.random.uniform([COPIED // 4]), tf.ones([])
    calling = _least(lambda: tf.raw_ops.Neg(x=one), seconds)  # from Python, which a graph's step does not do
    for op in _heaviest([op for graph in graphs for op in graph.operations if op.moved]):
        alone = _seconds_alone(op.node, seconds)
        if alone:
            took[_alike(op)] = max(alone - calling, alone / 10)
            work[op.kind] += _work(op)
            spent[op.kind] += took[_alike(op)]
    kinds = {kind: work[kind] / spent[kind] for kind in spent}
    copying = 2 * COPIED / _least(lambda: tf.raw_ops.Neg(x=numbers), seconds)
    return Rates(took, kinds, copying, shared=not tf.config.list_logical_devices("GPU"))


def _heaviest(ops):
    """Yield one operation of each kind and shape, until these make up nearly all of the work of their sort."""
    for sort in (True, False):
        same = {}
        for op in ops:
            if (op.kind in CONTRACTIONS) == sort:
                same.setdefault(_alike(op), []).append(op)
        weight = lambda group: sum(op.times for op in group) * _work(group[0])
        left = sum(map(weight, same.values()))
        end = (1 - COVERED) * left
        for group in sorted(same.values(), key=lambda group: -weight(group)):
            if left <= end:
                break
            yield group[0]
            left -= weight(group)


def _alike(op):
    """Return what operations that take the same time have in common: kind, shapes, types, constants, attributes."""
    node = op.node
    tensors = tuple((tuple(t.shape) if t.shape.rank is not None else None, t.dtype.name) for t in node.inputs)
    constants = tuple(None if t.dtype.is_floating else str(tf.get_static_value(t)) for t in node.inputs)
    return op.kind, tensors, constants, str([node.get_attr(a.name) for a in node.op_def.attr])


def _work(op):
    return op.flops if op.kind in CONTRACTIONS else op.moved


def _seconds_alone(node, seconds):
    """Return the seconds that one node takes on random inputs, or None if it cannot run."""
    try:
        run = _alone(node)
        run()
        return _least(run, seconds)
    except (tf.errors.OpError, TypeError, ValueError, AttributeError):
        return None  # it needs a handle, or inputs that fit together


def _least(run, seconds):
    end, took = time.perf_counter() + seconds, []
    while len(took) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        tf.test.experimental.sync_devices()  # waits for GPUs
        took.append(time.perf_counter() - began)
    return min(took)


def _alone(node):
    """Return a function that runs a node on random inputs, each time on other copies: in a step no cache holds them."""
    size, drawn = max(1, sum(map(number_of_bytes, node.inputs))), arguments(node)
    sets = [tf.nest.map_structure(_copy, drawn) for _ in range(min(MOST_SETS, 1 + CACHE // size))]
    operation, turns = getattr(tf.raw_ops, node.type), itertools.cycle(sets)
    return lambda: operation(**next(turns))


def _copy(value):
    """Return the same numbers elsewhere in memory: to draw others takes some twenty times as long."""
    return value * 1 if tf.is_tensor(value) and value.dtype.is_floating else value


def arguments(node):
    """Return what `tf.raw_ops` needs to run a node alone: its shapes and axes as they are, else random numbers."""
    return _named(node, map(_value, node.inputs))


def _named(node, values):
    """Return {name: value} of a node's inputs and attributes, as its function in `tf.raw_ops` calls them."""
    values, inferred, given = list(values), set(), {}
    for argument in node.op_def.input_arg:
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
        several = argument.number_attr or argument.type_list_attr
        count = node.get_attr(argument.number_attr) if argument.number_attr else len(values)
        given[argument.name] = [values.pop(0) for _ in range(count)] if several else values.pop(0)
    given |= {a.name: node.get_attr(a.name) for a in node.op_def.attr if a.name not in inferred}
    names = [name for name in inspect.signature(getattr(tf.raw_ops, node.type)).parameters if name != "name"]
    others = iter([name for name in names if name not in given])  # "axis" for "reduction_indices"
    return {name if name in names else next(others): value for name, value in given.items()}


def _value(tensor):
    """Return what is known beforehand, such as a shape or an axis, else random numbers of the shape and type."""
    known = _known(tensor)
    if known is not None:
        return known
    if tensor.dtype.is_floating:
        return tf.cast(tf.random.uniform(tensor.shape, 0.1, 1.0), tensor.dtype)
    return tf.zeros(tensor.shape, tensor.dtype)


def _known(tensor):
    """Return the value of a constant, of a shape, or of integers that follow from them; None for all else."""
    fixed = tf.get_static_value(tensor)
    if fixed is not None:
        return tf.constant(fixed, tensor.dtype)
    node = tensor.op
    if node.type in ("Shape", "ShapeN"):
        shape = node.inputs[tensor.value_index].shape
        return tf.constant(shape.as_list(), tensor.dtype) if shape.is_fully_defined() else None
    if not tensor.dtype.is_integer or not node.inputs:
        return None
    values = list(map(_known, node.inputs))
    if any(value is None for value in values):
        return None
    made = getattr(tf.raw_ops, node.type)(**_named(node, values))
    return made[tensor.value_index] if isinstance(made, (list, tuple)) else made
