"""Model features that stock Keras supports: fewer logs, variables as arguments, aggregated ones, custom steps."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
from equal_models import distance, examples, on, precision, values_on_replicas

import bigtrain_nb as bt
from bigtrain_nb.advanced.preflight.training import Training
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
X, Y = examples(28)


def compiled(build, replicas=1, micro_batches=1, stock=False, loss="mse", fully_shard=None, **settings):
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = build()
        if not stock:
            model = bt.Model.of(model, micro_batches=micro_batches, fully_shard=fully_shard)
        model.compile(keras.optimizers.SGD(0.1), loss, **{"jit_compile": False, **settings})
    return model


def dense():
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(1)(inputs))


class Quiet(keras.Model):
    """Reports one metric fewer than it has."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        logs.pop("mae")
        return logs


def quiet():
    inputs = keras.Input((6,))
    return Quiet(inputs, layers.Dense(1)(inputs))


@pytest.mark.parametrize(
    ("replicas", "micro_batches", "how"), [(2, 3, {}), (1, 3, {"jit_compile": True, "steps_per_execution": 2})]
)
def test_a_metric_that_compute_metrics_leaves_out_is_left_out(replicas, micro_batches, how):
    whole = compiled(quiet, stock=True, metrics=["mae", "mse"])
    model = compiled(quiet, replicas, micro_batches, metrics=["mae", "mse"], **how)
    run = {"batch_size": 14, "verbose": 0}
    given = {"epochs": 2, "shuffle": False, "validation_data": (X, Y), **run}
    due, found = (each.fit(X, Y, **given).history for each in (whole, model))
    assert set(found) == set(due) == {"loss", "mse", "val_loss", "val_mse"}
    for name, values in due.items():
        assert found[name] == pytest.approx(values, rel=1e-4), name
    assert set(model.evaluate(X, Y, return_dict=True, **run)) == {"loss", "mse"}


class Queries(layers.Layer):
    """Passes learned queries to a layer as a `keras.Variable`."""

    def __init__(self, **options):
        super().__init__(**options)
        self.ask = Ask(name="ask")

    def build(self, shape):
        self.queries = self.add_weight((shape[-1], 3), name="queries")
        self.ask.build(shape)

    def call(self, x):
        return self.ask(x, queries=self.queries)


class Ask(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight((3,), "ones")

    def call(self, x, queries):
        return tf.tanh(tf.matmul(x, tf.convert_to_tensor(queries)) * self.scale)


def asking():
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(1)(Queries(name="asks")(inputs)))


