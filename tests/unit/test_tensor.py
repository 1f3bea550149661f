"""A model that is sharded over replicas trains as the whole one does, with a part of its bytes on each device."""

from functools import partial

import numpy as np
import pytest
from equal_models import EQUAL, batches, on, precision, reducing
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.parallel.shards import unsharded

layers = keras.layers
OF_BLOCKS = r"(multi_head_attention|dense)\w*"
TOKENS = np.random.default_rng(0).integers(0, 20, (45, 9))
X, Y = TOKENS[:, :-1], TOKENS[:, 1:]
DATA = batches([16, 12, 16, 1], X, Y)  # the last has nothing for the second replica
SCORES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def adam(**settings):
    return keras.optimizers.Adam(0.01, epsilon=1e-4, **settings)


def small_gpt(replicas, **settings):
    return bt.gpt(20, 8, 16, 1, 4, tensor_parallel=replicas, **settings)


def small_net(replicas):
    """All that gpt has not: biases, initializers that look at the shape, dropout outside of what is cut."""
    inputs = keras.Input((8,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(inputs)
    x = layers.Dropout(0.3)(x)
    x = layers.MultiHeadAttention(4, 4, bias_initializer="glorot_uniform")(x, x)
    x = layers.Dense(24, activation="tanh", bias_initializer="normal")(x)
    x = layers.Dense(16, bias_initializer="normal")(x)
    x = layers.Dropout(0.3)(x)
    return bt.Model(inputs, layers.Dense(20, dtype="float32", name="logits")(x), tensor_parallel=OF_BLOCKS)


def trained(build, replicas, optimizer=adam, data=DATA, epochs=3, **settings):
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = build(replicas)
        model.compile(optimizer(), SCORES, metrics=["accuracy"])
        model.fit(data, epochs=epochs, verbose=0, shuffle=False, **settings)
    return model


def apart(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one.get_weights(), other.get_weights(), strict=True))


@pytest.fixture(scope="module")
def plain():
    return trained(small_gpt, 1, validation_data=DATA)


@pytest.fixture(scope="module")
def cut():
    return trained(small_gpt, 2, validation_data=DATA)


def test_a_dozen_steps_of_adam_end_at_the_same_weights_and_predictions(plain, cut):
    assert apart(cut, plain) < EQUAL
    assert cut.history.history.keys() == plain.history.history.keys()
    for name, values in plain.history.history.items():
        assert cut.history.history[name] == pytest.approx(values, rel=EQUAL), name
    np.testing.assert_allclose(cut.predict(X, verbose=0), plain.predict(X, verbose=0), atol=EQUAL)


@pytest.mark.usefixtures("each_reduction")
def test_a_metric_that_counts_counts_each_example_once():
    x = np.random.default_rng(1).normal(size=(45, 8)).astype("float32")
    y = (x[:, :2] > 0).astype("float32")
    data = batches([16, 12, 16, 1], x, y)

    def shown(replicas):
        keras.utils.set_random_seed(1)
        with on(replicas):
            inputs = keras.Input((8,))
            hidden = layers.Dense(8, activation="tanh")(inputs)
            model = bt.Model(inputs, layers.Dense(2, activation="sigmoid")(hidden), tensor_parallel=r"dense\w*")
            counting = [keras.metrics.TruePositives(name="hits"), keras.metrics.BinaryAccuracy(name="accuracy")]
            model.compile("sgd", "mse", metrics=counting)
        trained = model.fit(data, epochs=2, verbose=0, shuffle=False).history
        return trained, model.evaluate(data, verbose=0, return_dict=True)

    (trained, evaluated), (trained_by_two, evaluated_by_two) = shown(1), shown(2)
    assert evaluated["hits"] > 0
    assert evaluated_by_two == pytest.approx(evaluated, rel=1e-5)
    for name, values in trained.items():
        assert trained_by_two[name] == pytest.approx(values, rel=1e-5), name


IN_16_BITS = pytest.mark.more("scaled losses: an overflow on one replica is held by a test of its own")


@pytest.mark.parametrize(
    ("build", "policy", "near", "clipping"),
    [
        (small_net, "float32", EQUAL, {"global_clipnorm": 0.1}),
        (partial(small_gpt, recompute=True, micro_batches=3), "float32", EQUAL, {"clipnorm": 0.05}),
        pytest.param(
            partial(small_gpt, micro_batches=2), "mixed_float16", 5e-3, {"global_clipnorm": 0.1}, marks=IN_16_BITS
        ),
    ],
)
def test_it_goes_with_clipping_and_other_settings(build, policy, near, clipping):
    data = batches([16, 12, 16], X[:44], Y[:44])
    clipped = partial(adam, **clipping)
    with precision(policy):
        one, two = (trained(build, replicas, clipped, data, epochs=2) for replicas in (1, 2))
    assert apart(two, one) < near
    assert two.loss_scale == one.loss_scale


@pytest.mark.usefixtures("each_reduction")
def test_an_overflow_in_one_slice_skips_the_step_on_all_replicas():
    """Only the second replica's slice of the first kernel has a gradient that float16 cannot hold."""
    x = np.ones((4, 2), "float32")
    columns = np.zeros((2, 4), "float32")
    rows = np.zeros((4, 1), "float32")
    rows[2:] = 6e4  # times tanh(0)

    def steps(replicas):
        with on(replicas), precision("mixed_float16"):
            inputs = keras.Input((2,))
            hidden = layers.Dense(4, activation="tanh", use_bias=False)(inputs)
            model = bt.Model(inputs, layers.Dense(1, use_bias=False)(hidden), tensor_parallel=OF_BLOCKS)
            model.set_weights([columns, rows])
            model.compile(keras.optimizers.SGD(1e-6), "mse")
            model.fit(x, x[:, :1], epochs=3, batch_size=4, verbose=0)
        return model

    one, two = steps(1), steps(2)
    assert two.loss_scale == one.loss_scale < 2**15
    for weight, start in zip(two.get_weights(), [columns, rows], strict=True):
        np.testing.assert_array_equal(weight, start)


def test_a_file_is_cut_by_the_number_of_replicas_that_load_it(cut, tmp_path):
    """With the state of the optimizer: all go on alike."""
    cut.save(tmp_path / "model.keras")
    gone_on = []
    for replicas in (1, 4):
        with on(replicas):
            model = bt.load_model(tmp_path / "model.keras", tensor_parallel=OF_BLOCKS)
        assert apart(model, cut) == 0
        model.fit(DATA, verbose=0, shuffle=False)
        gone_on.append(model)
    assert apart(*gone_on) < 1e-5 < apart(gone_on[0], cut)


@pytest.mark.parametrize(
    ("replicas", "act", "message"),
    [
        (1, lambda: small_gpt(2), "tensor_parallel=2 needs a strategy of as many replicas, and here is one of 1: call"),
        (4, lambda: bt.gpt(heads=6, width=12, tensor_parallel=4), "has 6 heads, which do not divide by the 4 replicas"),
        (2, lambda: trained(small_gpt, 2, keras.optimizers.Adafactor), "Adafactor is not known to treat each number"),
    ],
)
def test_what_cannot_be_cut_is_refused(replicas, act, message):
    with on(replicas), pytest.raises(ValueError, match=message):
        act()


def test_a_checkpoint_of_what_is_cut_is_whole(cut, tmp_path):
    for epoch in bt.Resume(tmp_path, cut).epochs(1):
        assert epoch == 0
    with on(1):
        model = small_gpt(1)
        model.compile(adam(), SCORES)
        assert bt.Resume(tmp_path, model).epoch == 1
    assert apart(model, cut) == 0
    for one, other in zip(model.optimizer.variables, cut.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), unsharded(other).numpy())


