"""Plans of Keras models' steps, read from their graphs, against values computed by hand and fresh processes."""

from functools import partial

import numpy as np
import pytest
from logical_cpus import mirrored

import bigtrain_nb as bt
from bigtrain_nb.advanced.plan.parallelism import SLOTS
from bigtrain_nb.advanced.plan.peak import peak_of
from bigtrain_nb.advanced.plan.plans import plan_step
from bigtrain_nb.advanced.plan.step import PlannedStep
from bigtrain_nb.advanced.plan.transformer import Transformer
from bigtrain_nb.common.quiet import keras, tf

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
    step = PlannedStep(dense, B)
    assert contractions(step, "first") == 2 * B * 16 * 24
    assert contractions(step, "first", backward=True) == 2 * B * 16 * 24  # without the images' gradient
    assert contractions(step, "last", backward=True) == 2 * 2 * B * 24 * 5


def test_flops_of_convolutions():
    wide = layers.Conv2D(6, 3, strides=2, padding="same", name="wide")
    deep = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="deep")
    step = PlannedStep(network(layers.Conv2D(4, 1), deep, wide, shape=(8, 8, 3)), B, loss="mse")
    for layer, products in (("deep", 8 * 8 * 8 * 3 * 3), ("wide", 4 * 4 * 6 * 3 * 3 * 8)):
        assert contractions(step, layer) == 2 * B * products
        assert contractions(step, layer, backward=True) == 2 * 2 * B * products


def test_flops_of_a_loop_are_those_of_all_its_rounds():
    step = PlannedStep(network(layers.LSTM(8, name="steps"), layers.Dense(2), shape=(10, 6)), B)
    assert contractions(step, "steps") == 10 * 2 * B * (6 + 8) * 4 * 8
    back = 6 + 8 + 8  # for the kernels and the state, without the input's gradient
    assert contractions(step, "steps", backward=True) == 10 * 2 * B * back * 4 * 8
    assert step.gradients.uncounted_ops == []


def of_function(function, **options):
    """Return a layer without weights that keeps four features."""
    return layers.Lambda(function, output_shape=(4,), **options)


def loop(first, limit, after):
    """Return a layer that multiplies while a number, which ``after`` changes with its limit, is below the limit."""

    def again(number, limit, x):
        return *after(number, limit), tf.matmul(x, tf.ones((4, 4)))

    def call(x):
        return tf.while_loop(lambda number, limit, x: number < limit, again, (first, limit, x))[2]

    return of_function(call, name="loop")


@pytest.mark.parametrize(("start", "step", "rounds"), [(5, 128, 8), (2000, 1, 0)])
def test_rounds_of_a_loop_follow_from_its_start_and_step(start, step, rounds):
    counting = loop(start, 1024, lambda number, limit: (number + step, limit))
    found = PlannedStep(network(counting, layers.Dense(2), shape=(4,)), B)
    assert contractions(found, "loop") == rounds * 2 * B * 4 * 4


def in_python(x):
    return tf.ensure_shape(tf.py_function(tf.identity, [x], x.dtype), x.shape)


def ctc(x):
    logits, labels = tf.tile(x[:, None], [1, 3, 1]), tf.ones(tf.shape(x)[:1], tf.int32)
    return tf.nn.ctc_loss(labels[:, None], logits, labels, 3 * labels, logits_time_major=False, blank_index=0)[:, None]


UNCOUNTED = {
    "no integers": (loop(0.0, 0.5, lambda number, limit: (number + 0.1, limit)), {"StatelessWhile"}),
    "a limit that moves": (loop(0, 10, lambda number, limit: (number + 1, limit - 1)), {"StatelessWhile"}),
    "examples chosen": (of_function(lambda x: tf.boolean_mask(x, x[:, 0] > 0)), {"MatMul"}),
    "CTC": (of_function(lambda x: x + ctc(x)), {"While"}),
    "Python": (of_function(in_python), {"EagerPyFunc", "MatMul"}),
}


