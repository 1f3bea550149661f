"""Check that the loss of a batch is the mean over its pieces (micro-batches and replicas' shares).

With a mask, pieces are weighted by their valid positions. If averaging is wrong, the loss is refused or warned of by
name. The kind of a loss is found when a step is traced, from its output, and its values for random inputs.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from weakref import finalize

import numpy as np

from bigtrain_nb.common.keras_compat import (
    as_scalar,
    captured_variables_kept,
    layers_that_add_losses,
    mask_of,
    outputs_of,
)
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import first_sentence
from bigtrain_nb.train.batches import checked_weight, named_tensors

MOST_EXAMPLES = 8
MOST_NUMBERS = 2**24
"""Most elements to draw for a piece; larger outputs get fewer examples, or none."""

LABELS = ((-100, -1, 0, 1), (-1, 0, 1), (0, 1), (0.1, 0.4, 0.9))
"""Values to draw targets from; the first set that a loss accepts is used, and labels often ignored come first."""

OWN = "its compute_loss"
_KNOWN = {}
"""Results by id of a loss or model, for each kind of batch; kept as long as the object lives."""


def unmasked_share(share, y_pred, sample_weight, watched):
    """Return the share of a `ReplicaBatch`'s weight that the mask of its loss keeps, a scalar of 0 to 1.

    If a custom `compute_loss` replaces the sample weights by which losses divide, it is the ratio of their sums. The
    mean over pieces of their losses, weighted by weight times this share, is then the loss of the batch. It is None
    without a mask, if losses are sums, and for several outputs, each with its own valid positions.
    """
    weight, called, received, is_only_loss = _calls(y_pred, sample_weight, watched)
    weights = {id(each): each for each, _ in received}
    is_replaced = share.loss_reduction == "mean_with_sample_weight" and len(weights) == 1 and id(weight) not in weights
    masks = []
    if is_only_loss and share.loss_reduction != "sum" and not (called[0].reduces and called[0].is_one_number):
        masks = [mask for mask in (received[-1][1], called[0].mask) if mask is not None]
    if not masks and not is_replaced:
        return None
    left = tf.ones([])
    for mask in masks:
        left *= tf.cast(mask, tf.float32)
    (weight,) = weights.values() if is_replaced else [weight]
    if share.loss_reduction == "mean_with_sample_weight" and weight is not None:
        counted = tf.cast(checked_weight(weight), tf.float32)
        if masks and counted.shape.rank > left.shape.rank:
            counted = tf.squeeze(counted, -1)
        while counted.shape.rank < left.shape.rank:
            counted = counted[..., None]
        left *= counted
    return _mean(left) if share.places is None else tf.math.divide_no_nan(_mean(left), _mean(share.places))


def _calls(y_pred, sample_weight, watched):
    """Return the first sample weight, the called losses, each one's weight and mask, and whether it is only one."""
    called, outputs = [one for one in watched if one.arguments is not None], tf.nest.flatten(y_pred)
    (weight,) = keras.tree.flatten(sample_weight)[:1] or [None]
    received = [each for one in watched for each in one.received] or [(weight, mask_of(each)) for each in outputs]
    return weight, called, received, len(called) == len([one for one in watched if one.received] or outputs) == 1


def _mean(values):
    """Return the mean as float32, 0 without values."""
    return tf.math.divide_no_nan(tf.reduce_sum(tf.cast(values, tf.float32)), tf.cast(tf.size(values), tf.float32))


