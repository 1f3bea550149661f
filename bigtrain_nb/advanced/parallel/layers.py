"""Layers within a model: chosen by a setting, and called as functions of their inputs."""

import re
from collections import Counter
from contextlib import contextmanager
from copy import copy

from bigtrain_nb.advanced.shared.layers import ATTACHED
from bigtrain_nb.common.keras_compat import layers_within, mask_of, own_weights_to_train, with_mask
from bigtrain_nb.common.layers import refuse_choice
from bigtrain_nb.common.quiet import keras, tf

# isort: split
from keras.src.backend.common import global_state


def layers_chosen(model, layers, setting="layers"):
    """Return the layers within a model that a regular expression, function or list, given as ``setting``, chooses.

    Raises ValueError if there are none, and for a listed layer that is not in the model; TypeError for anything else.
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
                raise ValueError(f"{getattr(layer, 'name', layer)!r} is not a layer of {model.name}: choose one of its")
    if not chosen:
        patterns = Counter(re.sub(r"\d+", r"\\d+", layer.name) for layer in within)
        repeat = [f'r"{pattern}" ({count})' for pattern, count in patterns.most_common(8) if count > 1]
        raise ValueError(
            f"{setting}={layers!r} selects no layer of {model.name}; repeated names: {', '.join(repeat) or 'none'}"
        )
    return chosen


def refuse_nested(chosen, problem):
    """Raise ValueError for a chosen layer that is inside another one; ``problem``: what is done to both."""
    for layer in chosen:
        for inner in layers_within(layer)[1:]:
            if any(inner is one for one in chosen):
                raise ValueError(
                    f"{inner.name} is inside {layer.name}, and {problem}: choose the inner or the outer one"
                )


def call_as_function(layer, own_call, args, kwargs, wrap):
    """Return the result of a layer's ``own_call``, run as ``wrap(run)`` on those arguments that have gradients.

    ``run(*tensors, values=())`` returns all results and has no side effects. ``values``: pairs of a variable and its
    substitute value. Running it again gives the same results: every run starts from the same state (dropout seeds,
    moving statistics, metrics), ``training`` flag and dtype of weights. The layer's updates are applied once.
    """
    known = _state_of(layer)
    while True:
        result, updated = _call_with_known_updates(known, own_call, args, kwargs, wrap)
        unknown = [variable for variable in updated if not any(variable is one for one in known)]
        if not unknown:
            break
        _refuse_updates_of_weights(layer, unknown)
        known += unknown  # and discard the call that found them
    outputs, after, losses = result
    for variable, value in zip(known, after, strict=True):
        if any(variable is one for one in updated):
            variable.assign(value)
    for loss in losses:
        keras.layers.Layer.add_loss(layer, loss)  # that of functional models is not implemented
    return outputs


def _state_of(layer):
    """Return the variables that a layer's calls may update: those of it and the layers inside, but weights to train."""
    weights = {id(weight) for inner in layers_within(layer) for weight in own_weights_to_train(inner)}
    return [variable for variable in layer.variables if id(variable) not in weights]


def _call_with_known_updates(known, own_call, args, kwargs, wrap):
    """Return (outputs, values of ``known`` variables after the call, added losses), and the variables it updates."""
    given = tf.nest.flatten((args, kwargs))
    places = [place for place, value in enumerate(given) if _has_gradient(value)]
    scopes = scopes_of_call()
    with without_autocast():
        before = [tf.identity(variable.value) for variable in known]
    traced = {}  # results of a run that are not tensors

    def run(*tensors, values=()):
        filled = list(given)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = with_mask(tf.identity(tensor), mask_of(given[place]))
        args_now, kwargs_now = tf.nest.pack_sequence_as((args, kwargs), filled)
        values = [*zip(known, before, strict=True), *values]
        with within_scopes(scopes), ValuesFor(values, collect_losses=True) as scope:
            outputs = own_call(*args_now, **kwargs_now)
        flat = tf.nest.flatten(outputs)
        traced["outputs"] = outputs
        traced["tensors"] = [place for place, value in enumerate(flat) if tf.is_tensor(value)]
        attached = [(place, name) for place in traced["tensors"] for name in ATTACHED if hasattr(flat[place], name)]
        traced["attached"] = [(place, name) for place, name in attached if getattr(flat[place], name) is not None]
        traced["updated"] = scope.updated
        after = [scope.get_current_value(variable) for variable in known]
        with_them = [getattr(flat[place], name) for place, name in traced["attached"]]
        return [flat[place] for place in traced["tensors"]], after, with_them, scope.losses

    tensors, after, with_them, losses = wrap(run)(*[given[place] for place in places])
    flat = tf.nest.flatten(traced["outputs"])
    for place, tensor in zip(traced["tensors"], tensors, strict=True):
        flat[place] = tensor
    for (place, name), tensor in zip(traced["attached"], with_them, strict=True):
        setattr(flat[place], name, tensor)
    return (tf.nest.pack_sequence_as(traced["outputs"], flat), after, losses), traced["updated"]


class ValuesFor(keras.StatelessScope):
    """A scope with values of some variables, as they are: Keras would cast them to the variables' dtypes.

    ``values``: pairs of a variable and a tensor. ``read``: {id: dtypes in which the layers read it} of variables.
    ``updated``: those that would have been updated, each once.
    """

    def __init__(self, values, collect_losses=False):
        super().__init__(collect_losses=collect_losses)
        self.state_mapping = {id(variable): value for variable, value in values}
        self.read = {}
        self.updated = []

    def get_current_value(self, variable):
        self.read.setdefault(id(variable), set()).add(variable.dtype)
        return super().get_current_value(variable)

    def add_update(self, update):
        variable, _ = update
        if not any(variable is one for one in self.updated):
            self.updated.append(variable)
        super().add_update(update)


def _has_gradient(value):
    if isinstance(value, keras.Variable | tf.Variable | tf.SparseTensor):  # a run reads it, like the layer's weights
        return False
    if isinstance(value, tf.RaggedTensor) and value.dtype.is_floating:
        raise ValueError(
            f"a ragged tensor of shape {value.shape} goes into a recomputed or fully sharded layer, which takes dense"
            " ones: choose other layers, or make it dense before, x.to_tensor()"
        )
    return tf.is_tensor(value) and (value.dtype.is_floating or value.dtype.is_complex)


def _refuse_updates_of_weights(layer, updated):
    for variable in updated:
        if variable.trainable and any(variable is weight for weight in layer.weights):
            raise ValueError(
                f"{layer.name} assigns the trainable weight {variable.path} whenever it is called, so it cannot be"
                " recomputed: choose a layer inside it, or leave it out"
            )


_SCOPES = ("current_call_ctx", "autocast_scope")


def scopes_of_call():  # private: Keras
    """Return the context that layers inside a call read: ``training`` and the like, the dtype weights are cast to."""
    call, autocast = (global_state.get_global_attribute(name) for name in _SCOPES)
    return copy(call), autocast  # a copy, because later layer calls modify it


@contextmanager
def within_scopes(scopes):  # private: Keras
    """Restore the context that `scopes_of_call` returned, which is gone in the backward pass."""
    before = [global_state.get_global_attribute(name) for name in _SCOPES]
    _set_scopes(scopes)
    try:
        yield
    finally:
        _set_scopes(before)


def without_autocast():
    """Read variables in their own dtypes in this context, within layers that cast them."""
    call, _ = scopes_of_call()
    return within_scopes((call, None))


def _set_scopes(scopes):  # private: Keras
    for name, value in zip(_SCOPES, scopes, strict=True):
        global_state.set_global_attribute(name, value)