@pytest.mark.parametrize("what", UNCOUNTED)
def test_what_only_the_run_knows_is_said_first(what):
    layer, kinds = UNCOUNTED[what]

    def mean(_, outputs):
        return tf.reduce_mean(outputs)

    plan = plan_step(network(layers.Dense(4), layer, layers.Dense(2)), B, loss=mean)
    assert repr(plan).startswith("Operations not counted") and plan.peak > 0
    assert kinds <= set(plan.uncounted_ops)


def test_flops_of_a_gpt_agree_with_those_from_a_few_numbers():
    plan = plan_step(bt.gpt(), 4)
    paper = Transformer(2, 128, 4, 256, 128, tied=False).flops(4).total
    assert plan.flops.total == pytest.approx(paper, rel=0.01)
    assert plan.flops.total_how.startswith("3.0")
    assert plan.uncounted_ops == plan_step(partial(recomputed_gpt, dropout=0.1), 4).uncounted_ops == []


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lion"])
def test_weights_and_slots_are_counted(dense, optimizer):
    plan = plan_step(dense, B, optimizer=optimizer)
    assert plan.memory["weights"] == 4 * dense.count_params()
    slots = 4 * SLOTS[optimizer] * dense.count_params()
    assert plan.memory["optimizer state"] == pytest.approx(slots, abs=16)  # plus the learning rate and the step count


class Constant(keras.optimizers.schedules.LearningRateSchedule):
    """Is neither registered nor in a config."""

    def __call__(self, step):
        return 0.1


@pytest.mark.parametrize("rate", [Constant(), lambda: 0.1], ids=["schedule", "function"])
def test_a_rate_that_no_config_has_is_planned(dense, rate):
    optimizer = keras.optimizers.Adam(rate)
    plan = plan_step(dense, B, optimizer=optimizer)
    assert plan.peak == pytest.approx(plan_step(dense, B, optimizer="adam").peak, rel=0.01)
    assert vars(optimizer)["_learning_rate"] is rate


def test_an_accumulating_optimizer_keeps_a_sum_and_its_update_is_planned():
    wide = network(layers.Dense(4000), shape=(1000,))
    once, accumulating = (
        plan_step(wide, 1, optimizer=keras.optimizers.AdamW(gradient_accumulation_steps=steps)) for steps in (None, 4)
    )
    weights = 4 * wide.count_params()
    assert accumulating.memory["optimizer state"] == once.memory["optimizer state"] + weights
    assert once.memory["workspace"] <= accumulating.memory["workspace"] <= once.memory["workspace"] + weights
    assert once.uncounted_ops == accumulating.uncounted_ops == []


def test_the_uncounted_operations_of_an_update_are_named(dense):
    averaging = keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2)
    assert plan_step(dense, B, optimizer=averaging).uncounted_ops == ["If"]


def test_layers_keep_their_own_precision():
    def build():
        return network(layers.Dense(256, activation="relu", name="a"), layers.Dense(256, name="b"), shape=(256,))

    single, half = (plan_step(build, 8192, policy=policy) for policy in ("float32", "mixed_bfloat16"))
    assert keras.mixed_precision.dtype_policy().name == "float32"
    assert single.activations["a"] == 4 * 8192 * 256  # the output of relu; the input belongs to another layer
    assert half.activations["a"] == 2 * 8192 * 256
    assert "cast copies" not in single.memory.parts and half.memory["cast copies"] <= 2 * 2 * 256 * 256


def test_micro_batches_cut_activations_and_nothing_is_folded_where_no_size_is_known():
    """Sizes are known on one device, without micro-batches, and only CPUs fold."""
    model = bt.conv_net()
    kept, on_a_gpu = plan_step(model, 8 * SUMS), plan_step(model, 8 * SUMS, on="H100")
    assert kept.memory["constants"] == pytest.approx(8 * SUM_BYTES, rel=0.01)
    assert kept.peak - on_a_gpu.peak == kept.memory["constants"]
    cut, shared = (plan_step(model, 8 * SUMS, **settings) for settings in ({"micro_batches": 8}, {"devices": 8}))
    for plan in (on_a_gpu, cut, shared):
        assert "constants" not in plan.memory.parts
    made = [plan.memory["activations"] + plan.memory["workspace"] for plan in (kept, cut)]  # shares depend on the peak
    assert made[0] / made[1] == pytest.approx(8, rel=0.05)
    assert cut.peak < 0.3 * kept.peak
    assert cut.flops.total == kept.flops.total and kept.uncounted_ops == []


