"""Variables that a training may change and Keras does not list: states of stateful RNNs, and those of one's own.

They are attributes of layers and losses that Keras does not track, as `tf.Variable`s, or are held by objects, lists and
functions there.
"""

from functools import partial
from types import FunctionType, MethodType

from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.quiet import keras, tf

_LONG = 10_000
"""A list with more elements is taken for data."""
_OF_LIBRARIES = ("keras.", "tensorflow.", "numpy.", "bigtrain_nb.", "builtins.")
_LEFT_OUT = (type, keras.layers.Layer, keras.metrics.Metric, keras.optimizers.Optimizer, keras.callbacks.Callback)
"""Layers are looked at each for itself; the others are none, or saved elsewhere."""


def unlisted_variables(model):
    """Return {where: `tf.Variable`} of what a model, its layers and its losses hold beside those of Keras' lists.

    In an order that is the same for the same model. Metrics and optimizers are left out.
    """
    return _Search(model).found


class _Search:
    def __init__(self, model):
        listed = [*model.variables, *model.metrics_variables]
        for optimizer in optimizers_of(model).values():
            listed += optimizer.variables
        self._seen = {id(variable) for variable in listed} | {id(_inside(variable)) for variable in listed}
        self._kept = []  # so that no other object has the id of one that is gone
        self.found = {}
        for layer in layers_within(model):
            self._look_into(layer, layer.name)
            if not _is_of_a_library(layer):
                for name, value in vars(type(layer)).items():
                    if isinstance(value, FunctionType):
                        self._look_at(value, f"{layer.name}.{name}")

    def _look_into(self, thing, where):
        for name, value in list(vars(thing).items()):
            if not name.startswith(("_self_", "_inbound", "_outbound")):
                self._look_at(value, f"{where}.{name}")

    def _look_at(self, thing, where):
        if thing is None or isinstance(thing, bool | int | float | str | bytes) or id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        self._kept.append(thing)
        if isinstance(thing, keras.Variable):
            self._look_at(_inside(thing), where)
        elif isinstance(thing, tf.Variable):
            self.found[where] = thing
        elif isinstance(thing, tf.random.Generator):
            self._look_at(thing.state, f"{where}.state")
        elif isinstance(thing, dict):
            if len(thing) <= _LONG:
                for name, value in list(thing.items()):
                    self._look_at(value, f"{where}[{name!r:.60}]")
        elif isinstance(thing, list | tuple):
            if len(thing) <= _LONG:
                for number, value in enumerate(thing):
                    self._look_at(value, f"{where}[{number}]")
        elif isinstance(thing, partial):
            self._look_at((thing.func, thing.args, thing.keywords), where)
        elif isinstance(thing, MethodType):
            self._look_at(thing.__self__, where)
        elif isinstance(thing, FunctionType):
            for name in thing.__code__.co_names:
                if isinstance(thing.__globals__.get(name), keras.Variable | tf.Variable):
                    self._look_at(thing.__globals__[name], f"{where}, {name}")
            for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
                try:
                    self._look_at(cell.cell_contents, f"{where}, {name}")
                except ValueError:
                    pass  # a name that has no value yet
        elif hasattr(thing, "__dict__") and not isinstance(thing, _LEFT_OUT) and not _is_of_a_library(thing):
            self._look_into(thing, where)


def _is_of_a_library(thing):
    return f"{type(thing).__module__}.".startswith(_OF_LIBRARIES)


def _inside(variable):
    """Return the variable of TensorFlow within one of Keras."""
    return variable.value if isinstance(variable, keras.Variable) else variable
