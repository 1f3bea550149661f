"""Checks of the loss: does it fit the outputs, where does it start, and does it fall on one batch?

The reference for any loss is the best constant predictor: the best model that ignores its inputs.
"""

import math
import time
from itertools import product

import numpy as np
from scipy.optimize import minimize
from scipy.stats import ks_2samp

from bigtrain_nb.advanced.preflight.report import Skipped, failure, ok, warning
from bigtrain_nb.advanced.preflight.training import TimedOut, differ, gradient_change, has_scale, named_parts, once
from bigtrain_nb.advanced.shared.layers import calls_seen
from bigtrain_nb.common.keras_compat import innermost, layers_within, mask_of, own_weights_to_train, with_mask
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number

SUM_OF_PROBABILITIES = 0.02
"""Tolerance for a sum of outputs of 1; 16 bits round."""
DRAWS = 4
"""Number of draws of large random weights: with one, a regression may look like probabilities by chance."""
OUTSIDE = 0.02
"""Allowed share of targets that no output can reach."""
CALLS_FOR_CONSTANT = 40
"""Limit on calls of the loss. From the mean of the targets, or as a softmax, about ten are needed."""
STEPS = 200
SHARE_OF_TIME = 0.5
"""Share of a check's remaining time for the steps on one batch, and for the best constant predictor."""
FALLS_TO = 0.6
"""Relative to the best constant predictor: below, the model uses its inputs. Healthy ones get there in 200 steps."""
FALLS = 0.9
"""Relative to the start, for a loss whose minimum is unknown, such as one that compares examples."""
NO_MEASURE = "It compares the examples of a batch, so the best constant predictor is no reference."
NO_OUTPUTS = "Outputs get no gradient from it, as with add_loss alone, so the best constant predictor is no reference."
SAME_TARGETS = "All targets of the batch are the same, so the best constant predictor is no reference."
GRADIENT_DIFFERS = 1e-3
"""Relative change of an example's gradient above which the loss compares examples."""
RISES = 2
"""Relative to the start. 44 healthy trainings gave at most 1.01; faulty ones gave 2.76 or more."""
RUNS_AWAY = 1000
"""Relative to the start, or to 1 if larger: the losses of adversarial networks rise too, but less."""
SCALE = 2.5
SCALE_FALLS = 3
"""Inputs have the wrong scale if the loss starts above 2.5 times the best constant, and standardized inputs reduce the
excess by a factor of 3. Healthy trainings start at 1.0 to 2.9 constants, so the first alone is weak evidence."""
LOSS_OF_RAW_TARGETS = 1000
"""Multiple of the best constant at which a regression's loss may start: a mean of about 30 deviations."""
MANY_DEAD = 0.5
"""Share of a layer's units that are 0 for all examples: half of the width is wasted."""
LEAST_UNITS = 4
"""Units of a layer that may all be dead only by a fault; in a narrow gate, as of squeeze-and-excitation, by chance."""
LARGE = 100
"""Deviation of the noise that is added to a weight to revive dead units."""
FROZEN = 0.01
"""Share of the model's parameters in frozen layers with initial weights."""
_CONSTANTS = {"bias": (0, 1), "beta": 0, "gamma": 1, "moving_mean": 0, "moving_variance": 1}
"""Initial values that are not random; part of the bias of an LSTM is 1."""
_CONSTANTS_WORDS = "biases or statistics are"
LEAST_DRAWN = 500
MOST_COMPARED = 20_000
BY_CHANCE = 0.01
"""Least and most values of a weight that are compared with those of its initializer, and the significance level of the
test."""


