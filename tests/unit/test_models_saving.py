"""Functional, subclassed and converted models: built, saved, loaded, copied, quantized."""

import copy
import pickle

import numpy as np
import pytest
from equal_models import batches, distance, examples, net, on, precision

import bigtrain_nb as bt
from bigtrain_nb.common.keras_compat import Functional
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import own_class

layers = keras.layers
X, Y = examples(24)
DATA = batches([10, 10, 4], X, Y)


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


def sequential():
    return keras.Sequential([keras.Input((6,)), layers.Dense(4, activation="tanh"), layers.Dense(1)])


def fitted(model):
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    model.fit(DATA, verbose=0, shuffle=False)
    return model


KINDS = {
    "functional": lambda: net(micro_batches=3),
    "subclass": lambda: Subclass(micro_batches=3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_goes_on_exactly_where_it_was(kind, tmp_path):
    model = fitted(KINDS[kind]())
    model.save(tmp_path / "model.keras")
    stock = keras.models.load_model(tmp_path / "model.keras")
    assert type(stock) is own_class(model)
    loaded = bt.load_model(tmp_path / "model.keras", micro_batches=3)
    assert type(loaded) is type(model) and loaded.micro_batches == 3
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    for one in (model, loaded):
        one.fit(DATA, verbose=0, shuffle=False)
    assert distance(loaded, model) == 0
    assert loaded.optimizer.iterations.numpy() == 6


def test_models_can_be_pickled_and_copied():
    """Models that were changed in place: test_in_place.py."""
    model = fitted(KINDS["subclass"]())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.micro_batches == 3
        np.testing.assert_array_equal(twin.predict(X, verbose=0), model.predict(X, verbose=0))


def test_the_legacy_hdf5_format_and_json_hold_the_stock_model(tmp_path):
    model = net(micro_batches=3)
    model.save(tmp_path / "model.h5")
    loaded = keras.models.load_model(tmp_path / "model.h5")
    assert type(loaded) is own_class(model)
    assert distance(loaded, model) == 0
    twin = keras.models.model_from_json(model.to_json())
    assert type(twin) is own_class(model)


def test_a_subclass_may_call_init_with_inputs_and_outputs():
    model = FunctionalSubclass(4, micro_batches=2)
    assert isinstance(model, bt.Model) and isinstance(model, Functional)
    assert model.width == 4 and model.micro_batches == 2 and len(model.layers) == 3
    assert np.isfinite(fitted(model).predict(X, verbose=0)).all()
    assert not isinstance(fitted(Subclass()), Functional)  # other classes are unchanged


def test_of_changes_the_model_itself_and_it_stays_compiled():
    original = sequential()
    model = fitted(original)
    assert bt.Model.of(original, micro_batches=2) is original and model.compiled
    assert type(original).__name__ == "Sequential" and isinstance(original, bt.Model)
    model.fit(DATA, verbose=0, shuffle=False)
    assert model.optimizer.iterations.numpy() == 6
    kind = type(model)
    assert type(bt.Model.of(model, micro_batches=3)) is kind and model.micro_batches == 3
    assert type(keras.models.clone_model(model)) is keras.Sequential


def test_of_keeps_the_policy_by_which_compile_adds_loss_scaling():
    with precision("mixed_float16"):
        original = sequential()
    model = bt.Model.of(original)
    model.compile("sgd", "mse")
    assert model.loss_scale == 2.0**15


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.steps = layers.Dense(1), 0

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.steps += 1
        return super().train_step(data)


class StepOfModel(bt.Model):
    """A subclass of `bt.Model` with a custom step, which can call ours."""

    def __init__(self, comes_to_ours, **options):
        super().__init__(**options)
        self.dense, self.comes_to_ours = layers.Dense(1), comes_to_ours

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        if self.comes_to_ours:
            return {**super().train_step(data), "more": tf.constant(2.0)}
        return {"nothing": tf.constant(1.0)}

    def test_step(self, data):
        return super().test_step(data) if self.comes_to_ours else {"nothing": tf.constant(1.0)}


def test_a_subclass_may_add_to_a_step_and_not_pass_by_it():
    with on(2):
        model = fitted(StepOfModel(True, micro_batches=3))
        assert model.history.history["more"] == [2.0]
        with pytest.raises(
            TypeError, match=r"StepOfModel.train_step does not call super\(\).train_step\(data\), so it"
        ):
            fitted(StepOfModel(False, micro_batches=3))
        model = StepOfModel(False)
        model.compile("sgd", "mse")
        with pytest.raises(TypeError, match="test_step .*, so it ignores 2 replicas: override compute_loss"):
            model.evaluate(DATA, verbose=0)
    with on(1):
        model = fitted(StepOfModel(False))
        assert model.history.history == {"nothing": [1.0]}
        assert model.evaluate(DATA, verbose=0, return_dict=True) == {"nothing": 1.0}


def test_a_train_step_of_its_own_is_refused_where_it_would_be_passed_by():
    with pytest.raises(TypeError, match="OwnStep has a custom train_step, which ignores micro_batches=2"):
        bt.Model.of(OwnStep(), micro_batches=2)
    with on(2), pytest.raises(TypeError, match="ignores 2 replicas: override compute_loss"):
        bt.Model.of(OwnStep())
    with on(1):
        model = fitted(bt.Model.of(OwnStep()))
        assert model.steps
        model.micro_batches = 2
        with pytest.raises(TypeError, match="override compute_loss"):
            model.fit(DATA, verbose=0)


def test_a_loaded_model_has_what_was_asked_for(tmp_path):
    model = net()
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    assert bt.load_model(tmp_path / "model.keras").compiled
    assert not bt.load_model(tmp_path / "model.keras", compile=False).compiled
    with pytest.raises(TypeError, match="did you mean 'micro_batches'"):
        bt.load_model(tmp_path / "model.keras", micro_batchs=2)


def test_a_file_is_whole_or_the_old_one(tmp_path, monkeypatch):
    """A failed save leaves the old file, and no temporary one."""
    model = net()
    for name in ("model.keras", "model.h5", "model.weights.h5"):
        save = model.save_weights if name.endswith("weights.h5") else model.save
        save(tmp_path / name)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(before) == 3

    def fail(store):
        raise OSError("No space left on device")

    monkeypatch.setattr(model.layers[1], "save_own_variables", fail, raising=False)
    for name in ("model.keras", "model.weights.h5"):
        save = model.save_weights if name.endswith("weights.h5") else model.save
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_whose_loss_is_a_lambda_is_loaded_where_that_is_allowed(tmp_path):
    path = tmp_path / "own.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", lambda target, output: (target - output) ** 2)
    model.save(path)
    with pytest.raises(ValueError, match="safe_mode"):
        bt.load_model(path)
    again = bt.load_model(path, safe_mode=False)
    assert again.evaluate(np.ones([4, 2]), np.ones([4, 1]), verbose=0) == pytest.approx(
        model.evaluate(np.ones([4, 2]), np.ones([4, 1]), verbose=0)
    )


def test_the_config_of_a_functional_model_makes_a_model_again():
    class Plain(bt.Model):
        pass

    inputs = keras.Input((6,))
    outputs = layers.Dense(1)(layers.Dense(4)(inputs))
    for kind in (bt.Model, Plain):
        config = kind(inputs, outputs).get_config()
        model = kind.from_config(config)
        assert isinstance(model, kind) and model.micro_batches == 1 and model.count_params() == 33
    assert isinstance(bt.Model.from_config(keras.Model(inputs, outputs).get_config()), bt.Model)


def test_a_model_that_was_saved_before_it_was_built_is_loaded(tmp_path):
    model = keras.Sequential([layers.Dense(4), layers.Dense(1)])
    model.compile("adam", "mse")
    model.save(tmp_path / "unbuilt.keras")
    again = bt.load_model(tmp_path / "unbuilt.keras", micro_batches=2)
    assert again.compiled and not again.built
    again.fit(X, Y, verbose=0)
