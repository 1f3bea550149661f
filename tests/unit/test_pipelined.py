"""`Pipelined` trains as one device does, with each stage where it belongs, and holds few micro-batches with 1F1B."""

import numpy as np
import pytest
from equal_models import batches, distance, examples, on, precision
from logical_cpus import CPUS

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
SIZES = [16, 13, 9]
X, Y = examples(sum(SIZES))
WEIGHTS = np.linspace(0.2, 2, len(X)).astype("float32")
DATA = batches(SIZES, X, Y, WEIGHTS)


def stage(outputs, width=6, dropout=0.0, around=None):
    inputs = keras.Input((width,))
    hidden = layers.Dense(12, "tanh", kernel_regularizer="l2")
    x = around(hidden)(inputs) if around else hidden(inputs)
    x = layers.Dropout(dropout)(x)
    return keras.Model(inputs, layers.Dense(outputs, dtype="float32")(x))


def stages(**options):
    keras.utils.set_random_seed(4)
    return [stage(6, **options), stage(5, **options), stage(1, width=5, **options)]


def chained(parts):
    """The same layers as one stock model."""
    inputs = keras.Input((6,))
    x = inputs
    for part in parts:
        x = part(x)
    return keras.Model(inputs, x)


def adamw():
    return keras.optimizers.AdamW(0.01, epsilon=1e-4, global_clipnorm=0.1)


def fitted(model, data=DATA, optimizer=adamw, **compiled):
    model.compile(optimizer(), **{"loss": "mse", "metrics": ["mae"], **compiled})
    model.fit(data, epochs=2, verbose=0, shuffle=False)
    return model


@pytest.fixture(scope="module")
def whole():
    with on(1):
        return fitted(chained(stages()))


def spec(device):
    return tf.DeviceSpec.from_string(device).device_index


IN_ONE_PIECE = pytest.param("1f1b", 1, marks=pytest.mark.more("one micro-batch: the schedule has nothing to order"))


@pytest.mark.parametrize(("schedule", "micro_batches"), [("gpipe", 4), IN_ONE_PIECE, ("1f1b", 9)])
def test_it_trains_as_one_device_does(schedule, micro_batches, whole):
    model = fitted(bt.Pipelined(stages(), micro_batches, schedule))
    assert distance(model, whole) < 1e-5
    for name, values in whole.history.history.items():
        assert model.history.history[name] == pytest.approx(values, rel=1e-5)
    np.testing.assert_allclose(model.predict(X, verbose=0), whole.predict(X, verbose=0), rtol=1e-4, atol=1e-6)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(whole.evaluate(X, Y, verbose=0), rel=1e-5)


def test_another_number_of_micro_batches_holds_from_the_next_fit_on(whole):
    model = bt.Pipelined(stages(), micro_batches=4)
    model.compile(adamw(), "mse", metrics=["mae"])
    model.fit(DATA, verbose=0, shuffle=False)
    model.micro_batches, model.schedule = 2, "gpipe"
    model.fit(DATA, verbose=0, shuffle=False)
    assert distance(model, whole) < 1e-5


def test_each_stage_stands_on_its_device_with_its_slots():
    model = fitted(bt.Pipelined(stages(), 3, devices=[CPUS[2], CPUS[0], CPUS[1]]))
    slots = iter(model.optimizer.variables[2:])
    for part, device in zip(model.stages, (2, 0, 1), strict=True):
        assert {spec(variable.value.device) for variable in part.variables} == {device}
        for _ in part.trainable_variables:
            assert {spec(next(slots).value.device), spec(next(slots).value.device)} == {device}


def test_dropout_and_recompute_compose():
    plain = fitted(bt.Pipelined(stages(dropout=0.3), 4))
    recomputed = fitted(bt.Pipelined(stages(dropout=0.3, around=bt.recompute), 4))
    assert distance(recomputed, plain) < 1e-5


def test_an_inf_in_any_stage_skips_the_step():
    x = X[:16].copy()
    x[5, 0] = np.inf
    with precision("mixed_float16"):
        model = bt.Pipelined(stages(), 4)
        model.compile(keras.optimizers.SGD(0.1), "mse")
    before = model.get_weights()
    model.train_on_batch(x, Y[:16])
    assert all(np.array_equal(old, new) for old, new in zip(before, model.get_weights(), strict=True))
    model.train_on_batch(X[:16], Y[:16])
    assert np.isfinite(model.get_weights()[0]).all() and not np.array_equal(before[0], model.get_weights()[0])


def test_it_saves_and_loads(tmp_path):
    model = fitted(bt.Pipelined(stages(), 4, "gpipe"))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))
    assert (loaded.micro_batches, loaded.schedule, loaded.devices) == (4, "gpipe", model.devices)
    loaded.fit(DATA, verbose=0)
    assert loaded.optimizer.iterations.numpy() == 9


