"""`bt.Meter`: what counts and what does not, on a simulated clock; gradient statistics against those by hand."""

import math

import numpy as np
import pytest
from clocks import Clock
from equal_models import batches, examples, on
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.advanced.plan import utilization
from bigtrain_nb.advanced.watch import meter as module
from bigtrain_nb.advanced.watch.meter import tracings_of
from bigtrain_nb.common.quiet import keras, tf

STEP = 0.0625  # seconds per execution, so that a round has four


@pytest.fixture
def clock(monkeypatch):
    """A clock that each execution advances by 1/16 s."""
    clock = Clock()
    make = keras.Model.make_train_function

    def make_what_spends(model, force=False):
        if model.train_function is not None and not force:
            return
        make(model, force)
        execute = model.train_function

        def execute_and_spend(iterator):
            logs = execute(iterator)
            clock.spend(STEP)
            return logs

        model.train_function = execute_and_spend

    monkeypatch.setattr(module, "_now", clock)
    monkeypatch.setattr(keras.Model, "make_train_function", make_what_spends)
    return clock


def dense(width=6):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((width,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])


def metered(model, sizes, callbacks=(), **run):
    """Fit batches of these sizes; return the meter."""
    meter = bt.Meter()
    model.fit(batches(sizes, *examples(sum(sizes))), verbose=0, callbacks=[meter, *callbacks], **run)
    return meter


def counted(meter):
    """Return the examples and seconds of all rounds, including the incomplete one."""
    rounds = [*meter._rounds, (meter._examples, meter._seconds)]
    return tuple(map(sum, zip(*rounds, strict=True)))


def test_examples_are_those_that_the_steps_saw_also_of_a_short_last_batch(clock):
    model = bt.Model.of(dense(), micro_batches=2)
    model.compile("sgd", "mse")
    model.fit(batches([8, 3], *examples(11)), verbose=0)  # Keras 3.16 retraces for a short batch
    meter = metered(model, [8] * 12 + [3], epochs=2)
    assert set(meter.result.rounds[:2]) == {8 / STEP}
    assert meter.result.unit == "examples/s" and "not paired" in meter.result.name
    assert "examples/s: 128" in repr(meter)
    assert counted(meter) == (2 * (12 * 8 + 3) - 8, (2 * 13 - 1) * STEP)  # all but the first execution


def test_executions_of_several_steps_count_all_their_examples(clock):
    model = bt.Model.of(dense())
    model.compile("sgd", "mse", steps_per_execution=3)
    meter = metered(model, [8] * 60)
    assert set(meter.result.rounds) == {3 * 8 / STEP}


def test_two_replicas_count_each_example_once(clock):
    with on(2):
        model = two_layers(fully_shard="wide")
    assert set(metered(model, [8] * 14).result.rounds) == {8 / STEP}


