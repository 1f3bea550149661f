"""One call that examines a training before it runs: the order of the checks, the time limit, what is left as it was.

The checks stand in files by group, each a dictionary {what is examined: function of a `Training`}. A check returns a
finding, or None if it has nothing to say of this kind of training, or raises `Skipped` with the reason.
"""

import sys
import time
import warnings
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tqdm.auto import tqdm

from bigtrain_nb.advanced.preflight import accumulation, checkpointing, features, leaks, matmuls, memory, updates
from bigtrain_nb.advanced.preflight import data as of_data
from bigtrain_nb.advanced.preflight import loss as of_loss
from bigtrain_nb.advanced.preflight.report import (
    ERROR,
    SKIPPED,
    Finding,
    Preflight,
    Skipped,
    TrainingRaises,
    failure,
    warning,
)
from bigtrain_nb.advanced.preflight.training import NoExamples, TooLate, Training, refuse_read_once, words_of
from bigtrain_nb.advanced.preflight.untouched import build_optimizers, left_as_it_was
from bigtrain_nb.common.checks import one_of, positive
from bigtrain_nb.common.keras_compat import build_as_fit_does
from bigtrain_nb.common.passes import as_fit_gives
from bigtrain_nb.common.quiet import keras

GROUPS = {
    "data": {**of_data.CHECKS, **features.CHECKS},
    "leaks": leaks.CHECKS,
    "loss": of_loss.CHECKS,
    "accumulation": accumulation.CHECKS,
    "precision": {**updates.CHECKS, **matmuls.CHECKS},
    "memory": memory.CHECKS,
    "checkpointing": checkpointing.CHECKS,
}


LAST = ("overfit one batch", "train/validation overlap", "memory", "stopped and resumed", "saved and loaded")
"""What takes a share of the time that is left: on a slow machine the quick checks have run by then."""
SHARES = {"overfit one batch": 3}
"""Of the time: as many as other single checks of the last, and groups, have together."""
SILENT_SECONDS = 10
"""After which it says what it does where no bar of progress is shown."""

RUNS = "the model takes the batch"
_EMPTY = Finding(
    RUNS,
    ERROR,
    "The dataset yields no examples: fit would train nothing.",
    "Look at next(iter(data)), at the paths of its files, at filter, take and skip, and at batch(..."
    ", drop_remainder=True) of fewer examples than a batch.",
)


