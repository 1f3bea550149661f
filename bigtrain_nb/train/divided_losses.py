"""Is the loss of a batch the mean of those of its pieces, which are micro-batches and the shares of replicas?

Where a mask leaves out places, it is by their number. Where it cannot be, that is refused or warned of by the name of
the loss. What a loss is, it shows when a step is traced: by what it returns, and by what it makes of drawn numbers.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from bigtrain_nb.common.keras_gaps import layers_that_add_losses, mask_of
from bigtrain_nb.common.quiet import keras, tf

MOST_EXAMPLES = 8
MOST_NUMBERS = 2**24
"""Drawn for a piece; of larger outputs fewer examples, or none."""

LABELS = ((-100, -1, 0, 1), (-1, 0, 1), (0, 1))
"""Drawn as targets, the first of which a loss takes: those that are often left out come first."""


def share_left(share, y_pred, watched):
    """Return how much of the weight of a `Share` is left by the mask of its loss, a scalar of 0 to 1.

    The sum over pieces of their losses by weight and what is left, divided by that of these, is then the loss of the
    batch. It is None without a mask, where losses are sums, and for several outputs, each with places of its own.
    """
    if not _is_only_loss(y_pred, watched) or share.loss_reduction == "sum":
        return None
    (output,) = tf.nest.flatten(y_pred)
    masks = [mask for mask in (mask_of(output), watched[0].mask) if mask is not None]
    if not masks:
        return None
    left = tf.cast(masks[0], tf.float32)
    for mask in masks[1:]:
        left *= tf.cast(mask, tf.float32)
    counted = tf.ones_like(left) if share.places is None else tf.cast(share.places, tf.float32)
    if counted.shape.rank > left.shape.rank:
        counted = tf.squeeze(counted, -1)
    while counted.shape.rank < left.shape.rank:
        counted = counted[..., None]
    counted *= tf.ones_like(left)
    return tf.math.divide_no_nan(tf.reduce_sum(counted * left), tf.reduce_sum(counted))


def _is_only_loss(y_pred, watched):
    return len(watched) == 1 and len(tf.nest.flatten(y_pred)) == 1


def check_losses(share, y_pred, sample_weight, watched):
    """Refuse, or warn of, losses of which the mean over pieces is not that of the batch; see `losses_watched`."""
    model, kind = share.reduction.model, share.loss_reduction
    for loss in watched:
        _check_values(share, loss)
    if not watched and type(model).compute_loss is not keras.Model.compute_loss:
        _warn(
            model,
            "its own compute_loss is taken of each micro-batch and replica. If it is a mean over the examples that it"
            " is given, the mean of these is the loss of the batch, and all is well. If it adds up, as what is divided"
            " by the global batch, that mean is only a part: divide by the number of examples in y instead",
        )
    adding = [layer.name for layer in layers_that_add_losses(model)] if model.losses else []
    if adding:
        _warn(
            model,
            f"{', '.join(adding)} {'adds a loss' if len(adding) == 1 else 'add losses'} by add_loss or"
            " activity_regularizer. A step takes the mean of those of micro-batches and replicas: right for a mean over"
            " examples, but of a sum over them, as Keras' activity regularizers are, it is only a part",
        )
    if kind == "sum" and share.micro_batches > 1 and model.losses:
        raise ValueError(
            'with the reduction "sum", micro_batches would count regularisers and add_loss once for each of them: use'
            ' "sum_over_batch_size"'
        )
    if kind == "sum" or _is_only_loss(y_pred, watched):
        return
    ignoring = [loss.name for loss in watched if loss.mask is not None]
    masked = any(mask_of(output) is not None for output in tf.nest.flatten(y_pred))
    if not ignoring and (not masked or (kind == "mean_with_sample_weight" and sample_weight is not None)):
        return
    what = f"{ignoring[0]} leaves out places" if ignoring else "its outputs have a mask"
    _warn(
        model,
        f"{what}, and there are several, so the loss of a micro-batch or a replica's share is the mean over its valid"
        " places, and the step's is the mean of those by examples, not over the valid places of the whole batch. For"
        ' that, give all losses reduction="mean_with_sample_weight", and the mask as sample_weight in the dataset',
    )


def _check_values(share, loss):
    """Refuse a loss that adds up where the mean is taken; warn of one that is not one number for each example."""
    model = share.reduction.model
    if not loss.is_one_number and not loss.is_own:
        if loss.name.lower() == "circle":
            _warn_of_other_examples(model, loss)
        return
    found = _of_drawn_numbers(share, loss)
    if found == "adds up":
        if share.loss_reduction != "sum":
            raise ValueError(
                f"{model.name}: {loss.name} adds up: of more examples it is as much larger, as a sum is, or what is"
                " divided by the global batch. Of micro-batches and replicas the mean is taken, which is a part of it."
                " Let it return one number for each example, and Keras takes their mean; or say that it is a sum: make"
                ' it a keras.losses.Loss with reduction="sum"'
            )
    elif found == "depends on others":
        _warn_of_other_examples(model, loss)
    elif loss.is_one_number or found == "one number":
        _warn(
            model,
            f"{loss.name} is one number for a batch, not one for each example, so it is taken of each micro-batch and"
            " replica. The mean of these is the loss of the batch only if the number is a mean over the examples it was"
            " given. Return one number for each example, give it an axis if it has one, or leave out micro_batches and"
            " train on one device",
        )


def _warn_of_other_examples(model, loss):
    _warn(
        model,
        f"{loss.name} of an example depends on the others in the batch, and of a micro-batch or a replica's share these"
        " are fewer. Leave out micro_batches and train on one device, or take no other example into it",
    )


def _warn(model, words):
    warnings.warn(f"{model.name}: {words}", stacklevel=3)


def _of_drawn_numbers(share, loss):
    """Return what a loss makes of drawn numbers: "adds up", "one number", "depends on others"; None if it is one for
    each example, or does not take them.
    """
    for labels in LABELS:
        try:
            found = _compared(share, loss, labels)
        except Exception:  # somebody's own function, of numbers that it may not know
            continue
        if found is not None:
            return found or None


def _compared(share, loss, labels):
    """Return what the values of two pieces, and of both together, say of a loss, "" for nothing; None if they are not
    finite or random.
    """
    piece, other = _drawn(loss.arguments, labels, seed=1), _drawn(loss.arguments, labels[-1:], seed=2)
    if piece is None:
        return ""
    of_piece, again, together = _alone(loss.call, piece, piece, _joined(piece, other))
    if not all(np.isfinite(each).all() for each in (of_piece, together)) or not np.array_equal(of_piece, again):
        return None
    if of_piece.ndim and len(together) == 2 * len(of_piece):
        return "" if _equal(together[: len(of_piece)], of_piece) else "depends on others"
    replicas = share.reduction.replicas
    here = _here(loss.call, piece)
    pairs = []
    if share.micro_batches > 1:
        pairs.append((_here(loss.call, _joined(piece, piece)), 2))
    if replicas > 1:
        pairs.append((_alone(loss.call, _joined(*[piece] * replicas))[0], replicas))
    adds_up = of_piece.ndim == 0 and all(_equal(whole, count * here) for whole, count in pairs) and np.any(here)
    return "adds up" if adds_up else "one number"


def _equal(one, other):
    return np.allclose(one, other, rtol=1e-4, atol=1e-7)


def _drawn(arguments, labels, seed):
    """Return targets, of ``labels``, and predictions of some examples; None if one example is too large."""
    random = np.random.default_rng(seed)
    most = max(int(np.prod([size or 3 for size in each.shape[1:]])) for each in tf.nest.flatten(arguments))
    examples = min(MOST_EXAMPLES, MOST_NUMBERS // most)
    if examples == 0:
        return None

    def drawn(from_shape, spec):
        shape = [examples, *[size or 3 for size in spec.shape[1:]]]
        return from_shape(shape).astype(spec.dtype.as_numpy_dtype)

    targets = partial(drawn, lambda shape: random.choice(labels, shape))
    predictions = partial(drawn, lambda shape: random.uniform(0.1, 0.9, shape))
    y_true, y_pred = arguments
    return tf.nest.map_structure(targets, y_true), tf.nest.map_structure(predictions, y_pred)


def _joined(*pieces):
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *pieces)


def _alone(call, *pieces):
    """Return what a loss gives for each piece outside of graphs and strategies, as in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return [thread.submit(_values, call, piece).result() for piece in pieces]


def _here(call, piece):
    """Return what a loss gives on this replica, which may ask how many there are."""
    with tf.init_scope():
        return _values(call, piece)


def _values(call, piece):
    return keras.ops.convert_to_numpy(call(*tf.nest.map_structure(tf.convert_to_tensor, piece)))
