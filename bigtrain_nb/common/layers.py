"""Optimizers of a model, their loss scale, and layers that a setting may name."""

import re

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.quiet import keras


def optimizers_of(model):
    """Return a model's optimizers by name: its attributes, and what is in lists and dictionaries among them."""
    held = dict(vars(model))
    for name, value in vars(model).items():
        if isinstance(value, dict | list | tuple):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            held |= {f"{name}[{key!r}]": each for key, each in pairs if isinstance(each, keras.optimizers.Optimizer)}
    optimizers = [(name, each) for name, each in held.items() if isinstance(each, keras.optimizers.Optimizer)]
    named = {id(each): (name, each) for name, each in reversed(optimizers)}  # each once, by its first name
    return dict(reversed(named.values()))


def scale_of(optimizer):
    """Return the scale of a `keras.optimizers.LossScaleOptimizer` as a float."""
    return float(optimizer.dynamic_scale.numpy() if optimizer.built else optimizer.initial_scale)


class Listed:
    """A list of layers as an attribute of a model. Keras would track and save the layers of a plain list."""

    def __init__(self, layers):
        self.layers = list(layers)

    def __iter__(self):
        return iter(self.layers)

    def __repr__(self):
        return repr(self.layers)


def refuse_choice(layers, setting):
    """Raise TypeError unless this can choose layers: a regular expression, a function or a list.

    Raise ValueError for a string that is not a valid regular expression.
    """
    is_one = isinstance(layers, type | keras.layers.Layer)  # also callable
    is_function = callable(layers) and takes(layers, "a layer")
    if is_one or not (is_function or isinstance(layers, str | list | tuple | Listed)):
        raise TypeError(
            f"{setting}={layers!r:.99} must be a regular expression for names, a list of layers, or a function of a"
            " layer, such as lambda layer: isinstance(layer, keras.layers.Dense)"
        )
    if isinstance(layers, str):
        try:
            re.compile(layers)
        except re.error as error:
            words = f"{setting}={layers!r} is not a regular expression ({error}): use '.*', not '*', for any text"
            raise ValueError(words) from None