def preflight(
    model: keras.Model,
    data: Any,
    *,
    validation: Any = None,
    minutes: float = 3,
    checks: Sequence[str] | None = None,
) -> Preflight:
    """Examine a training before it runs; return a `Preflight`: lines of ok, warning, error or skipped.

    ``model`` is compiled; ``data`` is the dataset that `fit` gets, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a
    `Pipeline` or a list of batches, and ``validation`` that of `evaluate`. Where a task of KerasHub has a preprocessor,
    they are of texts. ``checks``: groups, of "data", "leaks", "loss", "accumulation", "precision", "memory" and
    "checkpointing", or single lines of a report, as "overfit one batch"; default: all. After ``minutes`` no check
    begins, and one that has begun ends at its next call of the model; the lines say so. Each group of checks has a
    share of that time, and what others leave of theirs.
    Where no bar of progress can be shown, a line to stderr says which check begins, if ten seconds have passed.

    "saved and loaded" starts a process of its own, which first loads TensorFlow. How long a run takes is for
    `throughput` and `Meter` to measure, and which layer overflows for `find_overflow`.

    The model, its optimizer, metrics and the random numbers are left as they were, and the order of a shuffled dataset
    is not moved on: `fit` afterwards gives the same weights to the bit. Variables in no list of Keras too, as the
    states of stateful RNNs, are put back where attributes of the model lead to them. Not put back are: what functions
    of Python in the dataset remember, attributes of Python that a layer changes, and the shuffling of a dataset that
    holds arrays of 2 GiB and more. Variables that only the first call makes are named in a line.

    "error" is said where it was shown: most often by changing an input, a weight or a batch, and computing again. What
    a model of your own `train_step` can be asked is less, and the report says what was not examined.

    What cannot be found from a model and its data: two outputs or inputs of the same shape swapped; labels that are
    shuffled, or shifted other than along a sequence; a random state that is not saved; features that hold nothing; a
    rate that is a little wrong; noise in the labels; layers that you froze on purpose. Without ``validation``: inputs
    of another scale in evaluation, and examples of validation that are in training too; with it, those that were
    changed at random in between.

    Raises TypeError for what is no Keras model, for a dataset that can be read only once, and for batches of ragged or
    sparse tensors, ValueError for a model that is not compiled or has several replicas, and for bad settings.

    Example::

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])  # no softmax, and the loss expects one
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
        training = Training(model, as_fit_gives(model, data), as_fit_gives(model, validation), minutes)
    except NoExamples:
        return Preflight([_EMPTY], model.name, time.monotonic() - start)
    _build(training)
    with left_as_it_was(model) as training.state:
        findings = _examine(training, _chosen(checks))
        made = training.state.made_since()
        if made:
            findings.append(Finding(**_left_changed(made)))
    return Preflight(findings, model.name, time.monotonic() - start)


def _left_changed(names):
    found = f"{', '.join(names[:4])} were made by the first call of the model, and keep what was left there."
    return {"check": "left as it was", **warning(found, "Rebuild the model before fit, or make them in build().")}


def _refuse(model, checks):
    if not isinstance(model, keras.Model):
        raise TypeError(f"preflight takes a compiled Keras model, not {model!r:.99}")
    if not model.compiled:
        raise ValueError(f"{model.name} is not compiled: a step of it needs the loss and the optimizer")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(f"{model.name} has several replicas: build it without the strategy, and give one's batch")
    if isinstance(checks, str):
        raise ValueError(f"checks={checks!r} must be a list, as ['data', 'leaks']")
    for name in checks or ():
        one_of("checks", name, (*GROUPS, *_chosen(None)))


def _build(training):
    """Make the variables that `fit` would make, or note why that fails."""
    try:
        if training.has_own_step:
            build_optimizers(training.model, training.first)
        else:
            build_as_fit_does(training.model, training.first)
    except Exception as error:
        training.fails_with = words_of(error)


def _chosen(names):
    """Return {name: check} of groups and single checks, in the order in which they are done; None: of all."""
    chosen = {}
    for group, checks in GROUPS.items():
        chosen.update({name: check for name, check in checks.items() if not names or group in names or name in names})
    quick = {name: check for name, check in chosen.items() if name not in LAST}
    return quick | {name: chosen[name] for name in LAST if name in chosen}


def _examine(training, checks):
    """Return the findings of the checks."""
    findings = []
    training.chosen = tuple(checks)
    if RUNS not in checks:  # what fit would end with is said whatever is asked
        findings += [Finding(RUNS, **found) for found in (of_data.fails(training), of_data.unread(training)) if found]
    late = dict(checks)
    for _ in range(2):  # what had too small a share begins again, with the time that others left
        kept = [each for each in findings if each.check not in late]
        found, late = _examined_in_turn(training, late)
        findings = sorted([*kept, *found], key=lambda each: [RUNS, *checks].index(each.check))
        if not late or time.monotonic() >= training.end:
            break
    return findings


def _examined_in_turn(training, checks):
    """Return the findings of checks, and those of the checks for which the share of their group was too small."""
    found, late = [], {}
    groups = [list(names) for _, names in groupby(checks, _group_of)]
    progress = tqdm(total=len(checks), delay=1, leave=False, disable=None)
    began = said = time.monotonic()
    for place, names in enumerate(groups):
        shares = [SHARES.get(each[0], 1) for each in groups[place:]]
        training.begin_share(shares[0] / sum(shares))
        for name in names:
            progress.set_description(name)
            if progress.disable and time.monotonic() - said > SILENT_SECONDS:
                said = time.monotonic()
                print(f"preflight, {said - began:.0f} s: {name}", file=sys.stderr, flush=True)
            finding, is_late = _examined(training, checks[name])
            if finding:
                found.append(Finding(name, **finding))
            if is_late:
                late[name] = checks[name]
            progress.update()
    progress.close()
    return found, late


def _group_of(name):
    return name if name in LAST else next(group for group, checks in GROUPS.items() if name in checks)


def _examined(training, check):
    """Return what a check finds, and whether its time was too short."""
    try:
        training.refuse_late()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras' on a step that is only tried: what it is about has a line
            return check(training), False
    except TrainingRaises as error:
        return failure(f"A step of the training raises: {error}", "fit would raise it too; fix this first."), False
    except Skipped as reason:
        return {"verdict": SKIPPED, "message": _sentence(reason)}, isinstance(reason, TooLate)
    except Exception as error:
        return {"verdict": SKIPPED, "message": f"It failed: {words_of(error)}"}, False
    finally:
        training.state.put_back()


def _sentence(reason):
    words = str(reason)
    return f"{words[:1].upper()}{words[1:]}."
