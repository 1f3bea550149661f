"""The training to check: its model, the first batches, and the computations of a step on them."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from functools import wraps

import numpy as np

from bigtrain_nb.advanced.preflight.report import OK, NonfiniteOutputs, Skipped, TrainingRaises, ok, worst_of
from bigtrain_nb.advanced.shared.fit_data import as_tensor, batches_of, compute_loss_like_fit, passes
from bigtrain_nb.advanced.shared.loss_pairs import loss_pairs
from bigtrain_nb.advanced.shared.operations import number_of_bytes
from bigtrain_nb.advanced.shared.untouched import optimizers_within
from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.keras_compat import mask_of, overriding, parts_of, with_mask
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import cause

KINDS = ("inputs", "targets", "sample weights")
"""The parts of a batch."""
MOST_BATCHES = 40
"""Number of batches to read; with few, the order of classes cannot be determined."""
MOST_BYTES = 2 * 2**30
"""Size of the kept batches at which reading stops."""
SHARE_FOR_READING = 0.15
"""Share of the time limit at which reading stops."""


class NoExamples(Exception):
    """Raised for a dataset without examples."""


class TimedOut(Skipped):
    """Raised if the time for a check was too short."""


class Training:
    """A compiled model and its training data as tensors, ``batches``; most checks use the ``first``.

    ``x``, ``y``, ``weight`` are the parts of the first, ``examples`` the number of its examples. ``state``: the model's
    `KeptState`. ``chosen``: the names of the checks. ``fails_with``: the model's error message for the first batch;
    ``unread``: the dataset's error message after ``batches``. ``unusable``: {"step", "outputs" or "loss" of the first
    batch: the check that found it unusable}, so that one cause gives one finding. ``known``: results of `once`.
    """

    def __init__(self, model, data, validation, minutes):
        self.model = model
        self.data = data
        self.validation = validation
        self.minutes = minutes
        self.until = self.end = time.monotonic() + 60 * minutes
        self.unread = None
        self.batches = []
        kept = 0
        try:
            for batch in each_read(data, MOST_BATCHES, SHARE_FOR_READING * 60 * minutes):
                self.batches.append(batch)
                kept += sum(number_of_bytes(part) for part in keras.tree.flatten(batch) if tf.is_tensor(part))
                if kept > MOST_BYTES:
                    break
        except (TypeError, NoExamples):
            raise
        except Exception as error:
            if not self.batches:
                raise
            self.unread = words_of(error)
        self.first = self.batches[0]
        self.x, self.y, self.weight = keras.utils.unpack_x_y_sample_weight(self.first)
        self.examples = count_examples(self.first)
        self.state = None
        self.fails_with = None
        self.unusable = {}
        self.chosen = ()
        self.known = {}

    @property
    def seconds_left(self):
        return self.until - time.monotonic()

    def begin_share(self, share):
        """Give the next checks a share of the remaining time."""
        now = time.monotonic()
        self.until = now + share * (self.end - now)

    def check_deadline(self):
        """Raise TimedOut if the time is over, so that a check ends at its next call of the model."""
        if self.seconds_left <= 0:
            whose = "the time" if time.monotonic() >= self.end else "its share of the time"
            raise TimedOut(f"{whose} ran out (minutes={self.minutes:g}): give more minutes")

    def refuse_unusable(self, *needs):
        """Raise Skipped, naming the check that found the cause, if one of ``needs`` cannot be used."""
        for what in needs:
            if what in self.unusable:
                raise Skipped(f'the {what} of the first batch cannot be used, see "{self.unusable[what]}"')

    def has_rows(self, value):
        """Return whether a tensor of the first batch has a row for each example."""
        return value is not None and value.shape[:1] == (self.examples,)

    @property
    def without_rows(self):
        """A description of the first batch's tensors, except scalars, without a row for each example; "" if none."""
        return ", ".join(
            f"{name} {tuple(value.shape)}"
            for kind in KINDS
            for name, (value,) in named_tensors([self.first], kind).items()
            if value.shape.rank and not self.has_rows(value)
        )

    @property
    def has_own_step(self):
        return overriding(self.model) is not None

    def refuse_own_step(self, why="so its loss is unknown"):
        if self.has_own_step:
            raise Skipped(f"{type(self.model).__name__} has a custom train_step, {why}")

    def outputs(self, x, training=False, is_trial=False):
        """Return the model's outputs, called as in its step; ``is_trial``: with other weights."""
        self.check_deadline()
        self.refuse_unusable("step", "outputs")
        given = {"training": training} if takes(self.model.call, x, training=training) else {}
        outputs = self.model(x, **given)
        if x is self.x and not training and not is_trial:
            numbers = [each for each in keras.tree.flatten(outputs) if each.dtype.is_floating]
            if any(tf.reduce_any(tf.math.is_nan(each)) for each in numbers):
                raise NonfiniteOutputs("outputs of the first batch are NaN")
        return outputs

    def outputs_again(self, x):
        """Return the flattened outputs from the initial state, so that random numbers are the same."""
        self.state.restore_values()
        return keras.tree.flatten(self.outputs(x))

    def reproducible_outputs(self):
        """Return `outputs_again` of the first batch; raise Skipped if they differ from call to call."""
        outputs = self.outputs_again(self.x)
        if differ(outputs, self.outputs_again(self.x)):
            raise Skipped("outputs are random, without a keras.random.SeedGenerator, so they cannot be compared")
        return outputs

    def outputs_of_two_calls(self):
        """Return the flattened outputs of two calls on the first batch, and the names of the state restored between.

        The random state is not restored.
        """
        outputs = keras.tree.flatten(self.outputs(self.x))
        moved = self.state.restore_nonrandom()
        return outputs, keras.tree.flatten(self.outputs(self.x)), moved

    def loss(self, outputs, batch=None, training=False):
        """Return the loss of outputs, a scalar tensor; by default for the first batch."""
        self.check_deadline()
        self.refuse_unusable("loss")
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self.first if batch is None else batch)
        return tf.convert_to_tensor(compute_loss_like_fit(self.model, x, y, outputs, weight, training))

    def loss_of(self, batch, training=False):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        return self.loss(self.outputs(x, training), batch, training)

    def gradients_at(self, outputs, y=None, copied=True):
        """Return the gradients of the first batch's loss at flattened outputs, None where none arrives.

        ``y``: other targets. ``copied``: give the loss copies; otherwise Keras' go on to the inputs of a softmax.
        """
        copies = keras.tree.flatten(outputs)
        if copied:
            copies = [with_mask(tf.identity(each), mask_of(each)) for each in copies]
        with tf.GradientTape() as tape:
            tape.watch([each for each in copies if each.dtype.is_floating])
            y = self.y if y is None else y
            loss = self.loss(keras.tree.pack_sequence_as(outputs, copies), (self.x, y, self.weight))
        return tape.gradient(loss, copies)

    def step(self, batch, fresh_metrics=True):
        """Take a step on a batch and return its logs; ``fresh_metrics``: reset the metrics first.

        Raises TrainingRaises if the step raises.
        """
        self.check_deadline()
        self.refuse_unusable("step")
        if fresh_metrics:
            self.model.reset_metrics()
        try:
            return self.model.train_step(batch)
        except Skipped:
            raise
        except Exception as error:
            raise TrainingRaises(words_of(error)) from error

    @property
    def steps_per_update(self):
        """The number of steps of gradient accumulation, the maximum over several optimizers."""
        parts = [part for one in optimizers_within(self.model) for part in parts_of(one)]
        return max([1, *(getattr(part, "gradient_accumulation_steps", None) or 1 for part in parts)])

    def gradients(self, batch, training=False):
        """Return the loss of a batch and {index of a variable: its dense gradient}.

        The loss is scaled by the optimizer's factor, or a smaller one if gradients overflow.
        """
        factor = float(self.model.optimizer.scale_loss(tf.constant(1.0))) if self.model.optimizer else 1.0
        while True:
            with tf.GradientTape() as tape:
                loss = self.loss_of(batch, training)
                scaled = loss * tf.cast(factor, loss.dtype)
            found = {}
            for number, gradient in enumerate(tape.gradient(scaled, self.model.trainable_variables)):
                if gradient is not None:
                    gradient = tf.convert_to_tensor(gradient)
                    found[number] = gradient / tf.cast(factor, gradient.dtype)
            if factor <= 1 or all(bool(tf.reduce_all(tf.math.is_finite(each))) for each in found.values()):
                return float(loss), found
            factor = max(factor / 16, 1.0)

    def pairs(self, batch=None):
        """Return a `Pair` for each output with a loss, on a batch, by default the first.

        Raises Skipped if the model computes its own loss.
        """
        self.refuse_own_step()
        if self.y is None or self.model.loss is None:
            raise Skipped("the model has no loss for targets: it computes its own loss")
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self.first if batch is None else batch)
        outputs = self.outputs(x)
        flat = keras.tree.flatten(outputs)
        if isinstance(outputs, dict):
            names = keras.tree.flatten({name: name for name in outputs})
        else:
            names = list(getattr(self.model, "output_names", range(len(flat))))
        try:
            found = loss_pairs(self.model, self.model.loss, y, outputs, weights)
        except (ValueError, KeyError):
            raise Skipped("it is unknown which target belongs to which output") from None
        places = [next((place for place, one in enumerate(flat) if one is output), None) for _, _, output, _ in found]
        if None in places or len(names) != len(flat):
            raise Skipped("an output is several tensors, so it is unknown which target belongs to which")
        if len(set(places)) < len(places):
            raise Skipped("one output has several losses")
        is_one = not keras.tree.is_nested(outputs)
        named = zip(places, found, strict=True)
        return [Pair("" if is_one else str(names[place]), place, *each) for place, each in named if each[1] is not None]


