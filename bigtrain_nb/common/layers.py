"""What a model has: its optimizers; its layers, chosen by a setting and called as functions of what they compute on."""

import re
from collections import Counter

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.keras_compat import layers_within, mask_of, scopes_of_call, with_mask, within_scopes
from bigtrain_nb.common.quiet import keras, tf


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


def layers_chosen(model, layers, setting="layers"):
    """Return the layers within a model that a regular expression, a function or a list, given as ``setting``, chooses.

    Raises ValueError if there are none, and for one in the list that is not in the model; TypeError for anything else.
    """
    refuse_choice(layers, setting)
    within = layers_within(model)[1:]
    if isinstance(layers, str):
        chosen = [layer for layer in within if re.fullmatch(layers, layer.name)]
    elif callable(layers):
        chosen = [layer for layer in within if layers(layer)]
    else:
        chosen = list(layers)
        for layer in chosen:
            if not any(layer is one for one in within):
                raise ValueError(f"{getattr(layer, 'name', layer)!r} is no layer of {model.name}: take them from it")
    if not chosen:
        patterns = Counter(re.sub(r"\d+", r"\\d+", layer.name) for layer in within)
        repeat = [f'r"{pattern}" ({count})' for pattern, count in patterns.most_common(8) if count > 1]
        raise ValueError(
            f"{setting}={layers!r} chooses none of {model.name}; names that repeat: {', '.join(repeat) or 'none'}"
        )
    return chosen


def refuse_nested(chosen, setting):
    """Raise ValueError for a chosen layer that is inside another one."""
    for layer in chosen:
        for inner in layers_within(layer)[1:]:
            if any(inner is one for one in chosen):
                raise ValueError(
                    f"{inner.name} is inside {layer.name}, and {setting} chooses both: choose the inner or the outer"
                    " one"
                )


def call_as_function(layer, own_call, args, kwargs, wrap):
    """Return what ``own_call`` of a layer gives, run as ``wrap(run)`` of those of its arguments that have gradients.

    ``run(*tensors, values=())`` returns all that it makes and changes nothing. ``values`` are pairs of a variable and
    what stands for its value. It may run again, and gives the same, for what it updates (seeds of dropout, moving
    statistics, metrics), ``training`` and the type of weights are in both runs those from before. What the layer would
    have updated is updated once.
    """
    known = vars(layer).get("_known_updates", ())  # variables
    while True:
        result, updated = _call_with_known_updates(known, own_call, args, kwargs, wrap)
        unknown = [variable for variable in updated if not any(variable is one for one in known)]
        if not unknown:
            break
        # The call that found them is thrown away, and later calls know. Keras would track an ordinary attribute
        _refuse_updates_of_weights(layer, unknown)
        known = (*known, *unknown)
        object.__setattr__(layer, "_known_updates", known)
    outputs, after, losses = result
    for variable, value in zip(known, after, strict=True):
        variable.assign(value)
    for loss in losses:
        keras.layers.Layer.add_loss(layer, loss)  # a functional model has none of its own
    return outputs


def _call_with_known_updates(known, own_call, args, kwargs, wrap):
    """Return (outputs, values of ``known`` variables after the call, added losses), and the variables it updates."""
    given = tf.nest.flatten((args, kwargs))
    places = [place for place, value in enumerate(given) if _has_gradient(value)]
    scopes = scopes_of_call()
    before = [tf.identity(variable.value) for variable in known]
    traced = {}  # what is no tensor, of the outputs of a run

    def run(*tensors, values=()):
        filled = list(given)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = with_mask(tf.identity(tensor), mask_of(given[place]))
        args_now, kwargs_now = tf.nest.pack_sequence_as((args, kwargs), filled)
        values = [*zip(known, before, strict=True), *values]
        with within_scopes(scopes), _Updates(values) as scope:
            outputs = own_call(*args_now, **kwargs_now)
        flat = tf.nest.flatten(outputs)
        masks = [mask_of(output) for output in flat]
        traced["outputs"] = outputs
        traced["tensors"] = [place for place, value in enumerate(flat) if tf.is_tensor(value)]
        traced["masked"] = [place for place, mask in enumerate(masks) if mask is not None]
        traced["updated"] = scope.updated
        after = [scope.get_current_value(variable) for variable in known]
        return [flat[place] for place in traced["tensors"]], after, [masks[p] for p in traced["masked"]], scope.losses

    tensors, after, masks, losses = wrap(run)(*[given[place] for place in places])
    flat = tf.nest.flatten(traced["outputs"])
    for place, tensor in zip(traced["tensors"], tensors, strict=True):
        flat[place] = tensor
    for place, mask in zip(traced["masked"], masks, strict=True):
        with_mask(flat[place], mask)
    return (tf.nest.pack_sequence_as(traced["outputs"], flat), after, losses), traced["updated"]


class _Updates(keras.StatelessScope):
    """A scope in which variables are not updated, that knows which would have been, each once."""

    def __init__(self, values):
        super().__init__(collect_losses=True)
        # As they are: Keras would cast them to the type of the layer around
        self.state_mapping = {id(variable): value for variable, value in values}
        self.updated = []

    def add_update(self, update):
        variable, _ = update
        if not any(variable is one for one in self.updated):
            self.updated.append(variable)
        super().add_update(update)


def _has_gradient(value):
    if isinstance(value, keras.Variable | tf.Variable):  # a run reads it, as the layer's own weights
        return False
    return tf.is_tensor(value) and (value.dtype.is_floating or value.dtype.is_complex)


def _refuse_updates_of_weights(layer, updated):
    for variable in updated:
        if variable.trainable and any(variable is weight for weight in layer.weights):
            raise ValueError(
                f"{layer.name} assigns {variable.path}, a weight that trains, whenever it is called, so it cannot be"
                " recomputed: choose a layer inside it, or leave it out"
            )
