"""A batch in a training step: a replica's `ReplicaBatch`, its micro-batches, and the sums over them.

The sums are {"loss": scalar, "gradients": {index of a trainable variable: gradient}, "logs": {name: scalar}}, and
"left" if positions are masked: the share of the weight that remains, a scalar.
"""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bigtrain_nb.common.keras_compat import patched_method, synchronized_layers
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import at_least_32_bits, sum_over_replicas

_DISTRIBUTE = "experimental_distribute_dataset"
_EXAMPLES = "examples of a log"


@dataclass(frozen=True)
class ReplicaBatch:
    """A replica's shard of a batch, or a micro-batch of it, with its properties, each computed once per step.

    ``reduction``: the reduction over the replicas, a `Mean` of train/reduction.py. ``micro_batches``: the maximum
    number of micro-batches. ``examples``: the number of examples, an int if known, otherwise an int32 scalar.
    ``part``: the fraction that its loss contributes to the mean over all pieces.

    ``is_partial``: whether there are other micro-batches or replicas. Only then are these known: ``loss_reduction`` of
    all losses; ``places``, the weight of each position in the mean, None if equal; ``weight``, by `weight_of`. If
    several outputs have losses that are sums or divide by sample weights, also ``examples_per_weight`` of the global
    batch, so that the losses of single outputs, averaged by examples, are weighted by `times`.
    ``loss_factor``: the number of replicas if the loss is a sum, because the mean over replicas is taken; otherwise 1.
    """

    data: Any
    model: Any
    reduction: Any
    micro_batches: int
    examples: Any
    is_partial: bool = False
    loss_reduction: str | None = None
    loss_factor: int = 1
    places: Any = None
    weight: Any = None
    part: Any = 1.0
    examples_per_weight: Any = None

    @property
    def times(self):
        """The factor of the loss of each output, whose mean by examples is then that of the global batch, or None."""
        if self.examples_per_weight is None:
            return None
        weight = self.examples_per_weight * self.weight
        return tf.math.divide_no_nan(weight, tf.cast(self.examples, weight.dtype))

    def micro_batch(self, start, length):
        """Return examples ``start`` to ``start + length``, with their ``part`` by weight."""
        data, places = self.data, self.places
        if self.micro_batches > 1:  # otherwise it is all of them, possibly sparse
            data, places = examples_of((data, places), start, length)
        weight = weight_of(length, places, self.loss_reduction)
        part = tf.math.divide_no_nan(weight, self.weight) * self.part
        return replace(self, data=data, places=places, examples=length, weight=weight, part=part)

    def update_metrics(self, y_pred, shown, loss_tracker=None):
        """Return the logs that a custom `compute_metrics` adds; add the names of all that it returns to ``shown``.

        Raises ValueError for one that depends on ``loss_tracker``, given if the loss comes later.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(self.data)
        found = self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight).items()
        logs = dict(pair for name, log in found for pair in (log.items() if isinstance(log, dict) else [(name, log)]))
        shown.update(logs)
        of_metrics = self.model.get_metrics_result()
        added = {name: tf.convert_to_tensor(log) for name, log in logs.items() if name not in of_metrics}
        if loss_tracker is not None and not tf.executing_eagerly():
            for name, log in added.items():
                if tf.gradients(log, loss_tracker.variables[0].value) != [None]:
                    raise ValueError(
                        f"compute_metrics of {self.model.name} computes {name} from the loss, which is not known before"
                        " all micro-batches or replicas are done: compute it in on_epoch_end of a callback"
                    )
        return added

    def by_examples(self, logs):
        """Return logs times the examples, for `means_of_logs`; other results are multiplied by `part`."""
        part, examples = tf.cast(self.part, tf.float32), tf.cast(self.examples, tf.float32)
        if self.weight is not None:
            part = tf.math.divide_no_nan(part * examples, tf.cast(self.weight, tf.float32))
        logs = {**logs, _EXAMPLES: 1.0}
        return {name: tf.math.multiply_no_nan(tf.cast(log, tf.float32), part) for name, log in logs.items()}


def means_of_logs(logs):
    """Return the means over examples of logs that were summed, or averaged, over pieces."""
    return {name: tf.math.divide_no_nan(log, logs[_EXAMPLES]) for name, log in logs.items() if name != _EXAMPLES}


def share_of(data, reduction, micro_batches):
    """Return the `ReplicaBatch` for the batch of a replica."""
    if micro_batches == 1 and reduction.replicas == 1:
        return ReplicaBatch(data, reduction.model, reduction, micro_batches, count_examples(data))
    data = check_equal_lengths(data, micro_batches, reduction.replicas)
    share = ReplicaBatch(data, reduction.model, reduction, micro_batches, count_examples(data))
    kind = loss_reduction(share.model.loss)
    places = places_of(data, share.model.loss, kind)
    weight, examples_per_weight = weight_of(share.examples, places, kind), None
    _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
    if kind != "mean" and len(keras.tree.flatten(y)) > 1:
        of_all = [tf.cast(share.examples, weight.dtype), weight]
        of_all = of_all if reduction.replicas == 1 else sum_over_replicas(of_all)
        examples_per_weight = tf.math.divide_no_nan(*of_all)
    return replace(
        share,
        is_partial=True,
        loss_reduction=kind,
        loss_factor=reduction.replicas if kind == "sum" else 1,
        places=places,
        weight=weight,
        examples_per_weight=examples_per_weight,
    )


def losses_in(loss):
    """Return the losses of ``compile(loss=...)``; Keras makes an instance of a class without arguments."""
    return [one() if isinstance(one, type) else one for one in keras.tree.flatten(loss) if one is not None]


def loss_reduction(loss):
    """Return the reduction that all losses of ``compile(loss=...)`` share: "mean", "mean_with_sample_weight", "sum"."""
    kinds = {getattr(one, "reduction", "mean") for one in losses_in(loss)}
    if kinds <= {"mean", "sum_over_batch_size"}:
        return "mean"
    if kinds in ({"mean_with_sample_weight"}, {"sum"}):
        return kinds.pop()
    raise ValueError(
        f"losses with reduction {', '.join(sorted(map(str, kinds)))} cannot be combined over micro-batches and"
        ' replicas: give all losses the same reduction, "sum_over_batch_size", "mean_with_sample_weight" or "sum"'
    )


def count_examples(data):
    """Return the number of examples in a batch, an int if known, otherwise an int32 scalar."""
    for value in keras.tree.flatten(data):
        if value is not None and tf.TensorShape(value.shape).rank != 0:
            return value.shape[0] or tf.cast(tf.shape(value)[0], tf.int32)


def check_equal_lengths(data, micro_batches, replicas):
    """Return the batch after checking that all its tensors have a row for each example or are scalars.

    Otherwise raise ValueError with the tensors' names, or, where lengths are only known in the step,
    `tf.errors.InvalidArgumentError` there.
    """
    named = {name: value for name, value in named_tensors(data) if tf.TensorShape(value.shape).rank != 0}
    if not named:
        raise ValueError("the batch has only scalars, so it has no examples to split: give tensors with a first axis")
    shapes = {name: tf.TensorShape(value.shape) for name, value in named.items()}
    words = refuse_unlike_lengths(shapes, micro_batches, replicas)
    known = [shape[0] for shape in shapes.values() if shape[0] is not None]
    if len(known) == len(named):
        return data
    lengths = [tf.cast(tf.shape(value)[0], tf.int32) for name, value in named.items() if shapes[name][0] is None]
    length = known[0] if known else lengths[0]

    def of_that_length(value):
        if not isinstance(value, tf.Tensor) or value.shape.rank == 0 or value.shape[0] is not None:
            return value
        shape = tf.concat([[length], tf.shape(value)[1:]], 0)
        return tf.ensure_shape(tf.reshape(value, shape), value.shape)

    # XLA drops assertions; there the reshape fails
    with tf.control_dependencies([tf.debugging.assert_equal(each, length, words) for each in lengths]):
        return keras.tree.map_structure(of_that_length, data)


def named_tensors(data):
    """Return (name, tensor or spec) pairs of a batch, with names such as "x/query"."""
    named = []
    for part, values in zip(("x", "y", "sample_weight"), keras.utils.unpack_x_y_sample_weight(data), strict=True):
        for path, value in keras.tree.flatten_with_path(values):
            if value is not None:
                named.append(("/".join([part, *map(str, path)]), value))
    return named


def refuse_unlike_lengths(shapes, micro_batches, replicas):
    """Raise ValueError if the tensors, {name: shape}, have first axes of different known lengths.

    Return the message of that error, for lengths that are not known yet.
    """
    divided = f"micro_batches={micro_batches}" if micro_batches > 1 else f"{replicas} replicas"
    named = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    words = (
        f"{divided} cannot split this batch: its tensors have different numbers of rows: {named}. Give each tensor one"
        " row for each example, with padding if needed; make a tensor without examples, such as a table, a weight or a"
        " constant of the model; or leave out micro_batches and train on one device"
    )
    if len({shape[0] for shape in shapes.values() if shape[0] is not None}) > 1:
        raise ValueError(words)
    return words


def refuse_undividable(spec, replicas, is_prediction):
    """Raise ValueError for batches that TensorFlow cannot split among several replicas.

    ``spec`` is their `tf.data.Dataset.element_spec`.
    """
    shapes = {}
    for name, part in named_tensors(spec):
        is_missing = isinstance(part, tf.OptionalSpec) or not (is_prediction or hasattr(part, "shape"))
        if is_missing:
            raise ValueError(
                f"{name} is None, an optional input without a value, which TensorFlow cannot split among"
                f" {replicas} replicas: give zeros with one row for each example, build the model without that input,"
                " or train on one device"
            )
        shape = tf.TensorShape(getattr(part, "shape", None))
        if shape.rank == 0:
            raise ValueError(
                f"{name} is a scalar, but TensorFlow splits every tensor by rows among {replicas} replicas: repeat"
                " it for each example with tf.fill, make it a constant of the model, or train on one device"
            )
        shapes[name] = shape
    refuse_unlike_lengths(shapes, 1, replicas)


@contextmanager
def checked_datasets(strategy, order, is_prediction):
    """Check datasets within this context before Keras passes them from `fit` to the strategy.

    ``order`` is the `SharedDataOrder` of several workers, or None.
    """
    if _DISTRIBUTE in vars(strategy):  # an evaluation within `fit`
        yield
        return
    distribute = strategy.experimental_distribute_dataset

    def checked(dataset, options=None):
        refuse_undividable(dataset.element_spec, strategy.num_replicas_in_sync, is_prediction)
        return distribute(dataset if order is None else order.by_batches(dataset), options)

    with patched_method(strategy, _DISTRIBUTE, checked):
        yield


def ignored_class(loss):
    """Return the class that a loss ignores in its mean, None if there is none or it is not the only loss."""
    losses = losses_in(loss)
    return getattr(losses[0], "ignore_class", None) if len(losses) == 1 else None


def weight_of(examples, places, reduction):
    """Return a batch's weight in the mean over several, a float32 scalar; float64 if that is Keras' floatx.

    It is the number of ``examples``, or the sum of the weights ``places``; 1 if losses are sums.
    """
    if reduction == "sum":
        return tf.constant(1.0, _dtype_of_weights())
    return tf.cast(examples, _dtype_of_weights()) if places is None else tf.reduce_sum(places)


def places_of(data, loss, reduction):
    """Return the weight of each position of a batch in the mean of the ``loss`` of `compile`; None if equal.

    It is 0 where the target is the ignored class, or the sample weight if the mean divides by their sum.
    """
    if reduction == "sum":
        return None
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if reduction != "mean_with_sample_weight" or sample_weight is None:
        return _valid_places(y, loss)
    weights = keras.tree.flatten(sample_weight)
    if len(weights) > 1:
        raise ValueError(
            '"mean_with_sample_weight" needs one sample_weight for all outputs, not one for each, which Keras makes of'
            " an array: give a dataset of (x, y, sample_weight)"
        )
    return checked_weight(weights[0])


def checked_weight(sample_weight):
    """Return the sample weights by whose sum losses divide; raise ValueError for a scalar."""
    weight = tf.cast(sample_weight, _dtype_of_weights())
    if weight.shape.rank == 0:
        raise ValueError(
            '"mean_with_sample_weight" needs a sample_weight for each example, not one scalar, by which Keras would'
            " divide the sum of all losses"
        )
    return weight


def _dtype_of_weights():
    return "float64" if keras.config.floatx() == "float64" else "float32"


def _valid_places(y, loss):
    """Return 0 where the only target is the ignored class, and otherwise 1; None without one."""
    ignored, targets = ignored_class(loss), keras.tree.flatten(y)
    if ignored is None or len(targets) != 1:
        return None
    (target,) = targets
    valid = tf.cast(tf.not_equal(target, tf.cast(ignored, target.dtype)), _dtype_of_weights())
    return tf.squeeze(valid, -1) if valid.shape.rank > 1 and valid.shape[-1] == 1 else valid


def examples_of(data, start, length):
    """Return examples ``start`` to ``start + length`` of every tensor in a batch; scalars stay unchanged."""

    def rows(value):
        if value is None:
            return None
        if isinstance(value, np.ndarray):  # from eager `train_on_batch`
            value = tf.convert_to_tensor(value)
        if tf.TensorShape(value.shape).rank == 0:
            return value
        if not isinstance(value, tf.Tensor):
            raise ValueError(
                f"micro_batches splits dense tensors only, but the batch has a {type(value).__name__}: make it dense"
                " in the dataset, or leave out micro_batches"
            )
        if value.shape.rank is None:
            return value[start : start + length]
        rest = [-1 if size is None else size for size in value.shape[1:]]  # XLA needs static sizes
        return tf.slice(value, [start] + [0] * len(rest), [length] + rest)

    return keras.tree.map_structure(rows, data)


def equal_parts(examples, count):
    """Return start and length of ``count`` micro-batches, whose lengths differ by at most one.

    With fewer ``examples`` than ``count``, some are empty.
    """
    ends = [examples * number // count for number in range(count + 1)]
    return [(start, end - start) for start, end in pairwise(ends)]


def dense(gradient, variable):
    """Return a gradient as a tensor of its variable's shape.

    An embedding's gradient has a row for each lookup, to be summed before Adam squares them or clipping takes a norm.
    """
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    gradient.set_shape(variable.shape)  # a custom gradient may not know it
    return gradient


def micro_batches_of(examples, size):
    """Return start and length of micro-batches of ``size`` examples, the last one possibly shorter, as integers."""
    return [(start, min(size, examples - start)) for start in range(0, examples, size)] or [(0, 0)]


def sum_over_micro_batches(step_of, share, in_step=False):
    """Return the sums of ``step_of(share)`` over the micro-batches of a share, which may be empty.

    ``in_step``: replicas assign to a variable collectively, so all must run the same micro-batches.
    """
    model, reduction, examples = share.model, share.reduction, share.examples
    communicates = reduction.communicates_in_forward or in_step
    if share.micro_batches == 1 and (reduction.replicas == 1 or communicates or synchronized_layers(model)):
        return step_of(share)

    def one_micro_batch(start, length):
        return step_of(share.micro_batch(start, length))

    size = -(-examples // share.micro_batches)  # rounded up
    if communicates:
        return sum_unrolled(one_micro_batch, equal_parts(examples, share.micro_batches))
    if tf.executing_eagerly():
        return sum_unrolled(one_micro_batch, micro_batches_of(int(examples), max(1, int(size))))
    of_one_size = model.jit_compile and share.micro_batches > 1
    return sum_in_a_loop(one_micro_batch, examples, size, of_one_size)


def sum_in_a_loop(one_micro_batch, examples, size, of_one_size):
    """Return the sums of ``one_micro_batch(start, length)`` over micro-batches of ``size`` examples, the last shorter.

    Without examples they are zeros. XLA needs micro-batches ``of_one_size``, known at tracing, and the rest separately.
    """
    is_static = of_one_size and isinstance(examples, int)  # fused kernels need static shapes

    @tf.function(autograph=False)
    def traced(start, length):
        return one_micro_batch(start, size if is_static else length)

    # Traced once, before the loop, to know which variables have a gradient
    number = tf.TensorSpec([], tf.int32)
    traced = traced.get_concrete_function(number, number)
    sums = _zeros(traced.structured_outputs)
    end = examples // size * size if of_one_size else examples

    def add_micro_batch(start, sums):
        length = size if of_one_size else tf.minimum(size, examples - start)
        return start + size, _add(sums, traced(start, length))

    def add_the_rest():
        step = one_micro_batch if is_static else traced
        return _add(sums, step(end, examples - end))

    _, sums = tf.while_loop(lambda start, _: start < end, add_micro_batch, (0, sums), parallel_iterations=1)
    if not of_one_size:
        return sums
    if is_static:
        return add_the_rest() if end < examples else sums
    return tf.cond(tf.less(end, examples), add_the_rest, lambda: sums)


def sum_unrolled(one_micro_batch, parts):
    """Return the sums of ``one_micro_batch`` over ``parts``, unrolled instead of in a loop.

    Under MirroredStrategy replicas cannot communicate within a loop. Each part waits for the previous one.
    """
    sums = None
    for start, length in parts:
        # Wait for one node: edges from each sum to each node of a part would make the graph huge
        after_sums = [] if sums is None else [tf.group(*tf.nest.flatten(sums))]
        with tf.control_dependencies(after_sums):
            result = one_micro_batch(start, length)
            sums = _widened(result) if sums is None else _add(sums, result)
    return sums


def _widened(result):
    return tf.nest.map_structure(lambda value: tf.cast(value, at_least_32_bits(value.dtype)), result)


def _zeros(outputs):
    return tf.nest.map_structure(lambda each: tf.zeros(each.shape, at_least_32_bits(each.dtype)), outputs)


def _add(sums, result):
    return tf.nest.map_structure(lambda total, value: total + tf.cast(value, total.dtype), sums, result)
