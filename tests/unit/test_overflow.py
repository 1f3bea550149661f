"""The overflowing layer is named for any model, direction and policy; nothing is modified."""

import numpy as np
import pytest
from equal_models import OptimizersInADictionary, OptimizersOfTheNetworks, TwoNetworks, examples, precision

import bigtrain_nb as bt
from bigtrain_nb.advanced.watch.watched_step import values_of
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
BATCH = examples(12)


@keras.saving.register_keras_serializable("tests")
class Zero(layers.Layer):
    """Returns its input, with a division by zero forward or an infinite slope backward."""

    def __init__(self, where, **kwargs):
        super().__init__(**kwargs)
        self.where = where

    def call(self, x):
        if self.where == "forward":
            return x + tf.zeros_like(x) / tf.zeros_like(x)
        return x + tf.sqrt(0 * x)


class Deep(keras.Model):
    """A subclassed model that calls layers in sequence."""

    def __init__(self, deep):
        super().__init__()
        self.deep = deep

    def call(self, x, training=None):
        for layer in self.deep:
            x = layer(x, training=training) if isinstance(layer, layers.Dropout) else layer(x)
        return x


def twelve(seed, planted=None):
    """Return twelve layers, one of them with a planted fault, and an output layer."""
    place = np.random.default_rng(seed).integers(12)
    deep = []
    for number in range(12):
        if planted and number == place:
            deep.append(Zero(planted, name="planted"))
        elif number % 3 == 1:
            deep.append(layers.Dropout(0.2, seed=number))
        else:
            deep.append(layers.Dense(6, activation="tanh", name=f"dense_{number}"))
    return [*deep, layers.Dense(1, dtype="float32", name="last")]


def functional(deep, make=keras.Model, **options):
    inputs = x = keras.Input((6,))
    for layer in deep:
        x = layer(x)
    return make(inputs, x, **options)


def nested(deep):
    return keras.Sequential([keras.Input((6,)), functional(deep[:7]), keras.Sequential(deep[7:])])


def in_slices(deep):
    return functional(deep, bt.Model, micro_batches=4)


KINDS = {"subclassed": Deep, "nested": nested, "in slices": in_slices}


def compiled(model, scale=None):
    optimizer = keras.optimizers.SGD(0.1)
    if scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
    model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_layer_among_twelve_is_found(kind, where):
    found = bt.find_overflow(compiled(KINDS[kind](twelve(0, where))), BATCH)
    assert (found.layer, found.where, found.dtype, found.handled) == ("planted", where, "float32", False)
    assert found.layer in str(found) and found.layer in found._repr_html_()


@pytest.mark.parametrize(("kind", "policy"), [("in slices", "mixed_float16"), ("nested", "float32")])
def test_a_healthy_model_gives_nothing_and_stays_as_it_is(kind, policy):
    with precision(policy):
        model = compiled(KINDS[kind](twelve(0)))
        model.fit(*BATCH, verbose=0)
        variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        before = [variable.numpy() for variable in variables]
        assert bt.find_overflow(model, BATCH) is None
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_model_that_its_first_batch_builds_is_built_and_stays_as_it_starts():
    normalized = layers.BatchNormalization()
    assert bt.find_overflow(compiled(Deep([layers.Dense(6), normalized, layers.Dense(1)])), BATCH) is None
    assert not normalized.moving_mean.numpy().any() and (normalized.moving_variance.numpy() == 1).all()


def test_what_keras_does_not_list_stays_as_it_is():
    rnn = layers.LSTM(4, stateful=True)
    model = compiled(keras.Sequential([keras.Input(batch_shape=(8, 6)), layers.Reshape((3, 2)), rnn, layers.Dense(1)]))
    assert bt.find_overflow(model, (tf.ones([8, 6]), tf.ones([8, 1]))) is None
    assert not any(state.numpy().any() for state in rnn.states)


