"""The public interface: names load their modules lazily and quietly."""

import gc
import json
import os
import subprocess
import sys
import weakref

import pytest

import bigtrain_nb as bt
from bigtrain_nb.common import quiet
from bigtrain_nb.common.quiet import keras
from bigtrain_nb.series.counting import count_cpu_memory

HEAVY = {"tensorflow", "keras", "matplotlib", "matplotlib.pyplot", "ipywidgets", "skimage", "h5py", "numpy"}


def python(code, *arguments, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def loaded_by(statement):
    done = python(f"{statement}\nimport sys, json; print(json.dumps(list(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import bigtrain_nb", set()),
        ("import bigtrain_nb as bt; bt.throughput([[1, 2, 3]], seconds=0.01); bt.load; bt.machine()", {"numpy"}),
        (
            "import bigtrain_nb as bt; bt.Lab(lambda n: lambda: n, seconds=0.05, n=[1, 2]).run(n=2)",
            {"numpy", "matplotlib"},
        ),
        ("import bigtrain_nb as bt; bt.photo_crops; bt.source_text", HEAVY - {"tensorflow"}),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code, needed):
    assert not loaded_by(code) & (HEAVY - needed)


def test_every_public_name_resolves_and_stays():
    pytest.importorskip("ipywidgets")
    assert {"throughput", "compare", "machine", "photo_crops", "Pipeline", "diagnose", "Lab", "tf"} <= set(bt.__all__)
    for name in bt.__all__:
        value = getattr(bt, name)
        assert value is getattr(bt, name) and name in dir(bt)
    assert callable(bt.machine) and callable(bt.diagnose), "a function, not the module of the same name"


UNTOUCHED = """
import sys, keras
from keras.src.losses import loss
def state():
    of_classes = {}
    for place in (keras, keras.layers, keras.models, keras.optimizers, keras.losses, keras.saving):
        for name, value in vars(place).items():
            if isinstance(value, type):
                own = {key: each for key, each in vars(value).items() if key != "__annotations__"}  # made on demand
                of_classes[place.__name__, name] = value, value.__bases__, own
    return dict(keras.saving.get_custom_objects()), list(sys.meta_path), of_classes, dict(vars(loss))
before = state()
import bigtrain_nb as bt
assert state() == before
model = bt.Model.of(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), micro_batches=2)
bt.recompute(model, model.layers)
model.compile("adam", "mse")
model.fit(keras.ops.ones((4, 2)), keras.ops.ones((4, 1)), verbose=0)
assert state()[2:] == before[2:]
print("as it was")
"""

LOAD = """
import sys, keras
print(type(keras.models.load_model(sys.argv[1])).__name__, type(keras.models.load_model(sys.argv[2])).__name__)
import bigtrain_nb as bt
print(type(bt.load_model(sys.argv[3])).__name__, bt.load_model(sys.argv[3], micro_batches=3).micro_batches)
"""


def test_all_names_loaded_leave_the_cpu_to_be_split_and_tensorflow_starts_without_a_word_and_is_no_garbage_to_seek():
    code = "import gc, bigtrain_nb as bt; [getattr(bt, name) for name in bt.__all__]"
    code += "; print(len(bt.devices(3)), float(bt.tf.ones(())), gc.get_freeze_count() > 100_000)"
    done = python(code, CUDA_VISIBLE_DEVICES="-1")
    assert (done.stdout, done.stderr) == ("3 1.0 True\n", "")


def test_an_import_changes_nothing_of_keras():
    assert python(UNTOUCHED).stdout == "as it was\n"


def test_a_fresh_process_loads_what_was_saved(tmp_path):
    """Models without our layers load without the package, others with `bt.load_model`."""
    model = bt.recompute(bt.conv_net(image_size=16, nested_blocks=True, micro_batches=3), r"block_\d+")
    model.compile("adam", "mse")
    model.save(tmp_path / "model.keras")
    inputs = keras.Input((2,))
    bt.Model(inputs, keras.layers.Dense(1)(inputs)).save(tmp_path / "model.h5")
    model = bt.recompute(bt.gpt(16, 8, 16, 1, 2, nested_blocks=True, micro_batches=3), r"block_\d+")
    model.compile("adam", "mse")
    model.save(tmp_path / "gpt.keras")
    done = python(LOAD, tmp_path / "model.keras", tmp_path / "model.h5", tmp_path / "gpt.keras")
    assert done.stdout.splitlines() == ["Functional Functional", "Functional 3"], done


class Net:
    """Like a Keras model, it refers to itself."""

    def __init__(self):
        self.tracked = self


def test_models_built_before_the_first_use_can_be_freed_as_tensorflow_was_loaded_then():
    net = weakref.ref(Net())
    with quiet.kept_for_good():
        pass
    gc.collect()
    assert net() is None


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(AttributeError, match="bigtrain_nb has no 'Pipelines'; it has .*Pipeline, .*throughput"):
        _ = bt.Pipelines


def test_a_failing_start_of_tensorflow_shows_what_it_wrote():
    code = (
        "import os, sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow':\n"
        "            os.write(2, b'the driver says no\\n')\n"
        "            raise ImportError('no tensorflow here')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "from bigtrain_nb import tf\n"
    )
    done = python(code)
    assert done.returncode == 1
    assert "the driver says no" in done.stderr and "no tensorflow here" in done.stderr


def test_the_memory_of_a_cpu_is_counted_on_any_machine():
    code = (
        "from bigtrain_nb.series.counting import count_cpu_memory\n"
        "count_cpu_memory()\n"
        "from bigtrain_nb import tf\n"
        "kept = tf.ones([1000, 1000])\n"
        "print(tf.config.experimental.get_memory_info('CPU:0')['current'])\n"
    )
    assert int(python(code).stdout) >= 4 * 1000 * 1000


def test_to_count_the_memory_of_a_cpu_is_refused_once_tensorflow_is_loaded(monkeypatch):
    for name in ("TF_ENABLE_ONEDNN_OPTS", "TF_CPU_ALLOCATOR_USE_BFC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="TensorFlow is loaded already: restart the kernel"):
        count_cpu_memory()


def test_a_gpu_that_tensorflow_cannot_use_is_told_of():
    code = "from bigtrain_nb import tf; print(len(tf.config.list_physical_devices('GPU')))"
    done = python(code, CUDA_VISIBLE_DEVICES="0")
    assert ("pip install 'tensorflow[and-cuda]'" in done.stderr) == (done.stdout.strip() == "0")


def test_cusolver_is_loaded_from_where_pip_puts_it(tmp_path, monkeypatch):
    library = tmp_path / "nvidia" / "cusolver" / "lib" / "libcusolver.so.11"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "nvidia" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    quiet.load_cusolver()  # not a library: a failed load is left to TensorFlow's own search
    loaded = []
    monkeypatch.setattr(quiet.ctypes, "CDLL", loaded.append)
    quiet.load_cusolver()
    assert loaded == [str(library)]
