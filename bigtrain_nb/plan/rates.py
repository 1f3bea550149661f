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

    ``alike``: {what `_alike` says of an operation: seconds}; ``copying``: bytes/s of a plain copy, for what was not
    measured and for what replicas exchange. ``shared``: replicas run on the same cores, so that they compute in turn.
    """

    alike: dict = field(repr=False)
    copying: float
    shared: bool

    def seconds(self, graph):
        """Return the seconds that the operations of a `Graph` take one after the other."""
        total = 0.0
        for op in graph.operations:
            seconds = self.alike.get(_alike(op))
            if seconds is None:
                seconds = op.moved / self.copying
            total += op.times * seconds
        return total


def measure_rates(*graphs, seconds=0.03):
    """Return the `Rates` of the operations in these graphs; ``seconds`` are spent on each that weighs enough."""
    contractions, others = [], []
    for graph in graphs:
        for op in graph.operations:
            if op.kind in CONTRACTIONS:
                contractions.append(op)
            elif op.moved:
                others.append(op)

    one = tf.ones([])
    many = tf.random.uniform([COPIED // 4])
    calling = _least(lambda: tf.raw_ops.Neg(x=one), seconds)  # from Python, which a graph's step does not do
    copying = 2 * COPIED / _least(lambda: tf.raw_ops.Neg(x=many), seconds)
    alike = {}
    for op in _heaviest(contractions) + _heaviest(others):
        alone = _seconds_alone(op.node, seconds)
        if alone is not None:
            alike[_alike(op)] = max(alone - calling, alone / 10)
    return Rates(alike, copying, shared=not tf.config.list_logical_devices("GPU"))


def _heaviest(ops):
    """Return one operation of each kind and shape, the heaviest first, until they are nearly all of the work."""
    weights = Counter()
    example = {}
    for op in ops:
        alike = _alike(op)
        weights[alike] += op.times * (op.flops if op.kind in CONTRACTIONS else op.moved)
        example[alike] = op
    left = weights.total()
    end = (1 - COVERED) * left
    chosen = []
    for alike, weight in weights.most_common():
        if left <= end:
            break
        chosen.append(example[alike])
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


def _least(run, seconds):
    end = time.perf_counter() + seconds
    took = []
    while len(took) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        tf.test.experimental.sync_devices()  # waits for GPUs
        took.append(time.perf_counter() - began)
    return min(took)


def _seconds_alone(node, seconds):
    """Return the seconds that a node takes on random inputs, each time others: in a step no cache holds them.

    None if it cannot run: it needs a handle, or inputs that fit together.
    """
    run = getattr(tf.raw_ops, node.type)
    size = max(1, sum(number_of_bytes(tensor) for tensor in node.inputs))
    try:
        first = arguments(node)
        copies = [tf.nest.map_structure(_copy, first) for _ in range(min(MOST_SETS, 1 + CACHE // size))]
        turns = itertools.cycle(copies)
        run(**first)
        return _least(lambda: run(**next(turns)), seconds)
    except (tf.errors.OpError, TypeError, ValueError, AttributeError):
        return None


def _copy(value):
    """Return the same numbers elsewhere in memory: to draw others takes some twenty times as long."""
    return value * 1 if tf.is_tensor(value) and value.dtype.is_floating else value


def arguments(node):
    """Return what `tf.raw_ops` needs to run a node alone: its shapes and axes as they are, else random numbers."""
    values = []
    for tensor in node.inputs:
        known = _known(tensor)
        if known is not None:
            values.append(known)
        elif tensor.dtype.is_floating:
            values.append(tf.cast(tf.random.uniform(tensor.shape, 0.1, 1.0), tensor.dtype))
        else:
            values.append(tf.zeros(tensor.shape, tensor.dtype))
    return _by_name(node, values)


def _by_name(node, values):
    """Return {name: value} of a node's inputs and attributes, as its function in `tf.raw_ops` calls them.

    An input that is a list has an attribute for its length. Python finds such an attribute, and the one of an input's
    type, from the inputs. A name that Python has and the node has not is another name for what the node has and
    Python has not: "axis" for "reduction_indices".
    """
    given = {}
    found = set()
    place = 0
    for argument in node.op_def.input_arg:
        found.update((argument.type_attr, argument.number_attr, argument.type_list_attr))
        if argument.number_attr:
            length = node.get_attr(argument.number_attr)
            given[argument.name] = values[place : place + length]
            place += length
        else:
            given[argument.name] = values[place]
            place += 1
    for attribute in node.op_def.attr:
        if attribute.name not in found:
            given[attribute.name] = node.get_attr(attribute.name)

    wanted = list(inspect.signature(getattr(tf.raw_ops, node.type)).parameters)
    wanted.remove("name")
    renamed = [name for name in given if name not in wanted]
    others = [name for name in wanted if name not in given]
    for name, other in zip(renamed, others, strict=True):
        given[other] = given.pop(name)
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