def logits(training):
    """Do loss and outputs agree on whether outputs are probabilities?"""
    pairs = [pair for pair in training.pairs() if pair.is_sparse or pair.is_categorical or pair.is_binary]
    seen_through = None
    for pair in pairs:
        draws = _draws(training, pair)
        unit, simplex = _are_probabilities(draws)
        probabilities = simplex if not pair.is_binary else unit
        if pair.is_binary and pair.from_logits and not any((draw > 0).any() and (draw < 1).any() for draw in draws):
            probabilities = False
        least, most = float(min(draw.min() for draw in draws)), float(max(draw.max() for draw in draws))
        is_unlike = probabilities == pair.from_logits
        if is_unlike and _uses_logits(training, pair):
            seen_through = warning(
                f"{pair.words()}Outputs are not what the loss expects, but Keras takes the logits from before the last"
                " activation instead, so training is right.",
                "Say what you mean: from_logits=True, or at the end a softmax (one class) or sigmoid (yes or no).",
                "04",
            )
        elif is_unlike and pair.from_logits:
            return failure(
                f"{pair.words()}The loss expects logits (from_logits=True), but the outputs are already probabilities"
                f" ({least:.3g} to {most:.3g}): the gradient of a second softmax is small, and training slow.",
                "Leave out the softmax or sigmoid of the last layer, or from_logits=True.",
                "04",
            )
        elif is_unlike:
            return failure(
                f"{pair.words()}The loss expects probabilities, but the outputs are not ({least:.3g} to"
                f" {most:.3g}): it clips them, and the gradient there is 0 or wrong.",
                "Give the loss from_logits=True, or the last layer a softmax (one class) or a sigmoid (yes or no).",
                "04",
            )
        if pair.is_binary and pair.outputs.shape[-1] > 1 and simplex and _has_several_classes(pair):
            return failure(
                f"{pair.words()}Targets have several classes at once, but the outputs of a softmax sum to 1.",
                "Use a sigmoid in the last layer.",
            )
        if (pair.is_sparse or pair.is_categorical) and pair.outputs.shape[-1] == 1:
            return failure(
                f"{pair.words()}There is one output, and a crossentropy over one class is always 0.",
                "Use binary_crossentropy, or a unit for each class.",
            )
    return seen_through or (ok("Outputs are what the loss takes.") if pairs else None)


def _uses_logits(training, pair):
    """Return whether Keras takes the inputs of an output's softmax or sigmoid: then the output gets no gradient."""

    def gradient():
        return training.gradients_at(training.outputs(training.x, is_trial=True), copied=False)[pair.place]

    in_fit = gradient if training.model.run_eagerly else tf.function(gradient, autograph=False)
    return in_fit() is None


def output_range(training):
    """Can outputs reach the targets of a regression?"""
    for pair in training.pairs():
        if not pair.kind or pair.is_sparse or pair.is_categorical or pair.is_binary or pair.y.dtype == tf.string:
            continue
        if pair.kind in ("ctc", "circle") or "hinge" in pair.kind or "similarity" in pair.kind:
            continue
        draws = np.concatenate([draw.ravel() for draw in _draws(training, pair)])
        y = pair.y.numpy()[pair.counted()]
        for least, most, kinds in ((0, 1, "a sigmoid or a softmax"), (-1, 1, "a tanh"), (0, math.inf, "a relu")):
            if draws.min() >= least and draws.max() <= most:
                outside = ((y < least - 1e-6) | (y > most + 1e-6)).mean()
                if outside > OUTSIDE:
                    return failure(
                        f"{pair.words()}Outputs can only be {least} to {most}, but {outside:.0%} of the targets are"
                        f" outside ({number(float(y.min()))} to {number(float(y.max()))}): the last layer ends in"
                        f" {kinds}.",
                        "Leave out the activation of the last layer, or scale the targets into its range.",
                    )
                break
    return None