def test_outside_of_replicas_it_is_whole(cut, plain):
    np.testing.assert_allclose(cut(X[:2]), plain(X[:2]), atol=EQUAL)
    np.testing.assert_allclose(tf.function(cut)(X[:2]), plain(X[:2]), atol=EQUAL)


TYPES = ["bool", "uint8", "int8", "bfloat16"]
OTHER_TYPES = pytest.mark.more("types that are widened as a bool is")


@pytest.mark.parametrize("dtype", in_two_tiers(TYPES, ["bool", "bfloat16"], OTHER_TYPES))
def test_replicas_gather_inputs_of_types_that_no_collective_takes(dtype):
    x = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    y = np.array([[1.0], [2.0], [3.0]], "float32")

    def step(replicas):
        with on(replicas):
            keras.utils.set_random_seed(1)
            inputs = keras.Input((2,), dtype=dtype)
            numbers = layers.Rescaling(1.0)(inputs)
            model = bt.Model(inputs, layers.Dense(1)(layers.Dense(4)(numbers)), tensor_parallel=OF_BLOCKS)
            model.compile("sgd", "mse")
            model.fit(batches([3], x, y), verbose=0)
        return model

    with reducing("by collectives"):
        assert apart(step(2), step(1)) < 1e-6


@pytest.mark.usefixtures("each_reduction")
def test_replicas_gather_texts():
    texts = np.array([["ä long one", ""], ["b\0", "🐝"], ["", ""]], dtype=object)

    def step(replicas):
        with on(replicas):
            keras.utils.set_random_seed(1)
            inputs = keras.Input((2,), dtype="string")
            numbers = layers.Flatten()(layers.Embedding(9, 3)(layers.Hashing(9)(inputs)))
            model = bt.Model(inputs, layers.Dense(1)(layers.Dense(4)(numbers)), tensor_parallel=OF_BLOCKS)
            model.compile("sgd", "mse")
            model.fit(tf.data.Dataset.from_tensors((texts, tf.ones((3, 1)))), verbose=0)
        return model

    assert apart(step(2), step(1)) < 1e-6


@pytest.mark.usefixtures("each_reduction")
def test_dropout_in_attention_differs_from_head_to_head():
    with on(2):
        strategy = tf.distribute.get_strategy()
        attend = layers.MultiHeadAttention(2, 8, dropout=0.5, use_bias=False)
        inputs = keras.Input((16, 8))
        model = bt.Model(inputs, attend(inputs, inputs), tensor_parallel=OF_BLOCKS)
        model.choose_reduction()
        head = np.random.default_rng(0).normal(size=(8, 1, 8))
        output = np.zeros((2, 8, 8))
        output[0, :, :4] = output[1, :, 4:] = np.ones((8, 4))  # the first head gives these features, the second those
        model.set_weights([np.repeat(head, 2, axis=1)] * 3 + [output])
    x = np.random.default_rng(1).normal(size=(2, 16, 8)).astype("float32")
    for training, same in ((False, True), (True, False)):

        def call(training=training):
            with model.replica_reduction.at_work():
                return model(x, training=training)

        first, second = strategy.experimental_local_results(tf.function(lambda call=call: strategy.run(call))())
        np.testing.assert_array_equal(first, second)
        assert np.allclose(first[..., :4], first[..., 4:], atol=1e-5) == same
