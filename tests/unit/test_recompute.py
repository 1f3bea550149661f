"""`recompute` changes only memory and time: weights, statistics, seeds, losses and files stay the same."""

from functools import partial

import numpy as np
import pytest
from equal_models import EQUAL, apart_of_weights, batches, examples, precision, replicas_agree, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
X, Y = examples(40)
DATA = batches([16, 16, 8], X, Y)


def block(width=6):
    inputs = keras.Input((width,))
    x = layers.BatchNormalization()(inputs)
    of_activity = "l2" if keras.config.dtype_policy().name == "float32" else None  # Keras cannot sum it in 16 bits
    x = layers.Dense(4 * width, activation="tanh", activity_regularizer=of_activity, kernel_regularizer="l2")(x)
    x = layers.Dropout(0.4)(x)
    return keras.Model(inputs, layers.Add()([inputs, layers.Dense(width)(x)]))


def net(around, make=bt.Model, **options):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((6,))
    x = inputs
    for _ in range(2):
        x = around(block())(x)
    return make(inputs, layers.Dense(1, dtype="float32")(x), **options)


def as_it_is(layer):
    return layer


def both(replicas=1, policy="float32", jit=False, make=bt.Model, **options):
    def sgd():
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        if policy == "mixed_float16":
            return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)
        return optimizer

    models = []
    for around in (as_it_is, bt.recompute):
        with precision(policy):
            build = partial(net, around, make, **options)
            models.append(trained(build, DATA, sgd, replicas, jit_compile=jit))
    return models


def apart(model, other, start):
    """Return the distance of two trained models, relative to their distance from the common start."""
    far = sum(np.sum((one - two) ** 2) for one, two in zip(model.get_weights(), other.get_weights(), strict=True))
    way = sum(np.sum((one - two) ** 2) for one, two in zip(other.get_weights(), start.get_weights(), strict=True))
    return (far / way) ** 0.5


CUTS = [
    (1, 1, "float32", True, EQUAL),
    (2, 3, "float32", False, EQUAL),
    (1, 3, "mixed_float16", False, 1e-2),
]


@pytest.mark.parametrize(("replicas", "micro_batches", "policy", "xla", "near"), CUTS)
def test_a_training_ends_at_the_same_weights(replicas, micro_batches, policy, xla, near):
    plain, recomputed = both(replicas, policy, xla, micro_batches=micro_batches)
    assert apart(recomputed, plain, net(as_it_is)) < near
    assert recomputed.history.history["loss"] == pytest.approx(plain.history.history["loss"], rel=near)
    assert replicas_agree(recomputed) == replicas_agree(plain)


def test_a_stock_model_and_a_loop_by_hand_give_the_same():
    plain, recomputed = both(make=keras.Model)
    assert apart(recomputed, plain, net(as_it_is)) < EQUAL
    gradients = []
    for model in (plain, recomputed):
        for variable in model.non_trainable_variables:
            variable.assign(tf.ones_like(variable))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X, training=True) - Y) ** 2) + sum(model.losses)
        gradients.append(tape.gradient(loss, model.trainable_variables))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=EQUAL, atol=EQUAL)


def test_a_mask_and_several_inputs_reach_the_layer():
    class Last(layers.Layer):
        supports_masking = True

        def call(self, inputs, mask=None):
            one, other = inputs
            weight = tf.cast(mask[0], one.dtype)[..., None]
            return tf.reduce_sum(weight * one, 1) + tf.reduce_sum(other, 1)

    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    embedded = layers.Embedding(5, 4, mask_zero=True)(tokens)
    other = tf.ones([2, 3, 4])
    assert embedded._keras_mask is not None
    expected = Last()([embedded, other])
    np.testing.assert_array_equal(bt.recompute(Last())([embedded, other]), expected)


