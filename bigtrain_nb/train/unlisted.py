"""Find variables that training may change but Keras does not list: states of stateful RNNs, and custom ones.

They are untracked attributes of layers, losses and optimizers, like `tf.Variable`s, or in objects and functions there.
"""

from collections import deque
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType

from bigtrain_nb.common.keras_compat import layers_within, parts_of
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.quiet import keras, tf

_LONG = 10_000
"""A list or dictionary with more elements is assumed to be data."""
_OF_LIBRARIES = ("keras.", "tensorflow.", "numpy.", "bigtrain_nb.", "builtins.")
_LEFT_OUT = (type, keras.callbacks.Callback)
_LOOKED_INTO = (
    keras.layers.Layer,
    keras.random.SeedGenerator,
    tf.Module,
    tf.train.Checkpoint,
    tf.train.ExponentialMovingAverage,
)
"""Classes that may have variables as attributes although they are from a library."""
_VARIABLES_AND_FUNCTIONS = (FunctionType, tf.types.experimental.PolymorphicFunction, keras.Variable, tf.Variable)
_NOT_FOLLOWED = ("_self_", "_inbound", "_outbound", "_compile_config", "_compile_metrics")


def unlisted_variables(model, of_all=False):
    """Return {where: `tf.Variable`} of a model, its layers and its losses, without those in Keras' lists.

    The order is the same for the same model: objects and their contents, depth first. The model's metrics are
    excluded, unless ``of_all``.
    """
    layers, optimizers = layers_within(model), optimizers_of(model).values()
    listed = [*model.variables, *model.metrics_variables, *(each for one in optimizers for each in one.variables)]
    metrics = [metric for layer in layers for metric in vars(layer).get("_metrics", [])]
    kept = [*listed, *map(_inside, listed), *layers, *optimizers, *model.metrics, *metrics]
    seen = set(map(id, kept))  # of objects that are kept alive, so that ids are not reused
    found = {}
    parts = [part for optimizer in optimizers for part in parts_of(optimizer)]
    for holder in [*layers, *parts, *([*model.metrics, *metrics] if of_all else [])]:
        of_keras = holder in parts and _is_of_a_library(type(holder)) and not of_all
        stack = [(value, (holder.name, name)) for value, name in _held_by(holder)][::-1]
        stack = [pair for pair in stack if not of_keras or pair[1][1] == "._learning_rate"]  # perhaps a custom function
        while stack:
            thing, where = stack.pop()  # a location: a name, or a pair of the holder's location and a name
            if thing is None or isinstance(thing, bool | int | float | str | bytes) or id(thing) in seen:
                continue
            seen.add(id(thing))
            kept.append(thing)
            if isinstance(thing, tf.Variable):
                text = _text(where)
                found[f"{text}, the {len(found) + 1}th" if text in found else text] = thing
            else:
                stack += [(value, (where, name)) for value, name in _within(thing)][::-1]
    return found


def _within(thing):
    """Return an object's contents, as pairs of a value and how it is reached."""
    if isinstance(thing, keras.Variable):
        return [(_inside(thing), "")]
    if isinstance(thing, tf.random.Generator):
        return [(thing.state, ".state")]
    if isinstance(thing, keras.metrics.Metric | keras.optimizers.Optimizer):
        return [(variable, f".{variable.path}") for variable in thing.variables]
    if isinstance(thing, dict):
        return [(value, f"[{name!r:.60}]") for name, value in list(thing.items())] if len(thing) <= _LONG else []
    if isinstance(thing, list | tuple | deque):
        return [(value, f"[{number}]") for number, value in enumerate(thing)] if len(thing) <= _LONG else []
    if isinstance(thing, partial):
        return [((thing.func, thing.args, thing.keywords), "")]
    if isinstance(thing, MethodType):
        return [(thing.__self__, ""), (thing.__func__, "")]
    if isinstance(thing, tf.types.experimental.PolymorphicFunction):
        return [(thing.python_function, "")]
    if isinstance(thing, FunctionType):
        return [*_globals_of(thing), *_enclosed_by(thing)]
    is_own = hasattr(thing, "__dict__") and not isinstance(thing, _LEFT_OUT) and not _is_of_a_library(type(thing))
    return _held_by(thing) if is_own or isinstance(thing, _LOOKED_INTO) else []


def _held_by(thing):
    """Return the attributes of an object, and the methods of its custom classes."""
    held = [(value, f".{name}") for name, value in list(vars(thing).items()) if not name.startswith(_NOT_FOLLOWED)]
    for kind in type(thing).__mro__:
        if not _is_of_a_library(kind):
            held += [(_function_of(value), f".{name}") for name, value in list(vars(kind).items())]
    return [(value, name) for value, name in held if value is not None]


def _function_of(attribute):
    """Return the function of a method; another class attribute itself if it is a variable, else None."""
    attribute = attribute.fget if isinstance(attribute, property) else attribute
    attribute = getattr(attribute, "__func__", attribute)
    return attribute if isinstance(attribute, _VARIABLES_AND_FUNCTIONS) else None


def _globals_of(function):
    """Return the global variables and functions that a function, or one defined in it, names."""
    if _is_of_a_library(function):
        return []
    names, codes = [], [function.__code__]
    while codes:
        code = codes.pop()
        names += code.co_names
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    named = [(function.__globals__.get(name), f", {name}") for name in dict.fromkeys(names)]
    return [(value, name) for value, name in named if isinstance(value, _VARIABLES_AND_FUNCTIONS)]


def _enclosed_by(function):
    enclosed = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a name without a value yet
            enclosed.append((cell.cell_contents, f", {name}"))
    return enclosed


def _is_of_a_library(thing):
    return f"{thing.__module__}.".startswith(_OF_LIBRARIES)


def _inside(variable):
    """Return the TensorFlow variable of a Keras variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _text(where):
    """Return a location as a string; of a long one, both ends."""
    text = ""
    while isinstance(where, tuple):
        where, name = where
        text = name + text
    text = where + text
    return text if len(text) <= 400 else f"{text[:200]} ... {text[-200:]}"