class Pair:
    """An output, its targets and its loss.

    ``place``: the index among the flattened outputs. ``kind``: the loss's name in lowercase, "" for a custom one;
    ``setting``: its settings.
    """

    def __init__(self, name, place, loss, y, outputs, weight):
        self.name = name
        self.place = place
        self.loss = loss
        self.y = y
        self.outputs = outputs
        self.weight = weight
        self.mask = mask_of(outputs)
        self.loss_name = getattr(loss, "__name__", None) or type(loss).__name__
        is_of_keras = getattr(loss, "__module__", "").startswith("keras.")
        self.kind = self.loss_name.replace("_", "").lower() if is_of_keras else ""
        self.is_sparse = self.kind.startswith(("sparsecategorical", "categoricalgeneralized"))
        self.is_categorical = self.kind in ("categoricalcrossentropy", "categoricalfocalcrossentropy")
        self.is_binary = self.kind in ("binarycrossentropy", "binaryfocalcrossentropy")
        given = loss.get_config() if hasattr(loss, "get_config") else {}
        self.setting = {**given, **given.get("fn_kwargs", {})} if isinstance(given, dict) else {}
        self.from_logits = bool(self.setting.get("from_logits", False))
        axis = self.setting.get("axis", -1)
        if (self.is_sparse or self.is_categorical) and axis not in (-1, len(outputs.shape) - 1):
            raise Skipped(f"the loss takes classes along axis={axis}, but only the last axis is examined")

    def counted(self):
        """Return where targets count in the loss: a mask of the shape of y, False where weight or mask is 0."""
        y = self.y.numpy()
        counted = np.ones(y.shape, bool)
        for part in (self.weight, self.mask):
            if part is not None:
                part = np.asarray(part) > 0
                while part.ndim < y.ndim:
                    part = part[..., None]
                if all(size in (1, whole) for size, whole in zip(part.shape, y.shape, strict=False)):
                    counted &= part
        if self.setting.get("ignore_class") is not None:
            counted &= y != self.setting["ignore_class"]
        return counted

    def words(self):
        return f"Output {self.name}: " if self.name else ""


