"""A resumed epoch keeps its order, whatever determines it, or is refused with a message."""

import random
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from resume_runs import BATCH, At, Crash, X, Y, by_number, crash, cut, epoch_of, model_of, state, train

from bigtrain_nb.common import passes
from bigtrain_nb.common.passes import read_apart, traits_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.data.pipeline import Pipeline
from bigtrain_nb.train.data_order import SharedDataOrder
from bigtrain_nb.train.epoch_by_epoch import EpochByEpoch
from bigtrain_nb.train.first_batches import (
    BATCHES,
    FirstBatches,
    refuse_another_order,
    refuse_another_seed,
    refuse_changing_order,
)
from bigtrain_nb.train.resume import Resume

eager_model = partial(model_of, run_eagerly=True)
"""Without the time to trace and compile a step, of which few are taken."""
SLICES = tf.data.Dataset.from_tensor_slices
SIGNATURE = (tf.TensorSpec((5,)), tf.TensorSpec((1,)))
half = len(X) // 2


def in_order(order):
    return SLICES((X[order], Y[order])).batch(BATCH)


def generated(order_of_pass, noise=0.0):
    def pairs():
        for example in order_of_pass():
            yield X[example] + noise * np.random.normal(size=5), Y[example]

    return tf.data.Dataset.from_generator(pairs, output_signature=SIGNATURE).batch(BATCH)


def sampled(seed=None, buffer=0, **how):
    parts = [SLICES((X[:half], Y[:half])), SLICES((X[half:], Y[half:]))]
    parts = [part.shuffle(buffer, seed=1) if buffer else part for part in parts]
    return tf.data.Dataset.sample_from_datasets(parts, seed=seed, **how).batch(BATCH)


def shuffled_within(epoch, seed=1):
    def part(_):
        return SLICES((X, Y)).shuffle(len(X), seed=seed and epoch + seed)

    return tf.data.Dataset.range(1).flat_map(part).batch(BATCH)


def drawn_by_numpy():
    return np.random.permutation(len(X))


def drawn_by_python():
    return random.sample(range(len(X)), len(X))


def refuse_two_calls(make):
    refuse_changing_order(make(0), make, 0)


def refuse_unlike(now, before):
    refuse_another_order(now, 0, 3, seen(before), None)


def seen(dataset):
    first = FirstBatches()
    for _ in first.noting(dataset):
        pass
    return first.found


@pytest.fixture(scope="module")
def resume(tmp_path_factory):
    """For calls of `data` that are refused, after which the next one is checked as if it were the first."""
    return Resume(tmp_path_factory.mktemp("refused"), model_of())


once = np.random.default_rng(3)
AT_EACH_CALL = {
    "NumPy": lambda epoch: in_order(drawn_by_numpy()),
    "a generator's": lambda epoch: in_order(once.permutation(len(X))),
    "a generator": lambda epoch: generated(drawn_by_python),
    "by number": lambda epoch: by_number(drawn_by_numpy(), num_parallel_calls=2),
    "samples": lambda epoch: sampled(weights=[0.3, 0.7]),
    "samples of what is shuffled": lambda epoch: sampled(buffer=30),
}


@pytest.mark.parametrize("make_epoch", AT_EACH_CALL.values(), ids=AT_EACH_CALL)
def test_an_order_of_each_call_is_refused_before_a_step_is_trained(make_epoch, resume):
    for global_seed in (None, 3):
        tf.random.set_seed(global_seed)
        with pytest.raises(ValueError, match="examples (are|would be) trained twice .*others never.*seed"):
            resume.data(make_epoch)


def test_a_shuffle_at_random_in_a_function_is_refused(resume):
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match="a different order, each time it is called"):
        resume.data(lambda epoch: shuffled_within(epoch, None))


@pytest.mark.parametrize("make_epoch", AT_EACH_CALL.values(), ids=AT_EACH_CALL)
def test_an_order_of_another_process_is_refused(make_epoch):
    """The order is constant within a process, for example drawn when a module is loaded."""
    tf.random.set_seed(0)
    with pytest.raises(ValueError, match="epoch 0 does not begin with the same batches .* when 3 batches had been"):
        refuse_unlike(make_epoch(0), make_epoch(0))


