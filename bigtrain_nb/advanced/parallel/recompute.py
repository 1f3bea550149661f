"""Activation checkpointing: layers keep only their inputs for the backward pass and recompute the rest there."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bigtrain_nb.advanced.parallel.layers import call_as_function, layers_chosen, refuse_nested, without_autocast
from bigtrain_nb.common.checks import of_kind
from bigtrain_nb.common.keras_compat import layers_within, own_weights_to_train
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import become


def recompute(model: Any, layers: str | Callable | Sequence | None = None) -> Any:
    """Recompute layers of a model in the backward pass: less memory, more time, the same results.

    Between the forward and the backward pass only the inputs of these layers are kept. The backward pass runs a layer
    again with the same dropout masks and batch statistics, which is about a third more operations if the full network
    is recomputed (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Choose the blocks of a deep
    model: one layer around all of them saves nothing, because all activations exist again in the backward pass.

    ``layers``: a regular expression that matches full names, a function of a layer, or a list of layers of ``model``;
    default: ``model`` itself, a layer or a model used as a block: ``x = bt.recompute(block)(x)``.

    The layers are changed in place and remain instances of their class; returns ``model``. Call this before the first
    `fit`. Every model that shares such a layer recomputes it. It works in a stock `keras.Model` and in custom training
    loops, under strategies, with micro-batches, mixed precision and XLA. Clones and models loaded from a file recompute
    nothing until told to, nor do copies of a model that is not a `bigtrain_nb.Model`. Second-order gradients, as of a
    gradient penalty, cannot pass it: TensorFlow raises.

    Randomness must come from Keras (`keras.random`, `Dropout`), and state must be in Keras variables: TensorFlow's own
    random operations and `tf.Variable` are not tracked, and would be drawn and changed twice. An embedding has a dense
    gradient then: stock Adam squares, and stock clipping measures, that of each use of a row separately.

    Keras' own `RematScope` raises in `fit` (keras issue 21207); it and a plain `tf.recompute_grad` draw another dropout
    mask in the backward pass, and may read weights there after their update: the gradient is silently wrong.

    Raises ValueError if no layer is found, listing names that repeat; for a layer inside another recomputed one; for a
    model changed by `chunk_head`, unlike its blocks; at call time, for a layer that assigns its own trainable weights,
    as `SpectralNormalization` does. TypeError if ``model`` is not a model or layer, and for ``layers`` of another type.

    Example::

        blocks = [keras.layers.Dense(8, "relu", name=f"block_{n}") for n in range(4)]
        model = keras.Sequential([keras.Input((8,)), *blocks])
        bt.recompute(model, "block_[1-3]")
    """
    of_kind("model", model, keras.layers.Layer, "a Keras model or layer")
    chosen = [model] if layers is None else layers_chosen(model, layers)
    already = [layer for layer in layers_within(model) if is_recomputed(layer)]
    both = "both are to be recomputed, so its layers would be computed three times"
    refuse_nested([*already, *chosen], both)
    for layer in chosen:
        if getattr(layer, "rows_of_logits", False):
            raise ValueError(f"{layer.name} computes its logits in chunks: recompute its blocks, not the entire model")
    for layer in chosen:
        if not is_recomputed(layer):
            become(layer, Recomputed)
    return model


class Recomputed:
    """Mixin for recomputed layers."""

    is_recomputed = True

    def call(self, *args, **kwargs):
        return call_as_function(self, super().call, args, kwargs, partial(_recomputed, self))


def _recomputed(layer, run):
    """Return ``run`` recomputed in the backward pass with the weights that the forward pass read.

    TensorFlow's graph optimizer may let the backward pass read them after the optimizer has updated them, which does
    not happen to frozen weights.
    """
    weights = [weight for inner in layers_within(layer) for weight in own_weights_to_train(inner) if weight.trainable]
    with without_autocast():
        values = [tf.convert_to_tensor(weight.value) for weight in weights]

    @tf.recompute_grad
    def computed(values, *tensors):
        return run(*tensors, values=list(zip(weights, values, strict=True)))

    return partial(computed, values)


def is_recomputed(layer):
    """Return whether a layer is recomputed already, as fully sharded ones are."""
    return getattr(layer, "is_recomputed", False)