def test_validation_and_ends_of_epochs_are_left_out(clock):
    class Spend(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            clock.spend(50.0)

        def on_epoch_end(self, epoch, logs=None):
            clock.spend(70.0)

    model = dense()
    model.compile("sgd", "mse")
    model.fit(batches([8, 3], *examples(11)), verbose=0)
    validation = batches([32, 32], *examples(64))
    meter = metered(model, [8] * 16 + [3], [Spend()], epochs=2, validation_data=validation)
    assert set(meter.result.rounds[:3]) == {8 / STEP}
    assert counted(meter) == (2 * (16 * 8 + 3) - 8, 33 * STEP)


def test_what_callbacks_do_between_batches_counts(clock):
    class Spend(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            clock.spend(STEP)

    model = dense()
    model.compile("sgd", "mse")
    assert 0.45 * 8 / STEP < metered(model, [8] * 40, [Spend()]).result.median < 0.7 * 8 / STEP


def test_executions_that_trace_are_left_out(clock):
    class Slow(keras.layers.Layer):
        def call(self, x):
            if not tf.executing_eagerly():
                clock.spend(1000.0)
            return x

    model = keras.Sequential([Slow(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = examples(48)
    meter = bt.Meter()
    for size in (8, 4):  # each known batch size has its own graph
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size, drop_remainder=True)
        model.fit(data, verbose=0, callbacks=[meter])
    assert clock.now > 2000
    assert counted(meter)[1] < 18 * STEP
    assert meter.result.low >= 4 / STEP


def test_metrics_that_somebody_resets_and_evaluates_in_between_do_not_change_the_count(clock):
    class Reset(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.reset_metrics()
            if batch % 5 == 4:
                self.model.evaluate(*examples(40), verbose=0)

    model = bt.Model.of(dense())
    model.compile("sgd", "mse")
    meter = metered(model, [8] * 20, [Reset()])
    assert set(meter.result.rounds) == {8 / STEP}


def test_training_is_bitwise_identical_and_traced_once():
    found = []
    for callbacks in ([], [bt.Meter(gradients=True)]):
        with on(2):
            model = bt.Model.of(dense(), micro_batches=2)
            model.compile(keras.optimizers.Adam(0.01), "mse")
        model.fit(batches([8] * 6, *examples(48)), epochs=2, verbose=0, callbacks=callbacks)
        found.append((model.get_weights(), tracings_of(model.train_function)()))
    (plain, traced), (seen, traced_with) = found
    assert all(np.array_equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert traced_with == traced


def test_fit_leaves_the_model_as_it_was_also_when_it_is_interrupted(clock):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise KeyboardInterrupt

    model = dense()
    model.compile("sgd", "mse")
    data = batches([8] * 4, *examples(32))
    model.fit(data, verbose=0)
    made = model.train_function
    for later in ([], [bt.Meter()]):
        model.fit(data, verbose=0, callbacks=[bt.Meter()])
        assert model.train_function is made and "reset_metrics" not in vars(model)
        meter = bt.Meter()
        with pytest.raises(KeyboardInterrupt):
            model.fit(data, verbose=0, callbacks=[meter, Stop()])
        clock.now += 1000  # what passes after an interrupt is no training
        said = str(meter)
        assert meter._seconds < 10 and "nothing is measured" not in said
        model.fit(data, verbose=0, callbacks=later)
        assert model.train_function is made and "reset_metrics" not in vars(model)
        assert str(meter) == said


def test_tokens_are_counted_where_an_embedding_reads_them(clock):
    model = bt.gpt(vocabulary=20, length=16, width=8, layers=1, heads=2)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = np.zeros([8 * 12, 16], "int32")

    meter = bt.Meter()
    history = model.fit(tokens, tokens, batch_size=8, verbose=0, callbacks=[meter]).history
    assert meter.tokens_per_second == 16 * meter.result.median == history["tokens_per_second"][-1]
    other = dense()
    other.compile("sgd", "mse")
    assert metered(other, [8] * 12).tokens_per_second is None


def test_what_differs_between_fits_is_told_of_none(clock, monkeypatch):
    for there in (utilization, module):
        monkeypatch.setattr(there, "accelerator_here", lambda: bt.ACCELERATORS["T4"])
    model = keras.Sequential([keras.layers.Embedding(20, 8), keras.layers.Dense(20)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    meter = bt.Meter()
    lengths = []
    for length in (16, 16, 4, 16):
        tokens = np.zeros([8 * 12, length], "int32")
        model.fit(tokens, tokens, batch_size=8, verbose=0, callbacks=[meter])
        lengths.append(meter.tokens_per_second and round(meter.tokens_per_second * STEP / 8))
    assert lengths == [16, 16, None, None] and meter.mfu is None
    assert counted(meter)[0] == 8 * (4 * 12 - 3), (
        "the first execution does not count, nor one of another length than before"
    )


def test_two_meters_in_one_fit_are_refused(clock):
    model = dense()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="two meters, but fit takes only one"):
        metered(model, [8] * 12, callbacks=[bt.Meter()])
    assert "reset_metrics" not in vars(model) and metered(model, [8] * 12).result.median == 8 / STEP


def test_a_step_that_counts_batches_is_not_taken_for_a_rate_and_one_that_hands_on_is(clock):
    class AsInTheGuide(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            self.optimizer.apply_gradients(zip(tape.gradient(loss, self.weights), self.weights, strict=True))
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
            return {metric.name: metric.result() for metric in self.metrics}

    class HandsOn(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    meters = []
    for kind in (AsInTheGuide, HandsOn):
        model = kind([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        meters.append(metered(model, [8] * 12))
    with pytest.raises(ValueError, match="train_step of AsInTheGuide counts batches, not the examples"):
        meters[0].result  # noqa: B018
    assert meters[1].result.median == pytest.approx(8 / STEP)


def test_short_fits_add_up_to_rounds(clock):
    model = dense()
    model.compile("sgd", "mse")
    meter = bt.Meter()
    for _ in range(8):
        model.fit(batches([8] * 3, *examples(24)), verbose=0, callbacks=[meter])
    assert len(meter._rounds) >= 4 and counted(meter)[0] == 8 * (8 * 3 - 1)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla V100-PCIE-16GB", None),
        ("NVIDIA A100-PCIE-40GB", "A100 40 GB"),
        ("NVIDIA GB200", "GB200 NVL72"),
    ],
)
def test_cards_of_one_name_that_are_slower_are_not_taken_for_it(monkeypatch, name, known):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"device_name": name})
    found = utilization.accelerator_here()
    assert (found and found.name) == known


def test_mfu_is_the_planned_work_over_the_peak_of_the_device(clock, monkeypatch):
    model = dense()
    model.compile("sgd", "mse")
    assert metered(model, [8] * 12).mfu is None  # CPUs have no published peak
    for there in (utilization, module):
        monkeypatch.setattr(there, "accelerator_here", lambda: bt.ACCELERATORS["T4"])
    meter = metered(model, [8] * 12)
    flops = 2 * (6 * 4 * 2 + 4 * 3)  # per example: forward and weight gradients, and the second layer's input gradient
    assert meter.mfu == pytest.approx(meter.result.median * flops / 8.1e12)
    half = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, dtype="mixed_float16"), keras.layers.Dense(1)])
    half.compile("sgd", "mse")
    meter = metered(half, [8] * 12)
    assert meter.mfu == pytest.approx(meter.result.median * flops / 65e12)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("the FLOPs are unknown"), "the FLOPs are unknown"),
        (tf.errors.InvalidArgumentError(None, None, ""), "InvalidArgumentError"),
    ],
)
def test_a_plan_that_fails_does_not_end_fit_and_the_reason_is_shown(clock, monkeypatch, error, why):
    def fails(*_):
        raise error

    monkeypatch.setattr(module, "accelerator_here", lambda: bt.ACCELERATORS["T4"])
    monkeypatch.setattr(module, "flops_of_an_example", fails)
    model = dense()
    model.compile("sgd", "mse")
    meter = metered(model, [8] * 12)
    assert meter.result.median > 0 and meter.mfu is None
    assert f"MFU: unknown: {why}" in str(meter)


def test_recomputation_and_a_chunked_head_do_not_change_the_flops_of_a_model():
    def flops(change):
        model = change(bt.gpt(length=16, width=8, layers=2, vocabulary=512, nested_blocks=True))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return utilization.flops_of_an_example(model)

    def both(model):
        bt.recompute(model, r"block_\d+")
        return bt.chunk_head(model, rows=8)

    stock = flops(lambda model: model)
    assert flops(both) == pytest.approx(stock, rel=0.02)


def by_cudnn(x):
    """LSTM(8) as on a GPU; without one it can be traced but not run."""
    count, length = tf.shape(x)[0], tf.shape(x)[1]
    state = tf.zeros([1, count, 8])
    outputs, *_ = tf.raw_ops.CudnnRNNV3(
        input=tf.transpose(x, [1, 0, 2]),
        input_h=state,
        input_c=state,
        params=tf.zeros([4 * 8 * (8 + 8 + 2)]),
        sequence_lengths=tf.fill([count], length),
        rnn_mode="lstm",
    )
    return tf.ensure_shape(outputs[-1], [None, 8])


def by_choice(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, tf.ones([8, 8])), lambda: x)[:, 0]


