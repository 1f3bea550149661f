"""`fully_shard` gives the weights of one device, sharded across replicas, and the files of a stock model."""

import copy
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from equal_models import EQUAL, batches, distance, examples, on, precision, reducing, values_on_replicas
from equal_models import apart_of_weights as apart  # absolute: a key's bias changes only by rounding

import bigtrain_nb as bt
from bigtrain_nb.advanced.parallel import shards
from bigtrain_nb.advanced.parallel.recompute import Recomputed
from bigtrain_nb.advanced.parallel.shards import Unsharded
from bigtrain_nb.advanced.plan.graph import before
from bigtrain_nb.common import replicas
from bigtrain_nb.common.keras_compat import build_like_fit
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
X, Y = examples(60)
EVEN = batches([16, 12, 16], X, Y)
UNEVEN = batches([16, 13, 3, 1, 7], X, Y)
BLOCKS = r"block_\d"
RANDOM = keras.initializers.GlorotUniform(1)


def in_blocks(**changes):
    """Return a model with a residual block of this name for each change."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = layers.Dense(8)(inputs)
    for name, change in changes.items():
        block = keras.Input((8,))
        x = keras.Model(block, layers.Add()([block, change(block)]), name=name)(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def in_two_blocks(change):
    return in_blocks(block_0=change, block_1=change)


def two_layers(x):
    return layers.Dense(8)(layers.Dense(33, "tanh")(layers.LayerNormalization()(x)))


def with_batch_statistics(x):
    return layers.Dense(8)(layers.BatchNormalization()(layers.Dense(9, "tanh")(x)))


def attention(x):
    x = layers.Reshape((4, 2))(x)
    return layers.Flatten()(layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True))


def dense():
    return in_two_blocks(two_layers)


def normalized():
    return in_two_blocks(with_batch_statistics)


def of_all_kinds():
    """Return a model whose blocks are named after their special features."""
    shared = layers.Dense(8, "tanh", kernel_initializer=RANDOM)
    model = in_blocks(
        normalized=with_batch_statistics,
        attending=attention,
        convolving=lambda x: layers.Flatten()(layers.Conv1D(2, 3, padding="same")(layers.Reshape((4, 2))(x))),
        sharing=lambda x: layers.Dense(8)(shared(shared(x))),
        sharing_with_another=lambda x: layers.Dense(8)(shared(x)),
        partly_frozen=lambda x: layers.Dense(8)(layers.Dense(9, "tanh", trainable=False)(x)),
        frozen=two_layers,
        with_lora=two_layers,
        with_losses=lambda x: layers.ActivityRegularization(0.1)(layers.Dense(8, "tanh")(x)),
    )
    model.get_layer("frozen").trainable = False
    for layer in model.get_layer("with_lora").layers:
        if isinstance(layer, layers.Dense):
            layer.enable_lora(2)
    return model


def adamw():
    return keras.optimizers.AdamW(0.01, epsilon=1e-2, weight_decay=0.1, global_clipnorm=0.5)


def sgd():
    return keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=0.5)


def trained(count, build=dense, data=UNEVEN, optimizer=adamw, epochs=1, **settings):
    """Return a model that has trained on ``count`` replicas."""
    with on(count):
        model = bt.Model.of(build(), **settings)
        model.compile(optimizer(), "mse")
        model.fit(data, verbose=0, shuffle=False, epochs=epochs)
    return model


@cache
def alone():
    """Return a model trained on one device; no test changes it."""
    return trained(1)


@cache
def on_two_replicas():
    """Return a model trained fully sharded on two replicas; no test changes it."""
    return trained(2, fully_shard=BLOCKS)


@pytest.mark.usefixtures("each_reduction")
def test_three_replicas_in_micro_batches_train_evaluate_and_predict_as_one_device():
    sharded = trained(3, optimizer=sgd, fully_shard=BLOCKS, micro_batches=2)
    whole = trained(1, optimizer=sgd)
    assert distance(sharded, whole) < EQUAL
    assert sharded.history.history["loss"] == pytest.approx(whole.history.history["loss"], rel=EQUAL)
    np.testing.assert_allclose(sharded.predict(X, verbose=0), whole.predict(X, verbose=0), atol=EQUAL)
    assert sharded.evaluate(UNEVEN, verbose=0) == pytest.approx(whole.evaluate(UNEVEN, verbose=0), rel=EQUAL)


def test_layers_of_all_kinds_train_as_on_two_replicas_that_are_whole():
    whole = trained(2, of_all_kinds, EVEN)
    sharded = trained(2, of_all_kinds, EVEN, fully_shard=lambda layer: isinstance(layer, keras.Model))
    for mine, theirs, start in zip(*(model.layers[1:] for model in (sharded, whole, of_all_kinds())), strict=True):
        assert apart(mine, theirs) < 1e-6, theirs.name
        assert theirs.name == "frozen" or apart(theirs, start) > 1e-3, theirs.name


def test_each_replica_keeps_half_and_files_are_whole_and_stock(tmp_path):
    sharded = on_two_replicas()
    assert distance(sharded, alone()) < EQUAL
    slots = [one._variable for one in sharded.optimizer.variables if isinstance(one, Unsharded)]
    for mine, theirs in ((sharded.weights, alone().weights), (slots, alone().optimizer.variables)):
        kept = sum(values_on_replicas(variable)[0].nbytes for variable in mine)
        assert kept < 0.55 * sum(variable.numpy().nbytes for variable in theirs)

    shards = sharded.trainable_variables
    sharded.save(tmp_path / "model.keras")
    assert [id(one) for one in sharded.trainable_variables] == [id(one) for one in shards]  # it can continue training
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(dense()) and distance(loaded, sharded) == 0
    for one, other in zip(loaded.optimizer.variables, alone().optimizer.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=EQUAL)
    with on(3):
        on_three = bt.load_model(tmp_path / "model.keras", fully_shard=BLOCKS)
        on_three.fit(UNEVEN, verbose=0, shuffle=False)
    with on(1):
        on_one = bt.load_model(tmp_path / "model.keras")
        on_one.fit(UNEVEN, verbose=0, shuffle=False)
    assert distance(on_three, on_one) < EQUAL


def test_outside_of_replicas_the_weights_show_themselves_whole():
    with on(2):
        model = bt.Model.of(dense())
        before = model(X[:3]).numpy()
        kernel = model.get_layer("block_0").layers[2].kernel
        value = kernel.numpy()
        bt.Model.of(model, fully_shard=BLOCKS)
    block = model.get_layer("block_0")
    assert [each.shape for each in block.get_weights()] == [each.shape for each in dense().layers[2].get_weights()]
    assert model.count_params() == dense().count_params()
    block.set_weights([each + 1 for each in block.get_weights()])
    np.testing.assert_array_equal(kernel.numpy(), value + 1)
    block.set_weights([each - 1 for each in block.get_weights()])
    np.testing.assert_allclose(kernel.numpy(), value, atol=1e-6)
    np.testing.assert_allclose(model(X[:3]).numpy(), before, rtol=1e-6)
    np.testing.assert_allclose(bt.tf.function(model)(X[:3]).numpy(), before, rtol=1e-6)
    np.testing.assert_allclose(copy.deepcopy(model)(X[:3]).numpy(), before, rtol=1e-6)


def not_on_cpus(monkeypatch):
    for module in (replicas, shards):
        monkeypatch.setattr(module, "on_cpus", lambda strategy: False)


@pytest.mark.usefixtures("each_reduction")
def test_the_way_of_gpus_gives_the_same(monkeypatch):
    not_on_cpus(monkeypatch)
    assert distance(trained(2, fully_shard=BLOCKS), alone()) < EQUAL


def launched(graph, replica):
    """Return the collectives that a replica takes part in, in order."""
    operations = [each for each in graph.get_operations() if each.type.startswith("Collective")]
    return [each for each in operations if each.device.endswith(f"CPU:{replica}")]


def graph_of_step(model):
    def step(*data):
        return model.distribute_strategy.run(model.train_step, (data,))

    return tf.function(step, autograph=False).get_concrete_function(X[:8], Y[:8]).graph


def waits_for(operation):
    """Return all operations that must run before this one."""
    found, left = set(), [operation]
    while left:
        new = [each for each in before(left.pop()) if each not in found]
        found.update(new)
        left += new
    return found


def test_a_layer_is_gathered_when_the_one_before_it_is_computed(monkeypatch):
    """Forward and backward, so that only one layer is unsharded at a time."""
    not_on_cpus(monkeypatch)
    with reducing("by collectives"):
        model = trained(2, data=batches([16], X, Y), fully_shard=BLOCKS)

    gathered = [each for each in launched(graph_of_step(model), 0) if each.type == "CollectiveGatherV2"]
    assert len(gathered) == 4  # two blocks, forward and backward
    for first, second in pairwise(gathered):
        products = [each for each in waits_for(second) if each.type == "MatMul"]
        assert any(first in waits_for(product) for product in products)


def test_in_the_first_trace_all_replicas_launch_the_same_collectives(monkeypatch):
    """Else GPUs would wait for each other, or sum what does not belong together."""
    not_on_cpus(monkeypatch)
    with reducing("by collectives"), on(2):
        model = bt.Model.of(normalized(), fully_shard=BLOCKS)
        model.compile("sgd", "mse")
        build_like_fit(model, (X[:8], Y[:8]))
    graph = graph_of_step(model)
    first, second = ([each.type for each in launched(graph, replica)] for replica in (0, 1))
    assert first == second and first.count("CollectiveGatherV2") == 4


def test_batch_statistics_of_no_examples_are_refused():
    """Without batch statistics it works: see UNEVEN."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="BatchNormalization over no examples gives NaN"):
        trained(2, normalized, batches([4, 1], X, Y), fully_shard=BLOCKS)


