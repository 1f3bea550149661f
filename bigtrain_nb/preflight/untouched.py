"""What `preflight` leaves as it was: a model with all that belongs to it, and random numbers."""

import random
from contextlib import ExitStack, contextmanager

import numpy as np

from bigtrain_nb.common.keras_gaps import in_place_of, random_numbers_of_keras_kept
from bigtrain_nb.common.layers import optimizers_of


class State:
    """The values of all variables of a model, its optimizers and metrics, in the host's memory."""

    def __init__(self, model):
        variables = [*model.variables, *model.metrics_variables]
        for optimizer in optimizers_of(model).values():
            variables += optimizer.variables
        self._values = [(variable, variable.numpy()) for variable in {id(each): each for each in variables}.values()]

    def put_back(self):
        for variable, value in self._values:
            variable.assign(value)


@contextmanager
def left_as_it_was(model):
    """Give the `State` of a built model, and put it back in the end, with the random numbers of all libraries."""
    state = State(model)
    own_fit = vars(model).get("fit")  # a `Resume` that is tried here puts itself there
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with random_numbers_of_keras_kept():
        try:
            yield state
        finally:
            state.put_back()
            vars(model).pop("fit", None)
            if own_fit is not None:
                vars(model)["fit"] = own_fit
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def build_optimizers(model, batch):
    """Make the variables of the optimizers of a `train_step` of one's own: for which weights, only a step shows."""
    if all(optimizer.built for optimizer in optimizers_of(model).values()):
        return
    weights_of = []
    with left_as_it_was(model), ExitStack() as stack:
        for optimizer in optimizers_of(model).values():

            def note(gradients, trainable_variables=None, optimizer=optimizer):
                weights_of.append((optimizer, list(trainable_variables)))

            stack.enter_context(in_place_of(optimizer, "apply", note))
        model.train_step(batch)
    for optimizer, weights in weights_of:
        if not optimizer.built:
            optimizer.build(weights)
