"""Layers of a model, the operations between them, and interception of their calls."""

from contextlib import ExitStack, contextmanager
from functools import partial

from bigtrain_nb.common.keras_compat import Functional, layers_within, patched_method


@contextmanager
def calls_seen(layers, around):
    """Call each layer as ``around(layer, call, *args, **kwargs)``, where ``call`` is its own method."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(patched_method(layer, "call", partial(around, layer, layer.call)))
        yield


def layers_directly_in(layer):  # private: Keras
    """Return the direct sublayers of a layer or model, without those inside them."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def layers_and_operations(model):
    """Return a model's layers and, if functional, the operations between them, such as `keras.ops.exp`."""
    found = {}
    for layer in layers_within(model):
        inside = layer.operations if isinstance(layer, Functional) else []
        found.update({id(each): each for each in [layer, *inside]})
    return list(found.values())


ATTACHED = ("_keras_mask", "_keras_logits")  # private: Keras
"""What Keras attaches to a layer's output: its mask, and the logits that losses use instead of a softmax."""


def with_attached(tensor, output, part=lambda value: value):
    """Return ``tensor`` with ``part`` of what Keras has attached to ``output``."""
    for name in ATTACHED:
        if getattr(output, name, None) is not None:
            setattr(tensor, name, part(getattr(output, name)))
    return tensor
