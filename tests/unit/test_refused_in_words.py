"""Unsupported uses are refused in advance, with a message that says what to do instead."""

import numpy as np
import pytest
from equal_models import on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def small(make=bt.Model, **settings):
    inputs = keras.Input((2,))
    return make(inputs, keras.layers.Dense(1)(inputs), **settings)


def test_a_model_compiled_or_trained_outside_of_its_scope():
    with on(2):
        model = small()
    with pytest.raises(ValueError, match=r"built in the scope of a strategy with 2 replicas, but compiled outside"):
        model.compile("sgd", "mse")
    alone = small()
    alone.compile("sgd", "mse")
    for use in (lambda: alone.fit(X, Y, verbose=0), lambda: alone.compile("sgd", "mse")):
        with on(2), pytest.raises(ValueError, match="was built outside of this strategy's scope"):
            use()


class Loader:
    """Like PyTorch's, whose dataset is not a function."""

    dataset = (0,) * 100

    def __len__(self):
        return 10

    def __iter__(self):
        return iter([[0] * 10] * 10)


def test_a_function_that_returns_a_dataset_is_no_step():
    data = tf.data.Dataset.range(100).batch(10)
    for source in (lambda: data, lambda: Loader()):
        with pytest.raises(TypeError, match="calling it does no work: pass its return value"):
            bt.throughput(source, seconds=0.1)
    readable = r"an iterable that can be read again \(a list, a dataset, a class with __iter__\)"
    for source in (lambda: iter(data), lambda: (number for number in range(3))):
        with pytest.raises(TypeError, match=f"calling it does no work: pass {readable}"):
            bt.throughput(source, seconds=0.1)
    with pytest.raises(ValueError, match=f"source yielded no batch in a second pass: give {readable}"):
        bt.throughput((np.zeros([4, 2]) for _ in range(50)), seconds=0.1)
    for done in ([0.5], {"loss": 0.5}, np.zeros(3), None, "done"):
        assert bt.throughput(lambda done=done: done, seconds=0.02).unit == "steps/s"


class Counting(keras.Model):
    """Has a custom step that counts no examples."""

    def train_step(self, data):
        return {"own": tf.reduce_mean(self(data[0]))}


def test_a_meter_that_was_given_says_why_it_knows_nothing():
    model, meter = small(Counting), bt.Meter()
    model.compile("sgd", "mse")
    assert "give it to fit(..., callbacks=[meter])" in str(meter)
    model.fit(X, Y, batch_size=2, epochs=2, verbose=0, callbacks=[meter])
    assert "give it to fit" not in str(meter) and "the train_step of Counting counts no examples" in str(meter)
