"""The models behind the server of notebook 14, without a network: what is loaded, what a request may hold, and which
version an answer comes from."""

import re
import shutil
import tracemalloc
from concurrent.futures import Future

import numpy as np
import pytest
from publishing import publish

from bigtrain_nb import tf

predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
from scripts import model_server  # noqa: E402
from scripts.model_server import Grpc, Models, NotServed, array_of, run_together  # noqa: E402

ROWS = np.arange(8, dtype="float32").reshape(2, 4)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the model "good", which doubles. New versions are loaded by `look`, not by the clock."""
    monkeypatch.setattr(Models, "watch", lambda self: None)
    monkeypatch.setattr(model_server, "LOOK_SECONDS", 0)
    publish(tmp_path / "models" / "good", 1, lambda x: 2 * x)
    return tmp_path / "models"


def answer(models, name, rows=ROWS):
    return models[name].answer(models[name].version(), rows)


def look_twice(models):
    models.look()
    models.look()


def message(rows=ROWS, **fields):
    request = predict_pb2.PredictRequest(**fields)
    request.model_spec.name = "good"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(rows))
    return request


def test_what_cannot_be_served_is_left_out_with_a_reason_and_the_others_answer(folder, capsys):
    publish(folder / "open", 1, lambda x: x, shape=[None, None])
    publish(folder / "fixed", 1, lambda x: x, shape=[8, 4])
    publish(folder / "words", 1, lambda x: x, dtype="string")
    publish(folder / "mean", 1, tf.reduce_mean)
    publish(folder / "columns", 1, lambda x: tf.reduce_mean(x, 0))
    (folder / "empty").mkdir()
    (folder / "half" / "1").mkdir(parents=True)
    (folder / "README").write_text("not a model")

    models = Models(folder, ["mean"])
    np.testing.assert_array_equal(answer(models, "good"), 2 * ROWS)
    printed = capsys.readouterr().out
    for name, reason in {
        "open": r"input x has shape \(None, None\)",
        "fixed": r"input x has shape \(8, 4\)",
        "words": "must take numbers",
        "mean": r"output y must have a row for each of 1, not shape \(\)",
        "columns": r"output y must have a row for each of 1, not shape \(4,\)",
        "empty": "there is no version",
        "half": "version 1 cannot be loaded: SavedModel file does not exist",
    }.items():
        with pytest.raises(NotServed, match=f"model {name} cannot answer: .*{reason}"):
            answer(models, name)
        assert f"{name}: " in printed
    assert "README: it is left out" in printed and "good:" not in printed
    with pytest.raises(NotServed, match="no model 'typo', but .*'good'"):
        answer(models, "typo")


def test_a_version_that_cannot_be_loaded_leaves_the_one_before_it(folder, capsys):
    (folder / "good" / "2").mkdir()
    publish(folder / "good", 3, tf.reduce_mean)
    models = Models(folder, [])
    assert models["good"].version().number == 1
    assert "version 3 cannot be loaded: output y" in capsys.readouterr().out


def test_a_version_that_is_copied_in_place_is_tried_again_when_it_changes(folder, tmp_path, capsys):
    publish(tmp_path / "elsewhere" / "good", 2, lambda x: 5 * x)
    models = Models(folder, [])
    copied = folder / "good" / "2"
    copied.mkdir()
    (copied / "saved_model.pb").write_bytes(b"half")
    models.look()
    assert capsys.readouterr().out == "", "it has not stood still"
    models.look()
    models.look()
    assert capsys.readouterr().out.count("version 2 cannot be loaded") == 1
    shutil.copytree(tmp_path / "elsewhere" / "good" / "2", copied, dirs_exist_ok=True)
    look_twice(models)
    np.testing.assert_array_equal(answer(models, "good"), 5 * ROWS)


@pytest.mark.parametrize("batching", [[], ["good"]])
def test_an_answer_has_the_version_that_computed_it_also_if_another_is_rolled_in_meanwhile(folder, batching):
    models = Models(folder, batching)
    model = models["good"]
    compute = model.answer

    def answer_late(version, rows):
        publish(folder / "good", 2, lambda x: 5 * x, output="z")
        look_twice(models)
        assert model.version().number == 2
        return compute(version, rows)

    model.answer = answer_late
    response = Grpc(models).predict(message())
    assert response.model_spec.version.value == 1 and [*response.outputs] == ["y"]
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), 2 * ROWS)


def test_a_request_that_fails_in_a_batch_fails_alone(folder):
    publish(
        folder / "rows", 1, lambda x: tf.gather(tf.constant([[1.0], [2.0]]), x[:, 0]), shape=[None, 1], dtype="int32"
    )
    version = Models(folder, [])["rows"].version()
    asked = [(np.array([[row]], "int32"), Future()) for row in (1, 7, 0)]
    run_together(version, asked)
    assert asked[0][1].result() == 2 and asked[2][1].result() == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in"):
        asked[1][1].result()


def test_an_answer_without_its_rows_does_not_end_the_batches(folder):
    publish(folder / "some", 1, lambda x: tf.boolean_mask(x, x[:, 0] < 5))
    models = Models(folder, ["some"])
    with pytest.raises(RuntimeError, match=r"a row for each of 1, not shape \(0, 4\)"):
        answer(models, "some", [[9, 0, 0, 0]])
    np.testing.assert_array_equal(answer(models, "some"), ROWS)


@pytest.mark.parametrize("value", [2**32 + 5, -(2**31) - 1, 2**70, 1.0, 1.9, float("nan"), None, True, "5", [5]])
def test_a_whole_number_stays_what_it_is_or_is_refused(folder, value):
    publish(folder / "whole", 1, lambda x: x, shape=[None, 2], dtype="int32")
    models = Models(folder, [])
    ends = [[2**31 - 1, -(2**31)]]
    assert answer(models, "whole", ends).tolist() == ends
    with pytest.raises(ValueError, match="input x takes int32 from -2147483648 to 2147483647, not") as refused:
        answer(models, "whole", [[1, value]])
    assert str(refused.value).endswith(f"not {value!r}")


@pytest.mark.parametrize("value", [1e39, -1e39, 10**400, float("inf"), float("nan"), None, True, "5"])
def test_a_float_is_finite(folder, value):
    models = Models(folder, [])
    assert answer(models, "good", [[1, 0.5, 2**30, -1e38]]).tolist() == [[2, 1, 2**31, np.float32(-2e38)]]
    with pytest.raises(ValueError, match="input x takes float32 from .*, not "):
        answer(models, "good", [[1, 2, 3, value]])


@pytest.mark.parametrize("rows", [5, [1, 2, 3, 4], [[1, 2, 3]], [[1, 2, 3, 4], [1]], [[[1, 2, 3, 4]]], {"x": 1}, []])
def test_rows_have_the_shape_of_the_input(folder, rows):
    with pytest.raises(ValueError, match=r"input x must have shape \(None, 4\), not"):
        answer(Models(folder, []), "good", rows)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (message(output_filter=["w"]), "the output is y, not .'w'."),
        (message(model_spec={"signature_name": "train"}), "the signature that answers is serving_default, not 'train'"),
        (message(model_spec={"version": {"value": 7}}), "model good has version 1, not 7"),
        (message(model_spec={"version_label": "stable"}), "no labels such as 'stable'"),
        (message(np.array([[2.0, 3, 4, float("nan")]])), "takes float32 from .*, not nan"),
        (message(np.array([["a"] * 4])), "sent as string"),
        (predict_pb2.PredictRequest(model_spec={"name": "good"}), "the input is x, not "),
    ],
)
def test_what_a_message_names_is_there(folder, request_, said):
    with pytest.raises((ValueError, NotServed), match=said):
        Grpc(Models(folder, [])).predict(request_)


def test_a_message_of_another_input_is_refused(folder):
    request = message()
    request.inputs["typo"].CopyFrom(request.inputs["x"])
    with pytest.raises(ValueError, match="the input is x, not .*'typo'"):
        Grpc(Models(folder, [])).predict(request)


def test_a_short_message_takes_no_more_memory_than_it_holds():
    shape = {"dim": [{"size": 8_000_000}, {"size": 16}]}
    tensor = tf.make_tensor_proto(1.0)
    tensor.tensor_shape.CopyFrom(type(tensor.tensor_shape)(**shape))
    assert tensor.ByteSize() < 48
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"shape \[8000000, 16\], and holds 1 numbers of float32"):
        array_of("x", tensor)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1e6


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64"])
def test_numbers_arrive_from_bytes_and_from_fields_and_not_from_the_field_of_another_type(dtype):
    for rows in (np.array([[1, 2, 3, 4]], dtype), np.array([[7]], dtype)):
        np.testing.assert_array_equal(array_of("x", tf.make_tensor_proto(rows)), rows)
    tensor = tf.make_tensor_proto(np.array(1, dtype))
    tensor.tensor_content = b""
    for field, _ in tensor.ListFields():
        if field.name.endswith("_val"):
            tensor.ClearField(field.name)
    tensor.bool_val.append(True)
    with pytest.raises(ValueError, match="holds 0 numbers"):
        array_of("x", tensor)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batching", "typo"], "--batching: there is no model .'typo'., but .'good'."),
        (["--largest-body", "0"], "--largest-body: 0 must be from 1 to 104857600 bytes"),
    ],
)
def test_a_wrong_argument_is_named(folder, monkeypatch, capsys, arguments, said):
    monkeypatch.setattr("sys.argv", ["model_server.py", str(folder), *arguments])
    with pytest.raises(SystemExit):
        model_server.main()
    assert re.search(said, capsys.readouterr().err)
