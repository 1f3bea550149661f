"""Keras objects changed in place: a model, layer or optimizer keeps its identity, but does one thing differently.

As in PyTorch's `fully_shard(module)`, the object gets a class at run time, derived from one of ours and its own. Its
structure, name, methods, files and `isinstance` are unchanged. Objects that Keras creates *from* it, by its config,
from a file or with `clone_model`, have its own class again. A pickle and a deep copy keep the changes.
"""

import inspect
from functools import cache, partial

from bigtrain_nb.common.keras_compat import layers_within
from bigtrain_nb.common.layers import Listed
from bigtrain_nb.common.quiet import keras

# isort: split
from keras.src import api_export
from keras.src.saving import object_registration
from keras.src.saving.keras_saveable import KerasSaveable


def become(thing, ours, **state):
    """Give a layer, model or optimizer a class derived from ``ours`` and its own; set ``state`` as attributes.

    Return the object. If it is an instance of ``ours`` already, only the state is set.
    """
    if not isinstance(thing, ours):
        thing.__class__ = made_class((ours, type(thing)), own=type(thing), ours=ours)
        if "quantize" in vars(thing):  # set by Keras on layers
            object.__setattr__(thing, "quantize", partial(_quantized, thing, thing.quantize))
    for name, value in state.items():
        setattr(thing, name, value)
    return thing


def _quantized(layer, quantize, *args, **kwargs):
    """Quantize a layer that was changed in place: Keras supports only its own classes."""
    kind, layer.__class__ = type(layer), own_class(layer)
    try:
        return quantize(*args, **kwargs)
    finally:
        layer.__class__ = kind


@cache
def made_class(bases, own, ours=None):
    """Return a class with these bases and the name, constructor and file format of ``own``, one of the bases.

    ``ours`` is the base of ours that a pickle must restore; None for a base of Keras.
    """

    def new(cls, *args, **kwargs):
        return own(*args, **kwargs)

    def initialized_already(self, *args, **kwargs):
        pass

    def from_config(cls, *args, **kwargs):
        return own.from_config(*args, **kwargs)

    # Keras recognizes functional models by this signature, for a wrapped constructor by the wrapper's
    initialized_already.__signature__ = inspect.signature(own.__init__, follow_wrapped=False)
    made = type(
        own.__name__,
        bases,
        {
            "__module__": own.__module__,
            "__qualname__": own.__qualname__,
            "__doc__": own.__doc__,
            "__new__": new,
            "__init__": initialized_already,
            "from_config": classmethod(from_config),
            "__reduce__": reduce_with_changes,
            "_class_before": own,
            "_class_of_ours": ours,
        },
    )
    register_class_as(made, own)
    return made


def own_class(thing):
    """Return the class that an object had before any change in place."""
    kind = type(thing)
    while "_class_before" in vars(kind):
        kind = kind._class_before
    return kind


def reduce_with_changes(thing):
    """Pickle an object as Keras does, as the bytes of a file, plus the changes to it and its parts."""
    changes, parts = [], _parts(thing)
    for index, part in enumerate(parts):
        state = part.state_in_place() if hasattr(part, "state_in_place") else {}
        kept = [name for ours in added_classes(part) for name in getattr(ours, "kept_in_copies", ())]
        state = {**state, **{name: getattr(part, name) for name in kept}}
        state = {name: _Places.of(value, parts) for name, value in state.items()}
        if state or added_classes(part):
            changes.append((index, added_classes(part), state))
    _, (file,) = KerasSaveable.__reduce__(thing)  # without the class, which pickle could not find
    return _with_changes, (own_class(thing), file, changes)


def _with_changes(own, file, changes):
    thing = own._unpickle_model(file)  # private: Keras
    parts = _parts(thing)
    for index, classes, state in changes:
        for ours in classes:
            become(parts[index], ours)
        for name, value in state.items():
            setattr(parts[index], name, [parts[place] for place in value] if isinstance(value, _Places) else value)
    return thing


class _Places(list):
    """Indices of the layers in a setting's list: a copy has its own layers."""

    @classmethod
    def of(cls, value, parts):
        if not isinstance(value, Listed):
            return value
        place_of = {id(part): place for place, part in enumerate(parts)}
        return cls(place_of[id(layer)] for layer in value)


def _parts(thing):
    return layers_within(thing) if isinstance(thing, keras.layers.Layer) else [thing]


def added_classes(thing):
    """Return the classes of ours that an object was given, in that order."""
    found = []
    kind = type(thing)
    while "_class_before" in vars(kind):
        if kind._class_of_ours is not None:
            found.insert(0, kind._class_of_ours)
        kind = kind._class_before
    return found


def register_class_as(made, own):  # private: Keras
    """Register a class made at run time under the name of ``own`` in files; Keras looks up the exact class."""
    object_registration.GLOBAL_CUSTOM_NAMES[made] = keras.saving.get_registered_name(own)
    if name := api_export.get_name_from_symbol(own):
        api_export.REGISTERED_OBJS_TO_NAMES[made] = name
