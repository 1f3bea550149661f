"""Exercises of notebook 06, "All of it"."""

import keras
import numpy as np

import bigtrain_nb as bt
from bigtrain_nb import tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

ENOUGH = 4
"""The required speedup: the whole interval must be above it, or the median if a longer measurement stays unclear."""
MOST_EXAMPLES = 256
"""The most examples that the check's first steps may take in total."""


def which_stage(weights, peaks):
    devices = np.array(list(peaks))
    measured = np.array(list(peaks.values()))
    scatter = []
    not_shared = []
    for shared in (0, 12, 14, 16):  # bytes per weight
        rest = measured - weights * (16 - shared + shared / devices)
        scatter.append(np.ptp(rest))
        not_shared.append(rest.mean())
    stage = int(np.argmin(scatter))
    return stage, not_shared[stage]


@exercise(
    which_stage,
    takes="weights; peaks, a dictionary {devices: bytes on each of them}",
    returns="a pair: 0, 1, 2 or 3; bytes that are not shared",
    minutes=15,
    difficulty=3,
)
def _check_which_stage(answer):
    """Assume that it was stage 2. How many bytes of each peak are then left for all else? For the right stage, this
    must be the same on 4, 8 and 16 devices. For a wrong one it is not.
    """
    for weights, stage, rest, off in [
        (1e9, 3, 9.0e9, {4: 0.02e9, 8: -0.02e9, 16: 0.0}),
        (1e9, 0, 2.0e9, {4: 0.01e9, 8: -0.02e9, 16: 0.01e9}),
        (1e9, 1, 12.5e9, {16: -0.01e9, 4: 0.02e9, 8: -0.01e9}),
        (1e9, 2, 3.0e9, {2: 0.0, 8: 0.02e9, 64: -0.02e9}),
        (7e9, 1, 6.0e9, {8: 0.02e9, 16: -0.02e9, 32: 0.0}),
        (7e9, 2, 20.0e9, {8: -0.01e9, 16: -0.01e9, 32: 0.02e9}),
    ]:
        shared = [0, 12, 14, 16][stage]
        peaks = {n: weights * (16 - shared + shared / n) + rest + noise for n, noise in off.items()}
        shown = ", ".join(f"{peak / 1e9:.2f} GB on each of {n}" for n, peak in peaks.items())
        around = f"{weights / 1e9:.0f} B weights, {shown}"
        found = answer(weights, dict(peaks))
        if not isinstance(found, tuple) or len(found) != 2:
            raise Wrong(f"{around}: expected a pair, the stage and the unsharded bytes, got {found!r}")
        expect(found[0], stage, f"{around}: the stage")
        if not abs(found[1] - rest) < 0.05e9:  # catches NaN too
            raise Wrong(f"{around}: expected {rest / 1e9:.2f} GB unsharded, got {found[1] / 1e9:.2f}")


@_check_which_stage.refuses("10.00 GB on each of 16: the stage: expected 3, got 1")
def _nothing_else_in_memory(weights, peaks):
    devices, peak = max(peaks.items())
    kept = [weights * (16 - shared + shared / devices) for shared in (0, 12, 14, 16)]
    stage = int(np.argmin([abs(peak - each) for each in kept]))
    return stage, peak - kept[stage]


@_check_which_stage.refuses("expected 9.00 GB unsharded, got 13.02")
def _first_peak_is_the_rest(weights, peaks):
    return which_stage(weights, peaks)[0], next(iter(peaks.values()))


@_check_which_stage.refuses("the stage: expected 0, got 3")
def _believes_what_was_asked_for(weights, peaks):
    devices, peak = next(iter(peaks.items()))
    return 3, peak - 16 * weights / devices


@_check_which_stage.refuses("expected a pair, the stage and the unsharded bytes, got 3")
def _the_stage_only(weights, peaks):
    return which_stage(weights, peaks)[0]


def next_step(model, optimizer, examples):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train(seen, follows):
        with tf.GradientTape() as tape:
            mean = loss(follows, model(seen, training=True))
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    def step():
        batch = [next(examples) for _ in range(4)]
        seen = np.stack([example[0] for example in batch])
        follows = np.stack([example[1] for example in batch])
        train(seen, follows)
        return 4

    return step


