"""What a batch may hold, how it is cut, and the errors where it cannot be."""

import numpy as np
import pytest
from equal_models import examples, net, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train import micro_batches as batches


def compiled(model, **settings):
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **settings})
    return model


class Rows(keras.Model):
    """Reduces whatever tensor it gets to one feature."""

    def __init__(self, to_dense):
        super().__init__()
        self.to_dense, self.dense = to_dense, keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(self.to_dense(inputs))


TARGETS = np.ones((4, 1), "float32")
RAGGED = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0], [5.0]])
SPARSE = tf.sparse.from_dense(np.eye(4, dtype="float32"))
UNCUTTABLE = {
    "RaggedTensor": (RAGGED, lambda x: tf.reduce_sum(x, 1)[:, None]),
    "SparseTensor": (SPARSE, lambda x: tf.ensure_shape(tf.sparse.to_dense(x), [None, 4])),
}


@pytest.mark.parametrize("kind", UNCUTTABLE)
def test_ragged_and_sparse_inputs_train_uncut_and_refuse_to_be_cut(kind):
    inputs, to_dense = UNCUTTABLE[kind]
    data = tf.data.Dataset.from_tensors((inputs, TARGETS))
    model = compiled(bt.Model.of(Rows(to_dense)))
    model.fit(data, verbose=0, shuffle=False)
    model.micro_batches = 2
    with pytest.raises(ValueError, match=f"micro_batches cannot cut a {kind}: every input must be a tensor"):
        model.fit(data, verbose=0, shuffle=False)


def test_strings_are_cut_like_numbers():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    words = tf.constant([["a"], ["b"], ["a"], ["c"], ["b"]])
    data = tf.data.Dataset.from_tensors((words, np.ones((5, 1), "float32")))
    models = []
    for micro_batches in (1, 2):
        keras.utils.set_random_seed(1)
        models.append(compiled(bt.Model.of(Rows(lookup), micro_batches=micro_batches)))
        models[-1].fit(data, verbose=0, shuffle=False)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_scalar_among_the_inputs_refuses_to_be_cut():
    model = compiled(bt.Model.of(Rows(lambda x: x["x"] * x["factor"]), micro_batches=2))
    data = tf.data.Dataset.from_tensors(({"factor": 2.0, "x": examples(4)[0]}, TARGETS))
    with pytest.raises(ValueError, match="micro_batches cannot cut a scalar"):
        model.fit(data, verbose=0, shuffle=False)


def test_unlike_first_dimensions_refuse_to_be_cut():
    with pytest.raises(ValueError, match=r"unlike first dimensions: \(4, 2\), \(3,\)"):
        batches.cut((tf.zeros([4, 2]), tf.zeros([3])), 0, 2)


def test_cutting_keeps_the_structure_and_none():
    part = batches.cut(({"a": tf.range(6)}, None), 2, 3)
    assert part[0]["a"].numpy().tolist() == [2, 3, 4] and part[1] is None


def test_cutting_keeps_what_is_known_of_the_shape():
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 4, None, 3]), tf.TensorSpec([], tf.int32)])
    def trace(value, start):
        shapes.append(batches.cut(value, start, tf.minimum(start, 5)).shape)
        shapes.append(batches.cut(value, start, 5).shape)

    trace.get_concrete_function()
    assert shapes == [(None, 4, None, 3), (5, 4, None, 3)]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_micro_batches_must_be_a_whole_number(value):
    with pytest.raises(ValueError, match="micro_batches=.* must be a whole number of at least 1"):
        net(micro_batches=value)


def test_a_new_number_of_micro_batches_holds_from_the_next_fit_on():
    class Longest(keras.layers.Layer):
        def build(self, shape):
            self.longest = self.add_weight(dtype="int32", initializer="zeros", trainable=False)

        def call(self, x, training=False):
            if training:
                self.longest.assign(tf.maximum(self.longest, tf.shape(x)[0]))
            return x

    inputs, spy = keras.Input((6,)), Longest()
    model = compiled(bt.Model(inputs, keras.layers.Dense(1)(spy(inputs))))
    for micro_batches, length in [(1, 12), (3, 4), (12, 1), (1, 12)]:
        model.micro_batches = micro_batches
        spy.longest.assign(0)
        model.fit(*examples(12), batch_size=12, verbose=0)
        assert spy.longest.numpy() == length


@pytest.mark.parametrize("replicas", [1, 2])
def test_accumulation_by_the_optimizer_is_refused_beside_micro_batches(replicas):
    with on(replicas):
        model = compiled(net(micro_batches=2), optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="leave it out of the optimizer and give micro_batches"):
        model.fit(*examples(8), verbose=0)


def test_accumulation_by_the_optimizer_works_without_micro_batches_on_one_device():
    model = compiled(net(), optimizer=keras.optimizers.SGD(gradient_accumulation_steps=2))
    model.fit(*examples(8), batch_size=2, verbose=0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_single_batches_train_test_and_predict_without_fit(replicas):
    x, y = examples(8)
    with on(replicas):
        model = compiled(net(micro_batches=3), metrics=["mae"])
    with on(1):
        whole = compiled(net(keras.Model), metrics=["mae"])
    for _ in range(2):
        assert model.train_on_batch(x, y) == pytest.approx(whole.train_on_batch(x, y), rel=1e-5)
    assert model.test_on_batch(x, y) == pytest.approx(whole.test_on_batch(x, y), rel=1e-5)
    np.testing.assert_allclose(model.predict_on_batch(x)[:8], whole.predict_on_batch(x), rtol=1e-5)


@pytest.mark.parametrize("count", [11, 4, 1])
def test_evaluate_and_predict_are_exact_however_unevenly_batches_split(count):
    x, y = examples(count)
    with on(4):
        model = compiled(net(micro_batches=2), metrics=["mae"])
    with on(1):
        whole = compiled(net(keras.Model), metrics=["mae"])
    arguments = {"batch_size": 7, "verbose": 0}
    assert model.evaluate(x, y, **arguments) == pytest.approx(whole.evaluate(x, y, **arguments), rel=1e-5)
    np.testing.assert_allclose(model.predict(x, **arguments), whole.predict(x, **arguments), rtol=1e-5, atol=1e-6)
