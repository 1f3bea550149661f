"""One call that checks a training before it runs: the order of the checks, the time limit, restoring the state.

Each group of checks has a file, with a dictionary {name: function of a `Training`}. A check returns a finding, or None
if it does not apply to this kind of training, or raises `Skipped` with the reason.
"""

import time
import warnings
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tqdm.auto import tqdm

from bigtrain_nb.advanced.preflight import accumulation, checkpointing, features, growth, leaks, memory, updates
from bigtrain_nb.advanced.preflight import data as of_data
from bigtrain_nb.advanced.preflight import loss as of_loss
from bigtrain_nb.advanced.preflight.report import (
    ERROR,
    SKIPPED,
    Finding,
    NonfiniteOutputs,
    Preflight,
    Skipped,
    TrainingRaises,
    failure,
    warning,
)
from bigtrain_nb.advanced.preflight.training import NoExamples, TimedOut, Training, refuse_read_once, words_of
from bigtrain_nb.advanced.shared.fit_data import preprocess_like_fit
from bigtrain_nb.advanced.shared.untouched import build_optimizers, restoring_state
from bigtrain_nb.common.checks import one_of, positive
from bigtrain_nb.common.keras_compat import build_like_fit
from bigtrain_nb.common.quiet import keras

GROUPS = {
    "data": {**of_data.CHECKS, **features.CHECKS},
    "leaks": leaks.CHECKS,
    "loss": of_loss.CHECKS,
    "accumulation": accumulation.CHECKS,
    "precision": updates.CHECKS,
    "memory": {**memory.CHECKS, **growth.CHECKS},
    "checkpointing": checkpointing.CHECKS,
}


LAST = (
    "overfit one batch",
    "train/validation overlap",
    "memory",
    "memory over passes",
    "stopped and resumed",
    "saved and loaded",
)
"""Slow checks, which get a share of the remaining time after the quick ones."""
SHARES = {"overfit one batch": 3}
"""Shares of the time, relative to the single share of other slow checks and of groups."""

RUNS = "the model takes the batch"
_NAN = "Outputs of the first batch are NaN after 0 steps, though the batch is finite."
_EMPTY = Finding(
    RUNS,
    ERROR,
    "The dataset yields no examples: fit would train nothing.",
    "Look at next(iter(data)), at the paths of its files, at filter, take and skip, and at batch(..."
    ", drop_remainder=True) of fewer examples than a batch.",
)


def preflight(
    model: keras.Model, data: Any, *, validation: Any = None, minutes: float = 3, checks: Sequence[str] | None = None
) -> Preflight:
    """Check a training before it runs; return a `Preflight`: lines of ok, warning, error or skipped.

    ``model`` is compiled; ``data`` is the dataset for `fit`, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a
    `Pipeline` or a list of batches, and ``validation`` that for `evaluate`. For KerasHub tasks with a preprocessor they
    contain strings. ``checks``: groups, of "data", "leaks", "loss", "accumulation", "precision", "memory" and
    "checkpointing", or single checks, such as "overfit one batch"; default: all. After ``minutes`` no check begins, and
    a running one ends at its next call of the model; the report says so. Each group of checks gets a share of that
    time, plus the time that others leave.

    "saved and loaded" starts a separate process, which first loads TensorFlow. Use `throughput` and `Meter` to measure
    the speed of a training, and `find_overflow` to find the layer that overflows.

    The state of the model, its optimizer, metrics and random number generators is restored, and the order of a shuffled
    dataset does not advance: a later `fit` gives bitwise identical weights. This includes variables that Keras does not
    list, such as the states of stateful RNNs, if attributes of the model lead to them. Not restored are: the state of
    Python functions in the dataset, Python attributes that a layer changes, and the shuffling of a dataset with arrays
    of 2 GiB or more. The report names variables that only the first call creates.

    An "error" has been demonstrated, usually by changing an input, a weight or a batch, and recomputing. Fewer checks
    apply to a model with a custom `train_step`, and the report says which were skipped.

    Not detectable from a model and its data: swapped outputs or inputs of the same shape; labels that are shuffled, or
    shifted other than along a sequence; a random state that is not saved; features without information; a slightly
    wrong learning rate; label noise; layers that you froze on purpose. Without ``validation``: inputs of another scale
    in evaluation, and a train/validation overlap; with it, overlapping examples that were randomly changed in between.

    Raises TypeError if ``model`` is not a Keras model, for a dataset that can be read only once, and for batches of
    ragged or sparse tensors; ValueError for a model that is not compiled or has several replicas, and for bad settings.

    Example::

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])  # no softmax, but the loss expects one
        model.compile("adam", "sparse_categorical_crossentropy")
        data = tf.data.Dataset.from_tensor_slices((tf.random.normal([64, 8]), tf.range(64) % 3)).batch(16)
        report = bt.preflight(model, data, checks=["data", "loss"])
        print(report.failed)  # True
    """
    _refuse(model, checks)
    positive("minutes", minutes, "minutes")
    refuse_read_once(data, "data")
    if validation is not None:
        refuse_read_once(validation, "validation")
    start = time.monotonic()
    try:
        training = Training(model, preprocess_like_fit(model, data), preprocess_like_fit(model, validation), minutes)
    except NoExamples:
        return Preflight([_EMPTY], model.name, time.monotonic() - start)
    _build(training)
    with restoring_state(model) as training.state:
        findings = _examine(training, _chosen(checks))
        made = training.state.made_since()
        if made:
            names = ", ".join(made[:4])
            words = f"{names} were created by the model's first call, and keep what the checks left there."
            advice = "Rebuild the model before fit, or make them in build()."
            findings.append(Finding("left as it was", **warning(words, advice)))
    return Preflight(findings, model.name, time.monotonic() - start)


