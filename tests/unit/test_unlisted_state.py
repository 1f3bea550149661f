"""State that Keras does not list, of stateful RNNs and custom layers, is saved or refused by name."""

from collections import deque

import numpy as np
import pytest
from logical_cpus import mirrored
from resume_runs import At, Crash, X, Y, crash, model_of, train

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
    """Adds the running sum of its inputs' means, and the number of calls, a global variable."""

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


def recurrent():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,), batch_size=SIZE)
    x = keras.layers.LSTM(3, stateful=True, return_sequences=True)(keras.layers.Reshape((5, 1))(inputs))
    x = keras.layers.Bidirectional(keras.layers.GRU(2, stateful=True))(x)
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
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


class Accumulating(keras.optimizers.SGD):
    def build(self, variables):
        super().build(variables)
        self.sums = deque([tf.Variable(tf.zeros_like(one.value)) for one in variables])

    def update_step(self, gradient, variable, rate):
        total = self.sums[self._get_variable_index(variable)]
        super().update_step(total.assign_add(gradient), variable, rate)


def accumulating():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(Accumulating(0.01), "mse", jit_compile=False)
    return model


def test_a_variable_of_a_learning_rate_is_found():
    rate = tf.Variable(0.1)
    model = accumulating()
    model.compile(keras.optimizers.SGD(lambda: rate), "mse")
    assert [one is rate for one in unlisted_variables(model).values()] == [True]


@pytest.mark.parametrize(("make", "states"), [(recurrent, 4), (own, 3), (accumulating, 0)])
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
    with pytest.raises(ValueError, match="late.total: not listed by Keras, and created after Resume"):
        train(Resume(tmp_path, model, every=None), epoch_of=epoch_of)
    assert int(model.optimizer.iterations) == 1


class Node:
    def __init__(self, following, value=None):
        self.following, self.value = following, value


def chain(length, value):
    node = None
    for number in range(length):
        node = Node(node, None if number else value)
    return node


class Holder:
    def __init__(self, **held):
        vars(self).update(held)


def built_layer():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    return layer


def averages():
    average = tf.train.ExponentialMovingAverage(0.9)
    average.apply([tf.Variable(1.0)])
    return average


def a_module():
    module = tf.Module()
    module.total = tf.Variable(0.0)
    return module


def momentum():
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build([keras.Variable([1.0])])
    return optimizer


def a_function_of_tensorflow():
    total = tf.Variable(0.0)
    return tf.function(lambda: total.assign_add(1.0))


HELD = {
    "a long chain": (lambda: chain(3000, tf.Variable(0.0)), 1),
    "long ways": (lambda: chain(300, [tf.Variable(0.0), [tf.Variable(0.0)]]), 2),
    "a layer": (built_layer, 2),
    "a metric": (keras.metrics.Mean, 2),
    "an optimizer": (momentum, 3),
    "averages": (averages, 1),
    "a module": (a_module, 1),
    "a seed": (lambda: keras.random.SeedGenerator(1), 1),
    "a function": (a_function_of_tensorflow, 1),
}


@pytest.mark.parametrize(("make", "count"), HELD.values(), ids=HELD)
def test_what_hangs_in_an_object_of_ones_own_is_found(make, count):
    model = model_of()
    model.layers[1].helper = Holder(held=make())
    assert len(unlisted_variables(model)) == count


def test_what_is_in_keras_lists_is_not_found_again_in_an_object():
    model = model_of(metrics=["mae", keras.metrics.MeanSquaredError()])
    model.layers[1].helper = Holder(held=[model, model.optimizer, model.layers, model.metrics])
    assert unlisted_variables(model) == {}
    model.fit(X, Y, verbose=0)
    assert unlisted_variables(model) == {}


class Counting:
    def count(self):
        return counted.assign_add(0.1)


def add_to_counted():
    return counted.assign_add(0.1)


class ByBaseClass(Counting, keras.layers.Layer):
    def call(self, x):
        return x + self.count()


class ByFunctionInside(keras.layers.Layer):
    def call(self, x):
        def added(x):
            return x + counted.assign_add(0.1)

        return added(x)


class ByFunctionOfTheFile(keras.layers.Layer):
    def call(self, x):
        return x + add_to_counted()


class ByFunctionOfTensorFlow(keras.layers.Layer):
    @tf.function
    def call(self, x):
        return x + counted.assign_add(0.1)


@pytest.mark.parametrize("layer", [ByBaseClass, ByFunctionInside, ByFunctionOfTheFile, ByFunctionOfTensorFlow])
def test_a_variable_of_the_file_is_found_by_whatever_names_it(layer):
    model = keras.Sequential([keras.Input((5,)), layer(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert list(map(id, unlisted_variables(model).values())) == [id(counted)]


@pytest.mark.parametrize("settings", [{"micro_batches": 2, "shard_optimizer": True}, {"fully_shard": "wide"}])
def test_what_our_own_settings_make_is_no_state_of_the_reader(settings):
    with mirrored(2).scope():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4, name="wide"), keras.layers.Dense(1)]
        model = Model.of(keras.Sequential([keras.Input((5,)), *layers]), **settings)
        model.compile("adam", "mse", metrics=["mae"])
    model.fit(X, Y, verbose=0)
    assert unlisted_variables(model) == {} == unlisted_variables(model_of())
    assert np.isfinite(model.evaluate(X, Y, verbose=0)[0])
