"""Batches whose tensors differ in their first axis are refused by name; scalars are not split into micro-batches."""

from contextlib import nullcontext

import numpy as np
import pytest
from equal_models import distance, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

RANDOM = np.random.default_rng(0)
QUERY, TABLE = (RANDOM.normal(size=(count, 3)).astype("float32") for count in (8, 16))
NODES, LENGTHS = RANDOM.normal(size=(31, 3)).astype("float32"), np.array([3, 4, 5, 3, 4, 5, 3, 4])
CLASSES = RANDOM.integers(0, 3, 8)


class Scores(keras.Model):
    """Scores of queries against all rows of a table if given, otherwise for three classes, times a scalar."""

    def __init__(self):
        super().__init__()
        self.of_query, self.of_table = keras.layers.Dense(3), keras.layers.Dense(3)

    def call(self, x):
        scores = self.of_query(x["query"])
        if "table" in x:
            return tf.matmul(scores, self.of_table(x["table"]), transpose_b=True)
        return scores * x.get("scale", 1.0)


def compiled(replicas, micro_batches=1, make=Scores, loss=None, **settings):
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = bt.Model.of(make(), micro_batches=micro_batches)
        loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, **{"jit_compile": False, **settings})
    return model


def dataset(x, y=CLASSES, is_known=True):
    """Return two batches whose tensors have known or unknown lengths."""
    data = tf.data.Dataset.from_tensors((x, y)).repeat(2)
    if is_known:
        return data
    spec = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), data.element_spec)
    return tf.data.Dataset.from_generator(lambda: iter([(x, y)] * 2), output_signature=spec)


@pytest.mark.parametrize("way", ["fit", "evaluate"])
@pytest.mark.parametrize(("replicas", "micro_batches", "is_known"), [(1, 2, True), (2, 1, False)])
def test_a_table_beside_the_examples_is_refused_by_name(replicas, micro_batches, is_known, way):
    model = compiled(replicas, micro_batches)
    data = dataset({"query": QUERY, "table": TABLE}, is_known=is_known)
    is_divided = way == "fit" or replicas > 1
    error = (ValueError, tf.errors.InvalidArgumentError)
    said = "(?s)x/query .*x/table .*row for each example"
    with pytest.raises(error, match=said) if is_divided else nullcontext():
        getattr(model, way)(data, verbose=0)


@pytest.mark.parametrize("is_known", [True, False])
def test_predictions_for_a_table_are_refused_on_replicas(is_known):
    data = dataset({"query": QUERY, "table": TABLE}, is_known=is_known).map(lambda x, y: x)
    with pytest.raises(ValueError, match=r"2 replicas cannot split this batch.*x/query.*x/table"):
        compiled(2).predict(data, verbose=0)
    assert compiled(1).predict(data, verbose=0).shape == (16, 16)


class Graphs(keras.Model):
    """Graphs, given as the features of all nodes and the number of nodes per graph."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        nodes, lengths = x
        which = tf.repeat(tf.range(tf.shape(lengths)[0]), tf.cast(lengths, tf.int32))
        return tf.math.unsorted_segment_sum(self.dense(nodes), which, tf.shape(lengths)[0])


@pytest.mark.parametrize(
    ("replicas", "micro_batches", "settings"),
    [(2, 1, {}), (1, 2, {"jit_compile": True}), (2, 2, {"run_eagerly": True})],
    ids=["graph", "xla", "eager"],
)
def test_graphs_are_refused_by_name(replicas, micro_batches, settings):
    model = compiled(replicas, micro_batches, Graphs, **settings)
    with pytest.raises(ValueError, match=r"cannot split this batch.*x/0 \(31, 3\), x/1 \(8,\), y \(8,\)"):
        model.fit(dataset((NODES, LENGTHS)), verbose=0)
    assert compiled(1, 1, Graphs, **settings).fit(dataset((NODES, LENGTHS)), verbose=0).history["loss"][0] > 0


def test_sample_weights_of_another_length_are_refused_by_name():
    data = tf.data.Dataset.from_tensors(({"query": QUERY}, CLASSES, tf.ones(1)))
    with pytest.raises(ValueError, match=r"micro_batches=2 cannot split this batch.*sample_weight \(1,\)"):
        compiled(1, 2).fit(data, verbose=0)


@pytest.mark.parametrize(
    ("settings", "y"),
    [({"run_eagerly": True}, CLASSES), ({"jit_compile": True, "steps_per_execution": 2}, np.int64(1))],
    ids=["targets", "a scalar as target"],
)
def test_scalars_are_whole_in_each_micro_batch_as_in_the_batch(settings, y):
    def own(y, outputs):
        return keras.losses.sparse_categorical_crossentropy(y + tf.zeros_like(outputs[:, 0], y.dtype), outputs, True)

    data = tf.data.Dataset.from_tensors(({"query": QUERY, "scale": np.float32(0.5)}, y)).repeat(2)
    whole, model = (compiled(1, count, loss=own, **settings) for count in (1, 3))
    for each in (whole, model):
        each.fit(data, verbose=0)
    assert distance(model, whole) < 1e-6
    assert model.evaluate(data, verbose=0) == pytest.approx(whole.evaluate(data, verbose=0), rel=1e-6)


def test_a_scalar_is_refused_by_name_on_replicas():
    data = tf.data.Dataset.from_tensors(({"query": QUERY, "scale": np.float32(0.5)}, CLASSES))
    for way in ("fit", "evaluate"):
        with pytest.raises(
            ValueError, match=r"x/scale is a scalar, but TensorFlow splits every tensor by rows among 2 replicas"
        ):
            getattr(compiled(2), way)(data, verbose=0)


def test_one_scalar_as_sample_weight_is_refused_where_the_mean_is_by_weights():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    data = tf.data.Dataset.from_tensors(({"query": QUERY}, CLASSES, np.float32(2)))
    with pytest.raises(ValueError, match="needs a sample_weight for each example"):
        compiled(1, 2, loss=loss).fit(data, verbose=0)


class WithOptional(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        first, optional = x
        return self.dense(first if optional is None else first + optional)


@pytest.mark.parametrize("way", ["arrays", "generator"])
def test_an_optional_input_that_is_left_out_is_refused_by_name_on_replicas(way):
    def given():
        return ((QUERY, None), CLASSES) if way == "arrays" else ((each for each in [((QUERY, None), CLASSES)] * 2),)

    compiled(1, 2, WithOptional).fit(*given(), verbose=0)
    model = compiled(2, 1, WithOptional)
    for train_or_evaluate in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"x/1 is None, an optional input .* among 2 replicas: give zeros"):
            train_or_evaluate(*given(), verbose=0)
    if way == "arrays":
        assert model.predict((QUERY, None), verbose=0).shape == (8, 3)