def check_losses(share, y_pred, sample_weight, watched, training, own_shape):
    """Refuse, or warn of, losses whose mean over pieces is not that of the batch; ``watched``: see `losses_watched`.

    ``own_shape`` is that of the result of a custom `compute_loss`, otherwise None.
    """
    _, called, received, is_only_loss = _calls(y_pred, sample_weight, watched)
    model, kind, has_mask = share.model, share.loss_reduction, any(mask is not None for _, mask in received)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(share.data)
    predictions = [each for loss in called for each in tf.nest.flatten(loss.arguments[1])]
    refuse_outputs_of_pairs(model, x, y_pred, [each.shape for each in predictions if each.shape.rank], training)
    for loss in called:
        _check_values(share, loss)
    layers = layers_that_add_losses(model) if model.losses else []
    ignoring = [loss.name for loss in called if loss.mask is not None]
    if own_shape is not None and not ignoring:
        _check_values(share, _own_compute_loss(share, y_pred, training, own_shape))
    is_weighted = kind == "mean_with_sample_weight" or ignoring or (layers and has_mask)
    adding = [layer.name for layer in layers if is_weighted or not adds_a_mean_only(layer)]
    if adding:
        _warn(
            model,
            f"{', '.join(adding)} {'adds a loss' if len(adding) == 1 else 'add losses'} with add_loss or"
            " activity_regularizer, which a step averages over micro-batches and replicas: correct for a mean over"
            " examples that all count the same, but only a part of a sum over them",
        )
    if kind == "sum" and model.losses:
        raise ValueError(
            'with reduction "sum", regularizers and add_loss would be counted once per micro-batch, and left out by a'
            ' replica without examples: use "sum_over_batch_size"'
        )
    if kind == "mean_with_sample_weight" and len({id(weight) for weight, _ in received}) > 1:
        _warn(
            model,
            'its custom compute_loss gives different sample weights to losses with reduction="mean_with_sample_weight",'
            " which divide by their sums, but a step weights all losses of a micro-batch or a replica by one sum. Give"
            ' the same sample_weight to all, or use reduction="sum_over_batch_size"',
        )
    if kind == "sum" or not called or is_only_loss:
        return
    if not ignoring and (not has_mask or (kind == "mean_with_sample_weight" and sample_weight is not None)):
        return
    what = f"{ignoring[0]} leaves out positions" if ignoring else "its outputs have a mask"
    _warn(
        model,
        f"{what}, and there are several losses or outputs. The loss of a micro-batch or a replica is the mean over its"
        " valid positions, but a step weights these means by examples, not by valid positions. To weight by positions,"
        ' give all losses reduction="mean_with_sample_weight", and the mask as sample_weight in the dataset',
    )


REFUSED = {
    "changes variables": "{name} updates its own variables in each call, but micro-batches and replicas call it more"
    " often, each with a part of the batch. Update them in a callback or a layer, or leave out micro_batches and train"
    " on one device",
    "several numbers": "{name} returns the shape {details}, where Keras expects a scalar: it"
    " would sum the gradients of several values, but average over micro-batches and replicas. Override call instead and"
    " return one value for each example, or let __call__ return their mean",
    "adds up": "{name} grows with batch size, like a sum or a sum divided by the global batch size, so averaging over"
    " micro-batches and replicas is wrong. Return one value for each example, and Keras averages them; divide by their"
    ' number in compute_loss; or declare that it is a sum: make it a keras.losses.Loss with reduction="sum"',
    "pairs": "{name} returns the shape {details}: values for pairs of examples. Micro-batches and replicas have only"
    " the pairs within them, so their mean is not that of the batch. If pairs are not intended, give targets the shape"
    " of the outputs: (N,) against (N, 1) makes (N, N). If they are, leave out micro_batches and train on one device",
}
WARNED = {
    "depends on others": "{name} of an example depends on the others in the batch, but a micro-batch or a replica has"
    " fewer of them. Leave out micro_batches and train on one device, or compute it from each example alone",
    "one number": "{name} is one number for a batch, not one for each example, so it is computed for each micro-batch"
    " and replica, and averaged. The average is the loss of the batch only if the number is a mean over examples."
    " Return one value for each example, set its axis if it has one, divide sums by the number of examples, or leave"
    " out micro_batches and train on one device",
    "not examined": "{name} could not be examined with random inputs ({details}). Its mean over micro-batches and"
    " replicas is that of the batch if it is a mean over examples, or one value for each, that compares none of them",
}
"""What a model says of a kind of loss, with the loss's ``name`` and ``details`` of the kind."""


