"""Steps of Keras models: what is read from their graphs, against numbers worked out by hand and fresh processes."""

from functools import partial

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.plan.plans import plan_step
from bigtrain_nb.plan.step import Step
from bigtrain_nb.plan.transformer import SLOTS, Transformer

B = 32
SUMS = 144
SUM_BYTES = SUMS * 64 * 64 * 16 * 4  # conv_net's largest activation, float32 [batch, 64, 64, 16]
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
layers = keras.layers


def contractions(step, layer, backward=False):
    chosen = [op for op in step.gradients.operations if op.layer == layer and op.backward == backward]
    return sum(op.times * op.flops for op in chosen)


def network(*stack, shape=(16,), dtype="float32"):
    inputs = keras.Input(shape, dtype=dtype)
    return keras.Model(inputs, keras.Sequential(stack)(inputs))


@pytest.fixture(scope="module")
def dense():
    return network(layers.Dense(24, activation="relu", name="first"), layers.Dense(5, name="last"))


def test_flops_of_dense_layers(dense):
    step = Step(dense, B)
    assert contractions(step, "first") == 2 * B * 16 * 24
    assert contractions(step, "first", backward=True) == 2 * B * 16 * 24  # nobody asks for the images' gradient
    assert contractions(step, "last", backward=True) == 2 * 2 * B * 24 * 5


def test_flops_of_convolutions():
    wide = layers.Conv2D(6, 3, strides=2, padding="same", name="wide")
    deep = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="deep")
    step = Step(network(layers.Conv2D(4, 1), deep, wide, shape=(8, 8, 3)), B, loss="mse")
    for layer, products in (("deep", 8 * 8 * 8 * 3 * 3), ("wide", 4 * 4 * 6 * 3 * 3 * 8)):
        assert contractions(step, layer) == 2 * B * products
        assert contractions(step, layer, backward=True) == 2 * 2 * B * products


def test_flops_of_a_loop_are_those_of_all_its_rounds():
    step = Step(network(layers.LSTM(8, name="steps"), layers.Dense(2), shape=(10, 6)), B)
    assert contractions(step, "steps") == 10 * 2 * B * (6 + 8) * 4 * 8
    back = 6 + 8 + 8  # of the kernels and the state; nobody asks for the input's gradient
    assert contractions(step, "steps", backward=True) == 10 * 2 * B * back * 4 * 8


def test_flops_of_a_gpt_agree_with_those_from_a_few_numbers():
    plan = plan_step(bt.gpt(), 4)
    paper = Transformer(2, 128, 4, 256, 128, tied=False).flops(4).total
    assert plan.flops.total == pytest.approx(paper, rel=0.01)
    assert plan.flops.total_how.startswith("3.0")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lion"])
def test_weights_and_slots_are_counted(dense, optimizer):
    plan = plan_step(dense, B, optimizer=optimizer)
    assert plan.memory["weights"] == 4 * dense.count_params()
    slots = 4 * SLOTS[optimizer] * dense.count_params()
    assert plan.memory["optimizer slots"] == pytest.approx(slots, abs=16)  # and a rate and a count


def test_the_input_is_counted_with_the_batch_that_waits(dense):
    batch = B * (16 * 4 + 8)  # float32 x, int64 y
    assert plan_step(dense, B).memory["input"] == 2 * batch
    assert plan_step(dense, B, waiting=0, micro_batches=4).memory["input"] == batch + batch / 4


def test_layers_keep_their_own_precision():
    def build():
        return network(layers.Dense(256, activation="relu", name="a"), layers.Dense(256, name="b"), shape=(256,))

    single, half = (plan_step(build, 8192, policy=policy) for policy in ("float32", "mixed_bfloat16"))
    assert keras.mixed_precision.dtype_policy().name == "float32"
    assert single.activations["a"] == 4 * 8192 * 256  # what relu makes; the input is not the layer's own
    assert half.activations["a"] == 2 * 8192 * 256
    assert "cast copies" not in single.memory.parts and half.memory["cast copies"] <= 2 * 2 * 256 * 256


def test_micro_batches_cut_activations_and_add_sums():
    model = bt.conv_net()
    whole, cut = plan_step(model, 64), plan_step(model, 64, micro_batches=8)
    assert whole.memory["activations"] / cut.memory["activations"] == pytest.approx(8, rel=0.05)
    assert cut.peak < 0.3 * whole.peak
    assert cut.flops.total == whole.flops.total


def test_tensorflow_still_keeps_what_it_folds():
    """When this fails, TensorFlow was mended: then `Graph.folded` can go."""

    def used():
        return tf.config.experimental.get_memory_info("CPU:0")["current"]

    assert plan_step(bt.conv_net(), SUMS).memory["folded"] == pytest.approx(SUM_BYTES, rel=0.01)
    try:
        before = used()
    except ValueError:
        pytest.skip("this TensorFlow does not count the CPU's memory")
    train(bt.conv_net, SUMS)
    assert used() - before > 0.9 * SUM_BYTES


def recurrent():
    return bt.Model.of(network(layers.LSTM(128, return_sequences=True), layers.LSTM(128), shape=(100, 64)))


def one_dimensional():
    stack = [layers.Conv1D(64, 5, padding="same", activation="relu") for _ in range(3)]
    return bt.Model.of(network(*stack, layers.GlobalAveragePooling1D(), shape=(1024, 16)))


def embedding():
    return bt.Model.of(network(layers.Embedding(200_000, 128), layers.Flatten(), shape=(4,), dtype="int32"))


