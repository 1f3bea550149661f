"""Exercises of notebook 10, "Feed a language model": order and mixture as arrays, faults in gradients."""

from functools import cache
from itertools import combinations

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished


def share(step, worker, workers, batch, rows):
    steps = rows // batch
    epoch = step // steps
    order = np.random.default_rng(epoch).permutation(rows)
    start = step % steps * batch
    numbers = order[start : start + batch]
    return numbers[worker::workers]


@exercise(
    share,
    takes="the number of a step; the worker, from 0; workers; rows of the global batch; rows in all",
    returns="an array of row numbers",
    minutes=6,
    difficulty=2,
)
def _check_share(answer):
    """Everything follows from the step number: the epoch, and the step within that epoch. The number of workers only
    determines who reads which rows of the global batch, which is already chosen.
    """
    for rows, batch in ((40, 8), (43, 8), (96, 12)):
        steps = rows // batch
        distances = []
        for epoch in (0, 1, 70_000):
            first = epoch * steps
            batches = np.stack([_whole_batch(answer, first + step, 1, batch, rows) for step in range(steps)])
            numbers = batches.ravel()
            if len(np.unique(numbers)) != len(numbers):
                raise Wrong(f"{rows} rows, batches of {batch}: epoch {epoch} reads a row twice")
            distances.append(np.diff(numbers) % rows)
            if np.bincount(distances[-1]).max() > len(numbers) / 2:
                raise Wrong(f"{rows} rows, batches of {batch}: the order of epoch {epoch} is not shuffled")
            for step in range(steps):
                for workers in (2, 4):
                    together = _whole_batch(answer, first + step, workers, batch, rows)
                    told = f"rows read by {workers} workers in step {first + step} ({rows} rows, batches of {batch})"
                    alone = sorted(batches[step].tolist())
                    expect(sorted(together.tolist()), alone, f"{told}, compared with one worker")
        read = [_whole_batch(answer, step, 1, batch, rows) for step in range(20 * steps)]
        never = sorted(set(range(rows)) - set(np.concatenate(read).tolist()))
        if never:
            raise Wrong(f"{rows} rows, batches of {batch}: twenty epochs never read the rows {never}")
        for one, other in combinations(distances, 2):
            if (one == other).mean() > 0.5:
                raise Wrong(f"{rows} rows, batches of {batch}: two epochs have the same order, perhaps shifted")


