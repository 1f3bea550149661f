"""Objects changed in place keep their identity: in names, in files, for Keras; and what they create is stock."""

import copy
import functools
import inspect
import json
import pickle
import zipfile

import numpy as np
import pytest
from equal_models import apart_of_weights, batches, examples, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.train.in_place import made_class
from bigtrain_nb.train.settings import SETTINGS, Settings

layers = keras.layers
X, Y = examples(16)
DATA = batches([7, 9], X, Y)


@keras.saving.register_keras_serializable("tests")
class Own(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(1, name="dense")

    def call(self, x):
        return self.dense(x)


def test_the_constructor_has_the_arguments_by_which_keras_tells_functional_models():
    """Keras does not look into wrappers, for example those of `functools.wraps`, so our constructor must not be one."""

    class Wrapped(layers.Layer):
        @functools.wraps(Own.__init__)
        def __init__(self, *args, **options):
            super().__init__(**options)

    for own in (Wrapped, type(functional())):
        ours = made_class((type("Ours", (), {}), own), own=own)
        assert inspect.getfullargspec(ours.__init__).args == inspect.getfullargspec(own.__init__).args


def functional():
    inputs = keras.Input((6,), name="inputs")
    block = keras.Sequential([keras.Input((6,), name="in"), layers.Dense(6, name="inner")], name="block")
    return keras.Model(inputs, layers.Dense(1, name="last")(block(inputs)), name="net")


def sequential():
    return keras.Sequential([keras.Input((6,), name="inputs"), layers.Dense(1, name="last")], name="net")


def config(model, path):
    model.compile(keras.optimizers.Adam(name="adam"), "mse")
    model.fit(X, Y, verbose=0)
    model.save(path)
    return json.loads(zipfile.ZipFile(path).read("config.json"))


@pytest.mark.parametrize("build", [functional, lambda: Own(name="net")])
def test_a_file_names_nothing_of_ours(build, tmp_path):
    """Fails if Keras changes how files name classes: see `register_class_as`."""
    with on(2):
        changed = bt.Model.of(build(), micro_batches=2, shard_optimizer=True)
        if build is functional:
            bt.recompute(changed, "block")
        ours = config(changed, tmp_path / "ours.keras")
    with on(2):
        stock = config(build(), tmp_path / "stock.keras")
    assert ours == stock
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    assert not isinstance(loaded, bt.Model) and loaded.optimizer.iterations.numpy() == 1


def adamw():
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.1, epsilon=1e-4)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def test_a_second_of_changes_settings_and_keeps_the_state_of_the_optimizer():
    """Sharded, unsharded, and sharded again; undecayed weights stay so."""
    ends = []
    for epochs_of_settings in ([(True, 3)], [(True, 1), (False, 1), (True, 1)]):
        with on(2):
            keras.utils.set_random_seed(1)
            model = sequential()
            model.compile(adamw(), "mse")
            for shard_optimizer, epochs in epochs_of_settings:
                assert bt.Model.of(model, shard_optimizer=shard_optimizer) is model
                model.fit(DATA, epochs=epochs, verbose=0, shuffle=False)
        ends.append(model)
    assert apart_of_weights(*ends) < 1e-6
    assert ends[0].optimizer.iterations.numpy() == 6


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_keeps_what_was_changed(copied):
    model = bt.recompute(bt.chunk_attention(attentive(), chunks=3), "block")
    bt.Model.of(model, micro_batches=2)
    model.compile("adam", "mse")
    model.fit(np.ones((4, 6, 4)), np.ones((4, 6, 1)), verbose=0)
    twin = copied(model)
    assert type(twin) is type(model) and twin.micro_batches == 2 and twin.optimizer.iterations.numpy() == 1
    assert type(twin.get_layer("block")) is type(model.get_layer("block"))
    attention = twin.get_layer("block").get_layer("attention")
    assert type(attention) is type(model.get_layer("block").get_layer("attention")) and attention.chunks == 3
    assert apart_of_weights(twin, model) == 0
    assert type(keras.models.clone_model(model)) is type(attentive())


