"""Keras objects changed in place: a model, a layer or an optimizer stays what it is, but does one thing differently.

PyTorch's `fully_shard(module)` works like this: at run time the object gets a class made of one of ours and its own.
Its structure, name, methods, files and `isinstance` stay. What Keras makes *from* it, by its config, from a file or
with `clone_model`, is of its own class again. A pickle and a deep copy of it keep what was changed.
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
    """Give a layer, model or optimizer a class made of ``ours`` and its own, and ``state`` as attributes; return it.

    A thing that has become ``ours`` before gets the new state only.
    """
    if not isinstance(thing, ours):
        thing.__class__ = made_class((ours, type(thing)), own=type(thing), ours=ours)
        if "quantize" in vars(thing):  # where Keras puts that of a layer
            object.__setattr__(thing, "quantize", partial(_quantized, thing, thing.quantize))
    for name, value in state.items():
        setattr(thing, name, value)
    return thing


def _quantized(layer, quantize, *args, **kwargs):
    """Quantize a layer that was changed in place: Keras does so for its own classes only."""
    kind, layer.__class__ = type(layer), own_class(layer)
    try:
        return quantize(*args, **kwargs)
    finally:
        layer.__class__ = kind


@cache
def made_class(bases, own, ours=None):
    """Return a class with these bases that has the name, the constructor and the files of ``own``, one of them.

    ``ours`` is the class of ours among them that a pickle must give back; None for a base of Keras.
    """

    def new(cls, *args, **kwargs):
        return own(*args, **kwargs)

    def initialized_already(self, *args, **kwargs):
        pass

    def from_config(cls, *args, **kwargs):
        return own.from_config(*args, **kwargs)

    # By its arguments Keras tells functional models, of a wrapped constructor by those of the wrapper
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
    known_as(made, own)
    return made


def own_class(thing):
    """Return the class that a thing had before anything was changed in it."""
    kind = type(thing)
    while "_class_before" in vars(kind):
        kind = kind._class_before
    return kind


def reduce_with_changes(thing):
    """Pickle a thing as Keras does, as the bytes of a file, and beside them what was changed in it and within it."""
    changes, parts = [], _parts(thing)
    for index, part in enumerate(parts):
        state = part.state_in_place() if hasattr(part, "state_in_place") else {}
        kept = [name for ours in what_it_became(part) for name in getattr(ours, "kept_in_copies", ())]
        state = {**state, **{name: getattr(part, name) for name in kept}}
        state = {name: _Places.of(value, parts) for name, value in state.items()}
        if state or what_it_became(part):
            changes.append((index, what_it_became(part), state))
    return _with_changes, (own_class(thing), bytes_of_file(thing), changes)


def _with_changes(own, file, changes):
    thing = object_of_file(own, file)
    parts = _parts(thing)
    for index, classes, state in changes:
        for ours in classes:
            become(parts[index], ours)
        for name, value in state.items():
            setattr(parts[index], name, [parts[place] for place in value] if isinstance(value, _Places) else value)
    return thing


class _Places(list):
    """Where layers stand that a setting lists: a copy has its own."""

    @classmethod
    def of(cls, value, parts):
        if not isinstance(value, Listed):
            return value
        place_of = {id(part): place for place, part in enumerate(parts)}
        return cls(place_of[id(layer)] for layer in value)


def _parts(thing):
    return layers_within(thing) if isinstance(thing, keras.layers.Layer) else [thing]


def what_it_became(thing):
    """Return the classes of ours that a thing has become, the first one first."""
    found = []
    kind = type(thing)
    while "_class_before" in vars(kind):
        if kind._class_of_ours is not None:
            found.insert(0, kind._class_of_ours)
        kind = kind._class_before
    return found


def known_as(made, own):  # private: Keras
    """Let files name a class that is made at run time as they name ``own``; Keras looks up the very class."""
    object_registration.GLOBAL_CUSTOM_NAMES[made] = keras.saving.get_registered_name(own)
    if name := api_export.get_name_from_symbol(own):
        api_export.REGISTERED_OBJS_TO_NAMES[made] = name


def bytes_of_file(thing):  # private: Keras
    """Return a layer or model as Keras pickles it, without the class that reads it: pickle could not find that."""
    _, (file,) = KerasSaveable.__reduce__(thing)
    return file


def object_of_file(own, file):  # private: Keras
    """Return the layer or model of class ``own`` that `bytes_of_file` has written."""
    return own._unpickle_model(file)