def _check_values(share, loss):
    """Refuse, or warn of, a loss by its kind: that of its values, or "depends on others" for Keras' Circle."""
    if loss.is_one_number or loss.is_own or _reduces_examples(loss):
        kind, details = _known_of(share, loss)
    elif loss.name.lower() == "circle":
        kind, details = "depends on others", None
    else:
        return
    if kind == "adds up" and share.loss_reduction == "sum":
        return
    words = {"name": loss.name, "details": details}
    if kind in REFUSED:
        raise ValueError(f"{share.model.name}: {REFUSED[kind].format(**words)}")
    if loss.is_one_number and kind != "depends on others":
        kind = "one number"
    if kind in WARNED:
        _warn(share.model, WARNED[kind].format(**words))


def _own_compute_loss(share, y_pred, training, shape):
    """Return the custom `compute_loss` of a model as a `WatchedLoss`, to be examined like the losses of `compile`.

    Its metrics may change variables. Sample weights are 1, and losses added by layers 0.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(share.data)

    def call(targets, others):
        values = iter([*targets, *others])

        def filled(structure, made=tf.identity):
            return tf.nest.map_structure(lambda each: each if each is None else made(next(values)), structure)

        given = filled(y), filled(x), filled(y_pred), filled(sample_weight, tf.ones_like)
        with attributes_kept(share.model):
            return as_scalar(keras.Model._compute_loss(share.model, given[1], given[0], *given[2:], training))

    def specs(*parts):
        return [tf.TensorSpec(each.shape, each.dtype) for each in tf.nest.flatten(parts) if each is not None]

    never = {"changes_variables": lambda: False, "calls_python": lambda: False}
    kind = {"is_own": True, "is_one_number": False, "reduces": True, "shape": shape if shape.rank else ()}
    arguments = specs(y), specs(x, y_pred, sample_weight)  # the mean of the loss is new after `compile`:
    return SimpleNamespace(name=OWN, loss=share.model.metrics[0], arguments=arguments, call=call, **never, **kind)


def _reduces_examples(loss):
    """Return whether the ``axis`` of a Keras loss, such as Dice, includes the examples."""
    settings = {**vars(loss.loss), **getattr(loss.loss, "_fn_kwargs", {})}
    return bool({0, -loss.arguments[1].shape.rank} & set(np.ravel(settings.get("axis"))))


def refuse_outputs_of_pairs(model, x, y_pred, shapes, training):
    """Raise ValueError for outputs of these ``shapes`` if another axis than the first changes with the batch size.

    Micro-batches and replicas then compare fewer examples, for example in scores of pairs. A first axis that is not
    proportional to the examples is refused too; outputs that cannot be examined give a warning.
    """
    outputs = tf.nest.flatten(y_pred)
    asked = [len(outputs) == 1 or any(output.shape == shape for shape in shapes) for output in outputs]
    if not shapes or not any(asked):
        return

    def warn_of_unexamined(why):
        _warn(
            model,
            f"whether its outputs are for pairs of examples could not be examined ({why}). If they are, leave out"
            " micro_batches and train on one device",
        )

    lengths, of_lengths = _shapes_of_two_lengths(model, x, training)
    if isinstance(of_lengths, str):
        warn_of_unexamined(of_lengths)
        return
    few, many = of_lengths
    if not len(few) == len(many) == len(outputs):
        warn_of_unexamined(f"it has {len(outputs)} in a step, but {len(few)} when examined")
        return
    sizes_are_known = all(value.shape[1:].is_fully_defined() for value in _tensors(x) if value.shape.rank != 0)
    for one, other, is_asked in zip(few, many, asked, strict=True):
        if not is_asked:
            continue
        pairs = list(zip(one, other, strict=True)) if one.rank is not None and one.rank == other.rank else None
        if pairs and None not in pairs[0] and pairs[0][1] * lengths[0] != pairs[0][0] * lengths[1]:
            what = "the first axis is not a multiple of the examples"
        elif pairs and any(size != size_of_more for size, size_of_more in pairs[1:]):
            what = "an axis other than the first changes with their number"
        else:
            if pairs is None or (sizes_are_known and any(None in pair for pair in pairs)):
                warn_of_unexamined(f"it returns the shape {one} for {lengths[0]} examples")
            continue
        names = " and ".join(name for name, _ in named_tensors((x,)))
        raise ValueError(
            f"{model.name}: for {lengths[0]} examples of {names} it returns the shape {one}, for {lengths[1]} {other}:"
            f" {what}. Micro-batches and replicas have fewer examples to compare. Leave out micro_batches and use one"
            " device; or make a tensor without a row for each example, such as a table, a weight or a"
            " constant of the model"
        )


def _shapes_of_two_lengths(model, x, training):
    """Return two batch sizes, and for each the shapes of a model's outputs, or why they are unknown.

    Nothing is computed. The second size is twice the first, which is even, for models that take examples in pairs. A
    model is traced once per kind of batch, regardless of pieces, replicas and steps.
    """
    known = _known(model)
    kind = training, repr(keras.tree.map_structure(lambda value: _of_length(value, None), x))
    if kind not in known:
        length = next((value.shape[0] for value in _tensors(x) if value.shape.rank), None) or 12
        length *= 1 + length % 2
        lengths = length, 2 * length
        try:
            known[kind] = lengths, _shapes_for(model, x, lengths, training)
        except Exception as error:  # a custom model may not accept this batch
            known[kind] = lengths, first_sentence(error)
    return known[kind]


def _tensors(x):
    return [value for value in tf.nest.flatten(x) if isinstance(value, tf.Tensor)]


def _of_length(value, length):
    if not isinstance(value, tf.Tensor | tf.TensorSpec):
        if value is not None and length is not None:
            raise TypeError(f"it gets a {type(value).__name__}")
        return value if value is None else tf.type_spec_from_value(value)
    return tf.TensorSpec([length, *value.shape[1:]] if value.shape.rank else value.shape, value.dtype)


@tf.autograph.experimental.do_not_convert
def _shapes_for(model, x, lengths, training):
    """Return the shapes of a model's outputs for each batch size."""

    def traced(length):
        specs = keras.tree.map_structure(lambda value: _of_length(value, length), x)
        with attributes_kept(model), keras.StatelessScope():
            call = tf.function(lambda x: outputs_of(model, x, training), autograph=False)
            return [output.shape for output in tf.nest.flatten(call.get_concrete_function(specs).structured_outputs)]

    return [in_thread(traced, length) for length in lengths]


