"""What a model has: optimizers, steps of its own, and layers that a setting may name."""

import re

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.quiet import keras


def optimizers_of(model):
    """Return by name the optimizers that a model has as attributes: that of `compile`, and those of its own steps."""
    return {name: each for name, each in vars(model).items() if isinstance(each, keras.optimizers.Optimizer)}


class Listed:
    """Layers of a list, as an attribute of a model. A list Keras would take for one of the model's own, and save."""

    def __init__(self, layers):
        self.layers = list(layers)

    def __iter__(self):
        return iter(self.layers)

    def __repr__(self):
        return repr(self.layers)


def refuse_choice(layers, setting):
    """Raise TypeError for what cannot choose layers, by regular expression, as a function or in a list.

    ValueError for a text that is no regular expression.
    """
    is_one = isinstance(layers, type | keras.layers.Layer)  # which can be called, too
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
            words = f"{setting}={layers!r} is no regular expression ({error}): any text is '.*', not '*'"
            raise ValueError(words) from None