def once(compute):
    """Let later checks reuse the result of a function of a training."""

    @wraps(compute)
    def kept(training):
        if compute not in training.known:
            training.known[compute] = compute(training)
        return training.known[compute]

    return kept


def largest_change(outputs, others):
    """Return the largest change of several outputs, each relative to its largest finite value; inf if one is NaN."""
    changes = [0.0]
    for pair in zip(outputs, others, strict=True):
        one, two = (tf.cast(each, tf.float32).numpy() for each in pair)
        change = np.abs(one - two)[one != two].max(initial=0) / np.abs(one[np.isfinite(one)]).max(initial=1e-30)
        changes.append(math.inf if np.isnan(change) else float(change))
    return max(changes)


def gradient_change(gradients, others):
    """Return the largest change of the first example's gradients at several outputs, relative to the largest."""
    pairs = [[tf.cast(each[0], tf.float32).numpy() for each in pair] for pair in zip(gradients, others, strict=True)]
    largest = max((np.abs(each).max(initial=0) for pair in pairs for each in pair), default=0.0)
    return max((np.abs(one - two).max(initial=0) for one, two in pairs), default=0.0) / max(largest, 1e-30)


def differ(outputs, others):
    return any(np.any(np.asarray(one) != np.asarray(two)) for one, two in zip(outputs, others, strict=True))