def test_step_by_step_it_is_the_same():
    data = batches([4, 7], X, Y)
    with on(2):
        model = bt.Model.of(dense(), fully_shard=BLOCKS, micro_batches=2)
        model.compile(adamw(), "mse", run_eagerly=True)
        model.fit(data, verbose=0, shuffle=False)
    assert distance(model, trained(1, data=data)) < EQUAL


def test_an_overflow_on_one_replica_skips_the_step_on_all():
    x = X.copy()
    x[16] = np.inf
    with precision("mixed_float16"):
        model = trained(2, data=batches([16, 16, 16], x, Y), epochs=2, fully_shard=BLOCKS)
    steps = model.optimizer.iterations.numpy()
    assert 0 < steps <= 4 and model.loss_scale == 2.0 ** (15 - (6 - steps))  # halved at each skipped step
    assert np.isfinite(model.evaluate(X, Y, verbose=0))


def test_a_layer_of_32_bits_gets_all_bits_of_its_weights():
    with precision("mixed_bfloat16"), on(2):
        model = bt.Model.of(in_two_blocks(layers.Dense(8, dtype="float32", kernel_initializer=RANDOM)))
        before = model.predict(X, verbose=0)
        bt.Model.of(model, fully_shard=BLOCKS)
        np.testing.assert_allclose(model.predict(X, verbose=0), before, rtol=1e-6)


