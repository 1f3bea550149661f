"""A training that is cut short and resumed ends with the same bits as one that is not."""

import atexit
import signal
from itertools import product

import pytest
from logical_cpus import mirrored
from resume_runs import (
    ALONE,
    BATCHES,
    EPOCHS,
    At,
    Crash,
    crash,
    cut,
    cut_after_5,
    epoch_of,
    growing_scale,
    model_of,
    names,
    of_unknown_size,
    seeds,
    state,
    terminate,
    train,
    whole,
)

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.preemption import PREEMPTED
from bigtrain_nb.train.resume import Resume
from bigtrain_nb.train.train_state import TrainState

CASES = {
    "float32-adamw": {},
    "three-micro-batches": {"micro_batches": 3},
    "mixed_float16-growing-scale": {"policy": "mixed_float16", "optimizer": growing_scale, "micro_batches": 2},
}


@pytest.mark.parametrize(("case", "replicas"), [*product(CASES, [1]), *product(list(CASES)[1:], [2])])
def test_a_resumed_training_has_the_same_bits(case, replicas, tmp_path):
    def make(seed=1):
        return model_of(mirrored(replicas) if replicas > 1 else None, seed, **CASES[case])

    expected = train(Resume(tmp_path / "whole", make()))
    cut(tmp_path / "cut", BATCHES + 5, make)
    resume = Resume(tmp_path / "cut", make(seed=2))
    assert (resume.restored, resume.epoch, resume.step) == (True, 1, 4)
    assert train(resume) == expected


def test_replicas_that_had_fewer_slices_resume_with_their_own_seeds(tmp_path):
    def make(seed=1):
        return model_of(mirrored(2), seed, micro_batches=3)

    cut(tmp_path, BATCHES + 5, make)
    drawn = seeds(Resume(tmp_path, make(seed=2)).model)
    assert len(drawn) == 2
    for first, second in drawn:
        assert first[0] == second[0]
        assert first[1] - second[1] == 1  # the last batch of epoch 0 has one example


def test_without_the_seeds_dropout_would_go_on_differently(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainState, "assign_seeds", lambda _: None)
    assert train(Resume(cut_after_5(tmp_path), model_of())) != whole()