def words_of(error):
    words = str(error) if isinstance(error, Skipped | TrainingRaises) else f"{type(error).__name__}: {cause(error)}"
    return words.rstrip(".")


def refuse_read_once(data, name):
    """Raise TypeError unless this is a dataset that can be read repeatedly."""
    source = batches_of(data)
    if isinstance(source, Iterator):
        raise TypeError(
            f"{name}={data!r:.99} can be read only once, and what is read here would be missing in fit: pass a"
            " tf.data.Dataset, a keras.utils.PyDataset or a list of batches"
        )
    is_batch = tf.is_tensor(source) or isinstance(source, np.ndarray | tuple | dict | str | bytes | keras.Model)
    if isinstance(source, list) and all(isinstance(each, np.ndarray) or tf.is_tensor(each) for each in source):
        is_batch |= len({(each.dtype, tuple(each.shape[1:])) for each in source}) > 1  # [inputs, targets]
    if is_batch or not (hasattr(source, "__iter__") or isinstance(source, keras.utils.PyDataset)):
        raise TypeError(
            f"{name}={data!r:.99} must be the dataset that fit gets: a tf.data.Dataset, a keras.utils.PyDataset or a"
            " list of batches (inputs, targets)"
        )


def never_ends(data):
    source = batches_of(data)
    return isinstance(source, tf.data.Dataset) and source.cardinality() == tf.data.INFINITE_CARDINALITY


def named_parts(part, name):
    """Return (name, tensor) pairs of inputs or targets; names include that of the feature, if any."""
    found = []
    for path, value in keras.tree.flatten_with_path(part):
        feature = ".".join(str(key) for key in path)
        found.append((f"{name} {feature!r}" if feature else name, value))
    return [(name, value) for name, value in found if value is not None]


def named_tensors(batches, kind, name=None):
    """Return {name: its tensor in each batch} of one of `KINDS`, named as `named_parts` does."""
    found = {}
    for batch in batches:
        part = keras.utils.unpack_x_y_sample_weight(batch)[KINDS.index(kind)]
        for each, value in named_parts(part, name or kind):
            found.setdefault(each, []).append(value)
    return found


def each_target(training, examine):
    """Return the worst finding of ``examine(name, arrays of all batches)`` on each tensor of targets.

    If all are ok, their messages are combined with the reasons for skipping others.
    """
    found, reasons = [], []
    for name, values in named_tensors(training.batches, "targets").items():
        try:
            found.append(examine(name, list(map(np.asarray, values))))
        except Skipped as reason:
            reasons.append(f"{name}: {reason}")
    worst = worst_of(found)
    if worst is None and reasons:
        raise Skipped("; ".join(reasons))
    if worst is None or worst["verdict"] != OK:
        return worst
    return ok(" ".join([*(each["message"] for each in found if each), *(f"Skipped: {each}." for each in reasons)]))


def is_one_hot(y):
    """Return whether the rows of a table of targets have one 1 each, else zeros."""
    is_table = y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "biuf"
    return is_table and np.allclose(y.sum(1), 1) and set(np.unique(y)) <= {0, 1}


def has_scale(value):
    return value.dtype.is_floating or value.dtype == tf.uint8


def count_examples(batch):
    """Return the number of rows of the targets; without any, of the sample weights or the inputs.

    Inputs may also have other rows, such as a table shared by all examples, or the nodes of graphs. If tensors of the
    same kind differ, the most frequent number is returned.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    for part in (y, weight, x):
        sizes = [each.shape[0] for each in keras.tree.flatten(part) if each is not None and each.shape.rank]
        if sizes:
            return Counter(sizes).most_common(1)[0][0]
    return 1


def each_read(data, most, seconds):
    """Yield the first batches as tensors, until the time is over but at least one; raise `NoExamples` for none."""
    until = time.monotonic() + seconds
    count = 0
    for batch in passes(data)():
        tensors = keras.tree.map_structure(_tensor, batch)
        if not count_examples(tensors):
            continue
        yield tensors
        count += 1
        if count == most or time.monotonic() > until:
            break
    if not count:
        raise NoExamples


def _tensor(value):
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        dense = "x.to_tensor()" if isinstance(value, tf.RaggedTensor) else "tf.sparse.to_dense(x)"
        raise TypeError(
            f"a batch has a {type(value).__name__} of shape {tuple(value.shape)}, but preflight takes dense tensors:"
            f" give it a dataset of dense batches, data.map(lambda x, y: ({dense}, y))"
        )
    return as_tensor(value)
