"""An interrupted and resumed training run is bitwise identical to an uninterrupted one."""

import atexit
import signal
from functools import partial

import numpy as np
import pytest
from equal_models import OptimizersInADictionary, OptimizersOfTheNetworks, TwoNetworks
from logical_cpus import mirrored
from resume_runs import (
    BATCHES,
    EPOCHS,
    At,
    Crash,
    cut,
    cut_after_5,
    epoch_of,
    growing_scale,
    model_of,
    names,
    of_unknown_size,
    state,
    terminate,
    train,
    whole,
)

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.epoch_by_epoch import EpochByEpoch
from bigtrain_nb.train.first_batches import FirstBatches
from bigtrain_nb.train.preemption import PREEMPTED
from bigtrain_nb.train.resume import Resume, _sharded_by_batches


def stock_model(seed=1):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((5,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    with mirrored(2).scope():
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
    tf.random.set_seed(0)
    return model


def scaled_model(seed=1):
    return model_of(mirrored(2), seed, "mixed_float16", growing_scale, micro_batches=2)


def two_networks(seed=1, build=True, kind=TwoNetworks):
    keras.utils.set_random_seed(seed)
    model = kind(*(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]) for _ in range(2)))
    model.compile()
    if build:
        for network, optimizer in zip(model.networks, (model.of_first, model.of_second), strict=True):
            optimizer.build(network.trainable_variables)
    tf.random.set_seed(0)
    return model


class Noise(keras.layers.Layer):
    def call(self, x):
        return x + 0.1 * keras.random.normal(tf.shape(x))  # without a seed, from a generator of no layer


def noisy_model(seed=1):
    keras.backend.clear_session()  # as in a new process, with a new generator
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((5,)), Noise(), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    tf.random.set_seed(0)
    return model


OWN_OPTIMIZERS = {
    TwoNetworks: r"of_first of two_networks\w* has no variables yet.* of_first.build",
    OptimizersInADictionary: r"kept\['first'\] of optimizers_in_a_dictionary\w* has no variables yet",
    OptimizersOfTheNetworks: r"optimizer of sequential\w* has no variables yet",
}


@pytest.mark.parametrize("kind", OWN_OPTIMIZERS)
def test_an_optimizer_of_a_models_own_is_refused_before_it_is_built(kind, tmp_path):
    with pytest.raises(ValueError, match=OWN_OPTIMIZERS[kind]):
        Resume(tmp_path, two_networks(build=False, kind=kind))


def test_a_seed_set_in_make_epoch_leaves_the_generator_of_noise(tmp_path):
    def seeded(epoch):
        keras.utils.set_random_seed(7 + epoch)
        return epoch_of(epoch)

    expected = train(Resume(tmp_path / "whole", noisy_model()), epoch_of=seeded)
    cut(tmp_path / "cut", BATCHES + 4, noisy_model, epoch_of=seeded)
    assert train(Resume(tmp_path / "cut", noisy_model()), epoch_of=seeded) == expected


@pytest.mark.parametrize("make", [scaled_model, stock_model, noisy_model, two_networks])
def test_a_resumed_training_has_the_same_bits(make, tmp_path):
    expected = train(Resume(tmp_path / "whole", make()))
    cut(tmp_path / "cut", BATCHES + 5, make)
    resume = Resume(tmp_path / "cut", make(seed=2))
    assert (resume.restored, resume.epoch, resume.step) == (True, 1, 4)
    assert train(resume) == expected


def of_one_size(epoch):
    """Drop the short batch: Keras 3.16 would retrace for it, and from then on run a graph that rounds differently."""
    return epoch_of(epoch).take(BATCHES - 1)


def test_the_last_step_of_an_epoch_can_be_the_last_one_before_a_restart(tmp_path):
    expected = train(Resume(tmp_path / "whole", model_of()), epoch_of=of_one_size)
    cut(tmp_path / "cut", BATCHES - 1, every=1, epoch_of=of_one_size)
    assert train(Resume(tmp_path / "cut", model_of(seed=2), every=1), epoch_of=of_one_size) == expected


