"""Graphs of unrolled micro-batches."""

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train.batches import sum_unrolled

WEIGHTS = 20


def test_a_part_waits_for_the_sums_before_by_one_node():
    """An edge from each sum to each node once made the graph of fully sharded layers larger than its tensors."""

    def one_part(start, length):
        return {"gradients": [tf.fill([length], 1.0 * start) for _ in range(WEIGHTS)]}

    traced = tf.function(lambda: sum_unrolled(one_part, [(1, 4), (2, 4)]), autograph=False).get_concrete_function()
    waits = [node for node in traced.graph.get_operations() if node.control_inputs and node.type != "NoOp"]
    assert waits and all(len(node.control_inputs) == 1 for node in waits)
    assert [float(total[0]) for total in traced()["gradients"]] == WEIGHTS * [3.0]
