"""A resumable `fit`: Keras callbacks see one training run across a restart."""

import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
from equal_models import distance
from resume_runs import (
    BATCHES,
    EPOCHS,
    At,
    Crash,
    X,
    by_number,
    crash,
    cut,
    cut_after_5,
    epoch_of,
    model_of,
    names,
    of_unknown_size,
    state,
    train,
    whole,
)

import bigtrain_nb as bt
from bigtrain_nb.common.passes import skipping_numbers
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.callback_state import continue_csv_logs, get_states
from bigtrain_nb.train.resume import Resume

callbacks = keras.callbacks


def sgd(**options):
    return lambda: keras.optimizers.SGD(0.05, momentum=0.9, **options)


def fitted(folder, epochs, given, make=model_of, crash_after=None, every=None):
    """Train in one `fit`, optionally with a crash; return the `Resume` and the History, None after a crash."""
    resume = Resume(folder, make(), every)
    ends = [At(crash_after, crash)] if crash_after else []
    run = {"initial_epoch": resume.epoch, "epochs": epochs, "shuffle": False, "verbose": 0}
    try:
        return resume, resume.model.fit(resume.data(epoch_of), callbacks=[*given, resume, *ends], **run)
    except Crash:
        return resume, None


def cut_and_resumed(folder, epochs, make_callbacks, crash_after, **settings):
    """Train undisturbed, then with a crash and a restart; return both Histories and the three callback lists."""
    lists = [make_callbacks() for _ in range(3)]
    whole = fitted(folder / "whole", epochs, lists[0], **settings)
    _, crashed = fitted(folder / "cut", epochs, lists[1], crash_after=crash_after, **settings)
    assert crashed is None
    again = fitted(folder / "cut", epochs, lists[2], **settings)
    assert state(whole[0].model) == state(again[0].model)
    return whole[1], again[1], lists


def test_early_stopping_counts_over_epochs_and_a_restart(tmp_path):
    def stops():
        return [callbacks.EarlyStopping("loss", min_delta=100, patience=3)]

    whole, again, _ = cut_and_resumed(tmp_path, 8, stops, 3 * BATCHES + 1)
    assert whole.epoch == again.epoch == [0, 1, 2, 3]
    assert whole.history == again.history
    resume, left = fitted(tmp_path / "cut", 8, stops())
    assert resume.epoch == 4 and (left.epoch, left.history) == (whole.epoch, whole.history)
    resume, left = fitted(tmp_path / "cut", 8, [callbacks.EarlyStopping("loss", min_delta=100, patience=5)])
    assert left.epoch == [0, 1, 2, 3, 4, 5]


def test_the_rate_the_best_so_far_and_the_log_are_those_of_one_fit(tmp_path):
    def given():
        plateau = callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=2, min_delta=100)
        best = callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), "loss", save_best_only=True)
        return [plateau, best, callbacks.CSVLogger(str(tmp_path / "log.csv"))]

    def make():
        return model_of(optimizer=sgd())

    whole, again, (of_whole, _, of_again) = cut_and_resumed(tmp_path, 6, given, 2 * BATCHES + 1, make=make)
    assert whole.history["learning_rate"] == again.history["learning_rate"]
    assert min(whole.history["learning_rate"]) < 0.02
    assert of_again[1].best == of_whole[1].best
    rows = (tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", *map(str, range(6))]


def test_rows_of_an_epoch_that_comes_again_are_written_once_in_an_object_store_too():
    """Without a `fit`, which Keras' CSVLogger cannot end there."""
    log = callbacks.CSVLogger("ram://log.csv")
    with tf.io.gfile.GFile(log.filename, "w") as file:
        file.write("epoch,loss\r\n0,0.9\r\n")
    states = get_states([log])
    with tf.io.gfile.GFile(log.filename, "a") as file:
        file.write("1,0.5\r\n")
    continue_csv_logs([log], states)
    assert log.append and tf.io.gfile.GFile(log.filename).read().split() == ["epoch,loss", "0,0.9"]


def test_a_log_of_an_earlier_training_keeps_its_rows(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n0,9\n1,9\n2,9\n", encoding="utf-8")

    def log():
        return [callbacks.CSVLogger(str(path), append=True)]

    fitted(tmp_path, 2, log(), crash_after=BATCHES + 4, every=2)
    fitted(tmp_path, 2, log(), every=2)
    rows = path.read_text(encoding="utf-8").splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2", "0", "1"]


def test_batches_have_the_numbers_of_one_fit(tmp_path):
    """A warm-up by the number of the batch, and tests in between, whose numbers are not changed."""

    class ByNumber(callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.numbers = []

        def on_train_batch_begin(self, batch, *, logs):  # Keras passes it by keyword
            self.numbers.append(batch)
            self.model.optimizer.learning_rate = 0.01 * (batch + 1)

    _, _, (of_whole, _, of_again) = cut_and_resumed(
        tmp_path, 2, lambda: [ByNumber()], BATCHES + 5, make=lambda: model_of(optimizer=sgd()), every=2
    )
    assert of_again[0].numbers == of_whole[0].numbers[BATCHES + 4 : 2 * BATCHES] == list(range(4, BATCHES))


def test_a_rate_by_epochs_is_not_applied_twice_in_an_epoch(tmp_path):
    def halves():
        return [callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]

    whole, again, _ = cut_and_resumed(tmp_path, 3, halves, BATCHES + 4, make=lambda: model_of(optimizer=sgd()), every=2)
    assert whole.history["learning_rate"] == again.history["learning_rate"]

    def several():
        of_biases = {".*bias": keras.optimizers.SGD(0.04)}
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.08), of_biases))

    cut_and_resumed(tmp_path / "several", 3, halves, BATCHES + 4, make=lambda: model_of(optimizer=several), every=2)