SEEDED = {
    "shuffle": lambda epoch: SLICES((X, Y)).shuffle(49, seed=epoch + 1, reshuffle_each_iteration=False).batch(BATCH),
    "samples": lambda epoch: sampled(seed=epoch + 1),
    "a shuffle inside": shuffled_within,
}


@pytest.mark.parametrize("make_epoch", SEEDED.values(), ids=SEEDED)
def test_another_global_seed_is_refused(make_epoch):
    for seed, other in ((4, 0), (0, 4)):
        tf.random.set_seed(seed)
        dataset = make_epoch(0)
        refuse_another_seed(dataset, 0, seed)
        with pytest.raises(ValueError, match=rf"was {other} before the restart and is now {seed}, .*seed\({other}\)"):
            refuse_another_seed(dataset, 0, other)


@pytest.mark.parametrize("crash_after", [5, 10], ids=["in an epoch", "behind an epoch"])
def test_a_checkpoint_has_the_global_seed(crash_after, tmp_path):
    cut(tmp_path, crash_after, eager_model, None if crash_after > 9 else 2, SEEDED["shuffle"])
    resume = Resume(tmp_path, model_of())
    keras.utils.set_random_seed(4)
    with pytest.raises(ValueError, match="was 0 before the restart and is now 4"):
        resume.data(SEEDED["shuffle"])


HEALTHY = {
    "NumPy seeded": lambda epoch: in_order(np.random.default_rng(epoch).permutation(len(X))),
    "a generator seeded": lambda epoch: generated(lambda: np.random.default_rng(epoch).permutation(len(X))),
    "by number": lambda epoch: by_number(np.random.default_rng(epoch).permutation(len(X)), num_parallel_calls=2),
}


@pytest.mark.parametrize("make_epoch", HEALTHY.values(), ids=HEALTHY)
def test_an_order_of_the_epochs_number_goes_on_under_any_seed(make_epoch):
    before = seen(make_epoch(0))
    keras.utils.set_random_seed(4)
    refuse_two_calls(make_epoch)
    refuse_another_order(make_epoch(0), 0, 4, before, 0)


IMAGES = np.random.default_rng(1).integers(0, 255, (40, 8, 8, 3), dtype="uint8")
LABELS = np.random.default_rng(2).integers(0, 3, 40)


def mirrored_at_random(image, *more):
    return tf.image.random_flip_left_right(image), *more


def noisy(image, *more):
    """Add unseeded noise as large as the tolerance for equal rows: about half of repeated readings match."""
    noise = tf.numpy_function(lambda: np.random.default_rng().normal(size=(8, 8, 3)), [], tf.float64)
    return tf.cast(image, tf.float64) + noise, *more


def mixed_up(image, label):
    share = tf.random.uniform([])
    return share * tf.cast(image, tf.float32), share * tf.cast(label, tf.float32)


words = [f"word {number}" for number in range(40)]
ragged = tf.ragged.constant([list(range(number, 2 * number)) for number in range(1, 41)])
sparse = tf.sparse.from_dense(np.eye(40) * LABELS[:, None])
UNDISTURBED = {
    "mirrored": lambda: SLICES((IMAGES, LABELS)).map(mirrored_at_random),
    "mirrored, no labels": lambda: SLICES((IMAGES,)).map(mirrored_at_random),
    "noise of NumPy": lambda: SLICES((IMAGES, LABELS)).map(noisy),
    "noise of NumPy, no labels": lambda: SLICES((IMAGES,)).map(noisy),
    "mixed": lambda: SLICES((IMAGES, LABELS)).map(mixed_up),
    "mirrored, one class": lambda: SLICES((IMAGES, 0 * LABELS)).map(mirrored_at_random),
    "words": lambda: SLICES({"word": words}),
    "ragged": lambda: SLICES((ragged, LABELS)),
    "sparse": lambda: SLICES((sparse, LABELS)),
    "a scalar": lambda: SLICES(LABELS),
    "positions": lambda: SLICES((IMAGES, np.tile(np.arange(8), (40, 1)))),
    "letters": lambda: SLICES(tf.strings.bytes_split(words)),
    "None": lambda: SLICES(IMAGES).map(lambda image: (image, None)),
}


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("make", UNDISTURBED.values(), ids=UNDISTURBED)
def test_what_is_changed_at_random_on_the_way_is_another_order_for_nobody(make, size):
    dataset = make().batch(size)
    assert len(seen(dataset)) == BATCHES
    assert FirstBatches().noting(dataset).element_spec == dataset.element_spec
    refuse_unlike(make().batch(size), dataset)