def test_a_layer_that_gets_a_variable_is_recomputed_fully_sharded_and_looked_at():
    whole = compiled(asking, stock=True)
    recomputed = compiled(lambda: bt.recompute(asking(), lambda layer: layer.name == "ask"), 2, 2)
    sharded = compiled(asking, 2, fully_shard="asks")
    for each in (whole, recomputed, sharded):
        each.fit(X, Y, batch_size=14, epochs=2, verbose=0, shuffle=False)
    assert distance(recomputed, whole) < 1e-5
    for one, other in zip(sharded.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert bt.find_overflow(compiled(asking), (X, Y)) is None


def stateful():
    inputs = keras.Input(batch_shape=(14, 3, 2))
    return keras.Model(inputs, layers.Dense(1)(layers.LSTM(3, stateful=True, name="rnn")(inputs)))


def test_a_layer_with_a_state_from_batch_to_batch_is_recomputed_and_looked_at():
    x = X.reshape(28, 3, 2)
    whole, model = compiled(stateful, stock=True), compiled(lambda: bt.recompute(stateful(), "rnn"))
    for each in (whole, model):
        each.fit(x, Y, batch_size=14, epochs=2, verbose=0, shuffle=False)
    assert distance(model, whole) < 1e-5
    for one, other in zip(model.layers[1].states, whole.layers[1].states, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert bt.find_overflow(compiled(stateful), (x[:14], Y[:14])) is None


def test_a_state_for_each_example_is_refused_in_pieces_before_keras_fails():
    x, model = X.reshape(28, 3, 2), compiled(stateful, 2)
    calls = [
        partial(model.fit, x, Y, batch_size=14, verbose=0),
        partial(model.evaluate, x, Y, batch_size=14, verbose=0),
        partial(model.predict, x, batch_size=14, verbose=0),
        partial(model.train_on_batch, x[:14], Y[:14]),
        partial(model.test_on_batch, x[:14], Y[:14]),
        partial(model.predict_on_batch, x[:14]),
        partial(compiled(stateful, 1, 2).fit, x, Y, batch_size=14, verbose=0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="rnn: stateful=True carries a state from batch to batch .* one device"):
            call()


class RunningMean(layers.Layer):
    """Keeps a running mean of its inputs, averaged over replicas."""

    def build(self, shape):
        self.mean = self.add_weight((shape[-1],), "zeros", trainable=False, aggregation="mean", name="mean")

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
        return x - tf.stop_gradient(tf.convert_to_tensor(self.mean))


class Calls(layers.Layer):
    """Counts its calls in a TensorFlow variable."""

    def build(self, shape):
        self.count = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def call(self, x):
        self.count.assign_add(1.0)
        return x


def with_calls():
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(1)(Calls(name="calls")(inputs)))


def test_a_variable_of_tensorflow_that_replicas_assign_together_trains_as_in_stock():
    models = [compiled(with_calls, 2, stock=stock) for stock in (True, False)]
    for model in models:
        model.fit(X, Y, batch_size=14, verbose=0, shuffle=False)
    assert distance(*models) < 1e-5
    assert [float(model.get_layer("calls").count.numpy()) for model in models] == [2, 2]


def with_running_mean():
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(1)(RunningMean(name="running")(inputs)))


@pytest.mark.parametrize(("steps", "micro_batches"), [(2, 1), (1, 3)])
def test_a_variable_that_replicas_assign_together_trains_as_in_stock(steps, micro_batches):
    """In micro-batches it is assigned in each of them, so the weights differ."""
    stock = compiled(with_running_mean, 2, stock=True)
    model = compiled(with_running_mean, 2, micro_batches, steps_per_execution=steps)
    for each in (stock, model):
        each.fit(X, Y, batch_size=14, epochs=2, verbose=0, shuffle=False)
        each.evaluate(X, Y, batch_size=14, verbose=0)
    assert (distance(model, stock) < 1e-5) == (micro_batches == 1)
    assert np.isfinite(distance(model, stock)) and model.history.history["loss"][1] < model.history.history["loss"][0]
    first, second = values_on_replicas(model.get_layer("running").mean)
    np.testing.assert_array_equal(first, second)


def test_a_step_that_was_set_on_the_model_itself_stays_shows_its_logs_and_is_not_passed_by_in_silence():
    def stepping(model, calls):
        step = model.train_step

        def counted(data):
            calls.append("traced")
            return step(data)

        model.train_step = counted
        return model

    calls = []
    model = stepping(compiled(dense), calls)
    for _ in range(2):
        model.fit(X, Y, verbose=0)
        model.make_train_function(force=True)
    assert len(calls) == 2 and "train_step" in vars(model)
    model = compiled(dense)
    model.train_step = lambda data: {"own": tf.reduce_mean(model(data[0]))}  # the loss tracker then sees no examples
    history = model.fit(X, Y, batch_size=14, epochs=2, verbose=0).history
    assert list(history) == ["own"] and len(history["own"]) == 2
    model.micro_batches = 2
    for _ in range(2):
        with pytest.raises(TypeError, match=r"does not call super\(\).train_step"):
            model.fit(X, Y, verbose=0)


def test_an_evaluation_under_xla_makes_no_state_of_the_optimizer():
    def build():
        inputs = keras.Input((6,))
        return keras.Model(inputs, [layers.Dense(1)(inputs) for _ in range(2)])

    model = compiled(build, loss=["mse", "mse"], jit_compile=True)
    model.evaluate(X, [Y, Y], verbose=0)
    assert not model.optimizer.built
    model.fit(X, [Y, Y], verbose=0)
    assert model.optimizer.built


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_losses_of_single_outputs_are_those_of_the_batch(reduction):
    def build():
        inputs = keras.Input((6,))
        return keras.Model(inputs, [layers.Dense(1, name=name)(inputs) for name in ("left", "right")])

    def loss():
        return [keras.losses.MeanSquaredError(reduction), keras.losses.MeanAbsoluteError(reduction)]

    whole, model = compiled(build, stock=True, loss=loss()), compiled(build, 2, 3, loss=loss())
    weights = np.geomspace(0.01, 10, len(X)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((X, (Y, -Y), weights)).batch(7)  # replicas have 4 and 3
    due, found = (each.fit(data, verbose=0).history for each in (whole, model))
    for name, values in due.items():
        assert found[name] == pytest.approx(values, rel=1e-4), name
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    assert evaluated == pytest.approx(whole.evaluate(data, verbose=0, return_dict=True), rel=1e-4)


def test_a_deep_copy_has_its_own_layers_of_a_list():
    with on(2):
        built = dense()
        model = compiled(lambda: built, 2, fully_shard=[built.layers[1]])
        copy = deepcopy(model)
        assert list(copy.fully_shard)[0] is copy.layers[1]
        copy.fit(X, Y, verbose=0)


def test_layers_that_were_changed_in_place_are_quantized():
    whole, model = dense(), bt.Model.of(bt.recompute(dense(), "dense.*"))
    model.set_weights(whole.get_weights())
    for each in (whole, model):
        each.quantize("int8")
    assert [weight.dtype for weight in model.weights] == [weight.dtype for weight in whole.weights]
    assert "int8" in {weight.dtype for weight in model.weights}
    np.testing.assert_allclose(model.predict(X, verbose=0), whole.predict(X, verbose=0), atol=1e-6)


@pytest.mark.parametrize(
    ("replicas", "micro_batches", "build"),
    [(2, 1, dense), (1, 2, lambda: keras.Sequential([layers.Dense(1)]))],
    ids=["built", "not built"],
)
def test_one_of_several_optimizers_that_accumulates_is_refused_in_micro_batches(replicas, micro_batches, build):
    with on(replicas):
        patient, other = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), keras.optimizers.SGD(0.2)
        model = bt.Model.of(build(), micro_batches=micro_batches)
        several = keras.optimizers.MultiOptimizer(lambda weight: other if weight.name == "bias" else patient)
        model.compile(several, "mse", jit_compile=False)
    with pytest.raises(ValueError, match="gradient_accumulation_steps works only on one device"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("size", [1e-11, 1.0])
def test_gradients_of_preflight_are_scaled_as_a_step_scales_them(size):
    """The smallest float16 value is 6e-8; scaling large values by 32,768 gives inf."""

    def loss(y, outputs):
        return size * 1000 * tf.reduce_mean((y - outputs) ** 2, -1)

    with precision("mixed_float16"):
        model = compiled(dense, stock=True, loss=loss)
    x, y = X[:8], Y[:8]
    training = Training(model, tf.data.Dataset.from_tensors((x, y)), None, minutes=1)
    _, found = training.gradients(training.first)
    residual = 2 * size * 1000 * (model.predict(x, verbose=0) - y) / 8
    np.testing.assert_allclose(found[0], x.T @ residual, rtol=0.02, atol=0.02 * size * 1000)
    assert np.abs(found[0]).max() > 0


class Perplexity(keras.Model):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "perplexity": keras.ops.exp(logs["loss"])}


def perplexity():
    inputs = keras.Input((6,))
    return Perplexity(inputs, layers.Dense(1)(inputs))


@pytest.mark.parametrize("how", [{}, {"jit_compile": True}])
def test_metrics_see_the_loss_and_the_update_of_their_step(how):
    shown = []
    for stock in (True, False):
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
        model = compiled(perplexity, stock=stock)
        model.compile(optimizer, "mse", metrics=[lambda y, y_pred, of=optimizer: of.learning_rate], **how)
        history = model.fit(X, Y, batch_size=14, epochs=2, shuffle=False, verbose=0).history
        evaluated = model.evaluate(X, Y, batch_size=len(X), verbose=0, return_dict=True)
        shown.append([history, {name: [float(value)] for name, value in evaluated.items()}])
    for due, found in zip(*shown, strict=True):
        assert set(found) == set(due) and "perplexity" in due
        for name, values in due.items():
            assert found[name] == pytest.approx(values, rel=1e-5), name


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 2), (2, 1)])
def test_a_log_that_is_computed_from_the_loss_is_refused_in_micro_batches(replicas, micro_batches):
    model = compiled(perplexity, replicas, micro_batches)
    with pytest.raises(ValueError, match="computes perplexity from the loss.*on_epoch_end"):
        model.fit(X, Y, batch_size=14, verbose=0)


