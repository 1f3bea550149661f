"""The state that `preflight` restores: a model with all its variables, and random number generators."""

import random
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType

import numpy as np

from bigtrain_nb.common.keras_compat import patched_method
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.quiet import keras, tf

# isort: split
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

_VARIABLES = (keras.Variable, tf.Variable)
_LIBRARIES = ("keras", "tensorflow", "numpy", "builtins", "bigtrain_nb")
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
        known |= {id(each) for optimizer in optimizers_of(self._model).values() for each in optimizer.variables}
        return [getattr(each, "path", each.name) for each in variables_of(self._model) if id(each) not in known]


def variables_of(model):
    """Return the variables of a model, its optimizers and metrics, and all reachable from its attributes.

    The search follows lists and dictionaries, closures and globals of functions, and attributes of classes outside of
    Keras and TensorFlow.
    """
    found = {id(each): each for each in _listed(model)}
    seen, waiting = {}, [model]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing  # keeps the object alive, and so its id unique
        if isinstance(thing, _VARIABLES):
            if not isinstance(thing, keras.Variable) or thing._value is not None:
                found.setdefault(id(thing), thing)
        else:
            waiting += _led_to_by(thing)
    held = {id(each._value) for each in found.values() if isinstance(each, keras.Variable)}
    return [each for each in found.values() if id(each) not in held]


def _listed(model):
    """Return the variables that Keras lists, of the model, its metrics and its optimizers."""
    of_optimizers = [each for optimizer in optimizers_of(model).values() for each in optimizer.variables]
    return [*model.variables, *model.metrics_variables, *of_optimizers]


def _led_to_by(thing):
    """Return the contents of an object, and the variables that user functions and classes refer to."""
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, FunctionType):
        return [*(cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)), *_named_by(thing)]
    if isinstance(thing, type | ModuleType) or _library_of(type(thing)) in ("tensorflow", "numpy", "builtins"):
        return []
    of_classes = [value for each in type(thing).__mro__ if not _library_of(each) for value in vars(each).values()]
    return [
        *getattr(thing, "__dict__", {}).values(),
        *(each for each in of_classes if isinstance(each, _VARIABLES)),
        *(each for value in of_classes if isinstance(value, FunctionType) for each in _named_by(value)),
    ]


def _named_by(function):
    """Return the module-level variables that a user function refers to."""
    if _library_of(function):
        return []
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    return [each for each in named if isinstance(each, _VARIABLES)]


def _library_of(thing):
    """Return the library of a class or function; "" for user code."""
    name = (thing.__module__ or "").partition(".")[0]
    return name if name in _LIBRARIES else ""


def _is_filled(cell):
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


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
    """Create the variables of a custom `train_step`'s optimizers; only a step shows for which weights."""
    if all(optimizer.built for optimizer in optimizers_of(model).values()):
        return
    weights_of = []
    with restoring_state(model), ExitStack() as stack:
        for optimizer in optimizers_of(model).values():

            def note(gradients, trainable_variables=None, optimizer=optimizer):
                weights_of.append((optimizer, list(trainable_variables)))

            stack.enter_context(patched_method(optimizer, "apply", note))
        model.train_step(batch)
    for optimizer, weights in weights_of:
        if not optimizer.built:
            optimizer.build(weights)


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
