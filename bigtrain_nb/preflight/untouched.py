"""What `preflight` leaves as it was: a model with all that belongs to it, random numbers, the order of a dataset."""

import random
from contextlib import ExitStack, contextmanager

import numpy as np

from bigtrain_nb.common.keras_gaps import in_place_of, random_numbers_of_keras_kept
from bigtrain_nb.common.quiet import keras, tf

_RESOURCES = {
    "ShuffleDatasetV3": (4, "AnonymousSeedGenerator"),
    "ShuffleAndRepeatDatasetV2": (5, "AnonymousSeedGenerator"),
    "CacheDatasetV2": (2, "AnonymousMemoryCache"),
}
"""Operations of tf.data with a memory of their own: at which input it comes in, and what makes a new one."""


class State:
    """The values of all variables of a model, its optimizers and metrics, in the host's memory."""

    def __init__(self, model):
        variables = [*model.variables, *model.metrics_variables]
        for optimizer in optimizers_of(model):
            variables += optimizer.variables
        self._values = [(variable, variable.numpy()) for variable in {id(each): each for each in variables}.values()]

    def put_back(self):
        for variable, value in self._values:
            variable.assign(value)


@contextmanager
def left_as_it_was(model):
    """Give the `State` of a built model, and put it back in the end, with the random numbers of all libraries."""
    state = State(model)
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with random_numbers_of_keras_kept():
        try:
            yield state
        finally:
            state.put_back()
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def build_optimizers(model, batch):
    """Make the variables of the optimizers of a `train_step` of one's own: for which weights, only a step shows."""
    if all(optimizer.built for optimizer in optimizers_of(model)):
        return
    weights_of = []
    with left_as_it_was(model), ExitStack() as stack:
        for optimizer in optimizers_of(model):

            def note(gradients, trainable_variables=None, optimizer=optimizer):
                weights_of.append((optimizer, list(trainable_variables)))

            stack.enter_context(in_place_of(optimizer, "apply", note))
        model.train_step(batch)
    for optimizer, weights in weights_of:
        if not optimizer.built:
            optimizer.build(weights)


def optimizers_of(model):
    """Return the optimizers that a model has as attributes: that of `compile`, and more for a step of its own."""
    return [each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)]


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
