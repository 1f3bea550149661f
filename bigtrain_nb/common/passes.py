"""A dataset is looked at before it is trained on, and gives what it would have given without that."""

from collections.abc import Callable, Iterator
from typing import Any

from bigtrain_nb.common.quiet import keras, tf

_RESOURCES = {
    "ShuffleDatasetV3": (4, "AnonymousSeedGenerator"),
    "ShuffleAndRepeatDatasetV2": (5, "AnonymousSeedGenerator"),
    "CacheDatasetV2": (2, "AnonymousMemoryCache"),
}
"""Operations of tf.data with a memory of their own: at which input it comes in, and what makes a new one."""


def passes(source: Any) -> Callable[[], Iterator]:
    """Return a function that starts a pass over batches, without moving on their shuffling where that can be done."""
    if isinstance(source, keras.utils.PyDataset):
        return lambda: (source[number] for number in range(len(source)))
    if isinstance(source, tf.data.Dataset):
        try:
            source = read_apart(source)
        except (tf.errors.OpError, ValueError):
            pass  # then its shuffling moves on
    return lambda: iter(source)


def read_apart(dataset):
    """Return a `tf.data.Dataset` that gives what this one will give, and does not move on its shuffling by that.

    Each pass over a shuffled dataset takes the next seed from a memory that all its iterators share: whoever looks at
    the first batches changes the order that `fit` sees. So the graph of the dataset is copied, with memories of its
    own. What cannot be written as a graph, as arrays of 2 GiB and more, raises tf.errors.OpError or ValueError.
    """
    variant = tf.data.experimental.to_variant(dataset)
    text = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)  # functions of Python: as here
    graph = tf.compat.v1.GraphDef.FromString(text.numpy())
    nodes = {node.name: node for node in graph.node}
    for node in list(graph.node):
        if node.op in _RESOURCES:
            place, operation = _RESOURCES[node.op]
            memory = nodes[node.input[place].partition(":")[0]]
            memory.op = operation
            memory.ClearField("attr")
            if operation == "AnonymousSeedGenerator":
                again = graph.node.add(name=f"{memory.name}/again", op="Const")
                again.attr["dtype"].type = tf.bool.as_datatype_enum
                reshuffles = tf.make_tensor_proto(node.attr["reshuffle_each_iteration"].b)
                again.attr["value"].tensor.CopyFrom(reshuffles)
                memory.input.extend([node.input[place - 2], node.input[place - 1], again.name])
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, dataset.element_spec)
