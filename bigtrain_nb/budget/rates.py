"""How fast this machine is at the kinds of operation that a model is made of: one of each, alone, on random numbers."""

import itertools
import time
from dataclasses import dataclass, field

from bigtrain_nb.budget.operations import is_contraction, number_of_bytes
from bigtrain_nb.quiet import tf

LEAST = 1e-3
"""Kinds that do less than this share of all work of their sort run at the rate of the other kinds."""
COPIED = 2**26  # bytes
CACHE = 2**26  # bytes, more than a processor keeps close to two cores
MOST_SETS = 16


@dataclass(frozen=True)
class Rates:
    """FLOP/s of contractions and bytes/s of all else, for each kind and type of numbers, as measured.

    ``copying``: bytes/s of a plain copy, for kinds that were not measured and for what replicas exchange.
    ``shared``: replicas run on the same cores, so that they compute in turn.
    """

    of: dict = field(repr=False)
    copying: float
    shared: bool

    def seconds(self, ops):
        """Return the seconds that operations take one after the other."""
        return sum(self._one(op) for op in ops)

    def _one(self, op):
        rate = self.of.get(_kind(op))
        if rate:
            return _work(op) / rate
        return op.moved / self.copying


def measure_rates(*graphs, seconds=0.1):
    """Return the `Rates` of the kinds of operation in these graphs, from the largest of each; ``seconds`` each."""
    ops = [op for graph in graphs for op in graph.nodes if op.moved]
    work, largest = {}, {}
    for op in ops:
        kind = _kind(op)
        work[kind] = work.get(kind, 0) + _work(op)
        if kind not in largest or _work(op) > _work(largest[kind]):
            largest[kind] = op
    everything = {True: 0, False: 0}
    for kind, done in work.items():
        everything[is_contraction(kind[0])] += done
    rates = {}
    for kind, op in largest.items():
        if work[kind] >= LEAST * everything[is_contraction(kind[0])]:
            took = _seconds_alone(op.node, seconds)
            if took:
                rates[kind] = _work(op) / took
    return Rates(rates, _copying(seconds), shared=not tf.config.list_logical_devices("GPU"))


def _kind(op):
    outputs = op.node.outputs
    return op.kind, outputs[0].dtype.name if outputs else ""


def _work(op):
    return op.flops if is_contraction(op.kind) else op.moved


def _seconds_alone(node, seconds):
    """Return the seconds that one node takes on random inputs, the least of several runs, or None if it cannot run."""
    try:
        run = _alone(node)
        run()
        return _least(run, seconds)
    except (tf.errors.OpError, TypeError, ValueError, AttributeError):
        return None  # it needs a handle, or inputs that fit together


def _least(run, seconds):
    end, best, runs = time.perf_counter() + seconds, float("inf"), 0
    while runs < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        best, runs = min(best, time.perf_counter() - began), runs + 1
    return best


def _alone(node):
    """Return a function that runs a node on random inputs, each time on others: in a step no cache holds them."""
    size = max(1, sum(map(number_of_bytes, node.inputs)))
    sets = [_arguments(node) for _ in range(min(MOST_SETS, 1 + CACHE // size))]
    operation, turns = getattr(tf.raw_ops, node.type), itertools.cycle(sets)

    def run():
        made = operation(**next(turns))
        if tf.config.list_logical_devices("GPU"):
            tf.nest.flatten(made)[0].numpy()

    return run


def _arguments(node):
    inferred, inputs, given = set(), {}, list(map(_value, node.inputs))
    for argument in node.op_def.input_arg:
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
        several = argument.number_attr or argument.type_list_attr
        count = node.get_attr(argument.number_attr) if argument.number_attr else len(given)
        inputs[argument.name] = [given.pop(0) for _ in range(count)] if several else given.pop(0)
    return inputs | {a.name: node.get_attr(a.name) for a in node.op_def.attr if a.name not in inferred}


def _value(tensor):
    """Return a constant's value, which may be a shape or an axis, or random numbers of the tensor's shape and type."""
    known = tf.get_static_value(tensor)
    if known is not None:
        return tf.constant(known, tensor.dtype)
    if tensor.dtype.is_floating:
        return tf.cast(tf.random.uniform(tensor.shape, 0.1, 1.0), tensor.dtype)
    return tf.zeros(tensor.shape, tensor.dtype)


def _copying(seconds):
    numbers = tf.random.uniform([COPIED // 4])
    return 2 * COPIED / _least(lambda: tf.raw_ops.Neg(x=numbers), seconds)
