"""The facts compared between tasks that train together, and the messages for differences."""

import sys
import types

import pytest
from equal_models import precision

from bigtrain_nb.launch.same_run import arguments, describe_run, differences


def test_arguments_are_called_by_their_options():
    words = ["folder", "more", "--rate", "-0.1", "--epochs=3", "-v", "--files", "a", "b", "--empty=", "--rate", "7"]
    assert arguments(words) == {
        "1": "folder",
        "2": "more",
        "--rate": "-0.1 7",
        "--epochs": "3",
        "-v": "",
        "--files": "a b",
        "--empty": "",
    }


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A running script, a module next to it, and one elsewhere; the script is below the folder of Python."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "job"))
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "job" / "train.py")
    for path in ("job/train.py", "job/parts/model.py", "elsewhere.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
        module = types.ModuleType(path)
        module.__file__ = str(tmp_path / path)
        monkeypatch.setitem(sys.modules, path, module)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "0.1", "--log-dir", "here"])
    return tmp_path / "job"


def test_the_same_run_has_no_differences_and_goes_through_json(script):
    runs = describe_run()
    assert differences(describe_run(), runs) == []
    assert runs["argument --rate"] == "0.1" and runs["argument --log-dir"] == "here"
    assert {"tensorflow", "keras", "bigtrain_nb", "Python"} < set(runs)
    assert {name for name in runs if name.startswith("file ")} == {"file train.py", "file parts/model.py"}
    assert all(value is None or isinstance(value, str) for value in runs.values())


def test_a_file_beside_the_script_that_has_changed_is_named(script):
    before = describe_run()
    (script / "parts" / "model.py").write_text("another rate")
    (only,) = differences(describe_run(), before)
    assert only.startswith("file parts/model.py is '") and "the chief's is '" in only


def test_a_file_that_only_one_has_loaded_is_no_difference(script, monkeypatch):
    before = describe_run()
    monkeypatch.delitem(sys.modules, "job/parts/model.py")
    assert differences(describe_run(), before) == [] and differences(before, describe_run()) == []


def test_settings_of_keras_and_of_the_environment_count(script, monkeypatch):
    before = describe_run()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with precision("mixed_bfloat16"):
        after = describe_run()
    assert differences(after, before) == [
        "Keras' dtype policy is 'mixed_bfloat16', the chief's is 'float32'",
        "NVIDIA_TF32_OVERRIDE is '0', the chief's is missing",
    ]