def _whole_batch(answer, step, workers, batch, rows):
    """Return the rows that all workers read in a step, after checking their number."""
    parts = [answer(step, worker, workers, batch, rows) for worker in range(workers)]
    if any(is_unfinished(part) for part in parts):
        raise NotAttempted
    for worker, part in enumerate(parts):
        part = np.asarray(part)
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise Wrong(f"step {step}: expected an array of row numbers, got {part!r:.80}")
        told = f"rows of worker {worker} of {workers} in step {step} ({rows} rows, batches of {batch})"
        expect(len(part), batch // workers, told)
        if part.min() < 0 or part.max() >= rows:
            raise Wrong(f"step {step}: rows must be from 0 to {rows - 1}, got {part.min()} to {part.max()}")
    return np.concatenate(parts)


@_check_share.refuses("compared with one worker")
def _each_worker_shuffles_its_own_part(step, worker, workers, batch, rows):
    own = rows // workers
    each = batch // workers
    steps = rows // batch
    order = worker * own + np.random.default_rng(step // steps).permutation(own)
    start = step % steps * each
    return order[start : start + each]


@_check_share.refuses("two epochs have the same order")
def _the_same_order_in_each_epoch(step, worker, workers, batch, rows):
    steps = rows // batch
    order = np.random.default_rng(0).permutation(rows)
    start = step % steps * batch
    return order[start : start + batch][worker::workers]


@_check_share.refuses("reads a row twice")
def _draws_each_batch_anew(step, worker, workers, batch, rows):
    numbers = np.random.default_rng(step).choice(rows, batch, replace=False)
    return numbers[worker::workers]


@_check_share.refuses("twenty epochs never read the rows [40, 41, 42]")
def _leaves_out_the_same_rows(step, worker, workers, batch, rows):
    return share(step, worker, workers, batch, rows // batch * batch)


@_check_share.refuses("is not shuffled")
def _not_shuffled(step, worker, workers, batch, rows):
    steps = rows // batch
    start = step % steps * batch
    return (np.arange(rows)[start : start + batch] + step // steps)[worker::workers] % rows


@_check_share.refuses("is not shuffled")
def _equal_strides(step, worker, workers, batch, rows):
    steps = rows // batch
    start = step % steps * batch
    return (7 * np.arange(rows)[start : start + batch] + step // steps)[worker::workers] % rows


@_check_share.refuses("perhaps shifted")
def _one_order_shifted(step, worker, workers, batch, rows):
    epoch = step // (rows // batch)
    return (_the_same_order_in_each_epoch(step, worker, workers, batch, rows) + epoch) % rows


@_check_share.refuses("rows of worker 0 of 1 in step")
def _keeps_an_epochs_last_batch(step, worker, workers, batch, rows):
    steps = -(-rows // batch)
    order = np.random.default_rng(step // steps).permutation(rows)
    start = step % steps * batch
    return order[start : start + batch][worker::workers]


def mixture(sizes, shares, count, seed):
    random = np.random.default_rng(seed)
    first = 0
    chosen = []
    for size, part in zip(sizes, shares, strict=True):
        wanted = round(part * count)
        times = -(-wanted // size)  # rounded up
        numbers = np.concatenate([first + random.permutation(size) for _ in range(times)])
        chosen.append(numbers[:wanted])
        first += size
    return random.permutation(np.concatenate(chosen))


@exercise(
    mixture,
    takes="rows of each source, a list; their shares, a list; how many rows are wanted; a seed",
    returns="an array of row numbers",
    minutes=12,
    difficulty=3,
)
def _check_mixture(answer):
    """The number of rows from each source is known in advance. Concatenate permutations of a source until there are
    enough rows. After joining all sources, shuffle once more.
    """
    for sizes, shares, count in (([50, 20, 400], [0.3, 0.2, 0.5], 200), ([7, 30], [0.7, 0.3], 100)):
        told = f"sizes={sizes}, shares={shares}, count={count}"
        got = answer(sizes, shares, count, 1)
        if is_unfinished(got):
            raise NotAttempted
        got = np.asarray(got)
        if got.shape != (count,) or got.dtype.kind not in "iu":
            raise Wrong(f"{told}: expected an array of {count} row numbers, got {got.dtype} of shape {got.shape}")
        if got.min() < 0 or got.max() >= sum(sizes):
            raise Wrong(f"{told}: rows must be from 0 to {sum(sizes) - 1}, got {got.min()} to {got.max()}")
        ends = np.cumsum(sizes)
        for source, (size, part, end) in enumerate(zip(sizes, shares, ends, strict=True)):
            own = got[(got >= end - size) & (got < end)]
            expect(len(own), round(part * count), f"{told}: rows of source {source}")
            times = np.bincount(own - (end - size), minlength=size)
            if times.max() - times.min() > 1:
                raise Wrong(
                    f"{told}: source {source} has {size} rows; one occurs {times.max()} times and another"
                    f" {times.min()} times: all must occur about equally often, with a difference of at most 1"
                )
        of_first = got < sizes[0]
        for part in np.array_split(of_first, 4):
            if abs(part.mean() - shares[0]) > 0.25:
                raise Wrong(
                    f"{told}: {part.mean():.0%} of a quarter of the rows is from source 0: are the sources mixed?"
                )
        expect(answer(sizes, shares, count, 1), got, f"{told}: a second call with the same seed")
        of_another_seed = np.asarray(answer(sizes, shares, count, 2))
        if np.array_equal(of_another_seed, got):
            raise Wrong(f"{told}: another seed must give another order")
        for source, (size, part, end) in enumerate(zip(sizes, shares, ends, strict=True)):
            if round(part * count) % size == 0:
                continue  # all rows occur equally often with any seed
            one, other = [np.sort(rows[(rows >= end - size) & (rows < end)]) for rows in (got, of_another_seed)]
            if np.array_equal(one, other):
                raise Wrong(f"{told}: another seed must choose other rows of source {source}")


@_check_mixture.refuses("rows of source 0: expected 60")
def _by_chance(sizes, shares, count, seed):
    random = np.random.default_rng(seed)
    sources = random.choice(len(sizes), count, p=shares)
    firsts = np.cumsum(sizes) - sizes
    return firsts[sources] + random.integers(0, np.array(sizes)[sources])


@_check_mixture.refuses("all must occur about equally often")
def _rows_by_chance(sizes, shares, count, seed):
    random = np.random.default_rng(seed)
    firsts = np.cumsum(sizes) - sizes
    chosen = [
        first + random.integers(0, size, round(part * count))
        for first, size, part in zip(firsts, sizes, shares, strict=True)
    ]
    return random.permutation(np.concatenate(chosen))


@_check_mixture.refuses("are the sources mixed?")
def _one_source_after_the_other(sizes, shares, count, seed):
    random = np.random.default_rng(seed)
    firsts = np.cumsum(sizes) - sizes
    chosen = []
    for first, size, part in zip(firsts, sizes, shares, strict=True):
        wanted = round(part * count)
        chosen.append(first + np.resize(random.permutation(size), wanted))
    return np.concatenate(chosen)


@_check_mixture.refuses("rows of source 0: expected 60, got 50")
def _a_small_source_ends(sizes, shares, count, seed):
    random = np.random.default_rng(seed)
    firsts = np.cumsum(sizes) - sizes
    chosen = []
    for first, size, part in zip(firsts, sizes, shares, strict=True):
        chosen.append(first + random.permutation(size)[: round(part * count)])
    missing = count - sum(map(len, chosen))
    last = firsts[-1] + random.permutation(sizes[-1])[:missing]
    return random.permutation(np.concatenate([*chosen, last]))


@_check_mixture.refuses("another seed must give another order")
def _forgets_the_seed(sizes, shares, count, seed):
    return mixture(sizes, shares, count, 0)


@_check_mixture.refuses("another seed must choose other rows of source 0")
def _takes_the_first_rows(sizes, shares, count, seed):
    firsts = np.cumsum(sizes) - sizes
    chosen = [
        first + np.resize(np.arange(size), round(part * count))
        for first, size, part in zip(firsts, sizes, shares, strict=True)
    ]
    return np.random.default_rng(seed).permutation(np.concatenate(chosen))


def faults(batch, faulty, gradient):
    tokens, segments, positions = batch["tokens"], batch["segments"], batch["positions"]
    following = np.pad(segments[:, 1:], ((0, 0), (0, 1)))
    has_label = np.ones(tokens.shape, bool)
    has_label[:, -1] = False  # the last position of a row has none

    def gradient_with(planted):
        inputs = {
            "tokens": tokens,
            "segments": np.minimum(segments, 1) if "mask" in planted else segments,
            "positions": np.tile(np.arange(tokens.shape[1]), (len(tokens), 1)) if "positions" in planted else positions,
        }
        labels = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        counts = (segments > 0) & (following == segments)
        if "boundary" in planted:
            counts = counts | ((following > 0) & (following != segments))
        if "padding" in planted:
            counts = counts | (has_label & (following == 0))
        return gradient(inputs, labels, counts.astype("float32"))

    apart = {}
    for planted in combinations(["mask", "positions", "boundary", "padding"], 3):
        apart[planted] = np.linalg.norm(gradient_with(planted) - faulty)
    closest = min(apart, key=apart.get)
    return set(closest) if apart[closest] < 0.001 * np.linalg.norm(faulty) else None


FAULTS = ("mask", "positions", "boundary", "padding")
LENGTHS = ([5, 4, 7], [9, 3], [6, 2, 2, 5], [4, 3, 8, 1])
ROW = 16


@cache
def _packed_rows():
    """Return a batch of rows with 0, 4, 1 and 0 positions of padding."""
    random = np.random.default_rng(5)
    batch = {name: np.zeros((len(LENGTHS), ROW), np.int32) for name in ("tokens", "segments", "positions")}
    for row, lengths in enumerate(LENGTHS):
        total = sum(lengths)
        batch["tokens"][row, :total] = random.integers(1, 24, total)
        batch["segments"][row, :total] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        batch["positions"][row, :total] = np.concatenate([np.arange(length) for length in lengths])
    return batch


@cache
def _gradient_function():
    """Return `(inputs, labels, weights) -> gradient`, a vector, of a small model with perturbed initial weights."""
    keras.utils.set_random_seed(3)
    model = bt.gpt(vocabulary=24, length=ROW, width=16, layers=1, heads=2, packed=True)
    random = np.random.default_rng(4)
    model.set_weights([weight + random.normal(0, 0.3, weight.shape) for weight in model.get_weights()])

    @tf.function
    def of(inputs, labels, weights):
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(weights * losses) / tf.reduce_sum(weights)
        return tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(loss, model.trainable_variables)], axis=0)

    def gradient(inputs, labels, weights):
        inputs = {name: tf.cast(inputs[name], tf.int32) for name in ("tokens", "segments", "positions")}
        return of(inputs, tf.cast(labels, tf.int32), tf.cast(weights, tf.float32)).numpy()

    return gradient


@cache
def _faulty_gradient(planted):
    """Return the gradient of a pipeline with these faults, built position by position."""
    batch = _packed_rows()
    inputs = {name: values.copy() for name, values in batch.items()}
    labels = np.zeros((len(LENGTHS), ROW), np.int32)
    weights = np.zeros((len(LENGTHS), ROW), np.float32)
    for row in range(len(LENGTHS)):
        for place in range(ROW):
            if "mask" in planted:
                inputs["segments"][row, place] = min(1, batch["segments"][row, place])
            if "positions" in planted:
                inputs["positions"][row, place] = place
            if place == ROW - 1:
                continue
            labels[row, place] = batch["tokens"][row, place + 1]
            here, following = batch["segments"][row, place], batch["segments"][row, place + 1]
            if following == 0:
                weights[row, place] = "padding" in planted
            elif here == following:
                weights[row, place] = 1
            else:
                weights[row, place] = "boundary" in planted
    return _gradient_function()(inputs, labels, weights)


@exercise(
    faults,
    takes=(
        'a dictionary of "tokens", "segments" and "positions", integers [rows, places]; a gradient, an'
        " array; gradient(inputs, labels, weights) -> array"
    ),
    returns='a set of three of "mask", "positions", "boundary" and "padding", or None',
    minutes=25,
    difficulty=4,
    seconds=120,
)
def _check_faults(answer):
    """The effects of three faults do not just add up: they change the same gradient. But you have the model and can
    inject faults yourself, exactly as the text describes. How many different sets of three are there, and how close to
    `faulty` must the gradient of the right one be? If none is that close, none is right.
    """
    for planted in (*combinations(FAULTS, 3), ("mask", "boundary"), ("padding",), FAULTS):
        copies = {name: values.copy() for name, values in _packed_rows().items()}
        got = answer(copies, _faulty_gradient(planted).copy(), _gradient_function())
        if is_unfinished(got):
            raise NotAttempted
        if len(planted) != 3:
            expect(got, None, f"a pipeline with {' and '.join(planted)}, which no three of the faults explain")
            continue
        told = f"a pipeline with {', '.join(planted)}: expected these three, got"
        if got is None:
            raise Wrong(f"{told} None; injected as described, they reproduce `faulty` up to rounding")
        if not isinstance(got, set | frozenset | list | tuple) or len(set(got)) != 3 or not set(got) <= set(FAULTS):
            raise Wrong(f"expected a set of three of {', '.join(FAULTS)}, got {got!r:.120}")
        if set(got) != set(planted):
            known = ", ".join(sorted(set(got) & set(planted))) or "none"
            raise Wrong(f"{told} {sorted(got)}; right: {known}")


@_check_faults.refuses("expected these three, got")
def _one_fault_at_a_time(batch, faulty, gradient):
    """Takes the three faults that come closest alone."""
    following = np.pad(batch["segments"][:, 1:], ((0, 0), (0, 1)))
    inner = (batch["segments"] > 0) & (following == batch["segments"])
    boundary = (following > 0) & (following != batch["segments"])
    padding = following == 0
    padding[:, -1] = False
    labels = np.pad(batch["tokens"][:, 1:], ((0, 0), (0, 1)))
    on = np.tile(np.arange(ROW), (len(LENGTHS), 1))
    found = {
        "mask": gradient({**batch, "segments": np.ones_like(batch["segments"])}, labels, inner),
        "positions": gradient({**batch, "positions": on}, labels, inner),
        "boundary": gradient(batch, labels, inner | boundary),
        "padding": gradient(batch, labels, inner | padding),
    }
    ordered = sorted(found, key=lambda name: np.linalg.norm(found[name] - faulty))
    return set(ordered[:3])


@_check_faults.refuses("expected a set of three of")
def _all_of_them(batch, faulty, gradient):
    return set(FAULTS)


@_check_faults.refuses("which no three of the faults explain: expected None, got")
def _the_closest_however_far(batch, faulty, gradient):
    found = faults(batch, faulty, gradient)
    return {"mask", "positions", "boundary"} if found is None else found


@_check_faults.refuses("a pipeline with mask, positions, padding: expected these three")
def _what_it_was_the_first_time(batch, faulty, gradient):
    return {"mask", "positions", "boundary"}


@_check_faults.refuses("a pipeline with mask, positions, padding: expected these three, got None; injected as")
def _no_mask_between_tokens_and_padding(batch, faulty, gradient):
    """Without the mask, treats padding as tokens of the single segment."""

    def over_padding(inputs, labels, weights):
        has_mask = inputs["segments"].max() > 1
        segments = inputs["segments"] if has_mask else np.ones_like(inputs["segments"])
        return gradient({**inputs, "segments": segments}, labels, weights)

    return faults(batch, faulty, over_padding)


@_check_faults.refuses("expected these three, got")
def _only_the_length_of_the_gradient(batch, faulty, gradient):
    """Explains a large gradient norm by padding and a small one by a missing mask."""
    return {"padding", "positions", "boundary"} if np.linalg.norm(faulty) > 1 else {"mask", "positions", "boundary"}
