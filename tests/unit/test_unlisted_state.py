"""State that Keras does not list, of stateful RNNs and of one's own, is saved, or refused by name."""

import numpy as np
import pytest
from logical_cpus import mirrored
from resume_runs import At, Crash, X, Y, crash, model_of, state, train

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.model import Model
from bigtrain_nb.train.resume import Resume
from bigtrain_nb.train.unlisted import unlisted_variables

SIZE = 6
counted = tf.Variable(0.0, name="counted")


def epoch_of(epoch):
    examples = tf.data.Dataset.from_tensor_slices((X, Y))
    return examples.shuffle(len(X), seed=epoch, reshuffle_each_iteration=False).batch(SIZE, drop_remainder=True)


class Memory:
    def __init__(self):
        self.total = tf.Variable(0.0)


class Running(keras.layers.Layer):
    """Adds the running sum of what it has seen, and the number of calls, which is a variable of this file."""

    def __init__(self):
        super().__init__()
        self.memories = {"sum": [Memory()]}

    def call(self, x):
        total = self.memories["sum"][0].total
        total.assign_add(tf.reduce_mean(x))
        counted.assign_add(0.1)
        return x + total + counted


class Growing(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(1.0)

    def call(self, y_true, y_pred):
        self.weight.assign_add(0.5)
        return self.weight * tf.reduce_mean((y_true - y_pred) ** 2, -1)


def recurrent(kind=keras.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), batch_size=SIZE)
    x = keras.layers.LSTM(3, stateful=True, return_sequences=True)(keras.layers.Reshape((5, 1))(inputs))
    x = keras.layers.Bidirectional(keras.layers.GRU(2, stateful=True))(x)
    model = kind(inputs, keras.layers.Dense(1)(x))
    model.compile("adam", "mse")
    return model


def own():
    keras.utils.set_random_seed(1)
    counted.assign(0.0)
    model = keras.Sequential([keras.Input((5,)), Running(), keras.layers.Dense(1)])
    model.compile("adam", Growing())
    return model


def everything(resume, *callbacks):
    weights = train(resume, *callbacks, epoch_of=epoch_of)
    return weights + [variable.numpy().tobytes() for variable in unlisted_variables(resume.model).values()]


@pytest.mark.parametrize(("make", "states"), [(recurrent, 4), (own, 3)])
def test_a_training_goes_on_with_state_that_keras_does_not_list(make, states, tmp_path):
    model = make()
    assert len(unlisted_variables(model)) == states
    whole = everything(Resume(tmp_path / "whole", model))
    with pytest.raises(Crash):
        everything(Resume(tmp_path / "cut", make(), every=2), At(5, crash))
    resume = Resume(tmp_path / "cut", make())
    assert resume.step == 4
    assert everything(resume) == whole


def test_what_is_made_after_resume_is_refused_by_name(tmp_path):
    class Late(keras.layers.Layer):
        total = None

        def call(self, x):
            if self.total is None:
                with tf.init_scope():
                    self.total = tf.Variable(0.0)
            return x + self.total.assign_add(0.1)

    late = Late(name="late")
    model = keras.Sequential([keras.Input((5,)), late, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    late.total = None
    with pytest.raises(ValueError, match="late.total: in none of Keras' lists of variables, and made after Resume"):
        train(Resume(tmp_path, model, every=2), epoch_of=epoch_of)


def test_a_checkpoint_that_has_no_such_state_is_read(tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr("bigtrain_nb.train.resume.unlisted_variables", lambda model: {})
        train(Resume(tmp_path, recurrent(), every=2), At(5, crash), epoch_of=epoch_of)
    resume = Resume(tmp_path, recurrent())
    assert resume.step == 4
    assert "ckpt-2 has no state beside Keras' lists" in capsys.readouterr().out
    train(resume, epoch_of=epoch_of)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["ckpt-4.index", "ckpt-5.index"]
    again = Resume(tmp_path, recurrent())
    assert state(again.model) == state(resume.model) and not capsys.readouterr().out


@pytest.mark.parametrize("call", ["fit", "train_on_batch"])
def test_a_stateful_layer_on_two_replicas_is_refused_in_words(call):
    with mirrored(2).scope():
        model = recurrent(Model)
    batches = epoch_of(0)
    with pytest.raises(ValueError, match="lstm.*: stateful=True carries a state .* one device"):
        model.fit(batches, verbose=0) if call == "fit" else model.train_on_batch(*next(iter(batches)))


@pytest.mark.parametrize("settings", [{"micro_batches": 2}, {"shard_optimizer": True}, {"fully_shard": "wide"}])
def test_what_our_own_settings_make_is_no_state_of_the_reader(settings):
    with mirrored(2).scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4, name="wide"), keras.layers.Dense(1)]
        model = Model.of(keras.Sequential([keras.Input((5,)), *layers]), **settings)
        model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    assert unlisted_variables(model) == {} == unlisted_variables(model_of())
    assert np.isfinite(model.evaluate(X, Y, verbose=0)[0])
