"""A training step that records the inputs and outputs of each layer, forward and backward.

The step is the model's own `train_step`, run eagerly. Tensors into and out of a layer pass an identity, whose gradient
is recorded in the backward pass. Every target of a gradient counts as a loss. The optimizers do not update, and all
state that a step changes is restored.
"""

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from bigtrain_nb.advanced.shared.layers import calls_seen, layers_and_operations, with_attached
from bigtrain_nb.advanced.shared.untouched import functions_run_eagerly, optimizers_within, restoring_state
from bigtrain_nb.common.keras_compat import innermost, patched_method
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number
from bigtrain_nb.train.own_step import full_outputs

ARRIVES = "gradient that arrives"


@dataclass(frozen=True)
class Values:
    """The least and largest finite value of a tensor, and how many of its ``size`` values are infinite or NaN."""

    dtype: str
    least: float
    largest: float
    size: int
    infinite: int
    nan: int

    @property
    def finite(self):
        return self.infinite == self.nan == 0

    def __str__(self):
        words = "no finite value"
        if self.infinite + self.nan < self.size:
            words = f"{number(self.least)} to {number(self.largest)}"
        if self.infinite:
            words += f", {self.infinite:,} of {self.size:,} infinite"
        if self.nan:
            words += f", {self.nan:,} of {self.size:,} NaN"
        return words


def values_of(tensor):
    """Return the `Values` of a floating tensor."""
    values = tf.convert_to_tensor(tensor).numpy()
    values = values.astype(np.promote_types(values.dtype, np.float32))
    finite = values[np.isfinite(values)]
    ends = float(finite.min(initial=math.inf)), float(finite.max(initial=-math.inf))
    return Values(tensor.dtype.name, *ends, values.size, int(np.isinf(values).sum()), int(np.isnan(values).sum()))


def is_floating(value):
    return isinstance(value, tf.Tensor | tf.Variable) and value.dtype.is_floating


@dataclass(eq=False)
class Call:
    """One call of a ``layer`` by the ``caller``, which is another call, or None for the model itself."""

    layer: object
    caller: object


@dataclass(frozen=True)
class Probe:
    """The recorded values of a tensor at a call: ``where`` is "input", "output", or a gradient."""

    where: str
    call: Call
    values: Values

    @property
    def is_backward(self):
        return self.where.startswith("gradient")


class WatchedStep:
    """One training step of a compiled model on a batch of tensors, at a loss scale (None: that of the optimizer).

    ``probes``: in order of time. ``losses``: `Values` before scaling, one for each micro-batch, or for each loss of a
    custom `train_step`. ``gradients``: the (gradient, variable) pairs passed to the optimizers.

    Raises ValueError for a step that takes no gradient.
    """

    def __init__(self, model, data, scale=None):
        self.probes = []
        self.losses = []
        self.gradients = []
        self.scale = scale
        self._running = []
        self._scaled_losses = []
        with ExitStack() as stack:
            stack.enter_context(functions_run_eagerly())
            stack.enter_context(restoring_state(model))
            stack.callback(model.reset_metrics)  # also those that the step makes
            for optimizer in optimizers_within(model):
                stack.enter_context(patched_method(optimizer, "apply", partial(self._apply, optimizer)))
                stack.enter_context(patched_method(optimizer, "scale_loss", self._scaled(optimizer.scale_loss)))
            stack.enter_context(calls_seen(layers_and_operations(model), self._call))
            stack.enter_context(self._losses_seen())
            stack.enter_context(full_outputs())
            model.train_step(data)
        if not self.losses:
            raise ValueError(
                f"the train_step of {model.name} computes no gradient with tf.GradientTape, so there is no backward"
                " pass to examine"
            )

    @property
    def is_healthy(self):
        """Whether the loss and all gradients passed to the optimizers are finite."""
        given = [values_of(gradient) for gradient, _ in self.gradients]
        return all(values.finite for values in self.losses + given)

    def _apply(self, optimizer, gradients, trainable_variables=None):  # private: Keras
        updated = trainable_variables or innermost(optimizer)._trainable_variables
        for gradient, variable in zip(gradients, updated, strict=True):
            if gradient is not None:
                self.gradients.append((gradient, variable))

    def _scaled(self, scale_loss):
        def look_and_scale(loss):
            self.losses.append(values_of(loss))
            scaled = scale_loss(loss) if self.scale is None else loss * tf.cast(self.scale, loss.dtype)
            self._scaled_losses.append(scaled)
            return scaled

        return look_and_scale

    @contextmanager
    def _losses_seen(self):
        """Record the targets of all gradients, because a custom step may compute its losses in any way."""
        gradient = tf.GradientTape.gradient

        def look_and_differentiate(tape, target, sources, output_gradients=None, *args, **kwargs):
            if output_gradients is None:  # otherwise it continues a backward pass, as in a recomputed layer
                for loss in filter(is_floating, keras.tree.flatten(target)):
                    if not any(loss is seen for seen in self._scaled_losses):
                        self.losses.append(values_of(loss))
            return gradient(tape, target, sources, output_gradients, *args, **kwargs)

        tf.GradientTape.gradient = look_and_differentiate
        try:
            yield
        finally:
            tf.GradientTape.gradient = gradient

    def _call(self, layer, call, *args, **kwargs):
        if not tf.executing_eagerly():  # shape inference by Keras
            return call(*args, **kwargs)
        this = Call(layer, self._running[-1] if self._running else None)
        args, kwargs = self._probe((args, kwargs), this, "input", "gradient that leaves")
        self._running.append(this)
        try:
            outputs = call(*args, **kwargs)
        finally:
            self._running.pop()
        return self._probe(outputs, this, "output", ARRIVES)

    def _probe(self, structure, call, forward, backward):
        """Record each floating-point tensor of a structure, and its gradient later; return the same tensors."""

        @tf.custom_gradient
        def seen(tensor):
            def gradient_seen(gradient):
                self.probes.append(Probe(backward, call, values_of(gradient)))
                return gradient

            return tf.identity(tensor), gradient_seen

        def probe_value(value):
            if not is_floating(value):
                return value
            self.probes.append(Probe(forward, call, values_of(value)))
            return with_attached(seen(value), value)

        return keras.tree.map_structure(probe_value, structure)
