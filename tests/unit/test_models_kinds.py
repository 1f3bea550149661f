"""Functional, subclassed and taken-over models: built, saved, loaded, copied, quantised."""

import copy
import pickle

import numpy as np
import pytest
from equal_models import batches, distance, examples, net, on, precision, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
X, Y = examples(24)
DATA = batches([10, 10, 4], X, Y)
SGD = keras.optimizers.SGD


@keras.saving.register_keras_serializable("tests")
class Subclass(bt.Model):
    def __init__(self, width=4, **options):
        super().__init__(**options)
        self.width, self.first, self.last = width, layers.Dense(width), layers.Dense(1)

    def call(self, x):
        return self.last(tf.tanh(self.first(x)))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class FunctionalSubclass(bt.Model):
    def __init__(self, width, **options):
        inputs = keras.Input((6,))
        super().__init__(inputs, layers.Dense(1)(layers.Dense(width)(inputs)), **options)
        self.width = width


class Scaled:
    """A mix-in without Keras."""

    def scaled(self, x):
        return 2 * self(x)


class Mixed(Scaled, FunctionalSubclass):
    pass


@keras.saving.register_keras_serializable("tests")
class KerasSubclass(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense, self.drop = layers.Dense(1), layers.Dropout(0.5)

    def call(self, x, training=False):
        return self.drop(self.dense(x), training=training)


def sequential():
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(1)])


def fitted(model, **settings):
    model.compile(**{"optimizer": keras.optimizers.AdamW(0.01), "loss": "mse", **settings})
    model.fit(DATA, verbose=0, shuffle=False)
    return model