@pytest.mark.more("what TensorFlow itself does")
def test_tensorflow_still_keeps_what_it_folds(cpu_memory):
    """If this fails, TensorFlow was fixed; then delete `Graph.folded`."""
    before = cpu_memory()["current"]
    train(bt.conv_net, SUMS)
    assert cpu_memory()["current"] - before > 0.9 * SUM_BYTES


def test_micro_batches_in_a_loop_add_two_copies_of_the_gradients_in_32_bits():
    """The sums so far and those that the loop returns, even before a micro-batch has any gradient."""
    build = partial(bt.gpt, 4096, 32, 64, 1, 2)  # a large vocabulary, so that in any Keras the peak is at its gradients
    model = build()
    whole, cut = (plan_step(model, 16 * slices, micro_batches=slices) for slices in (1, 2))
    assert "logits" in whole.memory.total_how and "logits" in cut.memory.total_how  # at the start of the backward pass
    assert "gradients" not in whole.memory.parts
    assert cut.memory["gradients"] == 2 * 4 * model.count_params()
    assert plan_step(model, 64, micro_batches=2, devices=2).memory["gradients"] == cut.memory["gradients"]
    of_16_bits = plan_step(build, 32, micro_batches=2, policy="bfloat16")
    assert of_16_bits.memory["gradients"] >= cut.memory["gradients"]


def test_what_metrics_keep_is_counted_and_they_stay_as_they_are():
    def planned(*metrics):
        model = network(layers.Dense(4096), shape=(4,))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=list(metrics))
        plan = plan_step(model, B)
        assert not any(variable.numpy().any() for variable in model.metrics_variables)
        return plan.peak

    logits = 4 * B * 4096
    assert 2 * logits < planned("accuracy") - planned() < 4 * logits  # `argmax` copies them


def test_micro_batches_that_are_written_out_add_one_copy(dense):
    """Micro-batches of fully sharded layers are unrolled; the peak of `dense` is at the start of the backward pass."""
    whole, cut = (
        plan_step(dense, 8192 * slices, micro_batches=slices, devices=2, fully_shard="first") for slices in (1, 2)
    )
    sums = cut.memory["gradients"] - whole.memory.parts.get("gradients", 0)
    assert sums == PlannedStep(dense, B, devices=2, fully_shard="first").trainable


def recomputed_gpt(**settings):
    return bt.recompute(bt.gpt(nested_blocks=True, **settings), r"block_\d+")


LAYERS = 6


def recurrent():
    return bt.Model.of(network(layers.LSTM(128, return_sequences=True), layers.LSTM(128), shape=(100, 64)))


def one_dimensional():
    stack = [layers.Conv1D(64, 5, padding="same", activation="relu") for _ in range(3)]
    return bt.Model.of(network(*stack, layers.GlobalAveragePooling1D(), shape=(1024, 16)))


def stock_embedding():
    return network(layers.Embedding(200_000, 128), layers.Flatten(), shape=(4,), dtype="int32")


def embedding():
    return bt.Model.of(stock_embedding())


def large_vocabulary(rows):
    return bt.chunk_head(bt.gpt(vocabulary=16_384, length=128), rows=rows)


def train(build, batch):
    model = build()
    model.compile("adamw", CLASSES)
    x = tf.ones([batch, *model.input.shape[1:]], model.input.dtype)
    y = tf.zeros([batch, *model.output.shape[1:-1]], tf.int32)
    model.fit(tf.data.Dataset.from_tensors((x, y)).repeat(2), verbose=0, shuffle=False)