@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_several_steps_per_execution(tmp_path):
    def make(seed=1):
        return model_of(seed=seed, steps_per_execution=4)

    expected = train(Resume(tmp_path / "whole", make()), epoch_of=of_unknown_size)
    cut(tmp_path / "cut", 3 + 2, make, every=3, epoch_of=of_unknown_size)
    resume = Resume(tmp_path / "cut", make(seed=2), every=3)
    assert (resume.epoch, resume.step) == (1, 4)
    assert train(resume, epoch_of=of_unknown_size) == expected


@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_a_last_execution_of_fewer_steps_in_the_first_epoch_of_unknown_size_is_gone_on_from(tmp_path):
    class DiesInValidation(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            raise Crash

    def fit(folder, *more):
        model = model_of(steps_per_execution=4)
        resume = Resume(tmp_path / folder, model, every=1)
        run = {"initial_epoch": resume.epoch, "epochs": 2, "verbose": 0, "shuffle": False}
        data = resume.data(of_unknown_size)
        model.fit(data, validation_data=of_unknown_size(0), callbacks=[resume, *more], **run)
        return state(model)

    assert BATCHES % 4
    expected = fit("whole")
    with pytest.raises(Crash):
        fit("cut", DiesInValidation())
    assert fit("cut") == expected


@pytest.mark.parametrize(
    ("every", "kept"),
    [(4, [8, 9]), (None, [2, 3]), (1, [26, 27])],  # 8, 9: three per epoch, three epochs
)
def test_saves_are_as_often_as_asked_for_and_two_are_kept(every, kept, tmp_path):
    resume = Resume(tmp_path, model_of(), every)
    for _ in resume.epochs(EPOCHS):
        for _ in resume.rest(epoch_of(0)):
            resume.step_done()
    assert [name for name in names(tmp_path) if name.endswith(".index")] == [f"ckpt-{number}.index" for number in kept]


@pytest.mark.parametrize(("step", "epoch", "kept"), [(BATCHES, 1, 0), (BATCHES + 3, 1, 3)])
def test_sigterm_saves_and_leaves(step, epoch, kept, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    before = signal.getsignal(signal.SIGTERM)
    resume = Resume(tmp_path, model_of(), every=None)
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(SystemExit) as left:
        train(resume, first=At(step, terminate))  # runs before the step is counted
    assert left.value.code == PREEMPTED == 75
    assert f"saved after {epoch} epochs and {kept} steps" in capsys.readouterr().out
    del left
    assert signal.getsignal(signal.SIGTERM) == before
    resume = Resume(tmp_path, model_of(seed=2))
    assert (resume.epoch, resume.step) == (epoch, kept)
    assert train(resume) == whole()


def test_sigterm_in_a_validation_says_when_it_saves(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    validates = keras.callbacks.LambdaCallback()
    validates.on_test_begin = lambda logs: terminate()
    with pytest.raises(SystemExit):
        train(Resume(tmp_path, model_of(), every=None), validates, validation_data=epoch_of(0))
    said = capsys.readouterr().out
    assert said.count("SIGTERM: this process saves and exits after the validation") == 1
    assert said.endswith("saved after 1 epochs and 0 steps, exiting\n")


def test_a_worker_that_is_not_the_chief_says_what_the_chief_has_saved(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    resume = Resume(tmp_path, model_of())
    resume._chief, resume._ask = False, lambda _: np.array([[1, 0], [0, 0]])  # the chief has found a NaN
    with pytest.raises(SystemExit):
        resume._save(stop=True)
    assert "SIGTERM: nothing saved after 0 epochs" in capsys.readouterr().out


def test_a_learning_rate_that_the_checkpoint_replaces_is_named(tmp_path, capsys):
    def several(rate):
        model = model_of(optimizer=partial(keras.optimizers.SGD, rate))
        model.another = keras.optimizers.Adam(rate / 2)
        model.another.build(model.trainable_variables)
        return model

    for _ in Resume(tmp_path, several(0.1)).epochs(1):
        pass
    Resume(tmp_path, several(0.1))
    assert capsys.readouterr().out == ""
    model = several(0.02)
    Resume(tmp_path, model)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and float(model.optimizer.learning_rate) == pytest.approx(0.1)
    assert said[0].startswith("The learning rate of model.optimizer is 0.1, as in the checkpoint, not 0.02")
    assert said[1].startswith("The learning rate of model.another is 0.05, as in the checkpoint, not 0.01")


def test_a_loop_that_would_train_batches_twice_after_a_restart_is_refused(tmp_path):
    resume = Resume(cut_after_5(tmp_path), model_of())
    with pytest.raises(RuntimeError, match=r"4 steps of epoch 0 were done before.* over resume.rest\(dataset\)"):
        for _ in resume.epochs(1):
            for _ in epoch_of(0):
                resume.step_done()
    assert resume.step == 4
    for _ in resume.epochs(2):
        for _ in epoch_of(1) if resume.epoch else resume.rest(epoch_of(0)):
            resume.step_done()
    assert resume.epoch == 2


def test_what_would_train_batches_twice_is_refused(tmp_path):
    resume = Resume(cut_after_5(tmp_path), model_of())

    def refused(words, call, *given, error=ValueError, **more):
        with pytest.raises(error, match=words):
            call(*given, **more)

    def refused_fit(words, data, callbacks=(resume,), **more):
        refused(words, resume.model.fit, data, shuffle=False, verbose=0, callbacks=list(callbacks), **more)

    refused_fit(r"fit needs a dataset returned by resume.data: model.fit\(resume.data\(make_epoch", epoch_of(0))
    data = resume.data(epoch_of)
    refused_fit(r"fit does not train on the dataset that resume.data\(make_epoch\) returned", epoch_of(0))
    refused_fit(r"initial_epoch=1, but 0 epochs are done.* initial_epoch=resume.epoch", data, initial_epoch=1)
    refused_fit(r"steps_per_epoch=3 must be left out, .* return dataset.take\(steps\)", data, steps_per_epoch=3)
    refused_fit("without this Resume among the callbacks, fit would save nothing", data, [])
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    refused_fit("BackupAndRestore and Resume both set where training resumes", data, [resume, backup])
    refused("the dataset has only 3: it must be", resume.data, lambda epoch: epoch_of(epoch).take(3))
    refused("the dataset has only 3: it must be the same as", resume.rest, epoch_of(0).take(3))
    refused("is infinite; use dataset.take", resume.data, lambda epoch: epoch_of(epoch).repeat())
    refused(r"is infinite; use dataset.take\(steps\)", resume.rest, epoch_of(0).repeat())
    once = r"call it once, model.fit\(resume.data\(make_epoch\), initial_epoch="
    for _ in resume.epochs(1):
        refused(once, resume.model.fit, resume.rest(epoch_of(0)), callbacks=[], error=RuntimeError)
        refused(once, resume.model.fit, resume.rest(epoch_of(0)), callbacks=[resume], error=RuntimeError)
        break
    refused("inside `for epoch in resume.epochs", resume.step_done, error=RuntimeError)
    resume.model.compile("sgd", "mse")
    refused_fit("compiled again, with another optimizer: make Resume after compile", data)


def test_a_checkpoint_without_first_batches_is_gone_on_from(tmp_path):
    """That of a custom loop that does not read its dataset by `rest`: its order cannot be compared."""
    resume = Resume(tmp_path, model_of(), every=2)
    for _ in resume.epochs(1):
        for x, y in epoch_of(0).take(4):
            resume.model.train_on_batch(x, y)
            resume.step_done()
        break
    resume = Resume(tmp_path, model_of(seed=2))
    assert (resume.epoch, resume.step) == (0, 4)
    train(resume, epochs=1)
    assert resume.model.optimizer.iterations.numpy() == BATCHES


def test_epochs_of_other_lengths_are_refused():
    epochs = EpochByEpoch(lambda epoch: epoch_of(epoch).take(BATCHES - epoch), 0, None, FirstBatches().noting)
    epochs.select_epoch(0)
    with pytest.raises(
        ValueError, match=r"make_epoch\(1\) has 8 batches of .*, but the first epoch had 9 .*\(batches\)"
    ):
        epochs.select_epoch(1)


def test_workers_share_out_batches_and_never_files():
    policies = tf.data.experimental.AutoShardPolicy
    shared = _sharded_by_batches(epoch_of(0))
    assert shared.options().experimental_distribute.auto_shard_policy == policies.DATA
    by_file = tf.data.Options()
    by_file.experimental_distribute.auto_shard_policy = policies.FILE
    with pytest.raises(ValueError, match="auto_shard_policy is FILE, so the number of steps does not show"):
        _sharded_by_batches(epoch_of(0).with_options(by_file))
