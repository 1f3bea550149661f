"""The training that is examined: its model, the first batches, and what a step computes of them."""

import time
from collections import Counter
from collections.abc import Iterator

import numpy as np

from bigtrain_nb.advanced.preflight.report import Skipped, TrainingRaises, failure
from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.keras_compat import mask_of, parts_of
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.operations import number_of_bytes
from bigtrain_nb.common.passes import as_tensor, batches_of, loss_as_fit_asks, passes
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import cause
from bigtrain_nb.train.model import overriding

MOST_BATCHES = 40
"""That are read; from fewer, the order of classes cannot be told."""
MOST_BYTES = 2 * 2**30
"""In the batches that are kept: then no more are read."""
SHARE_FOR_READING = 0.15
"""Of the time limit; then those that have come must do."""


class NoExamples(Exception):
    """Raised for a dataset that gives no batch, or only batches without an example."""


class TooLate(Skipped):
    """Raised where the time for a check was too short."""


class Training:
    """A compiled model and the batches of tensors that it trains on, ``batches``; ``first`` is what most checks use.

    ``x``, ``y``, ``weight`` are the parts of the first, ``examples`` the number of its examples. ``state``: the model's
    `State` to put back. ``chosen``: the names of the checks. ``fails_with``: words of the error with which the model
    refuses the first batch; ``unread``: of that with which the dataset ended after ``batches``. ``no_loss`` and
    ``no_outputs``: why the loss and the outputs of the first batch say nothing, once a check has found that, so that
    one cause is one line. ``ends_after_a_pass``: whether a second pass reads nothing, once that was found.
    ``known_constant``: the loss of the best constant predictor, once it was sought; ``known_to_compare``: whether the
    loss compares examples.
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
        self.no_loss = None
        self.no_outputs = None
        self.said_nonfinite = False
        self.said_failing = False
        self.chosen = ()
        self.ends_after_a_pass = False
        self.known_constant = None
        self.known_to_compare = None

    @property
    def seconds_left(self):
        return self.until - time.monotonic()

    def begin_share(self, share):
        """Give the checks that follow a share of the time that is left."""
        now = time.monotonic()
        self.until = now + share * (self.end - now)

    def refuse_late(self):
        """Raise TooLate once the time is over, so that a check ends at its next call of the model."""
        if self.seconds_left <= 0:
            whose = "the time" if time.monotonic() >= self.end else "its share of the time"
            raise TooLate(f"{whose} was over (minutes={self.minutes:g}): give more minutes")

    def refuse_failing(self):
        if self.fails_with is not None:
            words = "" if self.said_failing else f": {self.fails_with.rstrip('.')}"
            raise Skipped(f"a step on the first batch fails{words}")

    def has_rows(self, value):
        """Return whether a tensor of the first batch has a row for each example."""
        return value is not None and value.shape[:1] == (self.examples,)

    @property
    def without_rows(self):
        """In words the tensors of the first batch, but for scalars, that have no row for each example; "" if none."""
        parts = zip((self.x, self.y, self.weight), ("inputs", "targets", "sample weights"), strict=True)
        named = [each for part, kind in parts for each in named_parts(part, kind)]
        return ", ".join(
            f"{name} {tuple(value.shape)}" for name, value in named if value.shape.rank and not self.has_rows(value)
        )

    @property
    def has_own_step(self):
        return overriding(self.model) is not None

    def refuse_own_step(self):
        if self.has_own_step:
            raise Skipped(f"{type(self.model).__name__} has a custom train_step, whose loss only it knows")

    def outputs(self, x, training=False, is_trial=False):
        """Return what the model gives for inputs, as its step would call it; ``is_trial``: with other weights."""
        self.refuse_late()
        self.refuse_failing()
        if self.no_outputs is not None:
            raise Skipped(self.no_outputs)
        given = {"training": training} if takes(self.model.call, x, training=training) else {}
        outputs = self.model(x, **given)
        is_own = x is self.x and not training and not is_trial
        if is_own and any(_has_nan(each) for each in keras.tree.flatten(outputs)):
            self.no_outputs = "outputs of the first batch are NaN"
            raise Skipped(self.no_outputs)
        return outputs

    def nonfinite_outputs(self):
        """Return what is wrong with outputs that are NaN, once: one cause is one line."""
        if self.said_nonfinite:
            return None
        self.said_nonfinite = True
        return failure(
            "Outputs of the first batch are NaN after 0 steps, though the batch is finite. Checks that compare"
            " outputs are skipped.",
            "bt.find_overflow(model, data) names the first layer that gives it; look at the weights that were loaded.",
            "11",
        )

    def outputs_again(self, x):
        """Return the outputs as the state gives them from which all began, so that random numbers are the same."""
        self.state.put_back()
        return self.outputs(x)

    def refuse_random_outputs(self):
        """Raise Skipped where outputs are random and cannot be had again."""
        one, two = (keras.tree.flatten(self.outputs_again(self.x)) for _ in range(2))
        if any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(one, two, strict=True)):
            raise Skipped("outputs are random, without a keras.random.SeedGenerator, so that none can be compared")

    def loss(self, outputs, x=None, y=None, weight=None, training=False):
        """Return the loss of outputs, a scalar tensor; of the first batch where no other is given."""
        self.refuse_late()
        if self.no_loss is not None:
            raise Skipped(self.no_loss)
        if x is None:
            x, y, weight = self.x, self.y, self.weight
        return tf.convert_to_tensor(loss_as_fit_asks(self.model, x, y, outputs, weight, training))

    def loss_of(self, batch, training=False):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        return self.loss(self.outputs(x, training), x, y, weight, training)

    def step(self, batch, anew=True):
        """Take a step on a batch; return what it logs, ``anew`` of this step alone.

        Raises TrainingRaises where it raises.
        """
        self.refuse_late()
        self.refuse_failing()
        if anew:
            self.model.reset_metrics()
        try:
            return self.model.train_step(batch)
        except Skipped:
            raise
        except Exception as error:
            raise TrainingRaises(words_of(error)) from error

    def loss_of_step(self, batch):
        return float(self.step(batch)["loss"])

    @property
    def steps_of_an_update(self):
        """How many steps the optimizer accumulates gradients for, or the most patient of several."""
        parts = [part for one in optimizers_of(self.model).values() for part in parts_of(one)]
        return max([1, *(getattr(part, "gradient_accumulation_steps", None) or 1 for part in parts)])

    def gradients(self, batch, training=False):
        """Return the loss of a batch and {variable's number: its dense gradient}.

        The loss is scaled as the optimizer does it, by a smaller factor where gradients overflow.
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
        """Return (name of the output, its loss, y, outputs, weight) of a batch, else of the first, as `Pair`s.

        Raises Skipped for a loss of the model's own.
        """
        self.refuse_own_step()
        if self.y is None or self.model.loss is None:
            raise Skipped("the model has no loss for targets: it makes its loss by itself")
        x, all_y, all_weights = keras.utils.unpack_x_y_sample_weight(self.first if batch is None else batch)
        outputs = self.outputs(x)
        losses = self.model.loss
        if not keras.tree.is_nested(outputs):
            only, *others = keras.tree.flatten(losses)
            if others:
                raise Skipped("several losses are taken of one output")
            y = keras.tree.flatten(all_y)
            if len(y) != 1:
                raise Skipped("the targets have another structure than the outputs, so the loss is of its own kind")
            weights = keras.tree.flatten(all_weights) if all_weights is not None else [None]
            return [Pair("", 0, only, y[0], outputs, weights[0])]
        if isinstance(outputs, dict):
            names = list(outputs)
            flat = keras.tree.flatten({name: name for name in names})
        else:
            names = flat = list(getattr(self.model, "output_names", range(len(outputs))))
            outputs = dict(zip(names, outputs, strict=False))
        found = []
        for place, name in enumerate(names):
            loss = _part(losses, name, place)
            y = _part(all_y, name, place) if keras.tree.is_nested(all_y) else None
            if keras.tree.is_nested(outputs[name]) or keras.tree.is_nested(y):
                raise Skipped(f"output {name} is several, and which target belongs to which cannot be told")
            if loss is not None and y is not None:
                weight = _part(all_weights, name, place) if keras.tree.is_nested(all_weights) else all_weights
                found.append(Pair(str(name), flat.index(name), loss, y, outputs[name], weight))
        if not found:
            raise Skipped("which target belongs to which output cannot be told")
        return found


class Pair:
    """An output, its targets and its loss.

    ``place``: where the output stands among all outputs, flattened. ``kind``: the loss' name in small letters, "" for
    one of one's own.
    """

    def __init__(self, name, place, loss, y, outputs, weight):
        if isinstance(loss, str):
            loss = keras.losses.get(loss)
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
        axis = self.setting.get("axis", -1)
        if (self.is_sparse or self.is_categorical) and axis not in (-1, len(outputs.shape) - 1):
            raise Skipped(f"the loss takes classes along axis={axis}, and only the last one is looked at")

    @property
    def setting(self):
        """The settings that the loss was given."""
        given = self.loss.get_config() if hasattr(self.loss, "get_config") else {}
        return {**given, **given.get("fn_kwargs", {})} if isinstance(given, dict) else {}

    @property
    def from_logits(self):
        return bool(self.setting.get("from_logits", False))

    @property
    def is_sparse(self):
        return self.kind.startswith(("sparsecategorical", "categoricalgeneralized"))

    @property
    def is_categorical(self):
        return self.kind in ("categoricalcrossentropy", "categoricalfocalcrossentropy")

    @property
    def is_binary(self):
        return self.kind in ("binarycrossentropy", "binaryfocalcrossentropy")

    def counted(self):
        """Return where targets count in the loss: True at each place of y, but where weight or mask is 0."""
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


def _part(structure, name, place):
    if isinstance(structure, dict):
        return structure.get(name)
    if isinstance(structure, list | tuple):
        return structure[place] if place < len(structure) else None
    return structure


def change_of(one, two):
    """Return the largest change of outputs, as a share of the largest output."""
    one, two = (tf.cast(each, tf.float32).numpy() for each in (one, two))
    return float(np.abs(one - two).max(initial=0) / max(np.abs(one).max(initial=0), 1e-30))


def _has_nan(value):
    return value.dtype.is_floating and bool(tf.reduce_any(tf.math.is_nan(value)))


def words_of(error):
    return f"{type(error).__name__}: {cause(error)}"


def refuse_read_once(data, name):
    """Raise TypeError for what is no dataset, or one that can be read only once."""
    source = batches_of(data)
    if isinstance(source, Iterator):
        raise TypeError(
            f"{name}={data!r:.99} can be read only once, and what is read here would be missing in fit: give a"
            " tf.data.Dataset, a keras.utils.PyDataset or a list of batches"
        )
    is_batch = tf.is_tensor(source) or isinstance(source, np.ndarray | tuple | dict | str | bytes | keras.Model)
    if is_batch or not (hasattr(source, "__iter__") or isinstance(source, keras.utils.PyDataset)):
        raise TypeError(
            f"{name}={data!r:.99} must be the dataset that fit gets: a tf.data.Dataset, a keras.utils.PyDataset or a"
            " list of batches (inputs, targets)"
        )


def named_parts(part, name):
    """Return pairs: the name of each tensor of inputs or targets, with that of its feature if it has one, and it."""
    found = []
    for path, value in keras.tree.flatten_with_path(part):
        feature = ".".join(str(key) for key in path)
        found.append((f"{name} {feature!r}" if feature else name, value))
    return [(name, value) for name, value in found if value is not None]


def count_examples(batch):
    """Return the number of examples: of the rows of targets, of sample weights without any, or of inputs.

    Inputs may have other rows too, as a table that belongs to all examples, or the nodes of graphs. Where tensors of
    the same kind differ, it is what most have.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    for part in (y, weight, x):
        sizes = [each.shape[0] for each in keras.tree.flatten(part) if each is not None and each.shape.rank]
        if sizes:
            return Counter(sizes).most_common(1)[0][0]
    return 1


def read(data, most, seconds):
    """Return the first batches as tensors, as many as come in time, but at least one; raise `NoExamples` for none."""
    return list(each_read(data, most, seconds))


def each_read(data, most, seconds):
    """Yield them, so that those are known that were read before one that cannot be."""
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
            f"a batch has a {type(value).__name__} of shape {tuple(value.shape)}, and preflight takes dense tensors:"
            f" give it the dataset with all rows padded, data.map(lambda x, y: ({dense}, y))"
        )
    return as_tensor(value)