OTHER_KINDS = pytest.mark.more("a process that loads TensorFlow and trains, for every kind of layer")


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="Keras uses XLA on GPUs")
@pytest.mark.parametrize(
    ("build", "batch", "least"),
    [
        (bt.conv_net, SUMS, 0.6),
        pytest.param(partial(recomputed_gpt, layers=4), 64, 0.6, marks=OTHER_KINDS),
        pytest.param(recurrent, 256, 0.6, marks=OTHER_KINDS),
        pytest.param(one_dimensional, 128, 0.6, marks=OTHER_KINDS),
        pytest.param(embedding, 64, 0.6, marks=OTHER_KINDS),
        pytest.param(partial(large_vocabulary, 512), 32, 0.75, marks=OTHER_KINDS),
    ],
)
def test_a_fresh_process_takes_about_what_is_planned(build, batch, least):
    plan = plan_step(build, batch, prefetched=0)
    taken = bt.peak_memory(train, build=build, batch=batch) * 2**20
    most = 1.4 if memory_is_counted() else 1.7  # without oneDNN, Eigen copies the operands of convolutions and matmuls
    assert least < taken / (plan.peak + plan.runtime) < most


def memory_is_counted():
    """Return whether TensorFlow's CPU allocator counts, as with oneDNN."""
    try:
        return bool(tf.config.experimental.get_memory_info("CPU:0"))
    except ValueError:
        return False


def test_a_head_in_chunks_takes_less_and_folds_no_sums_that_begin_with_zeros():
    cut, whole = (plan_step(partial(large_vocabulary, rows), 32) for rows in (384, False))
    assert cut.memory["constants"] == pytest.approx(whole.memory["constants"], rel=0.01)
    assert cut.peak < 0.7 * whole.peak
    assert plan_step(partial(large_vocabulary, 384), 32, loss="sparse_categorical_crossentropy").peak < 0.7 * whole.peak


def test_recomputing_takes_less_memory_and_nearly_a_third_more_work():
    """Chen et al. 2016: two forward passes are 4/3 of the work. But a block's last matmul need not be recomputed.

    On several devices a fully sharded block is computed as often, and keeps its inputs only, [batch, length, width].
    """
    nested = partial(bt.gpt, layers=LAYERS, nested_blocks=True)
    plain, again = (plan_step(build, 16) for build in (nested, partial(recomputed_gpt, layers=LAYERS)))
    assert again.memory["activations"] < 0.1 * plain.memory["activations"] and again.peak < 0.6 * plain.peak
    assert 1.2 < again.flops.total / plain.flops.total < 4 / 3 and again.uncounted_ops == []
    assert hills(plain.memory_timeline) == 1 and hills(again.memory_timeline) == LAYERS  # one per block

    sharded = plan_step(nested, 32, devices=2, fully_shard=r"block_\d+")
    assert sharded.memory["activations"] == pytest.approx(LAYERS * 4 * 16 * 128 * 128, rel=0.05)
    assert sharded.flops.total == pytest.approx(again.flops.total, rel=0.05)
    assert sharded.memory["weights"] < 0.6 * again.memory["weights"]


def hills(course):
    """Return how often a timeline rises from below 1/2 to above 3/4 of its maximum."""
    rises, is_high = 0, False
    for amount in course:
        if not is_high and amount > 0.75 * max(course):
            rises, is_high = rises + 1, True
        elif amount < 0.5 * max(course):
            is_high = False
    return rises


def test_a_large_model_and_a_small_batch_are_fullest_in_the_update():
    plan = plan_step(network(layers.Dense(1024), layers.Dense(10), shape=(1024,)), 1, optimizer="adamw")
    assert "updated" in plan.memory.total_how
    assert plan.peak >= 4 * plan.memory["weights"]


def test_a_model_of_ours_makes_the_gradient_of_an_embedding_dense():
    """With 200,000 x 256 numbers it held 2.2 times its weights after a step of SGD."""
    rows = plan_step(stock_embedding, 64, optimizer="sgd")  # the rows used by a batch
    assert rows.peak < 1.1 * rows.memory["weights"] and rows.uncounted_ops == []
    for settings in ({}, {"devices": 2}):
        dense = plan_step(embedding, 64, optimizer="sgd", **settings)
        assert dense.memory["gradients"] == pytest.approx(dense.memory["weights"], rel=0.01)