def test_another_order_of_a_generator_that_is_read_up_is_refused():
    def once(numbers):
        left = iter(numbers)
        return tf.data.Dataset.from_generator(lambda: left, output_signature=tf.TensorSpec([], tf.float32)).batch(4)

    numbers = np.arange(16, dtype="float32")
    with pytest.raises(ValueError, match="epoch 0 does not begin with"):
        refuse_unlike(once(numbers[::-1]), once(numbers))


@pytest.mark.parametrize("name", ["words", "ragged", "sparse", "a scalar", "None", "positions", "letters"])
def test_another_order_of_any_kind_of_batch_is_refused(name):
    dataset = UNDISTURBED[name]()
    with pytest.raises(ValueError, match="epoch 0 does not begin with"):
        refuse_unlike(dataset.shuffle(40, seed=1).batch(6), dataset.batch(6))


def test_real_numbers_that_another_cpu_rounds_otherwise_are_the_same():
    years = 2000 + np.random.default_rng(1).normal(size=(40, 1))
    for values in (X[:40], years, X[:40].astype("float16")):
        before = SLICES(values).batch(6)
        refuse_unlike(SLICES(values * (1 + 1e-6)).batch(6), before)
        with pytest.raises(ValueError, match="epoch 0 does not begin with"):
            refuse_unlike(SLICES(values[::-1]).batch(6), before)


def loop(resume, dataset, last=100):
    for _ in resume.epochs(2):
        for x, y in resume.rest(dataset()):
            resume.model.train_on_batch(x, y)
            resume.step_done()
            if int(resume.model.optimizer.iterations) == last:
                raise Crash
    return state(resume.model)


def test_a_fit_that_was_stopped_goes_on_in_the_same_process(tmp_path):
    order = list(range(49))
    resume = Resume(tmp_path, eager_model(), every=2)
    stops = At(5, partial(setattr, resume.model, "stop_training", True))
    train(resume, stops, epoch_of=lambda epoch: in_order(order))
    assert resume.step == 5
    with pytest.raises(ValueError, match="epoch 0 does not begin with"):
        resume.data(lambda epoch: in_order(order[::-1]))
    train(resume, epoch_of=lambda epoch: in_order(order), epochs=1)
    assert resume.epoch == 1


def test_an_order_that_moves_on_with_each_pass_is_not_moved_on_by_the_check(tmp_path):
    """One dataset for all epochs, as in many custom loops."""

    def made_once():
        dataset = SLICES((X, Y)).shuffle(len(X), seed=1).batch(BATCH)
        return lambda: dataset

    whole = loop(Resume(tmp_path / "whole", eager_model()), made_once())
    with pytest.raises(Crash):
        loop(Resume(tmp_path / "cut", eager_model(), every=2), made_once(), 5)
    assert loop(Resume(tmp_path / "cut", eager_model()), made_once()) == whole
    dataset = made_once()()
    refuse_unlike(dataset, made_once()())
    for one, other in zip(dataset, made_once()(), strict=True):
        assert np.array_equal(one[0], other[0])


def with_noise():
    numbers = tf.data.Dataset.random(seed=5, rerandomize_each_iteration=True)
    return tf.data.Dataset.zip(numbers, SLICES(Y)).batch(BATCH)


@pytest.mark.parametrize("make", [lambda: sampled(3, rerandomize_each_iteration=True), with_noise])
def test_reading_apart_yields_the_next_pass_and_does_not_move_the_order_on(make):
    def order(dataset):
        return np.concatenate([inputs for inputs, _ in dataset])

    twin = make()
    first, second = order(twin), order(twin)
    dataset = make()
    assert np.array_equal(order(read_apart(dataset)), first)
    assert np.array_equal(order(dataset), first) and np.array_equal(order(dataset), second)
    assert not np.array_equal(first, second)