def test_a_checkpoint_of_two_replicas_goes_on_with_one_and_with_three(tmp_path):
    cut(tmp_path, 5, lambda: model_of(mirrored(2)))
    before = [weight.tobytes() for weight in Resume(tmp_path, model_of(mirrored(2), seed=2)).model.get_weights()]
    for strategy in (None, mirrored(3)):
        model = Resume(tmp_path, model_of(strategy, seed=2)).model
        assert [weight.tobytes() for weight in model.get_weights()] == before
    train(Resume(tmp_path, model_of()))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_stock_keras_model_resumes_too(replicas, tmp_path):
    def make(seed=1):
        keras.utils.set_random_seed(seed)
        with (mirrored(replicas) if replicas > 1 else ALONE()).scope():
            layers = [keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile("adam", "mse")
        tf.random.set_seed(0)
        return model

    expected = train(Resume(tmp_path / "whole", make()))
    cut(tmp_path / "cut", BATCHES + 5, make)
    assert train(Resume(tmp_path / "cut", make(seed=2))) == expected


@pytest.mark.parametrize("steps", [1, BATCHES - 1, BATCHES, BATCHES + 1, 3 * BATCHES])
def test_any_step_can_be_the_last_one_before_a_restart(steps, tmp_path):
    cut(tmp_path, steps, every=1)
    assert train(Resume(tmp_path, model_of(seed=2), every=1)) == whole()


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("size", ["known", "unknown"])
def test_several_steps_per_execution(size, tmp_path):
    def make(seed=1):
        return model_of(seed=seed, steps_per_execution=4)

    def data(epoch):
        return epoch_of(epoch) if size == "known" else of_unknown_size(epoch_of(epoch))

    expected = train(Resume(tmp_path / "whole", make()), epoch_of=data)
    cut(tmp_path / "cut", 3 + 1, make, every=3, epoch_of=data)
    resume = Resume(tmp_path / "cut", make(seed=2), every=3)
    assert (resume.epoch, resume.step) == (1, 4)
    assert train(resume, epoch_of=data) == expected


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_epoch_of_unknown_size_that_was_trained_to_its_end(replicas, tmp_path):
    def make(seed=1):
        return model_of(mirrored(replicas) if replicas > 1 else None, seed)

    def data(epoch):
        return of_unknown_size(epoch_of(epoch))

    expected = train(Resume(tmp_path / "whole", make()), epoch_of=data)
    with pytest.raises(Crash):
        resume = Resume(tmp_path / "cut", make(), every=1)
        train(resume, At(BATCHES, lambda: setattr(resume, "on_epoch_end", lambda *_: crash())), epoch_of=data)
    resume = Resume(tmp_path / "cut", make(seed=2))
    assert (resume.epoch, resume.step) == (0, BATCHES)
    assert train(resume, epoch_of=data) == expected


def test_a_loop_of_ones_own(tmp_path):
    def loop(resume, until=10**6):
        model = resume.model
        for epoch in resume.epochs(EPOCHS):
            for x, y in resume.rest(epoch_of(epoch)):
                model.train_on_batch(x, y)
                resume.step_done()
                until -= 1
                if until == 0:
                    raise Crash
        return state(model)

    expected = loop(Resume(tmp_path / "whole", model_of()))
    with pytest.raises(Crash):
        loop(Resume(tmp_path / "cut", model_of(), every=2), BATCHES + 5)
    assert loop(Resume(tmp_path / "cut", model_of(seed=2), every=2)) == expected


def test_saves_are_as_often_and_as_many_as_asked_for(tmp_path):
    saved = []
    for every, keep in ((4, 2), (None, 1), (1, 3)):
        folder = tmp_path / str(every)
        train(Resume(folder, model_of(), every, keep))
        saved.append([name for name in names(folder) if name.endswith(".index")])
    assert saved == [
        ["ckpt-8.index", "ckpt-9.index"],  # after 4 and 8 steps and at the end, three times
        ["ckpt-3.index"],
        ["ckpt-25.index", "ckpt-26.index", "ckpt-27.index"],
    ]


def test_a_training_that_is_done_trains_no_more(tmp_path):
    done = train(Resume(tmp_path, model_of()))
    resume = Resume(tmp_path, model_of(seed=2))
    assert (resume.epoch, resume.step) == (EPOCHS, 0)
    assert train(resume) == done
    assert train(resume, epochs=EPOCHS + 1) != done


def test_a_fresh_start_changes_nothing(tmp_path):
    model = model_of()
    before = [weight.tobytes() for weight in model.get_weights()]
    resume = Resume(tmp_path / "deep" / "down", model)
    assert (resume.restored, resume.epoch, resume.step) == (False, 0, 0)
    assert [weight.tobytes() for weight in model.get_weights()] == before
    assert names(tmp_path / "deep" / "down") == []


def test_rest_leaves_out_what_is_done(tmp_path):
    resume = Resume(cut_after_5(tmp_path), model_of())
    left = [x.numpy().tobytes() for x, _ in resume.rest(epoch_of(0))]
    assert left == [x.numpy().tobytes() for x, _ in epoch_of(0)][4:]


@pytest.mark.parametrize(("step", "epoch", "kept"), [(BATCHES, 1, 0), (BATCHES + 3, 1, 3), (27, 3, 0)])
def test_sigterm_saves_and_leaves(step, epoch, kept, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    resume = Resume(tmp_path, model_of(), every=None)
    with pytest.raises(SystemExit) as left:
        # in front of `resume` among the callbacks, so that it comes before the step is counted
        for e in resume.epochs(EPOCHS):
            run = {"initial_epoch": e, "epochs": e + 1, "shuffle": False, "verbose": 0}
            callbacks = [At(step - e * BATCHES, terminate), resume]
            resume.model.fit(resume.rest(epoch_of(e)), callbacks=callbacks, **run)
    assert left.value.code == PREEMPTED == 75
    assert f"saved after {epoch} epochs and {kept} steps" in capsys.readouterr().out
    del left
    assert signal.getsignal(signal.SIGTERM) == before
    resume = Resume(tmp_path, model_of(seed=2))
    assert (resume.epoch, resume.step) == (epoch, kept)
    assert train(resume) == whole()


def test_sigterm_ends_the_process_as_usual_outside_the_loop(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    resume = Resume(tmp_path, model_of())
    assert signal.getsignal(signal.SIGTERM) == before
    train(resume)
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_would_train_batches_twice_is_refused(tmp_path):
    resume = Resume(cut_after_5(tmp_path), model_of())
    run = {"shuffle": False, "verbose": 0, "callbacks": [resume]}
    with pytest.raises(ValueError, match=r"4 steps of epoch 0 are done: give fit resume.rest\(dataset\)"):
        for _ in resume.epochs(2):
            resume.model.fit(epoch_of(0), **run)
    with pytest.raises(ValueError, match="fit begins epoch 1, but epoch 0 is to be trained"):
        resume.model.fit(epoch_of(1), initial_epoch=1, epochs=2, **run)
    with pytest.raises(ValueError, match="the dataset has 3: it must be as it was"):
        resume.rest(epoch_of(0).take(3))
    assert len(list(resume.rest(epoch_of(0).take(4)))) == 0


def test_several_epochs_in_one_fit_are_refused(tmp_path):
    resume = Resume(tmp_path, model_of())
    with pytest.raises(ValueError, match="fit begins epoch 1, but epoch 0"):
        for _ in resume.epochs(2):
            resume.model.fit(resume.rest(epoch_of(0)), epochs=2, shuffle=False, verbose=0, callbacks=[resume])


def test_training_outside_the_loop_is_refused(tmp_path):
    resume = Resume(tmp_path, model_of())
    with pytest.raises(RuntimeError, match="inside `for epoch in resume.epochs"):
        resume.model.fit(epoch_of(0), shuffle=False, verbose=0, callbacks=[resume])
    with pytest.raises(RuntimeError, match="inside `for epoch in resume.epochs"):
        resume.step_done()


def test_a_loop_that_was_left_counts_no_more_steps(tmp_path):
    resume = Resume(tmp_path, model_of())
    for _ in resume.epochs(2):
        resume.step_done()
        break
    with pytest.raises(RuntimeError, match="inside `for epoch in resume.epochs"):
        resume.step_done()


@pytest.mark.parametrize("steps", [-5, 0.5, None, True])
def test_what_is_no_number_of_steps_is_refused(steps, tmp_path):
    resume = Resume(tmp_path, model_of())
    for _ in resume.epochs(1):
        with pytest.raises(ValueError, match=f"steps={steps!r} must be a whole number of at least 0"):
            resume.step_done(steps)
        assert resume.step == 0


def test_what_has_no_rest(tmp_path):
    resume = Resume(tmp_path, model_of())
    with pytest.raises(ValueError, match=r"rest\(\) takes a tf.data.Dataset of batches, .* not \[1, 2\]"):
        resume.rest([1, 2])
    with pytest.raises(ValueError, match=r"no end, so no epochs: dataset.take\(steps\)"):
        resume.rest(epoch_of(0).repeat())


def test_how_several_workers_share_a_dataset(tmp_path, monkeypatch):
    policies = tf.data.experimental.AutoShardPolicy
    monkeypatch.setattr("bigtrain_nb.train.resume.several_workers", lambda _: True)
    resume = Resume(tmp_path, model_of())
    for policy in policies:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        dataset = epoch_of(0).with_options(options)
        if policy in (policies.AUTO, policies.DATA):
            chosen = resume.rest(dataset).options().experimental_distribute.auto_shard_policy
            assert chosen == policies.DATA
        else:
            with pytest.raises(ValueError, match=f"auto_shard_policy is {policy.name}"):
                resume.rest(dataset)