def _refuse(model, checks):
    if not isinstance(model, keras.Model):
        raise TypeError(f"preflight takes a compiled Keras model, not {model!r:.99}")
    if not model.compiled:
        raise ValueError(f"{model.name} is not compiled: a step needs the loss and the optimizer")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(f"{model.name} has several replicas: build it without the strategy, and give the batch of one")
    if isinstance(checks, str):
        raise ValueError(f"checks={checks!r} must be a list, such as ['data', 'leaks']")
    for name in checks or ():
        one_of("checks", name, (*GROUPS, *_chosen(None)))


def _build(training):
    """Create the variables that `fit` would create, or record why that fails."""
    builds = [build_optimizers] if training.has_own_step else [build_like_fit]
    if training.model.run_eagerly and not training.has_own_step:
        builds.append(build_optimizers)  # a step may need values
    for build in builds:
        try:
            build(training.model, training.first)
            training.fails_with = None
            return
        except Exception as error:
            training.fails_with = words_of(error)


def _chosen(names):
    """Return {name: check} of groups and single checks, in the order of execution; None: all."""
    chosen = {}
    for group, checks in GROUPS.items():
        chosen.update({name: check for name, check in checks.items() if not names or group in names or name in names})
    quick = {name: check for name, check in chosen.items() if name not in LAST}
    return quick | {name: chosen[name] for name in LAST if name in chosen}


def _examine(training, checks):
    findings = []
    training.chosen = tuple(checks)
    if RUNS not in checks:  # errors that would end fit are always reported
        findings += [_noted(training, RUNS, one) for one in (of_data.fails(training), of_data.unread(training)) if one]
    late = checks
    for _ in range(2):  # checks with too little time restart with the time left by others
        kept = [each for each in findings if each.check not in late]
        found, late = _examined_in_turn(training, late)
        findings = sorted([*kept, *found], key=lambda each: [RUNS, *checks].index(each.check))
        if not late or time.monotonic() >= training.end:
            break
    return findings


def _examined_in_turn(training, checks):
    """Return the findings, and the checks for which their group's share of the time was too short."""
    found, late = [], {}
    groups = [list(names) for _, names in groupby(checks, _group_of)]
    progress = tqdm(total=len(checks), delay=1, leave=False, disable=None)
    for place, names in enumerate(groups):
        shares = [SHARES.get(each[0], 1) for each in groups[place:]]
        training.begin_share(shares[0] / sum(shares))
        for name in names:
            progress.set_description(name)
            finding, is_late = _examined(training, checks[name])
            if finding:
                found.append(_noted(training, name, finding))
            if is_late:
                late[name] = checks[name]
            progress.update()
    progress.close()
    return found, late


def _noted(training, name, found):
    """Return the result of a check as a `Finding`; later checks do not use what it spoils."""
    for what in found.get("spoils", ()):
        training.unusable.setdefault(what, name)
    return Finding(name, **found)


def _group_of(name):
    return name if name in LAST else next(group for group, checks in GROUPS.items() if name in checks)


def _examined(training, check):
    """Run a check; return its finding, and whether its time was too short."""
    try:
        training.check_deadline()
        training.refuse_unusable(*getattr(check, "needs", ()))
        with warnings.catch_warnings(action="ignore"):  # Keras warns in trial steps; a finding covers it
            return check(training), False
    except TrainingRaises as error:
        return failure(f"A step of the training raises: {error}.", "fit would raise it too; fix this first."), False
    except NonfiniteOutputs:
        advice = "bt.find_overflow(model, data) names the first layer that gives it; look at the loaded weights."
        return failure(f"{_NAN} Checks that compare outputs are skipped.", advice, "11", spoils=("outputs",)), False
    except Skipped as reason:
        words = str(reason)
        return {"verdict": SKIPPED, "message": f"{words[:1].upper()}{words[1:]}."}, isinstance(reason, TimedOut)
    except Exception as error:
        return {"verdict": SKIPPED, "message": f"It failed: {words_of(error)}."}, False
    finally:
        training.state.restore_values()