def attentive():
    block = keras.Input((6, 4))
    attended = layers.MultiHeadAttention(2, 2, name="attention")(block, block)
    inputs = keras.Input((6, 4))
    return keras.Model(inputs, layers.Dense(1)(keras.Model(block, attended, name="block")(inputs)))


def test_a_sharded_model_is_copied_in_the_scope_of_its_strategy_only():
    with on(2):
        model = bt.Model.of(sequential(), shard_optimizer=True)
        assert copy.deepcopy(model).shard_optimizer
    with pytest.raises(ValueError, match="build it in the scope of a strategy"):
        copy.deepcopy(model)


def test_what_is_refused_leaves_the_model_as_it_was():
    model = sequential()
    with on(2), pytest.raises(ValueError, match="net was built outside of this strategy's scope"):
        bt.Model.of(model)
    for settings, error in (({"micro_batches": 0}, ValueError), ({"micro_batchs": 2}, TypeError)):
        with pytest.raises(error, match="micro_batches"):
            bt.Model.of(model, **settings)
    own = Own(name="net")
    own.loss_scale = 2.0
    with pytest.raises(TypeError, match="Own already defines 'loss_scale', a name that bt.Model needs"):
        bt.Model.of(own)
    assert (type(model), type(own)) == (keras.Sequential, Own)


@pytest.mark.parametrize("function", [bt.Model, bt.Model.of, bt.load_model], ids=["Model", "Model.of", "load_model"])
def test_the_signature_shows_the_settings(function):
    shown = inspect.signature(function).parameters
    assert {name: shown[name].default for name in SETTINGS} == SETTINGS


def test_a_type_checker_knows_each_setting():
    assert list(Settings.__annotations__) == list(SETTINGS)


def test_lora_trains_inside_a_frozen_layer_that_is_recomputed():
    model = bt.recompute(functional(), lambda layer: layer.name == "block")
    block = model.get_layer("block")
    block.trainable = False  # as KerasHub does before enabling LoRA
    block.get_layer("inner").trainable = True
    block.get_layer("inner").enable_lora(2)
    model.compile("adam", "mse")
    before = block.get_layer("inner").lora_kernel_b.numpy()
    model.fit(X, Y, verbose=0)
    assert (block.get_layer("inner").lora_kernel_b.numpy() != before).any()


def test_a_call_without_training_is_called_as_keras_does():
    """Keras does not pass `training` to this model, so its dropout is inactive."""

    class Quiet(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop, self.dense = layers.Dropout(0.5), layers.Dense(1)

        def call(self, x):
            return self.dense(self.drop(x))

    ends = []
    for taken in (lambda model: model, bt.Model.of):
        keras.utils.set_random_seed(1)
        model = taken(Quiet())
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0, shuffle=False)
        ends.append(model)
    assert apart_of_weights(*ends) < 1e-6


def test_ema_ends_outside_of_the_scope_too():
    ends = []
    for sharded in (False, True):
        keras.utils.set_random_seed(1)
        with on(2):
            model = bt.Model.of(sequential(), shard_optimizer=sharded)
            model.compile(keras.optimizers.Adam(0.1, epsilon=1e-3, use_ema=True), "mse")
        model.fit(DATA, verbose=0, shuffle=False)
        ends.append(model)
    assert apart_of_weights(*ends) < 1e-6


def test_a_copy_of_a_layer_that_was_changed_twice_is_changed_in_the_same_order():
    model = bt.Model.of(bt.recompute(bt.chunk_attention(attentive(), chunks=3), "attention"))
    attention = model.get_layer("block").get_layer("attention")
    ours = ["Recomputed", "ChunkedAttention"]
    assert [kind.__name__ for kind in type(attention).__mro__ if kind.__name__ in ours] == ours
    assert type(copy.deepcopy(model).get_layer("block").get_layer("attention")) is type(attention)