class Generator(keras.Model):
    """Trains in a step of its own, and has no `call`."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.dense(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"its_loss": loss}


def test_a_custom_step_without_a_call_trains_under_xla_as_in_stock():
    run = {"batch_size": 14, "epochs": 2, "shuffle": False, "verbose": 0}
    how = {"jit_compile": True, "steps_per_execution": 2}
    due, found = (compiled(Generator, stock=stock, **how).fit(X, Y, **run).history for stock in (True, False))
    assert found["its_loss"] == pytest.approx(due["its_loss"], rel=1e-5)


class Doubling(keras.Model):
    def test_step(self, data):
        x, y = data
        return super().test_step((x, 2 * y))


def test_a_custom_step_that_calls_ours_is_evaluated_under_xla():
    inputs = keras.Input((6,))
    shown = []
    for stock in (True, False):
        build = partial(Doubling, inputs, layers.Dense(1, kernel_initializer="ones")(inputs))
        model = compiled(build, stock=stock, metrics=["mae"], jit_compile=True)
        shown.append(model.evaluate(X, Y, batch_size=14, verbose=0))
    assert shown[1] == pytest.approx(shown[0], rel=1e-5)


class WithAuxiliary(keras.Model):
    def __init__(self):
        super().__init__()
        self.main, self.auxiliary = layers.Dense(1), layers.Dense(1)

    def call(self, x, training=False):
        outputs = {"main": self.main(x)}
        return {**outputs, "auxiliary": self.auxiliary(x)} if training else outputs


def sequential_with_a_built_part():
    part = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    return keras.Sequential([layers.Rescaling(2.0), part, layers.Dense(1)])


TWO = {"main": Y, "auxiliary": -Y}


BY_XLA = {"jit_compile": True}


@pytest.mark.parametrize("how", [{"micro_batches": 2}, {"micro_batches": 1, **BY_XLA}, {"micro_batches": 2, **BY_XLA}])
@pytest.mark.parametrize(("build", "y"), [(WithAuxiliary, TWO), (sequential_with_a_built_part, Y)])
def test_weights_that_only_a_step_makes_are_trained(build, y, how):
    loss = dict.fromkeys(TWO, "mse") if y is TWO else "mse"
    whole, model = compiled(build, stock=True, loss=loss), compiled(build, loss=loss, **how)
    for each in (whole, model):
        each.fit(X, y, batch_size=14, shuffle=False, verbose=0)
    assert distance(model, whole) < 1e-5


def test_parameters_of_an_unbuilt_model_are_not_counted():
    with pytest.raises(ValueError, match="isn't built"):
        bt.Model.of(sequential_with_a_built_part()).count_params()