def test_averaged_weights_are_those_of_one_fit(tmp_path):
    def make(seed=1):
        return model_of(seed=seed, optimizer=sgd(use_ema=True, ema_momentum=0.9))

    def given():
        return [callbacks.SwapEMAWeights(swap_on_epoch=True)]

    cut_and_resumed(tmp_path, EPOCHS, given, 2 * BATCHES + 1, make=make)
    stock = make()
    epochs = [epoch_of(epoch) for epoch in range(EPOCHS)]
    all_epochs = epochs[0].concatenate(epochs[1]).concatenate(epochs[2]).repeat()
    stock.fit(all_epochs, steps_per_epoch=BATCHES, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=given())
    resume, _ = fitted(tmp_path / "whole", EPOCHS, given(), make=make)
    assert distance(resume.model, stock) == 0


class Spoil(callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == 5:
            weight = self.model.trainable_variables[0]
            weight.assign(np.nan * weight)


def test_a_state_that_is_not_finite_replaces_no_finite_one(tmp_path):
    resume = Resume(tmp_path, model_of(), every=2)
    with pytest.warns(UserWarning, match="kernel is not finite after 0 epochs and 6 steps, so this state is not saved"):
        train(resume, first=Spoil())
    assert [name for name in names(tmp_path) if name.endswith(".index")] == ["ckpt-1.index", "ckpt-2.index"]
    again = Resume(tmp_path, model_of(seed=2), every=2)
    assert (again.epoch, again.step) == (0, 4)
    assert all(np.isfinite(weight).all() for weight in again.model.get_weights())


def test_what_was_never_finite_does_not_stand_in_the_way(tmp_path):
    class Bounded(keras.layers.Dense):
        def build(self, shape):
            self.bound = self.add_weight((), keras.initializers.Constant(np.inf), trainable=False)
            super().build(shape)

        def call(self, x):
            return tf.minimum(super().call(x), self.bound)

    model = keras.Sequential([keras.Input((5,)), Bounded(1)])
    model.compile("sgd", "mse")
    train(Resume(tmp_path, model), epochs=1)
    assert "ckpt-1.index" in names(tmp_path)


def noted(read):
    """Return a `make_epoch` that notes which batches it reads."""

    def make_epoch(epoch):
        order = np.random.default_rng(epoch).permutation(len(X) - 1)
        return by_number(order, lambda number: read.append((epoch, number)), num_parallel_calls=2)

    return make_epoch


def test_batches_made_from_their_numbers_are_not_made_again(tmp_path):
    expected = train(Resume(tmp_path / "whole", model_of()), epoch_of=noted([]))
    cut(tmp_path / "cut", 5, epoch_of=noted([]))
    read = []
    assert train(Resume(tmp_path / "cut", model_of(seed=2)), epoch_of=noted(read)) == expected
    counts = Counter(read)
    assert [counts[0, number] for number in range(4)] == [1] * 4  # read once more to check the order
    assert len(counts) == (BATCHES - 1) * EPOCHS and counts.total() <= len(counts) + 14  # prefetched, or tried twice


def test_numbers_are_not_skipped_where_random_numbers_are_drawn_on_the_way():
    random = np.random.default_rng(1)

    def by_tensorflow(number):
        return tf.random.uniform([], seed=3)

    def by_python(number):
        return tf.numpy_function(random.random, [], tf.float64)

    for drawn in (by_tensorflow, by_python):
        assert skipping_numbers(tf.data.Dataset.range(6).map(drawn), 4, may_try=True) is None


def test_a_resumed_epoch_ends_without_a_warning_and_what_comes_after_it_may_change_the_data(tmp_path):
    resume = Resume(cut_after_5(tmp_path), model_of(), every=2)
    data = resume.data(epoch_of).map(lambda x, y: (x, y)).prefetch(1)
    run = {"initial_epoch": 0, "epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": resume}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = resume.model.fit(data, validation_data=epoch_of(0), **run)
    assert len(history.history["val_loss"]) == EPOCHS
    assert int(resume.model.optimizer.iterations) == EPOCHS * BATCHES
    assert resume.epoch == EPOCHS


NUMBERS = tf.data.Dataset.range(8)
IN_ONE_ORDER = NUMBERS.shuffle(8, seed=3, reshuffle_each_iteration=False)
MOVED_ON = NUMBERS.shuffle(8, seed=3)


@pytest.mark.parametrize(
    "make_epoch, words",
    [
        (lambda epoch: NUMBERS.shuffle(8).batch(2), "without a seed.*seed=epoch"),
        (lambda epoch: MOVED_ON.batch(2), "outside of make_epoch.*seed=epoch"),
        (lambda epoch: NUMBERS.map(abs, 2, deterministic=False).batch(2), "deterministic=False and yields elements"),
        (lambda epoch: NUMBERS.shuffle(8, seed=epoch).batch(2), None),
        (lambda epoch: IN_ONE_ORDER.batch(2), None),
    ],
)
def test_an_order_that_is_another_one_after_a_restart_is_refused(tmp_path, make_epoch, words):
    resume = bt.Resume(tmp_path, model_of())
    if words:
        with pytest.raises(ValueError, match=words):
            resume.data(make_epoch)
    else:
        assert len(list(resume.data(make_epoch))) == 4


def test_best_weights_are_looked_for_again_after_a_restart_which_says_so(tmp_path, capsys):
    def stops():
        return [callbacks.EarlyStopping("loss", min_delta=100, patience=2, restore_best_weights=True)]

    _, crashed = fitted(tmp_path, 8, stops(), crash_after=2 * BATCHES + 1)
    assert crashed is None and "best" not in capsys.readouterr().out
    (stop,) = again = stops()
    _, history = fitted(tmp_path, 8, again)
    assert history.epoch == [0, 1, 2, 3, 4] and stop.best_epoch == 2  # the first epoch that it saw
    assert "begins again after 2 epochs; ModelCheckpoint(path, save_best_only=True) keeps" in capsys.readouterr().out
    saved = "".join(path.read_bytes().decode("latin-1") for path in tmp_path.glob("ckpt-*.data*"))
    assert "best_epoch" in saved and "best_weights" not in saved


@pytest.mark.more("100 million weights: 400 MB are written and read")
def test_a_checkpoint_of_a_large_model_takes_what_its_weights_take(tmp_path):
    targets = tf.random.stateless_normal([2, 10_000], [1, 2])
    data = tf.data.Dataset.from_tensors((tf.ones([2, 10_000]), targets))

    def kernel_after_an_epoch():
        inputs = keras.Input((10_000,))
        model = bt.Model(inputs, keras.layers.Dense(10_000, use_bias=False, kernel_initializer="zeros")(inputs))
        model.compile("sgd", "mse")
        resume = bt.Resume(tmp_path, model, every=None)
        stop = callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)
        run = {"initial_epoch": resume.epoch, "epochs": 1, "callbacks": [stop, resume], "verbose": 0}
        model.fit(resume.data(lambda epoch: data), **run)
        return resume.restored, model.get_weights()[0]

    before, trained = kernel_after_an_epoch()
    again, restored = kernel_after_an_epoch()
    assert (before, again) == (False, True) and trained.any()
    np.testing.assert_array_equal(restored, trained)
    assert 4e8 <= sum(path.stat().st_size for path in tmp_path.iterdir()) < 4.01e8