def start(training):
    """How does the initial loss compare with the best constant predictor?"""
    training.refuse_own_step()
    first = float(training.loss_of(training.first))
    if not math.isfinite(first):
        return failure(
            f"The loss of the first batch is {first} before the first step.",
            "bt.find_overflow(model, data) names the first layer that gives it.",
            "11",
        )
    if no_measure(training):
        return ok(f"The loss starts at {number(first)}. {no_measure(training)}")
    constant = best_constant(training)
    most = max(SCALE * constant, constant + 2)
    if first > most:  # statistics of the batch may normalize what initial moving ones do not
        first = min(first, float(training.loss_of(training.first, training=True)))
        training.state.restore_values()
    if first <= most:
        return ok(f"The loss starts at {number(first)}; the best constant predictor scores {number(constant)}.")
    standard = _loss_of_standard_inputs(training)
    if standard is not None and (first - constant) > SCALE_FALLS * abs(standard - constant) and standard < first / 2:
        words = f"The loss starts at {number(first)}, the best constant predictor scores {number(constant)}, and with"
        words += f" inputs of mean 0 and deviation 1 it starts at {number(standard)}: {_largest_input(training)} of the"
        words += " wrong scale."
        advice = "Standardize the inputs: a Normalization layer, or Rescaling(1 / 255) for images."
        layers = [each for each in layers_within(training.model) if own_weights_to_train(each)]
        if layers and not layers[0].trainable:
            return warning(words, f"Right if the frozen {layers[0].name} was trained on such inputs. If not: {advice}")
        return failure(words, advice)
    for value in keras.tree.flatten(training.y) if training.y is not None else []:
        values = tf.cast(value, tf.float32).numpy() if value.dtype.is_floating else np.zeros(1)
        if first > LOSS_OF_RAW_TARGETS * max(constant, 1e-12) and abs(values).max() > 30:
            return warning(
                f"The loss starts at {number(first)}, and the best constant predictor scores {number(constant)}:"
                f" targets have mean {number(float(values.mean()))}, far from 0, where outputs start.",
                "Standardize the targets, or start the last bias at their mean.",
            )
    return warning(
        f"The loss starts at {number(first)}, and the best constant predictor scores {number(constant)}.",
        "Start closer: use smaller initial weights in the last layer, and start its bias at the mean of the targets.",
    )


def gradient(training):
    """Does each trainable weight get a gradient?"""
    training.refuse_own_step()
    weights = training.model.trainable_variables
    if not weights:
        return failure("Nothing trains: the model has no trainable weights.", "Set trainable=True.", "06")
    silent = set(range(len(weights)))
    until = time.monotonic() + SHARE_OF_TIME / 2 * training.seconds_left
    for place, batch in enumerate(training.batches):
        if not silent or (place > 1 and time.monotonic() > until):
            break
        loss, gradients = training.gradients(batch, training=True)
        if not math.isfinite(loss):
            raise Skipped("the loss is not finite")
        silent -= {place for place, each in gradients.items() if np.any(each.numpy() != 0)}
    silent = _still_silent_after_a_step(training, silent) if silent else silent
    if not silent:
        return ok(f"All {len(weights)} weights that train get a gradient.")
    dead_layers = [name for name, units in _dead_units(training) if units.all()]
    if dead_layers:
        raise Skipped(f"{len(silent)} weights get none, because all units of {dead_layers[0]} are dead")
    silent = [weights[place] for place in sorted(silent)]
    used = _moving_outputs(training, silent, 1)
    flat = [] if used else _moving_outputs(training, silent, LARGE)
    names = ", ".join(weight.path for weight in (used or flat or silent)[:4])
    if used:
        return failure(
            f"{len(used)} of {len(weights)} weights get no gradient, though outputs depend on them: {names}.",
            "Look for stop_gradient, argmax, round, a cast to integers or NumPy between them and the loss.",
            "11",
        )
    if flat:
        return failure(
            f"{len(silent)} of {len(weights)} weights get no gradient, and only a large change of {names} changes the"
            " outputs: units are dead (0 after a relu) or saturated for all examples.",
            "Look at biases and initial weights, and at the scale of the inputs; gelu and leaky_relu do not die.",
            "11",
        )
    return warning(
        f"{len(silent)} of {len(weights)} weights get no gradient, and no output that the loss's gradient reaches"
        f" depends on them: {names}.",
        "Use these layers in call, or leave them out; look at loss_weights and at sample weights of 0.",
    )