def test_a_plan_says_how_full_a_device_is_and_explains_itself(dense):
    small, large = (plan_step(dense, 2**22, on=on, optimizer="sgd") for on in ("T4", "H100"))
    assert small.peak == large.peak and small.device_memory == 16e9
    assert f"{small.peak / 16e9:.0%} of the device" in repr(small) and plan_step(dense, B).device_memory is None
    assert "all variables of the model" in str(large.explain())
    kinds = [large.memory.parts.get(kind, 0) for kind in ("activations", "gradients", "workspace")]
    assert max(large.memory_timeline) == sum(kinds)


NUMBERS = 16 * 24 + 24 + 24 * 5 + 5  # parameters of `dense`: 533
SHARDS = 96 + 6 + 30 + 2  # a quarter of each, rounded up


def test_a_shard_of_the_optimizer_is_a_part_of_its_slots_and_one_of_the_weights(dense):
    whole, shard = (plan_step(dense, B, devices=4, shard_optimizer=sharded) for sharded in (False, True))
    rate_and_count = whole.memory["optimizer state"] - 2 * 4 * NUMBERS  # AdamW's
    assert shard.memory["optimizer state"] == 2 * 4 * SHARDS + rate_and_count
    assert shard.memory["weight shards"] == 4 * SHARDS and "weight shards" not in whole.memory.parts
    assert shard.memory["weights"] == whole.memory["weights"] == 4 * NUMBERS
    assert whole.communication_volume.total == pytest.approx(3 / 4 * 2 * 4 * NUMBERS)
    assert shard.communication_volume.total == pytest.approx(3 / 4 * (2 * 4 + 4) * NUMBERS)  # gathers the weights too


FIRST, LAST = 16 * 24 + 24, 24 * 5 + 5  # parameters of the two layers of `dense`: 408 and 125
FIRST_SHARDS = 96 + 6  # a quarter of kernel and bias


def test_a_device_keeps_a_part_of_fully_sharded_layers_of_their_gradients_and_slots(dense):
    whole, sharded = (plan_step(dense, B, devices=4, fully_shard=chosen) for chosen in (None, "first"))
    assert sharded.memory["weights"] == 4 * (FIRST_SHARDS + LAST)
    rate_and_count = whole.memory["optimizer state"] - 2 * 4 * NUMBERS
    assert sharded.memory["optimizer state"] == 2 * 4 * (FIRST_SHARDS + LAST) + rate_and_count
    assert PlannedStep(dense, B, devices=4, fully_shard="first", micro_batches=2).applied == 4 * (FIRST_SHARDS + LAST)


@pytest.mark.parametrize(
    ("settings", "a_weight", "others"),
    [
        ({}, 3 * 4, 2 * 4),  # two all-gathers and a reduce-scatter are 1.5 all-reduces
        ({"micro_batches": 4}, 4 * 3 * 4, 2 * 4),  # each gathers and scatters; other gradients are summed first
        ({"reduce_dtype": "bfloat16"}, 2 * 4 + 2, 2 * 2),
    ],
    ids=["whole share", "micro-batches", "16 bits"],
)
def test_what_a_step_with_fully_sharded_layers_sends(dense, settings, a_weight, others):
    plan = plan_step(dense, B, devices=4, fully_shard="first", **settings)
    assert plan.communication_volume.total == pytest.approx(3 / 4 * (a_weight * FIRST + others * LAST))


SIDE = 512
MATRIX = 4 * SIDE * SIDE  # bytes


def test_of_fully_sharded_layers_one_at_a_time_is_in_one_piece():
    """Weights and gradients of one layer. By then the other three hold half of their gradients and no weights."""
    stack = [layers.Dense(SIDE, "relu", use_bias=False, name=f"block_{number}") for number in range(4)]
    model = network(*stack, shape=(SIDE,))
    step = PlannedStep(model, 2, loss="mse", optimizer="sgd", devices=2, fully_shard=r"block_\d")
    assert step.weights == 4 * MATRIX / 2
    kinds = peak_of(step.gradients).kinds
    assert kinds["unsharded layer"] == pytest.approx(MATRIX, abs=32)  # plus some metadata
    assert kinds["workspace"] == pytest.approx(MATRIX, rel=0.01)  # its gradients
    assert kinds["gradients"] == 3 * MATRIX / 2