def test_an_epoch_of_unknown_length_that_a_callback_stops_goes_on_after_a_restart(tmp_path):
    for seed, steps in ((1, 4), (2, BATCHES + 2)):  # within the first epoch, then within the second
        resume = Resume(tmp_path / "cut", model_of(seed=seed))
        train(resume, At(steps, partial(setattr, resume.model, "stop_training", True)), epoch_of=of_unknown_size)
        assert (resume.epoch, resume.step) == divmod({1: 4, 2: BATCHES + 6}[seed], BATCHES)
    assert train(Resume(tmp_path / "cut", model_of(seed=3)), epoch_of=of_unknown_size) == whole()


def test_a_fit_that_was_interrupted_in_a_step_asks_for_another_resume(tmp_path):
    resume = Resume(tmp_path, model_of(), every=2)
    with pytest.raises(Crash):
        train(resume, first=At(5, crash))  # the weights have this step, the count does not
    with pytest.raises(RuntimeError, match="make Resume again"):
        train(resume)


def test_a_fit_that_was_interrupted_in_a_validation_asks_for_another_resume(tmp_path):
    ends = [callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch == 1 and crash())]
    resume = Resume(tmp_path, model_of())
    run = {"epochs": 3, "verbose": 0, "shuffle": False}
    with pytest.raises(Crash):
        resume.model.fit(resume.data(epoch_of), callbacks=[resume, *ends], **run)
    with pytest.raises(RuntimeError, match="as in validation: make Resume again"):
        resume.model.fit(resume.data(epoch_of), initial_epoch=resume.epoch, callbacks=[resume], **run)
    _, history = fitted(tmp_path, 3, [])
    assert history.epoch == [0, 1, 2] and len(history.history["loss"]) == 3


