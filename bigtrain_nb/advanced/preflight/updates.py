"""Do steps change the weights as much as with weights in float32, and do matmuls compute in the policy's 16 bits?

A step that is small compared with its weight is rounded away; so are 16-bit values such as Adam's beta_2.
"""

import math
from contextlib import ExitStack

import numpy as np

from bigtrain_nb.advanced.plan.matmul_precision import said_of, shares_in_32_bits, sixteen_bits_of
from bigtrain_nb.advanced.preflight.report import Skipped, failure, needs, ok, warning
from bigtrain_nb.advanced.shared.untouched import functions_run_eagerly, optimizers_within
from bigtrain_nb.common.keras_compat import innermost, optimizer_like, patched_method
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number

STEPS = 4
MOST_STEPS = 20
"""Loss scaling skips first steps with overflow, and a warm-up starts at a learning rate of 0."""
FAR_OFF = 2
OFF = 1.1
"""Factors above or below the step in float32. Healthy trainings in bfloat16 with SGD gave 0.97 to 1.01."""


@needs("loss")
def moves(training):
    """How many weights change in some steps, and how far do they move compared with float32?"""
    weights = training.model.trainable_variables
    if not weights:
        return None  # reported by "gradients"
    if not training.has_own_step:
        training.outputs(training.x)  # raises if they are NaN already
    steps, changed, unscaled = _taken(training)
    spoilt = next((weight.path for weight in weights if not np.isfinite(_wide(weight)).all()), None)
    training.state.restore_values()
    kinds = " and ".join(sorted({weight.dtype for weight in weights}))
    if spoilt:
        return failure(
            f"After {steps} steps {spoilt} is not finite, with weights in {kinds}.",
            "Keep weights in float32: the policy mixed_bfloat16 still computes in 16 bits. If they already are,"
            " bt.find_overflow(model, data) names the first layer that is not finite.",
            "04",
        )
    if unscaled:
        return failure(
            f"train_step never calls optimizer.scale_loss, but the optimizer divides the gradients by"
            f" {number(unscaled)}: a step is 1/{number(unscaled)} as long.",
            "Compute the gradients of self.optimizer.scale_loss(loss).",
            "04",
        )
    if not changed:
        rate = float(innermost(training.model.optimizer).learning_rate) if training.model.optimizer else math.nan
        words = f"None of {_count(weights):,} weights changes in {steps} steps, at a learning rate of {rate:.3g}."
        if rate == 0:
            return warning(words, "If the schedule warms up, it starts late; if it has ended, restart it.", "02")
        if not training.has_own_step and not _has_gradients(training):
            return None  # reported by "gradients"
        return failure(
            words,
            "Keep weights in float32: in bfloat16, Adam's beta_2=0.999 is 1, and small steps are"
            " rounded away. The policy mixed_bfloat16 computes in 16 bits, and keeps weights in float32.",
            "04",
        )
    words = f"In {steps} steps {changed:.0%} of the weights change, in {kinds}."
    if all(weight.dtype in ("float32", "float64") for weight in weights) or training.has_own_step:
        return ok(words)
    return _beside_float32(training, words)


def _taken(training):
    """Take steps until weights change; return their number, the share of changed weights and any unused loss scale."""
    weights = training.model.trainable_variables
    before = [weight.numpy() for weight in weights]
    scaling = [one for one in optimizers_within(training.model) if isinstance(one, keras.optimizers.LossScaleOptimizer)]
    called = []

    def noting(scale_loss):
        def noted(loss):
            called.append(True)
            return scale_loss(loss)

        return noted

    changed = 0.0
    with ExitStack() as stack:
        if scaling and training.has_own_step:
            stack.enter_context(functions_run_eagerly())
        for optimizer in scaling:
            stack.enter_context(patched_method(optimizer, "scale_loss", noting(optimizer.scale_loss)))
        for step in range(1, training.steps_per_update * MOST_STEPS + 1):
            training.step(training.batches[step % len(training.batches)])
            unlike = sum(int(np.sum(old != weight.numpy())) for old, weight in zip(before, weights, strict=True))
            changed = unlike / max(1, _count(weights))
            if step >= STEPS and changed:
                break
    unscaled = float(scaling[0].dynamic_scale) if scaling and not called else None
    return step, changed, unscaled


def _beside_float32(training, words):
    """Compare the first step with that of the same optimizer with weights and state in float32."""
    weights, optimizer = training.model.trainable_variables, innermost(training.model.optimizer)
    _, gradients = training.gradients(training.first, training=True)
    training.state.restore_values()
    before = [_wide(weight) for weight in weights]
    copies = [keras.Variable(weight.numpy().astype("float32"), dtype="float32") for weight in weights]
    exact = optimizer_like(optimizer, type(optimizer))
    exact.build(copies)
    for copy, variable in zip(exact.variables, optimizer.variables, strict=True):
        copy.assign(tf.cast(variable.value, copy.dtype))
    pairs = [(tf.cast(gradient, tf.float32), copies[place]) for place, gradient in gradients.items()]
    exact.apply_gradients(pairs)
    training.step(training.first)
    far = _distance(before, weights)
    far_in_float32 = _distance(before, copies)
    training.state.restore_values()
    if not far_in_float32:
        return ok(words)
    ratio = far / far_in_float32
    words = f"{words} The first step goes {ratio:.3g} times as far as with weights and state in float32."
    if not 1 / FAR_OFF < ratio < FAR_OFF:
        return failure(
            words,
            "Keep weights in float32, with the policy mixed_bfloat16 or mixed_float16 instead of bfloat16 or float16.",
            "04",
        )
    if not 1 / OFF < ratio < OFF:
        return warning(words, "Keep weights in float32, with a policy whose name begins with mixed_.", "04")
    return ok(words)


def _has_gradients(training):
    _, gradients = training.gradients(training.first, training=True)
    training.state.restore_values()
    return any(np.any(_wide(gradient) != 0) for gradient in gradients.values())


def _count(weights):
    return sum(math.prod(weight.shape) for weight in weights)


def _distance(before, weights):
    return math.sqrt(sum(float(np.sum((_wide(one) - old) ** 2)) for old, one in zip(before, weights, strict=True)))


def _wide(value):
    return np.asarray(tf.cast(tf.convert_to_tensor(value), tf.float64))


def products(training):
    """Are the forward pass's matmuls in the policy's 16 bits? Read from the graph, without running it."""
    sixteen = sixteen_bits_of(training.model)
    if sixteen is None:
        return None
    x, _, _ = keras.utils.unpack_x_y_sample_weight(training.first)
    shares = shares_in_32_bits(training.model, x)
    if shares is None:
        raise Skipped("the forward pass has no matmul of known shape")
    found, advice = said_of(shares, sixteen)
    if not found:
        return ok(f"Matmuls compute in {sixteen}, {number(100 * (1 - shares.total()))}% of their FLOPs.", "07")
    return warning(found, advice, "07")


CHECKS = {"weights move": moves, "matmul precision": products}