@pytest.mark.parametrize(
    ("parts", "settings", "said"),
    [
        (stages, {"schedule": "2f2b"}, "schedule='2f2b' must be one of gpipe, 1f1b"),
        (stages, {"devices": CPUS[:2]}, "3 stages need 3 devices, and here are 2"),
        (lambda: 2 * stages(), {}, "stages 0 and 3 share"),
        (lambda: [stage(6), keras.Sequential([keras.Input((6,)), layers.ReLU()])], {}, "stage 1, .* has no weights"),
        (lambda: [stage(6), layers.Dense(1, name="end")], {}, "'end', is no Keras model that knows its inputs"),
        (
            lambda: [keras.Sequential([keras.Input((6,)), layers.Embedding(9, 6, mask_zero=True)]), stage(1)],
            {},
            "stage 0, .* gives a mask with its output",
        ),
    ],
)
def test_what_cannot_be_is_refused(parts, settings, said):
    with pytest.raises(ValueError, match=said):
        bt.Pipelined(parts(), **{"micro_batches": 2, **settings})


def test_a_strategy_and_small_batches_are_refused():
    with on(2), pytest.raises(ValueError, match="under a strategy's scope"):
        bt.Pipelined(stages(), 2)
    model = bt.Pipelined(stages(), 4)
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="fewer examples than micro_batches=4"):
        model.fit(batches([8, 3], X[:11], Y[:11]), verbose=0)


def test_an_optimizer_that_accumulates_is_refused_and_xla_left_out_with_a_warning():
    model = bt.Pipelined(stages(), 2)
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    with pytest.raises(ValueError, match="gradient_accumulation_steps works on one device and without micro_batches"):
        model.fit(DATA, verbose=0)
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 2), (4, 8)])
def test_the_clock_shows_the_bubble_and_what_is_held(schedule, stages, micro_batches):
    passes = bt.pipeline_schedule(schedule, stages, micro_batches)
    end = max(each.end for each in passes)
    idle = 1 - 3 * micro_batches / end
    assert idle == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    held, most = 0, 0
    for each in passes:
        if each.stage == 0:
            held += 1 if each.kind == "forward" else -1
            most = max(most, held)
    assert most == (micro_batches if schedule == "gpipe" else min(stages, micro_batches))


@pytest.mark.parametrize(("stages", "micro_batches", "runs"), [(4, 8, 2), (4, 8, 4), (2, 4, 2), (3, 12, 3)])
def test_runs_of_layers_divide_the_bubble_and_hold_more(stages, micro_batches, runs):
    passes = bt.pipeline_schedule("1f1b", stages, micro_batches, interleave=runs)
    assert len(passes) == 2 * stages * runs * micro_batches
    others = stages - 1
    assert passes[-1].end == max(each.end for each in passes) == pytest.approx(3 * (micro_batches + others / runs))
    held = most = 0
    ended = {}
    for each in passes:
        place = each.run * stages + each.stage
        before = place - 1 if each.kind == "forward" else place + 1
        assert ended.get((before, each.kind, each.micro_batch), 0) <= each.start
        ended[place, each.kind, each.micro_batch] = each.end
        if each.stage == 0:
            held += (1 if each.kind == "forward" else -1) / runs
            most = max(most, held)
    assert most == pytest.approx(stages * (1 + others / (stages * runs)))  # Korthikanti et al. 2022, section 4.2.3


def test_runs_of_layers_need_1f1b_and_micro_batches_in_groups():
    with pytest.raises(ValueError, match="interleave=2 needs schedule=\"1f1b\", not 'gpipe'"):
        bt.pipeline_schedule("gpipe", 4, 8, interleave=2)
    with pytest.raises(ValueError, match="micro_batches=6 must be a multiple of stages=4 with interleave=2"):
        bt.pipeline_schedule("1f1b", 4, 6, interleave=2)


def highest(schedule, micro_batches, cpu_memory):
    """Return the bytes of tensors above 256 KiB, the only ones that are counted, at the fullest moment of a step."""

    def half(width):
        inputs = keras.Input((width,))
        x = inputs
        for _ in range(4):
            x = keras.layers.Dense(128, "tanh")(x)
        return keras.Model(inputs, x)

    model = bt.Pipelined([half(2), half(128)], micro_batches, schedule, devices=["CPU:0"] * 2)
    model.compile("sgd", "mse")
    examples = 1000 * micro_batches
    batch = tf.zeros([examples, 2]), tf.zeros([examples, 128])
    model.train_on_batch(*batch)
    before = cpu_memory()["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.train_on_batch(*batch)
    return cpu_memory()["peak"] - before


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="with GPUs the CPU's memory is not counted")
def test_memory_is_flat_in_the_micro_batches_with_1f1b(cpu_memory):
    assert highest("1f1b", 16, cpu_memory) < 1.4 * highest("1f1b", 4, cpu_memory)
    assert highest("gpipe", 16, cpu_memory) > 2 * highest("gpipe", 4, cpu_memory)