def _warn(model, words):
    warnings.warn(f"{model.name}: {words}", stacklevel=3)


class _NotExamined(Exception):
    """Raised if random inputs do not show the kind of a loss."""


def _known(thing):
    """Return the results for a loss or model, which need not be hashable, by kind of batch."""
    if id(thing) not in _KNOWN:
        _KNOWN[id(thing)] = {}
        finalize(thing, _KNOWN.pop, id(thing))
    return _KNOWN[id(thing)]


def _known_of(share, loss):
    """Return the result of `_found_out`, cached for each loss and kind of batch."""
    known = _known(loss.loss)
    arguments = tf.nest.map_structure(lambda spec: _of_length(spec, None), loss.arguments)
    kind = repr(arguments), loss.is_one_number, share.micro_batches > 1, share.reduction.replicas
    if kind not in known:
        known[kind] = _found_out(share, loss)
    return known[kind]


def _found_out(share, loss):
    """Return the kind of a loss, a key of `REFUSED` or `WARNED`, "mean", or "each" for one value per example; details.

    Random inputs show it; a loss that changes variables or calls Python functions is not called with them.
    """
    try:
        if loss.changes_variables():
            return "changes variables", None
        if loss.calls_python():
            return "not examined", "it calls Python functions in a step, which may change state"
    except Exception as error:  # an eager-only function
        return "not examined", first_sentence(error)
    if loss.reduces and tf.TensorShape(loss.shape).num_elements() != 1:
        return "several numbers", loss.shape
    why = None
    for labels in LABELS[2:] if loss.name == OWN else LABELS:  # large ones would hide other terms
        try:
            return _compared(share, loss, labels)
        except Exception as error:  # a custom function may not accept these values
            why = why or error
    return "not examined", first_sentence(why)