def test_gradients_of_shards_travel_in_16_bits():
    short = trained(2, fully_shard=BLOCKS, reduce_dtype="bfloat16")
    assert 1e-5 < distance(short, on_two_replicas()) < 0.05


@pytest.mark.parametrize(
    ("build", "settings", "sentence"),
    [
        (dense, {"fully_shard": BLOCKS, "shard_optimizer": True}, "cannot be combined"),
        (lambda: bt.recompute(dense(), BLOCKS), {"fully_shard": BLOCKS}, "leave out bt.recompute"),
        (
            lambda: in_two_blocks(lambda x: layers.Dense(8, kernel_regularizer="l2")(x)),
            {"fully_shard": BLOCKS},
            "has a regularizer or a constraint",
        ),
        (dense, {"fully_shard": r"block_\d|dense_.*"}, "is inside block_0, and fully_shard selects both"),
    ],
)
def test_what_would_be_wrong_is_refused(build, settings, sentence):
    with on(2), pytest.raises(ValueError, match=sentence):
        bt.Model.of(build(), **settings).compile("adam", "mse")


def test_a_stock_step_on_sharded_layers_is_refused():
    with on(2):
        block = keras.Sequential([keras.Input((6,)), layers.Dense(6)], name="block_0")
        bt.Model.of(keras.Sequential([keras.Input((6,)), block]), fully_shard=BLOCKS)
        stock = keras.Sequential([keras.Input((6,)), block])
        stock.compile("sgd", "mse")
        with pytest.raises(ValueError, match="a plain keras.Model cannot train"):
            stock.fit(X, X, verbose=0)


def test_what_is_sharded_stays_so_and_is_not_computed_a_third_time():
    with on(2):
        model = bt.Model.of(dense(), fully_shard=BLOCKS)
        bt.recompute(model, BLOCKS)
        assert not any(isinstance(layer, Recomputed) for layer in model.layers)
        with pytest.raises(ValueError, match="is inside block_0, and both are to be recomputed"):
            bt.recompute(model, "dense_.*")
        with pytest.raises(ValueError, match="cannot unshard this model's layers"):
            bt.Model.of(model, fully_shard=None)


def test_shards_of_the_optimizer_become_shards_of_layers_with_its_state():
    with on(2):
        model = bt.Model.of(dense(), shard_optimizer=True)
        model.compile(adamw(), "mse")
        model.fit(UNEVEN.take(2), verbose=0, shuffle=False)
        model.shard_optimizer, model.fully_shard = False, BLOCKS
        model.fit(UNEVEN.skip(2), verbose=0, shuffle=False)
    assert distance(model, alone()) < EQUAL


