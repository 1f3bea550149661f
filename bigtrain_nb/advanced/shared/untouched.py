"""The state that `preflight` and `find_overflow` restore: all variables of a model, random number generators."""

import random
from contextlib import ExitStack, contextmanager

import numpy as np

from bigtrain_nb.common.keras_compat import layers_within, patched_method
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.train.unlisted import unlisted_variables

# isort: split
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

_RANDOM = ("seed_generator_state", "StateVar")
"""Names of the variables of random number generators in Keras and TensorFlow."""


class KeptState:
    """A copy of all variables of a model, its optimizers and metrics, in host memory.

    It includes those that Keras does not list, such as the states of a stateful RNN or a `tf.Variable` in an attribute.
    """

    def __init__(self, model):
        self._model = model
        self._values = [(variable, variable.numpy()) for variable in variables_of(model)]

    def restore_values(self):
        for variable, value in self._values:
            variable.assign(value)

    def restore_nonrandom(self):
        """Restore all variables except those of random number generators; return the names of changed ones."""
        moved = []
        for variable, value in self._values:
            name = getattr(variable, "path", variable.name)
            if not any(word in name for word in _RANDOM) and not np.array_equal(variable.numpy(), value):
                variable.assign(value)
                moved.append(name)
        return moved

    def in_no_list(self):
        """Return the names of variables that neither the model nor its optimizers list, so that they are not saved."""
        listed = {id(each) for each in _listed(self._model)}
        return [getattr(each, "path", each.name) for each, _ in self._values if id(each) not in listed]

    def made_since(self):
        """Return the names of variables created since, whose initial values are unknown, except those of optimizers."""
        known = {id(variable) for variable, _ in self._values}
        known |= {id(each) for optimizer in optimizers_within(self._model) for each in optimizer.variables}
        return [getattr(each, "path", each.name) for each in variables_of(self._model) if id(each) not in known]


def variables_of(model):
    """Return the variables of a model, its optimizers and metrics, and those that Keras does not list."""
    return [*_listed(model), *unlisted_variables(model, of_all=True).values()]


def _listed(model):
    """Return the variables that Keras lists, of the model, all metrics and the optimizers."""
    lists = [model.variables, *(layer.metrics_variables for layer in layers_within(model))]  # also of inner models
    lists += [optimizer.variables for optimizer in optimizers_within(model)]
    return list({id(each): each for listed in lists for each in listed}.values())


def optimizers_within(model):
    """Return the optimizers of a model and of the layers and models inside it, each once."""
    found = [each for layer in layers_within(model) for each in optimizers_of(layer).values()]
    return list({id(each): each for each in found}.values())


@contextmanager
def restoring_state(model):
    """Yield the `KeptState` of a built model; at the end restore it, and the random state of all libraries."""
    state = KeptState(model)
    own_fit = vars(model).get("fit")  # set by a `Resume` that is tried here
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with restoring_random_state():
        try:
            yield state
        finally:
            state.restore_values()
            vars(model).pop("fit", None)
            if own_fit is not None:
                vars(model)["fit"] = own_fit
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def build_optimizers(model, batch):
    """Create the variables of optimizers by an eager step, which shows what a custom `train_step` trains."""
    unbuilt = [optimizer for optimizer in optimizers_within(model) if not optimizer.built]
    if not unbuilt and not model.run_eagerly:
        return
    weights_of = []
    with restoring_state(model), functions_run_eagerly(), ExitStack() as stack:
        for optimizer in unbuilt:

            def note(gradients, trainable_variables=None, optimizer=optimizer):
                weights_of.append((optimizer, list(trainable_variables)))

            stack.enter_context(patched_method(optimizer, "apply", note))
        model.train_step(batch)
        model.reset_metrics()
    for optimizer, weights in weights_of:
        if not optimizer.built:
            optimizer.build(weights)


@contextmanager
def functions_run_eagerly():
    """Run the Python code of each `tf.function`: a `train_step` that is one keeps no trace of what is patched now."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextmanager
def restoring_random_state():  # private: Keras
    """Restore the global random state of TensorFlow and Keras.

    There is no public way to get the position after `tf.random.set_seed` or `keras.utils.set_random_seed`.
    """
    drawn = getattr(context.context(), "_rng", None)  # exists once a seed was set
    place = drawn and drawn.getstate()
    generator = stateful_random_ops.global_generator
    states = []
    if generator is not None:
        states.append((generator.state, generator.state.numpy()))
    of_keras = global_state.get_global_attribute("global_seed_generator")
    if of_keras is not None:
        states.append((of_keras.state, of_keras.state.numpy()))
    try:
        yield
    finally:
        if drawn and drawn.getstate() != place:
            drawn.setstate(place)
            context.context().clear_kernel_cache()  # else kernels of repeated seeds would continue their state
        for variable, value in states:
            variable.assign(value)
        stateful_random_ops.global_generator = generator
        global_state.set_global_attribute("global_seed_generator", of_keras)