def test_a_plan_leaves_the_layers_as_they_are_and_takes_the_setting_of_a_model(dense):
    first = dense.layers[1].layers[0]
    before = [id(weight) for weight in dense.weights], list(vars(first))
    taken = bt.Model.of(network(layers.Dense(24, name="first"), layers.Dense(5)), fully_shard="first")
    assert plan_step(taken, B, devices=4).memory["weights"] == 4 * (FIRST_SHARDS + LAST)
    assert plan_step(taken, B).memory["weights"] == 4 * NUMBERS  # nothing to shard on one device
    plan_step(dense, B, devices=4, fully_shard="first")
    assert ([id(weight) for weight in dense.weights], list(vars(first))) == before


def test_frozen_and_mixed_layers_are_planned():
    """Frozen weights are gathered and have no gradient; a block may compute in 16 bits."""

    def build():
        frozen = layers.Dense(8, trainable=False)
        block = keras.Sequential(
            [keras.Input((8,)), frozen, layers.BatchNormalization(), layers.Dense(8)], name="block"
        )
        return network(block, layers.Dense(5), shape=(8,))

    plan = plan_step(build, B, devices=2, fully_shard="block", policy="mixed_bfloat16", optimizer="sgd")
    matrix, trained, others = 8 * 8 + 8, 8 * 8 + 8 + 16, 8 * 5 + 5
    assert plan.communication_volume["gathered weights"] == 2 * 4 * (matrix + trained) / 2
    assert plan.communication_volume["scattered gradients"] == 4 * trained / 2
    assert plan.communication_volume["gradients"] == 2 * 4 * others / 2
    assert plan.memory["weights"] == 4 * ((matrix + trained) / 2 + 16 + others)  # plus moving statistics


def test_a_fully_sharded_embedding_is_gathered_whole():
    stack = [layers.Embedding(1000, 16, name="words"), layers.Flatten(), layers.Dropout(0.1), layers.Dense(5)]
    plan = plan_step(network(*stack, shape=(4,), dtype="int32"), B, devices=2, fully_shard="words|dropout.*")
    assert plan.communication_volume["scattered gradients"] == 4 * 1000 * 16 / 2
    assert plan.memory["weights"] == pytest.approx(4 * (1000 * 16 / 2 + 4 * 16 * 5 + 5), abs=32)  # plus dropout's seed


def test_layers_that_are_sharded_already_are_refused():
    with mirrored(2).scope():
        model = bt.Model.of(network(layers.Dense(24, name="first"), layers.Dense(5)), fully_shard="first")
    with pytest.raises(
        ValueError, match="are already sharded over the replicas: give the function that builds the model"
    ):
        plan_step(model, B)


def test_a_model_of_a_strategy_is_planned_as_it_is_set():
    settings = {"micro_batches": 4, "shard_optimizer": True, "reduce_dtype": "bfloat16"}
    with mirrored(2).scope():
        model = bt.Model.of(network(layers.Dense(24), layers.Dense(5)), **settings)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), CLASSES)
        with pytest.raises(ValueError, match="outside of the strategy's scope"):
            plan_step(model, B)
    plan = plan_step(model, B)
    assert plan.title == "A step of 16 examples on each of 2 devices in 4 micro-batches of 4, SGD, float32"
    assert plan.memory["weight shards"] == 4 * (192 + 12 + 60 + 3)
    assert plan.communication_volume.total == (2 * 2 + 4) * NUMBERS / 2
    assert not model.optimizer.built  # it is unchanged