UNCOUNTED = {by_cudnn: "its matmuls are inside a cuDNN operation", by_choice: "not counted, or of unknown size"}


@pytest.mark.parametrize(("work", "words"), UNCOUNTED.items())
def test_no_mfu_is_told_of_work_that_is_not_counted(work, words):
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Lambda(work, output_shape=(8,))(inputs)))
    with pytest.raises(ValueError, match=f"FLOPs of .* are unknown: {words}"):
        utilization.flops_of_an_example(model)


# Gradients


def two_layers(**settings):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    wide = keras.layers.Dense(8, "tanh", name="wide")(inputs)
    model = bt.Model(inputs, keras.layers.Dense(1, name="narrow")(wide), **settings)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def square_and_covariance(x, y, pieces, names):
    """Return |G|² and tr(Σ) of some weights by hand, by the formulas for micro-batches of unequal size."""
    model = two_layers()
    weights = [weight for weight in model.trainable_variables if weight.path.split("/")[-2] in names]

    def square(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x[rows]) - y[rows]))
        return sum(float(tf.reduce_sum(tf.square(g))) for g in tape.gradient(loss, [w.value for w in weights]))

    total = len(x)
    small = sum(len(rows) / total * square(rows) for rows in pieces)
    large = square(range(total))
    covariance = (small - large) * total / (len(pieces) - 1)
    return large - covariance / total, covariance, large