def test_an_embedding_and_a_gpt_are_sharded():
    def trained_gpt(count, **settings):
        tokens = np.random.default_rng(0).integers(0, 20, (12, 9))
        keras.utils.set_random_seed(1)
        with on(count):
            model = bt.Model.of(lambda: bt.gpt(20, 8, 16, 2, 4, nested_blocks=True), **settings)
            model.compile(adamw(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=6, shuffle=False, verbose=0)
        return model

    sharded = trained_gpt(2, fully_shard=r"block_\d+|embedding.*")
    assert sum(replicas.is_shard(weight) for weight in sharded.weights) == 2 * 8 + 1
    assert distance(sharded, trained_gpt(1)) < EQUAL


def test_one_replica_has_nothing_to_shard():
    assert distance(trained(1, fully_shard=BLOCKS), alone()) == 0


def test_a_model_that_a_function_builds_is_never_whole(monkeypatch):
    """Its initial weights are the same, and no unsharded variable is created."""
    with on(2):
        first = bt.Model.of(dense(), fully_shard=BLOCKS)
        made = []
        make = keras.Variable._initialize
        monkeypatch.setattr(keras.Variable, "_initialize", lambda self, value: (make(self, value), made.append(self)))
        later = bt.Model.of(dense, fully_shard=BLOCKS)
    assert distance(later, first) == 0
    shapes = [tuple(variable.shape) for variable in made]
    assert (8 * 33 // 2,) in shapes and (8, 33) not in shapes and (33, 8) not in shapes
    with later.distribute_strategy.scope():
        later.compile("sgd", "mse")
    later.fit(EVEN, verbose=0)


def test_a_function_may_load_weights_and_may_fail(tmp_path):
    alone().save_weights(tmp_path / "of.weights.h5")
    before = dense()

    def loaded():
        model = dense()
        model.load_weights(tmp_path / "of.weights.h5")
        return model

    with on(2):
        assert distance(bt.Model.of(loaded, fully_shard=BLOCKS), alone()) == 0
        with pytest.raises(ValueError, match="selects no layer of"):
            bt.Model.of(dense, fully_shard="nothing")
    with keras.StatelessScope():
        pass  # on exit, Keras creates all deferred variables
    assert distance(dense(), before) == 0


def test_a_list_of_layers_stays_out_of_files(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.stack = [layers.Dense(4) for _ in range(3)]

        def call(self, x):
            for layer in self.stack:
                x = layer(x)
            return x

    def built():
        net = Net()
        net(np.ones((1, 4)))
        return net

    stock, other = built(), built()
    bt.Model.of(stock, fully_shard=[stock.stack[1]]).save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    assert distance(stock, other) == 0 and list(stock.fully_shard) == [stock.stack[1]]


def test_what_is_frozen_after_it_was_sharded_does_not_train_until_thawed():
    """LoRA freezes a kernel, whose shard is the trainable variable."""
    with on(2):
        model = bt.Model.of(dense(), fully_shard=BLOCKS)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        chosen = model.get_layer("block_1").layers[-2]
        assert isinstance(chosen, layers.Dense)
        chosen.enable_lora(2)
        model.compile(keras.optimizers.SGD(0.1), "mse")
    before = chosen.get_weights()
    paths = [weight.path for weight in model.trainable_variables]
    assert not any(path.endswith(f"{chosen.name}/kernel") for path in paths)
    model.fit(EVEN, verbose=0)
    moved = [not np.array_equal(one, other) for one, other in zip(before, chosen.get_weights(), strict=True)]
    assert moved == [weight.name != "kernel" for weight in chosen.weights]
    before = chosen.get_weights()
    with on(2):
        chosen._kernel.trainable = True
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(EVEN, verbose=0)
    assert not any(np.array_equal(one, other) for one, other in zip(before, chosen.get_weights(), strict=True))


def test_a_weight_that_is_left_undecayed_itself_and_not_by_its_name_stays_so():
    models = []
    for settings in ({}, {"fully_shard": BLOCKS}, {"shard_optimizer": True}):
        with on(2):
            model = dense()
            optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5, epsilon=1e-4)
            optimizer.exclude_from_weight_decay(var_list=model.get_layer("block_1").weights[2:3])
            bt.Model.of(model, **settings).compile(optimizer, "mse")
        model.fit(EVEN, verbose=0, shuffle=False)
        models.append(model)
    assert apart(models[0], models[1]) < 1e-6 and apart(models[0], models[2]) < 1e-6