def test_a_finished_training_asks_for_no_other_epoch(tmp_path):
    epochs = [epoch_of(0), epoch_of(1)]
    for _ in range(2):
        resume = Resume(tmp_path, model_of())
        run = {"initial_epoch": resume.epoch, "callbacks": [resume], "verbose": 0, "shuffle": False}
        history = resume.model.fit(resume.data(lambda epoch: epochs[epoch]), epochs=2, **run)
        assert history.epoch == [0, 1]
    with pytest.raises(IndexError):
        resume.model.fit(resume.data(lambda epoch: epochs[epoch]), epochs=3, **run)


def test_a_second_fit_goes_on_after_an_epoch_of_unknown_length(tmp_path):
    resume = Resume(tmp_path, model_of())
    train(resume, epoch_of=of_unknown_size, epochs=1)
    assert train(resume, epoch_of=of_unknown_size) == whole()


def test_callbacks_end_an_epoch_once_that_one_of_them_stopped(tmp_path):
    def plateaus():
        return [callbacks.EarlyStopping("loss", min_delta=100, patience=9)]

    resume = Resume(tmp_path / "cut", model_of())
    stops = At(BATCHES + 3, partial(setattr, resume.model, "stop_training", True))
    run = {"epochs": 3, "shuffle": False, "verbose": 0}
    resume.model.fit(resume.data(epoch_of), callbacks=[*plateaus(), stops, resume], **run)
    (again,) = plateaus()
    fitted(tmp_path / "cut", 3, [again])
    (once,) = plateaus()
    fitted(tmp_path / "whole", 3, [once])
    assert again.wait == once.wait == 2


class Shrinks(callbacks.Callback):
    """Changes the weights after each step; counts the steps that begin and end."""

    begun = ended = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1

    def on_train_batch_end(self, batch, logs=None):
        self.ended += 1
        kernel = self.model.trainable_variables[0]
        kernel.assign(0.99 * kernel)


@pytest.mark.parametrize("place", ["first", "last"])
def test_a_save_has_what_other_callbacks_do_after_the_step_and_they_see_each_step_once(place, tmp_path):
    expected = train(Resume(tmp_path / "whole", model_of()), **{place: Shrinks()})
    crashes = {"last": At(5, crash), "first": At(5, crash), place: Shrinks()}
    with pytest.raises(Crash):
        train(Resume(tmp_path / "cut", model_of(), every=2), **crashes)
    shrinks = Shrinks()
    assert train(Resume(tmp_path / "cut", model_of(seed=2), every=2), **{place: shrinks}) == expected
    assert shrinks.begun == shrinks.ended == EPOCHS * BATCHES - 4