def test_one_inside_another_is_refused_and_no_layer_names_those_that_repeat():
    inputs = keras.Input((6,))
    inner = bt.recompute(layers.Dense(6, name="inner"))
    with pytest.raises(ValueError, match="inner is inside outer, and both are to be recomputed"):
        bt.recompute(keras.Model(inputs, inner(inputs), name="outer"))
    blocks = keras.Sequential([inputs, *[layers.Dense(6, name=f"block_{place}") for place in range(3)]], name="deep")
    with pytest.raises(ValueError, match=r'selects no layer of deep; repeated names: r"block_\\d\+" \(3\)'):
        bt.recompute(blocks, "block")
    assert bt.recompute(blocks, r"block_\d") is blocks and type(blocks.layers[0]).__name__ == "Dense"


class Expert(layers.Layer):
    """Like a KerasHub expert router: its dropout and loss use ``training``, which its caller does not pass."""

    def __init__(self, **options):
        super().__init__(**options)
        self.drop = layers.Dropout(0.5, seed=1)

    def call(self, x, training=False):
        if training:
            self.add_loss(0.1 * tf.reduce_mean(tf.square(tf.cast(x, tf.float32))))
        return self.drop(x)


class Block(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense, self.expert = layers.Dense(6, activation="tanh"), Expert()

    def call(self, x):
        return x + self.expert(self.dense(x))


@pytest.mark.parametrize(("around", "policy"), [("block", "mixed_bfloat16"), ("first", "float32")])
def test_layers_inside_know_in_the_backward_pass_that_they_train_and_in_which_type(around, policy):
    ends = []
    for recomputed in (False, True):
        keras.utils.set_random_seed(1)
        with precision(policy):
            inputs = keras.Input((6,))
            hidden = layers.Dense(6, name="first")(inputs)
            model = keras.Model(inputs, layers.Dense(1, dtype="float32")(Block(name="block")(hidden)))
            if recomputed:
                bt.recompute(model, around)
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(X, Y, batch_size=20, epochs=2, verbose=0, shuffle=False)
        ends.append(model)
    assert apart_of_weights(*ends) < 1e-6
    assert ends[0].history.history["loss"] == pytest.approx(ends[1].history.history["loss"], rel=1e-6)


class Keeps(layers.Layer):
    """All kinds of state in Keras layers: a stateful RNN, a metric, a variable, and Keras' seed."""

    def __init__(self, **options):
        super().__init__(**options)
        self.rnn = layers.GRU(6, stateful=True, return_sequences=True)
        self.seen = keras.metrics.Sum(name="seen")
        self.calls = self.add_weight((), initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        self.seen.update_state(tf.ones(()))
        self.calls.assign_add(1.0)
        x = self.rnn(x * (1 + 0.01 * self.calls))
        return (keras.random.dropout(x, 0.5) if training else x), None, 3


def trained_by_hand(recomputed):
    """Return the losses of three steps, and the state of `Keeps`."""
    x = np.random.default_rng(0).normal(size=(8, 3, 6)).astype("float32")
    keras.utils.set_random_seed(1)
    keeps, last, optimizer = Keeps(), layers.Dense(1), keras.optimizers.SGD(0.1)
    last(keeps(x[:4])[0])  # builds the weights
    if recomputed:
        bt.recompute(keeps)
    weights = [*keeps.trainable_variables, *last.trainable_variables]
    optimizer.build(weights)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            outputs, nothing, three = keeps(batch, training=True)
            loss = tf.reduce_mean(last(outputs) ** 2)
        assert nothing is None and three == 3
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    losses = [float(step(x[start : start + 4])) for start in (0, 4, 0)]
    return losses, [float(keeps.seen.result()), float(keeps.calls), *keeps.rnn.states[0].numpy().ravel()]


def test_all_state_of_keras_is_updated_once_and_outputs_may_be_other_than_tensors():
    (losses, kept), (again, kept_again) = trained_by_hand(False), trained_by_hand(True)
    assert again == pytest.approx(losses, rel=1e-5) and len(set(losses)) == 3
    assert kept_again == pytest.approx(kept, rel=1e-4)


def test_a_layer_that_assigns_its_own_weights_is_refused():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.SpectralNormalization(layers.Dense(1), name="normal")(inputs))
    bt.recompute(model, "normal")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="normal assigns the trainable weight .*kernel whenever it is called"):
        model.fit(X, Y, verbose=0)


