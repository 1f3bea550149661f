"""What is changed in place stays what it was: by name, in files, for Keras; and what is made from it is stock."""

import json
import zipfile

import pytest
from equal_models import examples, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

layers = keras.layers
X, Y = examples(16)


@keras.saving.register_keras_serializable("tests")
class Own(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = layers.Dense(1, name="dense")

    def call(self, x):
        return self.dense(x)


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


@pytest.mark.parametrize("build", [functional, sequential, lambda: Own(name="net")])
def test_a_file_names_nothing_of_ours(build, tmp_path):
    """Fails if Keras names classes in files in another way: see `keras_gaps.known_as`."""
    with on(2):
        changed = bt.Model.of(build(), micro_batches=2, shard_optimizer=True)
        if build is functional:
            bt.recompute(changed, ["block", changed.get_layer("block")][1:])
        ours = config(changed, tmp_path / "ours.keras")
    with on(2):
        stock = config(build(), tmp_path / "stock.keras")
    assert ours == stock
    loaded = keras.models.load_model(tmp_path / "ours.keras")
    assert not isinstance(loaded, bt.Model) and loaded.optimizer.iterations.numpy() == 1


def test_a_model_that_has_trained_goes_on_with_a_sharded_state():
    weights = []
    for sharded in (False, True):
        with on(2):
            keras.utils.set_random_seed(1)
            model = sequential()
            bt.Model.of(model)
            model.compile(keras.optimizers.Adam(0.1), "mse")
            model.fit(X, Y, verbose=0, shuffle=False)
            bt.Model.of(model, shard_optimizer=sharded)
            model.fit(X, Y, verbose=0, shuffle=False)
            assert model.optimizer.iterations.numpy() == 2
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_lora_trains_inside_a_frozen_layer_that_is_recomputed():
    model = bt.recompute(functional(), lambda layer: layer.name == "block")
    block = model.get_layer("block")
    block.trainable = False  # as KerasHub does before it turns LoRA on
    block.get_layer("inner").trainable = True
    block.get_layer("inner").enable_lora(2)
    model.compile("adam", "mse")
    before = block.get_layer("inner").lora_kernel_b.numpy()
    model.fit(X, Y, verbose=0)
    assert (block.get_layer("inner").lora_kernel_b.numpy() != before).any()
