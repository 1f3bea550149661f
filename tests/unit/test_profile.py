"""Shares match a step with known costs and sum to 1; a handmade GPU trace can be read too."""

import tempfile
import time

import pytest

import bigtrain_nb as bt
from bigtrain_nb.advanced.watch import trace
from bigtrain_nb.advanced.watch.profile import Profile
from bigtrain_nb.common.quiet import keras, tf

STEPS = 4


@pytest.fixture(autouse=True)
def _no_folder_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def slowly(value, seconds):
    """Return the value after an operation that takes this long."""

    def wait(value):
        time.sleep(seconds)
        return value

    slow = tf.py_function(wait, [value], value.dtype)
    slow.set_shape(value.shape)
    return slow


class Slow(keras.layers.Layer):
    def __init__(self, seconds, **kwargs):
        super().__init__(**kwargs)
        self.seconds = seconds

    def call(self, x):
        return x + tf.stop_gradient(slowly(x, self.seconds))


def one_after_the_other(seconds):
    """Batches that take some time each, without overlap."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    data = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1)))).repeat(100)
    return data.map(lambda x, y: (slowly(x, seconds), y)).with_options(options)


def add_up(found):
    return all(sum(shares.values()) == pytest.approx(1) for shares in (found.shares, found.layers, found.places))


@pytest.fixture(scope="module")
def model():
    inputs = keras.Input((4,))
    x = Slow(0.06, name="slow")(inputs)
    x = Slow(0.03, name="slow_1")(x)
    made = keras.Model(inputs, keras.layers.Dense(1)(x))
    made.compile("sgd", "mse")
    return made


def test_the_shares_of_a_training_step_are_what_its_parts_cost(model, tmp_path):
    data = one_after_the_other(0.06)
    found = bt.profile(model, data, steps=STEPS, folder=tmp_path)
    assert add_up(found)
    # a sleep never takes less, but more on a busy machine
    for name, seconds in {"input": 0.06, "slow": 0.06, "slow_1": 0.03}.items():
        assert found.layers[name] > 0.9 * seconds / found.seconds, str(found)
    for share in (found.places["CPU"], found.shares["EagerPyFunc"]):
        assert 0.9 * 0.09 / found.seconds < share < 1 - found.shares["input"] + 1e-6, str(found)
    alone = 8 / bt.diagnose(data, seconds=1.0).rate
    assert 0.5 < found.shares["input"] * found.seconds / alone < 2
    assert found.plain_seconds > 0.15 and found.operations > 10
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1


def test_what_the_pipeline_has_begun_before_is_not_of_the_step():
    data = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1)))).repeat(200)
    data = data.map(lambda x, y: (slowly(x, 0.02), y), num_parallel_calls=32)
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    shares = bt.profile(plain, data, steps=STEPS).shares
    assert shares.get("EagerPyFunc", 0) < 0.1 and any("MatMul" in kind for kind in shares), str(shares)


def test_a_function_and_a_dataset_alone():
    @tf.function
    def products(matrix):
        with tf.name_scope("small"):
            small = matrix @ matrix
        with tf.name_scope("large"):
            return tf.concat([small, small, small, small, small, small], 0) @ matrix

    matrix = tf.random.normal((500, 500))
    found = bt.profile(lambda: products(matrix), steps=30)
    assert add_up(found) and found.shares["input"] == 0
    both = found.layers["small"] + found.layers["large"]
    assert found.layers["large"] / both == pytest.approx(6 / 7, abs=0.15), str(found)

    found = bt.profile(one_after_the_other(0.02), steps=STEPS)
    assert add_up(found) and found.shares["EagerPyFunc"] > 0.7, str(found)
    assert found.figure()._repr_png_()
    for shown in (str(found), found._repr_html_()):
        assert "is waiting for input" in shown and "EagerPyFunc" in shown and "Without the profiler" in shown


def test_a_picture_names_the_operations_that_take_most_and_has_no_bar_that_nobody_sees():
    parts = {trace.Part("CPU", "hidden", f"Op{number}"): (9 - number) / 60 for number in range(5)}
    parts |= {trace.PYTHON: 0.2, trace.BETWEEN: 0.2, trace.WAITS: 0.099}
    parts |= {trace.Part("CPU", layer, "MatMul"): 0.0005 for layer in ("loss", "rest")}
    figure = Profile(parts, steps=1, seconds=0.03, plain_seconds=0.03, operations=9, folder="").figure()
    named = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert sorted(named) == ["Op0", "Op1", "Op2", "no operation", "others"]
    bars = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert sorted(bars) == sorted(["hidden", "Python", "between operations", "input", "others"])


def line_of(plane, name, events):
    line = plane.lines.add(name=name, timestamp_ns=5)
    for start, end, label, stats in events:
        event = line.events.add(
            offset_ps=start, duration_ps=end - start, metadata_id=id_of(plane.event_metadata, label)
        )
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=id_of(plane.stat_metadata, key))
            if isinstance(value, str):
                stat.ref_value = id_of(plane.stat_metadata, value)
            else:
                stat.int64_value = value


def id_of(table, name):
    for known, entry in table.items():
        if entry.name == name:
            return known
    table[len(table) + 1].name = name
    return len(table)


@pytest.mark.parametrize(
    ("numbered", "first", "second"),
    [(True, "net_1/dense_1", "net_1/dense_1_1"), (False, "net/dense", "net/dense_1")],
    ids=["Keras 3.15", "Keras 3.16"],
)
def test_a_gpu_comes_before_the_host_and_what_runs_side_by_side_gets_equal_parts(monkeypatch, numbered, first, second):
    monkeypatch.setattr(trace, "SCOPES_ARE_NUMBERED", numbered)
    space = trace.XSpace()
    host, gpu = space.planes.add(name="/host:CPU"), space.planes.add(name="/device:GPU:0")
    line_of(
        host, "python", [(0, 100, trace.STEP, {}), (0, 10, trace.INPUT, {}), (10, 20, "EagerExecute", {"is_func": 1})]
    )
    launched = [(12, 30, f"{first}/MatMul:MatMul", {}), (85, 90, f"{second}/Relu:Relu", {})]
    line_of(host, "tf_Compute", launched)
    pipeline = [(0, 99, "ExecutorState::Process", {"id": 7}), (1, 98, "Decode:DecodeJpeg", {})]
    line_of(host, "tf_data", [(0, 0, "InstantiatedCapturedFunction::Run", {"id": 7}), *pipeline])
    product = {"tf_op": f"gradient_tape/{first}/MatMul:MatMul"}
    line_of(gpu, "Stream #7(Compute)", [(20, 60, "gemm", product), (60, 80, "MemcpyD2H", {})])
    line_of(gpu, "Stream #8(Compute)", [(40, 60, "fused", {"hlo_op": "fusion.12"})])
    line_of(gpu, "Stream #9(Compute)", [(40, 60, "gemm", product)])

    parts, operations, seconds = trace.divide(space)
    shares = {(part.place, part.layer, part.operation): share for part, share in parts.items()}
    assert shares == pytest.approx(
        {
            ("input",) * 3: 0.1,
            ("between operations",) * 3: 0.02,
            ("CPU", "dense", "MatMul"): 0.08,
            ("GPU:0", "dense", "MatMul"): 0.2 + 0.2 * 2 / 3,
            ("GPU:0", "XLA", "fusion"): 0.2 / 3,
            ("GPU:0", "the rest", "MemcpyD2H"): 0.2,
            ("CPU", "dense_1", "Relu"): 0.05,
            ("Python",) * 3: 0.15,
        }
    )
    assert operations == 6 and seconds == pytest.approx(100e-12)


def test_a_trace_without_the_gpus_that_are_there_is_said(monkeypatch):
    monkeypatch.setattr(bt.tf.config, "get_visible_devices", lambda kind: [kind])
    with pytest.warns(UserWarning, match="no work on the 1 GPUs that TensorFlow sees: all shares are the host's"):
        bt.profile(lambda: bt.tf.ones([4, 4]) @ bt.tf.ones([4, 4]), steps=2)


def test_a_step_that_fails_leaves_no_profiler():
    calls = []

    def fails_later():
        calls.append(1)
        if len(calls) > 8:
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        bt.profile(fails_later, steps=4)
    assert bt.profile(lambda: None, steps=2).steps == 2