def dead(training):
    """Are relu units 0 for all examples?"""
    training.refuse_own_step()
    found = _dead_units(training)
    wholly = [name for name, units in found if units.all() and len(units) >= LEAST_UNITS]
    halves = [name for name, units in found if units.mean() > MANY_DEAD]
    if wholly:
        return failure(
            f"All units of {', '.join(wholly[:4])} are 0 for all examples: they pass on no signal and no gradient.",
            "Look at its bias and initial weights, and at the scale of what comes in; relu after relu6, gelu or"
            " leaky_relu pass something on.",
            "11",
        )
    if halves:
        return warning(
            f"More than half of the units are 0 for all examples in {', '.join(halves[:4])}.",
            "Try smaller steps or he_normal initial weights; gelu and leaky_relu do not die.",
            "11",
        )
    words = f"Relu layers: {len(found)}. In each of them most units are above 0 for some example."
    return ok(words) if found else None


def frozen(training):
    """Are layers frozen that have never been trained?

    The evidence is a bias that is still 0, or batch statistics of mean 0 and variance 1, unless other weights of that
    layer are not distributed as initialized. Without such constants, the distribution alone is weaker evidence.
    """
    if any(getattr(layer, "lora_enabled", False) for layer in layers_within(training.model)):
        return None  # frozen on purpose
    whole = sum(math.prod(weight.shape) for weight in training.model.weights) or 1
    found = {"as made": [], "as drawn": [], "trained": [], "unknown": []}
    for layer in layers_within(training.model):
        if not layer.trainable and own_weights_to_train(layer):
            found[_weight_state(layer)].append(layer)
    if not any(found.values()):
        return ok("No layer is frozen.")
    suspect = [*found["as made"], *found["as drawn"], *([] if found["trained"] else found["unknown"])]
    share = sum(map(_size, suspect)) / whole
    names = ", ".join(layer.name for layer in suspect[:4])
    advice = "Set trainable=True before compile, or load the weights that it should keep."
    if found["as made"] and share > FROZEN:
        words = f"{names}: frozen, with {share:.0%} of the weights, and {_CONSTANTS_WORDS} still at their initial"
        words += " values: never trained."
        updated = "train_step updates it, as with a mean teacher" if training.has_own_step else ""
        inner = [each for each in layers_within(training.model) if each is not training.model]
        if any(getattr(each, "compiled", False) for each in inner):
            updated = "it has a fit of its own, as a discriminator has"
        if updated:
            return warning(words, f"Right if {updated}. Otherwise: {advice}", "06")
        return failure(words, advice, "06")
    if found["as drawn"] and share > FROZEN:
        words = f"{names}: frozen, with {share:.0%} of the weights, which are still distributed as initialized."
        return warning(words, f"If it was never trained: {advice}", "06")
    if sum(map(_size, found["unknown"])) > FROZEN * whole:
        names = ", ".join(layer.name for layer in found["unknown"][:4])
        raise Skipped(f"{names} are frozen, and their weights do not show whether they were ever trained")
    return ok(f"Frozen layers: {sum(map(len, found.values()))}, with weights that are not as they were made.")


def _weight_state(layer):
    """Return whether the weights of a layer are "as made", "as drawn", "trained" or "unknown"."""
    constants = [(getattr(layer, name, None), values) for name, values in _CONSTANTS.items()]
    constants = [np.isin(each.numpy(), values) for each, values in constants if isinstance(each, keras.Variable)]
    if not all(each.all() for each in constants):
        return "trained"
    by_constants = "as made" if constants else "unknown"
    initializers = [each for name, each in vars(layer).items() if name.endswith("_initializer")]
    initializers = [each for each in initializers if "seed" in getattr(each, "get_config", dict)()]
    large = [each for each in own_weights_to_train(layer) if math.prod(each.shape) >= LEAST_DRAWN]
    if not initializers or not large:
        return by_constants
    drawn = [[_is_drawn_by(initializer, each) for initializer in initializers] for each in large]
    if any(not any(row) and None not in row for row in drawn):
        return "trained"
    return "as drawn" if not constants and all(map(any, drawn)) else by_constants


def _is_drawn_by(initializer, weight):
    """Return whether values have the distribution of an initializer, by the Kolmogorov-Smirnov test.

    None if the initializer does not support this rank.
    """
    again = type(initializer).from_config({**initializer.get_config(), "seed": 1})
    try:
        drawn = np.asarray(again(weight.shape))
    except ValueError:
        return None
    compared = ks_2samp(np.ravel(weight.numpy())[:MOST_COMPARED], np.ravel(drawn)[:MOST_COMPARED])
    return bool(compared.pvalue > BY_CHANCE)