def _compared(share, loss, labels):
    """Return the kind of a loss, from its values for two pieces and for both together, and details."""
    piece, other = _drawn(loss.arguments, labels, seed=1), _drawn(loss.arguments, labels[-1:], seed=2)
    pieces = piece, piece, other, _concatenate(piece, other), _concatenate(piece, piece)
    of_piece, again, of_other, together, doubled = in_thread(_values, loss.call, *pieces)
    if not all(np.isfinite(each).all() for each in (of_piece, of_other, together)):
        raise _NotExamined("it is not finite")
    if of_piece.shape != again.shape or not _equal(of_piece, again):
        raise _NotExamined("it draws random numbers")
    if doubled.size > 2 * of_piece.size:
        return "pairs", f"{of_piece.shape} for {len(tf.nest.flatten(piece)[0])} examples"
    if of_piece.ndim and len(together) == 2 * len(of_piece):
        return ("each" if _equal(together[: len(of_piece)], of_piece) else "depends on others"), None
    with tf.init_scope():  # on this replica, where it can read the number of replicas
        here, *twice = _values(loss.call, piece, *([_concatenate(piece, piece)] if share.micro_batches > 1 else []))
    pairs = [(each, 2) for each in twice]
    replicas = share.reduction.replicas
    if replicas > 1:
        pairs.append((in_thread(_values, loss.call, _concatenate(*[piece] * replicas))[0], replicas))
    if of_piece.ndim == 0 and all(_equal(whole, count * here) for whole, count in pairs) and np.any(here):
        return "adds up", None
    is_mean = of_piece.ndim == 0 and _equal(together, (of_piece + of_other) / 2)
    return ("mean" if is_mean else "one number"), None


def _equal(one, other):
    return np.allclose(one, other, rtol=1e-4, atol=1e-7)


def _drawn(arguments, labels, seed):
    """Return random targets, from ``labels``, and predictions for some examples, with another mean for each seed."""
    random = np.random.default_rng(seed)
    most = max(int(np.prod([size or 3 for size in each.shape[1:]])) for each in tf.nest.flatten(arguments))
    examples = min(MOST_EXAMPLES, MOST_NUMBERS // most)
    if examples == 0:
        raise _NotExamined(f"one example has {most:,} elements, too many")

    def drawn(from_shape, spec):
        shape = [examples, *[size or 3 for size in spec.shape[1:]]]
        return from_shape(shape).astype(spec.dtype.as_numpy_dtype)

    targets = partial(drawn, lambda shape: random.choice(labels, shape))
    predictions = partial(drawn, lambda shape: random.uniform(0.1, 0.9 / seed, shape))
    y_true, y_pred = arguments
    return tf.nest.map_structure(targets, y_true), tf.nest.map_structure(predictions, y_pred)


def _concatenate(*pieces):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


@tf.autograph.experimental.do_not_convert  # else a tf.function around the step would convert the thread, and warn
def in_thread(function, *arguments):
    """Return ``function(*arguments)``, called outside of graphs and strategies."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments).result()


def _values(call, *pieces):
    """Return a loss's value for each piece, without advancing random number generators."""
    given = [tf.nest.map_structure(tf.convert_to_tensor, piece) for piece in pieces]
    with keras.StatelessScope(), captured_variables_kept(call, given[0]):
        return [keras.ops.convert_to_numpy(call(*each)) for each in given]


@contextmanager
def attributes_kept(model):  # private: Keras
    """Restore layer attributes that a call changes, for example to tensors of its graph, and added losses."""
    layers = list(model._flatten_layers())
    before = [(dict(vars(layer)), list(layer._losses), set(layer._loss_ids)) for layer in layers]
    try:
        yield
    finally:
        for layer, (attributes, losses, ids) in zip(layers, before, strict=True):
            for name in set(vars(layer)) - set(attributes):
                del vars(layer)[name]
            vars(layer).update(attributes)
            layer._losses[:] = losses
            layer._loss_ids.update(ids)


def adds_a_mean_only(layer):  # private: Keras
    """Return whether a layer's only added loss is a Keras activity regularizer, a mean over the examples."""
    kinds = keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2
    return len(layer._losses) == 1 and type(layer.activity_regularizer) in kinds