class MaskedMean(layers.Layer):
    """Passes its input's mask to an inner layer, without a mask argument."""

    def __init__(self, **options):
        super().__init__(**options)
        self.supports_masking = True
        self.mean = layers.GlobalAveragePooling1D()

    def call(self, inputs):
        return self.mean(inputs)


def test_a_mask_reaches_the_layers_inside_and_those_after():
    tokens = np.array([[1, 2, 0], [3, 0, 0]])

    def embedding():
        return layers.Embedding(4, 1, mask_zero=True, weights=[np.array([[9.0], [1], [2], [3]])])

    expected = [[(1 + 2) / 2], [3 / 1]]  # without a mask (1 + 2 + 9) / 3 = 4 and (3 + 9 + 9) / 3 = 7
    np.testing.assert_allclose(bt.recompute(MaskedMean())(embedding()(tokens)), expected)
    inputs = keras.Input((3,))
    block = bt.recompute(keras.Model(inputs, embedding()(inputs)))
    np.testing.assert_allclose(MaskedMean()(block(tokens)), expected)


def test_in_16_bits_state_that_a_call_does_not_update_keeps_all_of_its_bits():
    class Moving(layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.moving = self.add_weight(trainable=False)

        def call(self, x, training=False):
            if training:
                self.moving.assign(1 / 3)
            return super().call(x)

    with precision("mixed_bfloat16"):
        model = keras.Sequential([keras.Input((6,)), bt.recompute(Moving(1))])
    model.compile("sgd", "mse")
    model.train_on_batch(X, Y)
    model.test_on_batch(X, Y)
    assert float(model.layers[0].moving) == np.float32(1 / 3)


def test_the_backward_pass_reads_no_weights():
    """It could read them after the optimizer's update: TensorFlow's graph optimizer does not keep the order."""

    def reads(recomputes):
        blocks = [keras.Sequential([keras.layers.Dense(6, "tanh"), keras.layers.Dense(6)]) for _ in range(2)]
        model = keras.Sequential([keras.Input((6,)), *blocks])
        if recomputes:
            bt.recompute(model, blocks)
        model.compile("sgd", "mse", jit_compile=False)
        step = tf.function(model.train_step).get_concrete_function((tf.ones([8, 6]), tf.ones([8, 6])))
        return [operation.type for operation in step.graph.get_operations()].count("ReadVariableOp")

    assert reads(recomputes=True) == reads(recomputes=False)


@pytest.mark.parametrize(("activation", "from_logits"), [("softmax", False), ("sigmoid", False), ("softmax", True)])
def test_losses_compute_from_the_logits_of_a_recomputed_layer_as_of_a_stock_one(activation, from_logits):
    """As probabilities, those of certain errors would be clipped: their gradient is 0."""

    def step(change):
        keras.utils.set_random_seed(1)
        head = layers.Dense(3, activation, kernel_initializer=keras.initializers.RandomNormal(stddev=30.0), name="head")
        model = change(keras.Sequential([keras.Input((6,)), head]))
        model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits), metrics=[])
        return model, model.train_on_batch(X, np.arange(len(X)) % 3)

    (stock, loss), (model, found) = step(as_it_is), step(lambda model: bt.recompute(model, "head"))
    assert found == pytest.approx(loss, rel=1e-6) and loss > 20
    assert apart_of_weights(model, stock) < 1e-6


def test_a_sparse_input_trains_as_in_stock_and_a_ragged_one_is_refused():
    x = (np.arange(48).reshape(8, 6) % 5 == 0).astype("float32")
    losses = []
    for change in (as_it_is, bt.recompute):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,), sparse=True)
        model = keras.Model(inputs, keras.layers.Dense(1)(change(keras.layers.Dense(4))(inputs)))
        model.compile("sgd", "mse")
        losses.append([model.train_on_batch(tf.sparse.from_dense(x), x[:, :1]) for _ in range(2)])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    with pytest.raises(ValueError, match="ragged tensor of shape .* choose other layers"):
        bt.recompute(keras.layers.Activation("relu"))(tf.RaggedTensor.from_row_lengths([[1.0], [2.0]], [1, 1]))
