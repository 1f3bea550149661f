"""The time below which no machine runs a graph: a roofline for each operation, and the least that one takes."""

from bigtrain_nb.plan.operations import WRITES, useful_share, written_bytes
from bigtrain_nb.plan.timed_alone import is_timed_alone, seconds_alone


def least_seconds(graph, machine):
    """Return seconds that a ``machine``, an `Accelerator` or `ThisMachine`, takes at least for a `Graph`.

    An operation takes as long as its FLOPs, as the bytes that it moves, or as its start, whichever is longest (Williams
    et al. 2009). Where the machine ``times_alone``, what it took alone stands in place of the FLOPs. Only what surely
    happens counts: `bytes_moved` is 0 for operations that may move less, and what TensorFlow fuses into a product of
    matrices or a convolution counts with that. Where XLA ``fuses`` the rest, only products, convolutions and the
    variables that are written count.
    """
    total = 0.0
    for op in graph.operations:
        if op.flops or (op.moved and not op.is_fused and not machine.fuses):
            total += op.times * max(_working(op, machine), machine.moving(op.moved), machine.start)
    if machine.fuses:
        writes = [op.node for op in graph.operations if op.kind in WRITES]
        each_once = {node.inputs[0].name: written_bytes(node) for node in writes}  # AdamW writes weights twice
        total += machine.moving(sum(each_once.values()))
    return total


def _working(op, machine):
    """Return the seconds of an operation by its FLOPs or, on cores, as it takes alone; 0 where neither is known."""
    if machine.times_alone and is_timed_alone(op.node):
        return seconds_alone(op.node)
    if not op.flops:
        return 0.0
    return useful_share(op.node) * op.flops / machine.flops(_policy(op))


def _policy(op):
    """Return the Keras dtype policy under which an operation computes."""
    dtype = op.node.outputs[0].dtype
    return "float32" if dtype.size > 2 else f"mixed_{dtype.name}"
