"""An exercise of notebook 09, "Cut the model": attention over keys that come piece by piece."""

import numpy as np

from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished


def ring_attention(queries, places, pieces):
    rows, width = queries.shape
    highest = np.full((rows, 1), -1e30)
    weights = np.zeros((rows, 1))
    summed = np.zeros((rows, width))
    for keys, values, places_of_keys in pieces:
        scores = queries @ keys.T / np.sqrt(width)
        is_seen = places_of_keys[None, :] <= places[:, None]
        scores = np.where(is_seen, scores, -np.inf)
        higher = np.maximum(highest, scores.max(axis=1, keepdims=True))
        shares = np.exp(scores - higher)
        shrink = np.exp(highest - higher)
        weights = shrink * weights + shares.sum(axis=1, keepdims=True)
        summed = shrink * summed + shares @ values
        highest = higher
    return summed / weights


LENGTH, WIDTH, DEVICES = 48, 9, 4


def _pieces(keys, values, cut, first):
    """Yield what each device of the ring has, device ``first`` first. A piece is gone when the next one is there."""
    size = LENGTH // DEVICES
    room_for_keys, room_for_values = np.empty((size, WIDTH)), np.empty((size, WIDTH))
    for step in range(DEVICES):
        own = cut[(first - step) % DEVICES]
        room_for_keys[:], room_for_values[:] = keys[own], values[own]
        yield room_for_keys, room_for_values, own.copy()
        room_for_keys[:] = room_for_values[:] = np.nan


def _whole(queries, keys, values):
    scores = queries @ keys.T / np.sqrt(WIDTH)
    scores[np.triu_indices(LENGTH, 1)] = -np.inf
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True) @ values


@exercise(ring_attention, minutes=25, difficulty=4)
def _check_ring_attention(answer):
    """A softmax over two pieces is not the mean of two softmaxes. Keep three things for each row: the sum of
    exp(score), the sum of exp(score) x value, and the highest score so far, which is taken off each score before `exp`.
    When a piece has a higher score, what was summed before must shrink by exp(old highest - new highest). A piece may
    hold nothing that a row may see: then nothing may change for this row, and nothing may become NaN.
    """
    random = np.random.default_rng(1)
    in_order = np.arange(LENGTH).reshape(DEVICES, -1)
    folded = np.stack([np.sort(np.r_[own, other]) for own, other in _folded()])
    for told, cut, size in [
        ("parts in order", in_order, 1.0),
        ("folded parts", folded, 1.0),
        ("scores near 1,000", in_order, 30.0),
    ]:
        queries, keys, values = random.normal(size=(3, LENGTH, WIDTH))
        queries *= size
        keys *= size
        keys[:, 0] += 3 * size
        queries[:, 0] += 3 * size
        right = _whole(queries, keys, values)
        for device in range(DEVICES):
            own = cut[device]
            for first, before in ((device, "its own piece first"), (device + 1, "the piece of the next device first")):
                with np.errstate(all="ignore"):
                    got = answer(queries[own], own.copy(), _pieces(keys, values, cut, first))
                if is_unfinished(got):
                    raise NotAttempted
                what = f"{told}, device {device} of {DEVICES}, {before}"
                if np.shape(got) == right[own].shape and np.isnan(np.asarray(got, float)).any():
                    rows = int(np.isnan(np.asarray(got, float)).any(axis=1).sum())
                    causes = "exp of a large number? a piece with nothing to see? a piece kept after its turn?"
                    raise Wrong(f"{what}: {rows} of {len(own)} rows are NaN ({causes})")
                expect(got, right[own], f"{what}: the outputs", rel=1e-6)


def _folded():
    parts = np.arange(LENGTH).reshape(2 * DEVICES, -1)
    return [(parts[device], parts[-1 - device]) for device in range(DEVICES)]


@_check_ring_attention.refuses("device 0 of 4, its own piece first: 12 of 12 rows are NaN")
def _keeps_all_pieces(queries, places, pieces):
    kept = list(pieces)
    return ring_attention(queries, places, kept)


@_check_ring_attention.refuses("rows are NaN")
def _starts_at_minus_infinity(queries, places, pieces):
    rows, width = queries.shape
    highest, weights, summed = np.full((rows, 1), -np.inf), np.zeros((rows, 1)), np.zeros((rows, width))
    for keys, values, places_of_keys in pieces:
        scores = np.where(places_of_keys <= places[:, None], queries @ keys.T / np.sqrt(width), -np.inf)
        higher = np.maximum(highest, scores.max(axis=1, keepdims=True))
        shares, shrink = np.exp(scores - higher), np.exp(highest - higher)
        weights = shrink * weights + shares.sum(axis=1, keepdims=True)
        summed = shrink * summed + shares @ values
        highest = higher
    return summed / weights


@_check_ring_attention.refuses("scores near 1,000, device 0 of 4, its own piece first: 12 of 12 rows are NaN")
def _takes_nothing_off_the_scores(queries, places, pieces):
    weights, summed = 0.0, 0.0
    for keys, values, places_of_keys in pieces:
        scores = queries @ keys.T / np.sqrt(queries.shape[1])
        shares = np.exp(np.where(places_of_keys <= places[:, None], scores, -np.inf))
        weights = weights + shares.sum(axis=1, keepdims=True)
        summed = summed + shares @ values
    return summed / weights


@_check_ring_attention.refuses("parts in order, device 1 of 4, its own piece first: the outputs")
def _a_mean_of_softmaxes(queries, places, pieces):
    outputs, seen = 0.0, 0
    for keys, values, places_of_keys in pieces:
        is_seen = places_of_keys <= places[:, None]
        scores = np.where(is_seen, queries @ keys.T / np.sqrt(queries.shape[1]), -1e30)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True)) * is_seen
        sums = shares.sum(axis=1, keepdims=True)
        outputs = outputs + np.where(sums > 0, shares @ values / np.maximum(sums, 1e-9), 0.0)
        seen = seen + is_seen.any(axis=1, keepdims=True)
    return outputs / seen


@_check_ring_attention.refuses("the outputs")
def _does_not_shrink_what_was_summed(queries, places, pieces):
    rows, width = queries.shape
    highest, weights, summed = np.full((rows, 1), -1e30), np.zeros((rows, 1)), np.zeros((rows, width))
    for keys, values, places_of_keys in pieces:
        scores = np.where(places_of_keys <= places[:, None], queries @ keys.T / np.sqrt(width), -np.inf)
        highest = np.maximum(highest, scores.max(axis=1, keepdims=True))
        shares = np.exp(scores - highest)
        weights += shares.sum(axis=1, keepdims=True)
        summed += shares @ values
    return summed / weights