def _size(layer):
    return sum(math.prod(weight.shape) for weight in own_weights_to_train(layer))


def one_batch(training):
    """Does the loss fall on one batch with the given optimizer, and is the learning rate too large?"""
    if training.has_own_step:
        return _own_steps(training)
    loss = float(training.loss_of(training.first))
    if not math.isfinite(loss) or not training.model.trainable_variables:
        raise Skipped("the loss is not finite, or nothing trains")
    no_reference = no_measure(training) or (SAME_TARGETS if _has_same_targets(training) else "")
    constant = loss if no_reference else best_constant(training)
    if constant < 0:
        return _check_divergence(training, loss)
    if _has_zero_learning_rate(training):
        return warning(
            f"The schedule's learning rate is {0:g} now and {_most_steps(training)} steps later: it has ended, and"
            " steps do nothing.",
            "Compile the model again, or give the schedule more steps.",
            "02",
        )
    enough = FALLS_TO * constant
    losses = _steps(training, enough)
    optimizer = innermost(training.model.optimizer)
    rate = float(optimizer.learning_rate)
    scheduled = not isinstance(optimizer.learning_rate, keras.Variable)
    highest = max(losses) if all(map(math.isfinite, losses)) else math.inf
    if not highest <= RISES * losses[0]:  # also if the first loss is NaN
        found = f"One batch, {len(losses)} steps at a rate of {rate:.3g}: the loss rises from {number(losses[0])} to"
        found += f" {highest:.3g}."
        if scheduled and _runs_away(losses[0], highest):
            return failure(found, "Try a tenth of the schedule's learning rates, or a longer warm-up.", "02")
        if scheduled:
            return warning(found, "Try a tenth of the schedule's learning rates.", "02")
        for slower_rate in (rate / 10, rate / 100, rate / 1000):
            slower = _steps(training, enough, slower_rate)
            if max(slower) <= 1.2 * slower[0] and min(slower) < 0.9 * slower[0]:
                return failure(
                    f"{found} At {slower_rate:.3g} it falls to {number(min(slower))} without rising.",
                    "The learning rate is too large: use that one, or warm up.",
                    "02",
                )
        if _runs_away(losses[0], highest):
            return failure(
                found, "A smaller learning rate does not help: see the other findings first, and clip the gradients."
            )
        return warning(found, "A smaller learning rate does not help: see the other findings first.")
    words = f"One batch, {len(losses)} steps: the loss falls from {number(losses[0])} to {number(min(losses))}"
    if no_reference:
        words = f"{words}. {no_reference}"
        if min(losses) <= FALLS * losses[0]:
            return ok(words)
    else:
        words += f"; the best constant predictor scores {number(constant)}."
    if min(losses) <= enough:
        return ok(words)
    if len(losses) < _most_steps(training):
        raise TimedOut(
            f"there was time for {len(losses)} steps, in which the loss fell from {number(losses[0])} to"
            f" {number(min(losses))}; up to {_most_steps(training)} can be needed: give more minutes"
        )
    return warning(
        words,
        "A model that cannot learn one batch will not learn many: check the other findings, the learning rate (a"
        " warm-up starts at 0), noise from dropout, and whether the targets depend on the inputs at all.",
    )


@once
def no_measure(training):
    """Return why the best constant predictor is no reference for the loss, "" if it is one.

    The loss gives outputs no gradient; or an example's loss depends on the outputs of others, as in contrastive and
    ranking losses: the gradient at the first example's outputs changes when the others' outputs are rotated.
    """
    outputs = training.outputs(training.x)
    if all(each is None for each in training.gradients_at(outputs)):
        return NO_OUTPUTS
    flat = keras.tree.flatten(outputs)
    if training.examples < 3 or not all(map(training.has_rows, flat)):
        return ""
    gradients = []
    for shift in (0, 1):
        training.state.restore_values()  # with the same random numbers
        given = [with_mask(tf.concat([each[:1], tf.roll(each[1:], shift, 0)], 0), mask_of(each)) for each in flat]
        found = training.gradients_at(keras.tree.pack_sequence_as(outputs, given))
        gradients.append([each for each in found if each is not None])
    return NO_MEASURE if gradient_change(*gradients) > GRADIENT_DIFFERS else ""