KINDS = {
    "functional": lambda: net(micro_batches=3),
    "subclass": lambda: Subclass(micro_batches=3),
    "of sequential": lambda: bt.Model.of(sequential(), micro_batches=3),
    "of functional": lambda: bt.Model.of(net(keras.Model), micro_batches=3),
    "of subclass": lambda: bt.Model.of(KerasSubclass(), micro_batches=3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_goes_on_exactly_where_it_was(kind, tmp_path):
    model = fitted(KINDS[kind]())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.micro_batches == 3
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    for one in (model, loaded):
        one.fit(DATA, verbose=0, shuffle=False)
    if kind != "of subclass":  # a .keras file does not hold where the random numbers of its Dropout stood
        assert distance(loaded, model) == 0
    assert loaded.optimizer.iterations.numpy() == 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_models_can_be_pickled_and_copied(kind, copied):
    model = fitted(KINDS[kind]())
    twin = copied(model)
    assert twin.micro_batches == 3
    np.testing.assert_array_equal(twin.predict(X, verbose=0), model.predict(X, verbose=0))
    twin.fit(DATA, verbose=0, shuffle=False)


def test_json_holds_the_micro_batches():
    model = net(micro_batches=3)
    twin = keras.models.model_from_json(model.to_json())
    assert twin.micro_batches == 3 and isinstance(twin, bt.Model)
    assert keras.models.model_from_json(keras.Model(model.inputs, model.outputs).to_json()).count_params() == 65


def test_a_clone_has_one_micro_batch():
    twin = keras.models.clone_model(net(micro_batches=3))
    assert isinstance(twin, bt.Model) and twin.micro_batches == 1
    fitted(twin)


@pytest.mark.parametrize("make", [FunctionalSubclass, Mixed])
def test_a_subclass_may_call_init_with_inputs_and_outputs(make):
    model = make(4, micro_batches=2)
    assert model.width == 4 and model.micro_batches == 2 and isinstance(model, bt.Model) and len(model.layers) == 3
    fitted(model)
    assert np.isfinite(model.predict(X, verbose=0)).all()
    assert fitted(Subclass(micro_batches=2)).built  # and other classes are as they were
    assert type(net()) is type(net(micro_batches=2)) and bt.Model in type(net()).__mro__
    assert keras.Model.__bases__ == net(keras.Model).__class__.__mro__[2].__bases__


def test_plain_subclasses_of_both_kinds_still_work_afterwards():
    FunctionalSubclass(4)

    class Own(bt.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    assert fitted(Own()).count_params() == 7
    assert not hasattr(Own(), "output_names")


def test_of_shares_weights_and_leaves_the_original_as_it_was():
    original = sequential()
    model = bt.Model.of(original, micro_batches=2)
    fitted(model)
    np.testing.assert_array_equal(model.get_weights()[0], original.get_weights()[0])
    assert not original.compiled
    assert model.name == original.name


@pytest.mark.parametrize("make", [sequential, lambda: net(keras.Model), lambda: KerasSubclass()])
def test_of_keeps_the_policy_by_which_compile_adds_loss_scaling(make):
    with precision("mixed_float16"):
        original = make()
    model = bt.Model.of(original)
    model.compile("sgd", "mse")
    assert model.loss_scale == 2.0**15


class Doubled(keras.Model):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs, training=training)


def test_of_a_functional_model_with_a_call_of_its_own_keeps_it():
    inputs = keras.Input((3,))
    original = Doubled(inputs, layers.Dense(1)(inputs))
    x = np.ones((2, 3), "float32")
    np.testing.assert_allclose(bt.Model.of(original)(x), original(x))


@pytest.mark.parametrize("what", ["gpt", None, bt.conv_net])
def test_of_takes_models_only(what):
    with pytest.raises(TypeError, match="Model.of takes a Keras model, not"):
        bt.Model.of(what)


def test_of_a_model_without_weights_says_how_to_start_it():
    with pytest.raises(ValueError, match="start it with keras.Input"):
        bt.Model.of(keras.Sequential([layers.Dense(1)]))


def test_of_a_keras_application():
    original = keras.applications.MobileNetV3Small((32, 32, 3), 0.35, minimalistic=True, weights=None, classes=3)
    model = bt.Model.of(original, micro_batches=2)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(np.random.default_rng(0).normal(size=(8, 32, 32, 3)), np.arange(8) % 3, batch_size=8, verbose=0)
    assert np.isfinite(model.history.history["loss"][0])


def test_int8_after_training():
    model = fitted(net(micro_batches=3))
    before = model.predict(X, verbose=0)
    model.quantize("int8")
    assert np.abs(model.predict(X, verbose=0) - before).max() < 0.1
    assert model.micro_batches == 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_float8_training(replicas):
    with on(replicas):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        model = bt.Model(inputs, layers.Dense(1)(layers.Dense(8)(inputs)), micro_batches=3)
        model.quantize("float8")
        model.compile(SGD(0.1), "mse")
        history = model.fit(X, Y, batch_size=8, epochs=8, verbose=0, shuffle=False).history["loss"]
    assert history[-1] < 0.9 * history[0]
    scales = [v for v in model.trainable_variables if v.overwrite_with_gradient]
    assert scales and all(np.isfinite(v.numpy()).all() and v.numpy().min() >= 0 for v in scales)


def test_batch_normalisation_ends_alike_on_every_replica_with_the_mean_of_their_statistics():
    def build(make=bt.Model):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        return make(inputs, layers.Dense(1)(layers.BatchNormalization()(inputs)))

    models = {n: trained(build, batches([4], X[:4] * [[1], [2], [3], [4]], Y[:4]), SGD, n) for n in (1, 2)}
    statistics = models[2].layers[1].moving_mean.value.values
    np.testing.assert_array_equal(*[value.numpy() for value in statistics])
    np.testing.assert_allclose(statistics[0].numpy(), models[1].layers[1].moving_mean.numpy(), rtol=1e-5)


def test_synchronised_batch_normalisation_works_on_one_device_only():
    def build():
        inputs = keras.Input((6,))
        return bt.Model(inputs, layers.Dense(1)(layers.BatchNormalization(synchronized=True)(inputs)), micro_batches=2)

    trained(build, DATA, SGD)
    with pytest.raises(ValueError, match="synchronized=True does not work in a bt.Model on several replicas"):
        trained(build, DATA, SGD, 2)


def test_dropout_with_a_seed_repeats():
    def build():
        inputs = keras.Input((6,))
        x = layers.Dropout(0.5, seed=3)(layers.Dense(4, kernel_initializer="ones")(inputs))
        return bt.Model(inputs, layers.Dense(1, kernel_initializer="ones")(x), micro_batches=3)

    assert distance(trained(build, DATA, SGD), trained(build, DATA, SGD)) == 0