def test_a_call_set_on_a_layer_stays():
    model = compiled(functional([layers.Dense(1)]))
    model.layers[-1].call = own = lambda x, **_: 0 * x[:, :1]
    bt.find_overflow(model, BATCH)
    assert model.layers[-1].call is own


def test_weights_too_large_for_float16_overflow_forward():
    with precision("mixed_float16"):
        model = compiled(functional(twelve(1)))
    model.get_layer("dense_5").kernel.assign(1e6 * tf.ones([6, 6]))
    found = bt.find_overflow(model, BATCH)
    assert (found.layer, found.where, found.dtype, found.handled) == ("dense_5", "forward", "float16", False)
    assert found.values["kernel"].largest == pytest.approx(1e6)
    assert "largest number of float16 is 65504" in str(found) and "Loss scaling does not help" in str(found)


def test_an_overflow_that_the_scale_handles_is_told_from_one_that_it_does_not():
    x, y = BATCH
    with precision("mixed_float16"):
        handled = compiled(in_slices([layers.Dense(6), layers.Dense(1, dtype="float32")]), 2.0**20)
        broken = compiled(in_slices([layers.Dense(6), Zero("backward", name="root"), layers.Dense(1)]), 2.0**10)
    found = bt.find_overflow(handled, (x, y))
    assert found.where == "backward" and found.dtype == "float16" and found.handled
    assert found.scale == 2.0**20 > found.finite_from
    assert "Loss scaling handles it" in str(found)
    assert bt.find_overflow(compiled(handled, found.finite_from), (x, y)) is None
    assert bt.find_overflow(compiled(handled, 2 * found.finite_from), (x, y)).handled
    found = bt.find_overflow(broken, (x, y))
    assert (found.layer, found.where, found.handled, found.scale) == ("root", "backward", False, 2.0**10)