def _has_same_targets(training):
    """Return whether all examples have the same targets, unless outputs have positions, whose targets may differ."""
    has_positions = any(len(each.shape) > 2 for each in keras.tree.flatten(training.outputs(training.x)))
    targets = [each.numpy() for each in keras.tree.flatten(training.y) if training.has_rows(each)]
    return bool(targets) and not has_positions and all((each == each[:1]).all() for each in targets)


def _most_steps(training):
    return STEPS * training.steps_per_update


def _check_divergence(training, start):
    """Return a failure if a loss that can be negative diverges on one batch; otherwise raise Skipped."""
    losses = _steps(training, -math.inf)
    if _runs_away(start, max(losses)):
        return _ran_away("the loss", start, max(losses), len(losses))
    raise Skipped("the loss can be negative, so its relative fall does not show how much was learned")


def _runs_away(start, highest):
    return not highest <= RUNS_AWAY * max(abs(start), 1.0)


def _ran_away(name, start, highest, steps):
    return failure(
        f"In {steps} steps on one batch {name} goes from {number(start)} to {number(highest)}.",
        "Use a smaller learning rate, clip the gradients (global_clipnorm=1.0), and look at the scale of the inputs.",
        "02",
    )


def _has_zero_learning_rate(training):
    """Return whether a schedule has ended at a learning rate of 0."""
    optimizer = innermost(training.model.optimizer)
    if isinstance(optimizer.learning_rate, keras.Variable):
        return False
    rates = [float(optimizer.learning_rate)]
    optimizer.variables[0].assign_add(_most_steps(training))  # with accumulation `iterations` counts updates
    rates.append(float(optimizer.learning_rate))
    training.state.restore_values()
    return not any(rates)


@once
def best_constant(training):
    """Return the loss of the best output that is the same for all examples and positions.

    L-BFGS minimizes the loss, over logits if outputs are probabilities, otherwise from the mean of the targets.
    """
    training.refuse_own_step()
    try:
        draws = {pair.place: _draws(training, pair) for pair in training.pairs()}
    except Skipped:  # a custom loss in the model
        draws = {}
    outputs = training.outputs(training.x)  # after the draws: the loss adds what layers added in the last call
    flat = keras.tree.flatten(outputs)
    targets = keras.tree.flatten(training.y) if training.y is not None else []
    makers = []
    for place, output in enumerate(flat):
        target = targets[place] if len(targets) == len(flat) else None
        makers.append(_constant_like(output, target, draws.get(place, [tf.cast(output, tf.float64).numpy()])))
    sizes = [width for width, _ in makers]
    until = time.monotonic() + SHARE_OF_TIME * training.seconds_left
    calls = 0

    def loss_and_gradient(numbers):
        nonlocal calls
        if time.monotonic() > until:
            raise TimedOut(f"the best constant predictor was not found in {calls} calls of the loss: give more minutes")
        calls += 1
        with tf.GradientTape() as tape:
            vectors = tf.split(tf.constant(numbers, tf.float32), sizes)
            tape.watch(vectors)
            constants = [make(vector) for (_, make), vector in zip(makers, vectors, strict=True)]
            loss = training.loss(keras.tree.pack_sequence_as(outputs, constants))
        gradients = tape.gradient(loss, vectors, unconnected_gradients="zero")
        return float(loss), np.concatenate(gradients).astype("float64")

    start_at = np.zeros(sum(sizes))
    found = minimize(loss_and_gradient, start_at, jac=True, method="L-BFGS-B", options={"maxfun": CALLS_FOR_CONSTANT})
    if not math.isfinite(found.fun):
        raise Skipped("the loss of the best constant predictor is not finite")
    return float(found.fun)