def colleagues_step(model, optimizer, examples):
    """Return the step function from the notebook, which trains on one example at a time."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step():
        with tf.GradientTape() as tape:
            mean = 0.0
            for _ in range(4):
                seen, follows = next(examples)
                mean += loss(follows[None], model(seen[None], training=True)) / 4
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return 4

    return step


@exercise(
    next_step,
    takes="a model of tokens; an optimizer; an endless iterator of (tokens [16], next tokens [16])",
    returns="a function step() -> examples that it took",
    minutes=20,
    difficulty=4,
    seconds=240,
)
def _check_next_step(answer):
    """Where does the time go? Into four small forward passes, and hundreds of operations that Python launches one by
    one. Stack the four examples into one batch, and trace the step into one graph with `tf.function`. Data that Python
    draws must stay outside the graph, or it is drawn only once.
    """
    model, optimizer, examples = _new_training()
    yours = answer(model, optimizer, examples)
    if not callable(yours):
        raise Wrong(f"next_step: expected a step function, got {yours!r}")
    reference, their_optimizer, their_examples = _new_training()
    start = [weight.numpy() for weight in reference.trainable_variables]
    theirs = colleagues_step(reference, their_optimizer, their_examples)
    taken = _train(yours, 16)
    if taken % 4 or taken > MOST_EXAMPLES:
        raise Wrong(
            f"next_step: expected steps of 4 examples, or of a small multiple of 4, at most {MOST_EXAMPLES}; the first"
            f" steps returned {taken} in total"
        )
    _train(theirs, taken)

    moved = []
    apart = []
    for before, right, weight in zip(start, reference.trainable_variables, model.trainable_variables, strict=True):
        moved.append(np.abs(right - before).max())
        apart.append(np.abs(right - weight).max())
    off = np.max(apart) / np.max(moved)
    if not off < 1e-3:  # catches NaN too
        raise Wrong(
            f"after {taken} examples: expected the weights of the colleague's step, got weights that differ by"
            f" {off:.1%} of the total change. Does each step take the next four examples, is there one update for every"
            " four, and is the model called as in training?"
        )

    for seconds in (1, 4):  # if the interval still contains ENOUGH, the median decides
        measured = bt.compare({"yours": lambda: yours, "the colleague's": lambda: theirs}, seconds=seconds)
        gain = measured.ratio("yours", "the colleague's")
        if not gain.low <= ENOUGH < gain.high:
            break
    if not gain.median > ENOUGH:
        raise Wrong(
            f"examples/s: expected the full confidence interval above {ENOUGH}x the colleague's, measured {gain}"
        )


def _new_training():
    """Return a small model, its optimizer and infinite examples, the same in each call."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([bt.gpt(length=16, width=16, layers=1, heads=2), _OtherInTraining()])
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
    return model, optimizer, _examples()


class _OtherInTraining(keras.layers.Layer):
    """Depends on the training mode like dropout, but is deterministic."""

    def call(self, logits, training=False):
        return logits if training else 2 * logits


def _examples():
    drawn = np.random.default_rng(0)
    while True:
        window = drawn.integers(0, 256, 17)
        yield window[:-1], window[1:]


def _train(step, least):
    """Call a step function until it has taken at least this many examples; return how many."""
    taken = 0
    while taken < least:
        returned = step()
        if np.ndim(returned) or not np.issubdtype(np.asarray(returned).dtype, np.integer) or returned < 1:
            raise Wrong(f"next_step: expected a step that returns the number of its examples, got {returned!r}")
        taken += int(returned)
    return taken


@_check_next_step.refuses("expected the full confidence interval above 4x the colleague's, measured")
def _as_it_is(model, optimizer, examples):
    return colleagues_step(model, optimizer, examples)


@_check_next_step.refuses("Does each step take the next four examples")
def _draws_inside_the_graph(model, optimizer, examples):
    return tf.function(colleagues_step(model, optimizer, examples))


@_check_next_step.refuses("Does each step take the next four examples")
def _one_update_for_16(model, optimizer, examples):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step():
        batch = [next(examples) for _ in range(16)]
        seen = np.stack([example[0] for example in batch])
        follows = np.stack([example[1] for example in batch])
        with tf.GradientTape() as tape:
            mean = loss(follows, model(seen, training=True))
        gradients = tape.gradient(mean, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return 16

    return step


@_check_next_step.refuses("is there one update for every four")
def _counts_more_than_it_takes(model, optimizer, examples):
    small = next_step(model, optimizer, examples)

    def step():
        return 4 * small()

    return step


@_check_next_step.refuses("is the model called as in training?")
def _predicts(model, optimizer, examples):
    in_training = model.call
    model.call = lambda seen, training=None, mask=None: in_training(seen, training=False)
    return next_step(model, optimizer, examples)


@_check_next_step.refuses("expected a step that returns the number of its examples, got None")
def _does_not_say_how_many(model, optimizer, examples):
    small = next_step(model, optimizer, examples)

    def step():
        small()

    return step


@_check_next_step.refuses("the first steps returned 18 in total")
def _takes_six(model, optimizer, examples):
    small = next_step(model, optimizer, examples)

    def step():
        small()
        return 6

    return step


@_check_next_step.refuses("expected a step function, got None")
def _returns_nothing(model, optimizer, examples):
    colleagues_step(model, optimizer, examples)