def train(build, batch):
    model = build()
    model.compile("adamw", CLASSES)
    x = tf.ones([batch, *model.input.shape[1:]], model.input.dtype)
    y = tf.zeros([batch, *model.output.shape[1:-1]], tf.int32)
    model.fit(tf.data.Dataset.from_tensors((x, y)).repeat(2), verbose=0, shuffle=False)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="Keras uses XLA on GPUs")
@pytest.mark.parametrize(
    ("build", "batch"),
    [
        (bt.conv_net, SUMS),
        (partial(bt.gpt, layers=4, recompute=True), 64),
        (recurrent, 256),
        (one_dimensional, 128),
        (embedding, 64),
    ],
)
def test_a_fresh_process_takes_about_what_is_planned(build, batch):
    plan = plan_step(build, batch, waiting=0)
    taken = bt.peak_memory(train, build=build, batch=batch) * 2**20
    assert taken == pytest.approx(plan.peak + plan.runtime, rel=0.4)


def test_recomputing_takes_less_memory_and_nearly_a_third_more_work():
    """Chen et al. 2016: the forward pass twice is 4/3. But no gradient needs the last product of a block again."""
    plain, again = (plan_step(partial(bt.gpt, layers=6, recompute=recompute), 16) for recompute in (False, True))
    assert again.memory["activations"] < 0.1 * plain.memory["activations"] and again.peak < 0.6 * plain.peak
    assert 1.2 < again.flops.total / plain.flops.total < 4 / 3


def test_a_large_model_and_a_small_batch_are_fullest_in_the_update():
    plan = plan_step(network(layers.Dense(1024), layers.Dense(10), shape=(1024,)), 1, optimizer="adamw")
    assert "updated" in plan.memory.total_how
    assert plan.peak >= 4 * plan.memory["weights"]
    rows = plan_step(embedding, 64, optimizer="sgd")  # those that a batch used
    assert rows.peak < 1.1 * rows.memory["weights"]


def test_settings_of_a_compiled_model_are_taken():
    model = bt.conv_net(micro_batches=4)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), CLASSES)
    plan = plan_step(model, 64)
    assert "4 slices of 16" in plan.title and "SGD" in plan.title
    assert not model.optimizer.built  # it is left alone


def test_published_figures_give_a_time_and_the_plan_explains_it(dense):
    slow, fast = (plan_step(dense, 4096, on=on) for on in ("T4", "H100"))
    assert slow.seconds > fast.seconds > 0 and slow.binding == "computing"
    shared = plan_step(dense, 4096, on="H100", devices=4)
    assert shared.time["communication"] == pytest.approx(1.5 * 4 * dense.count_params() / 450e9)
    assert shared.time["computing"] < fast.time["computing"]
    assert plan_step(dense, 4096, on="H100", devices=4, link=1e6).binding == "communication"
    assert "all variables of the model" in str(fast.explain()) and "H100 datasheet" in str(fast.explain())


@pytest.mark.parametrize("as_dict", [False, True])
def test_losses_go_to_the_outputs_of_their_name_or_place(as_dict):
    inputs = keras.Input((4,))
    outputs = {"z": layers.Dense(3, name="z")(inputs), "a": layers.Dense(1, name="a")(inputs)}
    model = keras.Model(inputs, outputs if as_dict else list(outputs.values()))
    targets = 8 * 8 + 8 * 4  # int64 classes and float32 numbers of 8 examples
    both = plan_step(model, 8, loss={"a": "mse", "z": CLASSES})
    assert both.memory["input"] == 2 * (8 * 4 * 4 + targets) and "a" in both.flops.parts
    one = plan_step(model, 8, loss={"z": CLASSES})
    assert one.flops["z"] == both.flops["z"] and "a" not in one.flops.parts


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 0}, "batch=0 must be"),
        ({"on": "H1000"}, "on='H1000' must be one of T4, .*, here"),
        ({"policy": "mixed_bfloat16"}, "a built model has its policy already"),
        ({"loss": lambda y, made: tf.reduce_sum(y)}, "the loss depends on no weight"),
    ],
)
def test_bad_settings_are_refused(dense, settings, words):
    with pytest.raises(ValueError, match=words):
        plan_step(dense, **{"batch": B, **settings})


class Projected(keras.Model):
    def __init__(self):
        super().__init__()
        self.project = layers.Dense(3)

    def call(self, x):
        return self.project(x)


def test_what_is_no_model_yet_or_tells_no_shapes_is_refused():
    model, batch = Projected(), (tf.zeros([8, 5]), tf.zeros([8], tf.int32))
    model(batch[0])
    assert plan_step(model, batch).memory["weights"] == 4 * 18
    with pytest.raises(ValueError, match=r"does not tell its input shapes: give batch=\(x, y\)"):
        plan_step(model, 8)
    with pytest.raises(ValueError, match="has no weights to train yet"):
        plan_step(keras.Sequential([layers.Dense(3)]), B)


class Halved(layers.Layer):
    """Halves numbers until only the run knows when."""

    def call(self, x):
        return tf.while_loop(lambda x: tf.reduce_max(x) > 1, lambda x: (x / 2,), (x,))[0]


def test_what_is_not_looked_into_is_said_first():
    plan = plan_step(network(layers.Dense(4), Halved(), layers.Dense(2)), B)
    assert repr(plan).startswith("Not looked into") and plan.peak > 0