def test_the_input_is_the_batch_and_those_that_wait_and_a_dataset_is_planned_as_its_first_batch(dense):
    x, y = np.zeros([10, 16], "float32"), np.zeros([10], "int32")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    one = x[:8], y[:8]
    plans = [plan_step(dense, batch) for batch in (dataset, one, 8, list(one), [one])]
    assert {plan.title for plan in plans} == {"A step of 8 examples, AdamW, float32"}
    assert len({plan.activations.total for plan in plans}) == 1
    assert plans[0].memory["input"] == plans[1].memory["input"] == 2 * 8 * (16 * 4 + 4)
    assert plans[2].memory["input"] == 2 * 8 * (16 * 4 + 8)  # int64 targets
    weighted = tf.data.Dataset.from_tensors((x, y, np.ones([10], "float32")))
    assert plan_step(dense, weighted).memory["input"] == 2 * 10 * (16 * 4 + 4 + 4)
    batch = B * (16 * 4 + 8)
    assert plan_step(dense, B, prefetched=0, micro_batches=4).memory["input"] == batch + batch / 4


def test_arrays_are_planned_in_the_type_that_fit_casts_them_to(dense):
    planned = [plan_step(dense, (np.zeros([8, 16], kind), np.zeros([8], "int32"))) for kind in "efd"]
    assert len({plan.peak for plan in planned}) == 1


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_a_model_with_a_step_of_its_own_is_refused():
    inputs = keras.Input([16])
    outputs = layers.Dense(3)(inputs)
    for model in (OwnStep(inputs, outputs), bt.Model.of(OwnStep(inputs, outputs))):
        with pytest.raises(TypeError, match="OwnStep has a custom train_step, .* one update: plan .* bt.peak_memory"):
            plan_step(model, B)


class Contrastive(keras.Model):
    """Compares all pairs of outputs; its arguments have other names than Keras' own."""

    def compute_loss(self, inputs, targets, outputs, weights, training):
        assert training and targets is None
        return tf.reduce_mean(weights[:, None] * tf.matmul(outputs, outputs, transpose_b=True))


def test_a_loss_of_its_own_is_planned_and_gets_what_keras_gives_it():
    inputs = keras.Input([16])
    model = Contrastive(inputs, layers.Dense(4, name="last")(inputs))
    plan = plan_step(model, (tf.zeros([8, 16]), None, tf.ones([8])))
    assert plan.flops["last"] == 2 * 2 * 8 * 16 * 4
    assert plan.flops["the rest"] == 2 * 2 * 8 * 8 * 4  # backward only; no gradient needs the product itself


def test_losses_go_to_the_outputs_of_their_name():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"z": layers.Dense(3, name="z")(inputs), "a": layers.Dense(1, name="a")(inputs)})
    targets = 8 * 8 + 8 * 4  # int64 classes and float32 values of 8 examples
    both = plan_step(model, 8, loss={"a": "mse", "z": CLASSES})
    assert both.memory["input"] == 2 * (8 * 4 * 4 + targets) and "a" in both.flops.parts
    one = plan_step(model, 8, loss={"z": CLASSES, "a": None})
    assert one.flops["z"] == both.flops["z"] and "a" not in one.flops.parts


class Projected(keras.Model):
    def __init__(self):
        super().__init__()
        self.project = layers.Dense(3)

    def call(self, x):
        return self.project(x)


def test_a_model_that_tells_no_shapes_needs_a_batch():
    model, batch = Projected(), (tf.zeros([8, 5]), tf.zeros([8], tf.int32))
    model(batch[0])
    assert plan_step(model, batch).memory["weights"] == 4 * 18
    inputs = keras.Input((7, 8))
    open_ended = keras.Model(inputs, layers.EinsumDense("abc,cd->abd", (None, 5))(inputs))  # its output's length too
    for each in (model, open_ended):
        with pytest.raises(ValueError, match=r"has no known shapes of inputs and outputs: give batch=\(x, y\)"):
            plan_step(each, 8, loss="mse")


class NeedsMore(keras.optimizers.SGD):
    def __init__(self, rate, more):
        super().__init__(rate)


def test_an_optimizer_without_a_config_of_its_own_is_refused_by_name(dense):
    with pytest.raises(ValueError, match="NeedsMore cannot be made from its get_config.*: give optimizer=, one with"):
        plan_step(dense, 8, loss="mse", optimizer=NeedsMore(0.1, 3))