def parts(rows, count):
    size = -(-len(rows) // count)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


COUNT, HALF = 22, 11
ALL = list(range(COUNT))
BY_REPLICA = [piece for half in (ALL[:HALF], ALL[HALF:]) for piece in parts(half, 3)]
WAYS = {  # of two replicas: settings, micro-batches of the first and of the second layer's gradients
    "mean": ({"micro_batches": 3}, BY_REPLICA, BY_REPLICA),
    "sharded": ({"micro_batches": 3, "shard_optimizer": True}, BY_REPLICA, BY_REPLICA),
    "fully sharded": (
        {"micro_batches": 2, "fully_shard": "wide"},
        [[*range(5), *range(11, 16)], [*range(5, 11), *range(16, 22)]],
        [range(5), range(5, 11), range(11, 16), range(16, 22)],
    ),
}


BETWEEN = pytest.mark.more("pieces as of the mean, gradients as fully sharded")


@pytest.mark.parametrize("way", in_two_tiers(WAYS, ["mean", "fully sharded"], BETWEEN))
def test_a_step_has_the_norm_and_the_noise_that_its_pieces_have_by_hand(way):
    settings, pieces_of_wide, pieces_of_narrow = WAYS[way]
    x, y = examples(COUNT)
    true, covariance, large = np.add(
        square_and_covariance(x, y, pieces_of_wide, ["wide"]),
        square_and_covariance(x, y, pieces_of_narrow, ["narrow"]),
    )
    with on(2):
        model = two_layers(**settings)
        model.compile(keras.optimizers.SGD(0.0, global_clipnorm=1e-3), "mse")
    meter = bt.Meter(gradients=True)
    model.fit(batches([COUNT], x, y), verbose=0, callbacks=[meter])
    assert meter.gradient_norm == pytest.approx(math.sqrt(large), rel=1e-4)
    assert meter._sums[:2] == pytest.approx([covariance, true], rel=1e-3)
    expected = covariance / true if true > 0 else math.nan
    assert meter.noise_scale == pytest.approx(expected, rel=1e-2, nan_ok=True)


def noisy(count, width, seed=0):
    """Return examples whose gradients at zero weights are x: tr(Σ) is the width, |G|² that of the mean of x."""
    mean = np.full(width, 0.25)
    x = np.random.default_rng(seed).normal(mean, 1.0, [count, width]).astype("float32")
    return x, np.full([count, 1], -0.5, "float32"), width / (mean @ mean)


def test_the_noise_scale_of_a_known_problem_is_found_with_loss_scaling():
    x, y, expected = noisy(32 * 150 + 5, 20)
    inputs = keras.Input((20,))
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="mixed_float16")(inputs)
    model = bt.Model(inputs, keras.layers.Activation("linear", dtype="float32")(outputs), micro_batches=4)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), initial_scale=1024.0), "mse")
    meter = bt.Meter(gradients=True)
    data = batches([32] * 150 + [5], x, y)
    history = model.fit(data, verbose=0, callbacks=[meter]).history
    assert meter.noise_scale == pytest.approx(expected, rel=0.25)
    assert history["noise_scale"] == [meter.noise_scale]
    assert history["gradient_norm"] == [meter.gradient_norm]


def test_gradients_are_measured_of_models_that_show_their_pieces_only():
    stock = dense()
    stock.compile("sgd", "mse")
    x, y = examples(8)
    with pytest.raises(TypeError, match="gradients=True.*Sequential.*bt.Model.of"):
        stock.fit(x, y, verbose=0, callbacks=[bt.Meter(gradients=True)])
    model = bt.Model.of(dense())
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="micro_batches=1 does not split it.*or train on several replicas"):
        model.fit(x, y, verbose=0, callbacks=[bt.Meter(gradients=True)])
    model.micro_batches = 2
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    with pytest.raises(ValueError, match='"sum_over_batch_size"'):
        model.fit(x, y, verbose=0, callbacks=[bt.Meter(gradients=True)])
    with on(2):
        model = two_layers(fully_shard="wide")
    with pytest.raises(ValueError, match="with fully_shard='wide', micro_batches=1"):
        model.fit(x, y, verbose=0, callbacks=[bt.Meter(gradients=True)])


def test_without_a_round_it_says_what_to_do(clock):
    model = dense()
    model.compile("sgd", "mse")
    meter = metered(model, [8])
    with pytest.raises(ValueError, match="nothing is measured yet"):
        meter.result  # noqa: B018
    assert "nothing is measured yet" in repr(meter)
    assert meter.noise_scale is None and meter.gradient_norm is None