def test_a_layer_called_twice_and_a_layer_with_code_of_its_own():
    class Own(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.inner = layers.Dense(6, name="inner")

        def call(self, x):
            return self.inner(tf.math.log(-tf.abs(x)))

    inputs = keras.Input((6,))
    shared = layers.Dense(6, name="shared")
    x = shared(shared(inputs))
    own = compiled(keras.Model(inputs, layers.Dense(1)(Own(name="own")(x))))
    assert bt.find_overflow(own, BATCH).layer == "own"
    shared.kernel.assign(1e30 * tf.ones([6, 6]))
    assert bt.find_overflow(own, BATCH).layer == "shared"


def test_what_is_not_finite_before_the_step_is_said_as_such():
    x, y = BATCH
    model = compiled(functional(twelve(2)))
    for name, batch in (
        ("inputs", (x * np.nan, y)),
        ("targets", (x, y * np.inf)),
        ("sample weights", (x, y, y * np.nan)),
    ):
        found = bt.find_overflow(model, batch)
        assert (found.layer, found.where) == (name, "batch")
    with precision("mixed_float16"):
        half = compiled(functional([layers.Dense(1)]))
    assert "a cast" in str(bt.find_overflow(half, (1e6 + x, y)))
    model.get_layer("dense_3").bias.assign([0, 0, np.nan, 0, 0, 0])
    found = bt.find_overflow(model, BATCH)
    assert (found.layer, found.where) == ("dense_3", "forward") and not found.values["bias"].finite


class OwnStep(keras.Model):
    """Has a custom step that computes its own loss and does not scale it."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(self(x, training=True), y)
        self.update(tape.gradient(loss, self.trainable_variables))
        return {"loss": loss}

    def own_loss(self, made, y):
        return tf.reduce_mean((made - y) ** 2)

    def update(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_planted_layer_is_found_in_a_model_with_a_step_of_its_own(where):
    found = bt.find_overflow(compiled(functional(twelve(3, where), OwnStep)), BATCH)
    assert (found.layer, found.where) == ("planted", where)
    assert bt.find_overflow(compiled(functional(twelve(3), OwnStep)), BATCH) is None


@pytest.mark.parametrize("kind", [TwoNetworks, OptimizersInADictionary, OptimizersOfTheNetworks])
def test_networks_with_optimizers_are_looked_at_and_as_before_wherever_these_are_kept(kind):
    planted = Zero("backward", name="planted")
    model = kind(functional([layers.Dense(1)]), functional([layers.Dense(6), planted, layers.Dense(1)]))
    model.compile()
    found = bt.find_overflow(model, BATCH[0])
    assert (found.layer, found.where) == ("planted", "backward")
    assert not model.of_first.built and not model.of_second.built
    model = kind(functional([layers.Dense(1)]), functional([layers.Dense(6), layers.Dense(1)]))
    model.compile()
    bt.preflight(model, [BATCH[0]], checks=["overfit one batch"])
    before = [variable.numpy() for variable in model.of_second.variables]
    assert before and not any(value.any() for value in before[2:])  # after `iterations` and `learning_rate`
    weights = [variable.numpy() for variable in model.variables]
    assert bt.find_overflow(model, BATCH[0]) is None
    for variable, value in zip([*model.of_second.variables, *model.variables], [*before, *weights], strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_loss_of_ones_own_that_is_not_finite_is_named_forward():
    class LossOfItsOwn(OwnStep):
        def own_loss(self, made, y):
            return tf.math.log(-tf.reduce_mean(made**2))

    found = bt.find_overflow(compiled(functional([layers.Dense(1)], LossOfItsOwn)), BATCH)
    assert (found.layer, found.where) == ("loss", "forward") and found.values["loss"].nan == 1


def test_gradients_of_weights_with_one_name_are_told_apart():
    inputs = keras.Input((8,))
    first = keras.layers.Dense(4, name="first")(inputs)
    model = keras.Model(inputs, [first, keras.layers.Dense(1)(first)])
    model.compile("sgd", [lambda y, y_pred: keras.ops.sum(keras.ops.exp(y_pred * 0 + 100.0) * y_pred, -1), "mse"])
    found = bt.find_overflow(model, (np.ones((16, 8)), (np.ones((16, 4)), np.ones((16, 1)))))
    assert {"gradient of first/kernel", "gradient of first/bias"} <= set(found.values)


def test_a_variable_of_the_step_that_no_layer_owns_is_named():
    factor = keras.Variable(1.0, name="factor")

    class OwnVariable(OwnStep):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.own_loss(self(data[0], training=True), data[1]) + tf.sqrt(factor - 1.0)
            self.optimizer.apply([tape.gradient(loss, factor.value)], [factor])
            return {"loss": loss}

    found = bt.find_overflow(compiled(functional([layers.Dense(1)], OwnVariable)), BATCH)
    assert (found.layer, found.where) == ("loss", "backward") and found.values["gradient of factor"].infinite == 1


def test_a_step_without_a_gradient_is_refused():
    class Counts(keras.Model):
        def train_step(self, data):
            return {"loss": 0.0}

    with pytest.raises(ValueError, match="train_step of counts computes no gradient with tf.GradientTape"):
        bt.find_overflow(compiled(functional([layers.Dense(1)], Counts)), BATCH)


def test_a_dataset_gives_its_first_batch_in_whatever_form_it_comes():
    x, y = BATCH
    dataset = tf.data.Dataset.from_tensor_slices(BATCH).batch(4)

    class HasDataset:
        def dataset(self):
            return dataset

    broken = compiled(functional([Zero("forward", name="planted"), layers.Dense(1)]))
    for given in (dataset, HasDataset(), [(x, y), (x, y)], iter([(x, y)]), [x, y]):
        assert bt.find_overflow(broken, given).layer == "planted"
    first_is_bad = tf.data.Dataset.from_tensors((x * np.nan, y)).concatenate(tf.data.Dataset.from_tensors((x, y)))
    assert bt.find_overflow(broken, first_is_bad).layer == "inputs"


def test_looking_at_a_shuffled_dataset_does_not_move_its_shuffling_on():
    x, y = examples(24)
    model = compiled(functional([layers.Dense(1)]))

    def order(look):
        tf.random.set_seed(4)
        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(24).batch(6)
        look(data)
        return [batch.tolist() for _ in range(2) for batch, _ in data.as_numpy_iterator()]

    undisturbed = order(lambda data: None)
    assert order(lambda data: bt.find_overflow(model, data)) == undisturbed
    assert order(lambda data: bt.plan_step(model, data)) == undisturbed


def test_an_optimizer_that_knows_its_weights_may_be_given_gradients_alone():
    class Short(OwnStep):
        def update(self, gradients):
            self.optimizer.apply(gradients)

    model = compiled(functional(twelve(3, "backward"), Short))
    model.optimizer.build(model.trainable_variables)
    found = bt.find_overflow(model, BATCH)
    assert (found.layer, found.where) == ("planted", "backward")


def test_of_a_task_of_keras_hub_the_texts_go_through_its_preprocessor():
    class Task(keras.Sequential):
        """The relevant part of a KerasHub task; real ones are large."""

        def __init__(self, *layers):
            super().__init__(*layers)
            self.preprocessor = True

        def preprocess_samples(self, texts, labels):
            return tf.cast(tf.strings.length(texts), tf.float32)[:, None], labels

    model = Task([keras.Input((1,)), keras.layers.Dense(1, "exponential", kernel_initializer="ones", name="too_much")])
    model.compile("sgd", "mse", jit_compile=False)
    texts = tf.data.Dataset.from_tensor_slices((["a" * 200, "b"], [1.0, 1.0])).batch(2)
    assert bt.find_overflow(model, texts).layer == "too_much"
    assert bt.profile(model, texts, steps=2).steps == 2
    assert bt.plan_step(model, texts).memory["input"] == 2 * 2 * (4 + 4)


def test_what_a_tensor_holds_is_said_in_words():
    whole = values_of(tf.constant([1.0, -2.0, 0.5]))
    assert str(whole) == "-2.00 to 1.00" and whole.finite
    half = tf.constant([1.0, float("inf"), float("nan"), -2.0, float("-inf")], tf.float16)
    assert str(values_of(half)) == "-2.00 to 1.00, 2 of 5 infinite, 1 of 5 NaN"
    assert str(values_of(half[1:3])) == "no finite value, 1 of 2 infinite, 1 of 2 NaN"


def test_a_layer_is_named_by_its_path_where_others_have_its_name():
    def block(number):
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(4, "exponential", kernel_initializer="ones", name="dense")(inputs)
        return keras.Model(inputs, outputs, name=f"block_{number}")

    inputs = keras.Input((4,))
    model = keras.Model(inputs, block(1)(block(0)(inputs)))
    model.compile("sgd", "mse")
    found = bt.find_overflow(model, (30 * tf.ones([2, 4]), tf.ones([2, 4])))
    assert found.layer == "block_0/dense", found


class Masked(layers.Layer):
    def call(self, x):
        return tf.where(tf.range(tf.shape(x)[1]) < 4, x, -float("inf"))


def test_the_infinities_of_a_mask_are_not_blamed_for_a_later_overflow():
    x = keras.Input((8,))
    y = layers.Softmax()(Masked(name="mask")(layers.Dense(8)(x)))
    y = layers.Dense(4, "exponential", kernel_initializer=keras.initializers.Constant(500.0), name="too_much")(y)
    model = keras.Model(x, layers.Dense(1)(y))
    model.compile("sgd", "mse")
    assert bt.find_overflow(model, (tf.ones([4, 8]), tf.ones([4, 1]))).layer == "too_much"


def test_a_sparse_tensor_between_layers_is_left_out():
    class Counted(keras.Model):
        def __init__(self):
            super().__init__()
            self.count, self.head = layers.CategoryEncoding(8, "multi_hot", sparse=True), layers.Dense(1)

        def call(self, x):
            return self.head(self.count(x))

    model = Counted()
    model.compile("sgd", "mse")
    assert bt.find_overflow(model, (tf.constant([[0, 1, 2], [3, 4, 5]]), tf.ones([2, 1]))) is None