def _constant_like(output, target, draws):
    """Return the number of parameters of a constant output, and the function that builds it from them."""
    width = output.shape[-1] if len(output.shape) > 1 else 1
    unit, simplex = _are_probabilities(draws)
    mean, spread = np.zeros(width, "float32"), 1.0
    if not unit and target is not None and target.shape == output.shape:
        y = tf.cast(target, tf.float32).numpy().reshape(-1, width)
        mean, spread = np.nan_to_num(y.mean(0)), float(np.nan_to_num(y.std())) or 1.0

    def make(vector):
        if simplex and width > 1:
            values = tf.nn.softmax(vector)
        else:
            values = tf.sigmoid(vector) if unit else mean + spread * vector
        constant = tf.cast(tf.broadcast_to(values, output.shape), output.dtype)
        if unit and output.dtype == tf.float32:  # Keras' losses compute from the logits, as with the output
            constant._keras_logits = tf.broadcast_to(vector, output.shape)
        return with_mask(constant, mask_of(output))  # masked positions do not count

    return width, make


def _draws(training, pair):
    """Return the current output of a `Pair` and those with large random weights, as float64 arrays."""
    random = np.random.default_rng(0)
    draws = [tf.cast(pair.outputs, tf.float64).numpy()]
    for _, size in product(range(DRAWS), (2, 0.5)):  # smaller ones for deep networks, where signals grow
        for weight in training.model.trainable_variables:
            spread = size / math.sqrt(max(1, math.prod(weight.shape[:-1]))) if len(weight.shape) > 1 else 1.0
            weight.assign(random.normal(0, spread, weight.shape))
        output = keras.tree.flatten(training.outputs(training.x, is_trial=True))[pair.place]
        drawn = tf.cast(output, tf.float64).numpy()
        if np.isfinite(drawn).all():
            draws.append(drawn)
    training.state.restore_values()
    if len(draws) == 1:
        raise Skipped("with random weights no output is finite, so the range of the outputs is unknown")
    return draws


def _are_probabilities(draws):
    """Return whether all outputs are from 0 to 1, and whether their sums are 1, too."""
    unit = all((draw >= 0).all() and (draw <= 1).all() for draw in draws)
    sums = [draw.sum(-1) for draw in draws if draw.ndim > 1]
    return unit, unit and bool(sums) and all((np.abs(each - 1) < SUM_OF_PROBABILITIES).mean() > 0.98 for each in sums)


def _has_several_classes(pair):
    """Return whether the targets are zeros and ones, and not one 1 for each example."""
    y = pair.y.numpy()
    return set(np.unique(y)) <= {0, 1} and not np.allclose(y.sum(-1), 1)


def _loss_of_standard_inputs(training):
    """Return the loss of the first batch with standardized floating-point and uint8 inputs; None without any."""
    if not any(has_scale(value) for _, value in named_parts(training.x, "inputs")):
        return None

    def standard(value):
        if value is None or not has_scale(value):
            return value
        values = tf.cast(value, tf.float32)
        axis = 0 if len(value.shape) == 2 else None
        return (values - tf.reduce_mean(values, axis)) / tf.maximum(tf.math.reduce_std(values, axis), 1e-6)

    return float(training.loss_of((keras.tree.map_structure(standard, training.x), training.y, training.weight)))


def _largest_input(training):
    """Describe the input with the largest values."""
    sizes = {}
    for name, value in named_parts(training.x, "inputs"):
        if has_scale(value):
            sizes[name] = float(tf.sqrt(tf.reduce_mean(tf.square(tf.cast(value, tf.float32)))))
    if len(sizes) == 1:
        return f"{next(iter(sizes))} are"
    largest = max(sizes, key=sizes.get)
    return f"{largest} (root mean square {number(sizes[largest])}, the largest of {len(sizes)}) are"


def _still_silent_after_a_step(training, silent):
    """Return the weights without a gradient even after some steps; next to zero weights, as in LoRA, it comes later."""
    for _ in range(3 * training.steps_per_update):
        training.step(training.first)
    _, gradients = training.gradients(training.first, training=True)
    training.state.restore_values()
    return silent - {place for place, each in gradients.items() if np.any(each.numpy() != 0)}