def test_a_loop_over_a_stream_that_is_read_once_loses_no_batch_and_refuses_another_order(tmp_path):
    def opened(reverse=False):
        stream = iter(list(zip(X, Y, strict=True))[:: -1 if reverse else 1])
        dataset = tf.data.Dataset.from_generator(lambda: stream, output_signature=SIGNATURE).batch(BATCH)
        return lambda: dataset.take(8)

    with pytest.raises(Crash):
        loop(Resume(tmp_path, eager_model(), every=2), opened(), 5)
    with pytest.raises(ValueError, match="this dataset of epoch 0 does not begin with"):
        loop(Resume(tmp_path, eager_model(), every=1), opened(reverse=True))
    resume = Resume(tmp_path, model_of())
    assert resume.step == 4  # nothing was saved from the other order
    left = [x for x, _ in resume.rest(opened()())]
    assert np.array_equal(np.concatenate(left), X[4 * BATCH : 8 * BATCH])


def mixed_in_classes():
    return np.stack([np.random.permutation(10) + 10 * one for one in range(4)], 1).ravel()


def drawn():
    return np.random.permutation(40)


def in_pairs(order):
    return SLICES((IMAGES[order], np.arange(40)[order]))


ONE_PART_IS_THE_SAME = {
    "classes in their order": lambda epoch: SLICES((IMAGES[mixed_in_classes()], mixed_in_classes() // 10)).batch(6),
    "positions": lambda epoch: SLICES(IMAGES[drawn()]).batch(6).enumerate(),
    "mirrored at random": lambda epoch: in_pairs(drawn()).map(mirrored_at_random).batch(6),
}


@pytest.mark.parametrize("make", ONE_PART_IS_THE_SAME.values(), ids=ONE_PART_IS_THE_SAME)
def test_a_part_that_is_the_same_in_any_order_does_not_hide_another_order(make):
    with pytest.raises(ValueError, match="or a different order, each time it is called"):
        refuse_two_calls(make)
    with pytest.raises(ValueError, match="epoch 0 does not begin with"):
        refuse_unlike(make(0), make(0))


def test_positions_do_not_hide_that_a_generator_draws_an_order_in_each_pass():
    with pytest.raises(ValueError, match="or a different order, each time it is called"):
        refuse_two_calls(lambda epoch: generated(drawn_by_numpy).enumerate())


def test_what_a_generator_changes_at_random_is_left_out():
    def make(epoch):
        return generated(np.random.default_rng(epoch).permutation(len(X)).tolist().copy, noise=9.0)

    refuse_two_calls(make)
    refuse_unlike(make(0), make(0))


@pytest.mark.parametrize("value", [-np.inf, np.nan, 1e300, -3e38])
def test_masks_of_infinite_numbers_are_looked_at(value):
    masks = np.where(np.tril(np.ones((40, 40))), 0, value)
    masked = SLICES((X[:40], masks)).batch(6)
    refuse_two_calls(lambda epoch: masked)
    refuse_unlike(masked, masked)
    with pytest.raises(ValueError, match="each time it is called"):
        refuse_two_calls(lambda epoch: SLICES(masks[drawn()]).batch(6))


def test_a_dataset_of_no_batches_is_another_one():
    numbers = iter([40, 0])
    with pytest.raises(ValueError, match="each time it is called"):
        refuse_two_calls(lambda epoch: SLICES(LABELS[: next(numbers)]).batch(6))
    with pytest.raises(ValueError, match="epoch 0 does not begin with"):
        refuse_unlike(SLICES(LABELS[:0]).batch(6), SLICES(LABELS).batch(6))


@pytest.mark.parametrize(("how", "crash_after"), [("fit", 10), ("a loop", 14)])  # behind an epoch, and in one
def test_a_global_seed_that_is_set_for_each_epoch_can_be_had_again(how, crash_after, tmp_path):
    def make_epoch(epoch):
        tf.random.set_seed(100 + epoch)
        return SLICES((X, Y)).shuffle(49, seed=epoch, reshuffle_each_iteration=False).batch(BATCH)

    def trained(folder, last=100):
        resume = Resume(folder, eager_model(), every=2)
        if how == "a loop":
            return loop(resume, lambda: make_epoch(resume.epoch), last)
        return train(resume, At(last, crash), epoch_of=make_epoch, epochs=2)

    whole = trained(tmp_path / "whole")
    with pytest.raises(Crash):
        trained(tmp_path / "cut", crash_after)
    assert trained(tmp_path / "cut") == whole


def test_every_error_of_make_epoch_is_told_to_the_other_workers(tmp_path):
    def broken(epoch):
        raise KeyError("no")

    def broken_later(epoch):
        return broken(epoch) if epoch else in_order(np.arange(49))

    told = []
    resume = Resume(tmp_path, eager_model())
    answers = Resume._answers
    resume._answers = lambda number, *more: told.append(number) or answers(resume, number, *more)
    with pytest.raises(KeyError):
        resume.data(broken)
    assert told == [-1]
    with pytest.raises(KeyError):
        train(resume, epoch_of=broken_later)
    assert told[-1] == -1 and told.count(-1) == 2


def test_a_dataset_that_is_open_twice_is_noted_as_if_once():
    first = FirstBatches()
    noting = first.noting(SLICES(LABELS).batch(6))
    for one, other in zip(noting, noting, strict=True):
        assert np.array_equal(one, other)
    assert first.found == seen(SLICES(LABELS).batch(6))


def test_workers_compare_batches_with_a_part_that_is_none():
    order = SharedDataOrder(tf.distribute.get_strategy())
    batches = list(order.by_batches(UNDISTURBED["None"]().batch(6)))
    assert batches[0][1] is None and order._first


def unwritten(dataset):
    """Return the dataset with a graph that cannot be serialized, as with arrays of 2 GiB and more."""
    return dataset.apply(tf.data.experimental.copy_to_device("/cpu:0"))


def shuffled(**how):
    return SLICES((X, Y)).shuffle(49, **how).batch(BATCH)


def test_what_cannot_be_seen_of_a_dataset_is_unknown():
    traits = traits_of(unwritten(shuffled(seed=1)))
    assert traits[:-1] == (None,) * (len(traits) - 1) and "does not support serialization" in traits.unknown
    options = tf.data.Options()
    options.deterministic = False
    assert traits_of(unwritten(shuffled(seed=1)).with_options(options)).keeps_order is False


class TestWithoutAGraph:
    seeded = staticmethod(lambda epoch: unwritten(shuffled(seed=epoch + 1)))

    def test_a_random_order_is_refused(self, resume):
        once = unwritten(shuffled(seed=1))
        for make in (
            lambda epoch: unwritten(shuffled()),
            lambda epoch: unwritten(in_order(drawn_by_numpy())),
            lambda epoch: once,  # whose order each pass moves on
        ):
            with pytest.warns(UserWarning, match="could not check"), pytest.raises(ValueError, match="each time"):
                resume.data(make)

    def test_a_restart_says_what_was_not_examined_and_refuses_another_order_or_seed(self, tmp_path):
        cut(tmp_path, 5, eager_model, epoch_of=self.seeded)
        resume = Resume(tmp_path, model_of())
        unexamined = r"could not check that the dataset of make_epoch\(0\) has the same order .* serialization"
        with pytest.warns(UserWarning, match=unexamined):
            resume.data(self.seeded)
        with pytest.warns(UserWarning, match=unexamined), pytest.raises(ValueError, match="does not begin with"):
            resume.data(lambda epoch: unwritten(shuffled(seed=epoch + 2)))
        keras.utils.set_random_seed(4)
        with pytest.warns(UserWarning, match=unexamined), pytest.raises(ValueError, match="epoch 0 may depend on"):
            resume.data(self.seeded)

    def test_images_that_are_mirrored_at_random_go_on(self):
        images = SLICES((IMAGES, np.arange(40)))
        refuse_two_calls(lambda epoch: unwritten(images.map(mirrored_at_random).batch(6)))

    def test_workers_are_told_what_is_not_compared(self):
        order = SharedDataOrder(tf.distribute.get_strategy())
        with pytest.warns(
            UserWarning,
            match="could not check that all workers read .* in the same order.*only the first batch is compared",
        ):
            order.by_batches(unwritten(shuffled(seed=1)))


def test_an_epoch_that_cannot_be_compared_with_the_next_says_so():
    def make(epoch):
        (order,) = [np.arange(len(X))][epoch:]
        return generated(lambda: order, noise=9.0)

    with pytest.warns(UserWarning, match=r"could not check .* because make_epoch\(1\).* raises"):
        refuse_two_calls(make)


def test_make_epoch_is_called_seldom_and_its_graph_is_written_once_each(tmp_path, monkeypatch):
    made, written = [], []
    write = passes.graph_of_dataset
    monkeypatch.setattr(passes, "graph_of_dataset", lambda dataset: written.append(dataset) or write(dataset))

    def make(epoch):
        made.append(shuffled(seed=epoch + 1))
        return made[-1]

    Resume(tmp_path, model_of()).data(make)
    assert len(made) == 2  # one to examine, one to train on
    assert len(written) == 2


@pytest.mark.parametrize("settings", [{"shuffle": 8}, {"augment": True}, {"shuffle": 8, "augment": True}])
def test_epochs_with_the_same_seeds_are_warned_of(settings, crops):
    pipeline = Pipeline(data=crops, image_size=24, batch=16, **settings)

    def made(make_epoch):
        epochs = EpochByEpoch(make_epoch, 0, None, lambda dataset: dataset)
        for epoch in (0, 1, 2):
            epochs.made(epoch)

    advice = r"make_epoch\(1\) shuffles or augments .* make_epoch\(0\).*replace\(pipeline, seed=epoch\).dataset\(\)"
    with pytest.warns(UserWarning, match=advice) as warned:
        made(lambda epoch: pipeline.dataset())
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(lambda epoch: replace(pipeline, seed=epoch).dataset())


def test_a_stream_behind_numbers_is_read_on_and_not_skipped(tmp_path):
    def opened():
        stream = iter(zip(X, Y, strict=True))

        def read(number):
            x, y = tf.numpy_function(lambda number: next(stream), [number], [tf.float32, tf.float32])
            return tf.ensure_shape(x, [5]), tf.ensure_shape(y, [1])

        return lambda: tf.data.Dataset.range(48).map(read).batch(BATCH)

    with pytest.raises(Crash):
        loop(Resume(tmp_path, eager_model(), every=2), opened(), 5)
    resume = Resume(tmp_path, model_of())
    left = [x for x, _ in resume.rest(opened()())]
    assert resume.step == 4 and np.array_equal(np.concatenate(left), X[4 * BATCH : 8 * BATCH])


def first_of_two_workers(*datasets):
    """Compare the first batches of two workers, which only one process reads here."""
    order = SharedDataOrder(tf.distribute.get_strategy())
    firsts = []
    for dataset in datasets:
        next(iter(order.by_batches(dataset)))
        firsts.append(np.resize(order._first, 64))
    order._gather = lambda own: np.stack(firsts)
    order.refuse_unlike_orders()


def test_workers_may_change_examples_at_random_but_not_their_order():
    def augmented(order, **how):
        examples = SLICES((IMAGES[order], LABELS[order])) if how else SLICES((X[order], Y[order]))
        change = (lambda x, y: (tf.image.random_flip_left_right(x), y)) if how else (lambda x, y: (x, y))
        return examples.map(change).batch(20)  # of six labels, two orders are often equal by chance

    same, other = np.arange(40), np.arange(40)[::-1]
    flipped = partial(augmented, random=True)
    first_of_two_workers(flipped(same), flipped(same))
    first_of_two_workers(augmented(same), augmented(same))
    alike = SLICES((X[same], np.ones(40)))
    few = alike.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(np.negative, [x], x.dtype), [5]), y)).batch(4)
    first_of_two_workers(few, few)  # equal, although four rows have few orders
    without_labels = [alike.map(lambda x, y, n=n: (x + tf.random.normal([5], n), y)).batch(6) for n in (0.0, 9.0)]
    with pytest.raises(ValueError, match="2 different first batches"):
        first_of_two_workers(*without_labels)
    for make in (flipped, augmented):
        with pytest.raises(
            ValueError, match="2 replicas read 2 different first batches, so the workers' orders differ"
        ):
            first_of_two_workers(make(same), make(other))


def test_epochs_of_other_shapes_or_parts_are_refused(tmp_path):
    for name, other in (("shapes", lambda x, y: (x[:, :4], y)), ("parts", lambda x, y: (x, y, y[:, 0]))):
        resume = Resume(tmp_path / name, model_of())
        data = resume.data(lambda epoch, other=other: epoch_of(epoch).map(other) if epoch else epoch_of(epoch))
        with pytest.raises(ValueError, match=r"make_epoch\(1\) has 9 batches of .*, but the first epoch had"):
            resume.model.fit(data, initial_epoch=0, epochs=2, shuffle=False, verbose=0, callbacks=[resume])