def _moving_outputs(training, weights, deviation):
    """Return the weights that change outputs with a loss when noise of this deviation is added to one of them.

    Outputs that no gradient of the first batch's loss reaches do not count, as with loss_weights of 0.
    """
    before = training.reproducible_outputs()
    at_outputs = training.gradients_at(training.outputs(training.x))
    reached = [place for place, each in enumerate(at_outputs) if each is not None and np.any(each.numpy() != 0)]
    try:
        places = {pair.place for pair in training.pairs()}
    except Skipped:  # which outputs have a loss is unknown
        places = range(len(before))
    places = reached or places
    moving = []
    for weight in weights:
        training.state.restore_values()
        value = weight.numpy()
        weight.assign(value + np.random.default_rng(0).normal(0, deviation, value.shape).astype(value.dtype))
        after = keras.tree.flatten(training.outputs(training.x, is_trial=True))
        if differ(*([outputs[place] for place in places] for outputs in (before, after))):
            moving.append(weight)
    return moving


def _dead_units(training):
    """Return (name, which units are 0 for all examples of four batches) of each relu layer."""
    alive, names = {}, {}

    def note(layer, call, *args, **kwargs):
        output = call(*args, **kwargs)
        if tf.is_tensor(output) and len(output.shape) > 1:
            above = tf.reduce_any(output > 0, range(len(output.shape) - 1)).numpy()
            place = id(layer), above.shape  # a layer may be called at several widths
            names[place] = layer.path or layer.name
            alive[place] = alive.get(place, False) | above
        return output

    with calls_seen([layer for layer in layers_within(training.model) if _is_relu(layer)], note):
        for batch in training.batches[:4]:
            training.outputs(keras.utils.unpack_x_y_sample_weight(batch)[0])
    return [(names[place], ~np.asarray(units)) for place, units in alive.items()]


def _is_relu(layer):
    is_layer = isinstance(layer, keras.layers.ReLU) and not getattr(layer, "negative_slope", 0)
    return is_layer or getattr(layer, "activation", None) is keras.activations.relu


def _steps(training, enough, rate=None):
    """Return the losses of at most `_most_steps` on one batch, at this learning rate or the model's own.

    The steps end at a loss of at most ``enough``.
    """
    if rate is not None:
        innermost(training.model.optimizer).learning_rate = rate
    seconds = SHARE_OF_TIME * training.seconds_left
    until = None
    losses = []
    while len(losses) < _most_steps(training):
        losses.append(float(training.step(training.first)["loss"]))
        if not math.isfinite(losses[-1]) or losses[-1] <= enough or (until and time.monotonic() > until):
            break
        until = until or time.monotonic() + seconds  # the first step includes setup
    training.state.restore_values()
    return losses


def _own_steps(training):
    """Take some steps of a custom `train_step` on one batch, and check the logs that it returns."""
    training.refuse_unusable("step")
    until = time.monotonic() + SHARE_OF_TIME * training.seconds_left
    logs = []
    while len(logs) < 20 and time.monotonic() < until:
        given = training.step(training.first, fresh_metrics=False)
        logs.append({name: float(tf.reduce_mean(tf.cast(value, tf.float32))) for name, value in given.items()})
        bad = [name for name, value in logs[-1].items() if not math.isfinite(value)]
        if bad:
            return failure(
                f"{bad[0]} is {logs[-1][bad[0]]} after {len(logs)} steps of your train_step on one batch.",
                "bt.find_overflow(model, data) names the first layer that gives it.",
                "11",
            )
    for name in logs[-1]:
        highest = max(one[name] for one in logs)
        if "loss" in name and _runs_away(logs[0][name], highest):
            return _ran_away(f"{name} of your train_step", logs[0][name], highest, len(logs))
    shown = ", ".join(f"{name} {number(logs[0][name])} to {number(logs[-1][name])}" for name in logs[-1])
    return ok(f"{len(logs)} steps of your train_step on one batch are finite: {shown}.")


CHECKS = {
    "outputs and loss": logits,
    "range of outputs": output_range,
    "start": start,
    "dead units": dead,
    "gradients": gradient,
    "frozen layers": frozen,
    "overfit one batch": one_batch,
}
