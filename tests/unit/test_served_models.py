"""The model behind notebook 14's server, without a network: valid requests and refusals."""

import os
import tracemalloc

import numpy as np
import pytest

from bigtrain_nb import tf

predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
from scripts import model_server  # noqa: E402
from scripts.model_server import Model, NotServed, array_of  # noqa: E402

ROWS = np.arange(8, dtype="float32").reshape(2, 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Version 3 of the model "sums": x [n, 4] and a number give two outputs."""
    folder = tmp_path_factory.mktemp("models") / "sums" / "3"
    x, more = tf.TensorSpec([None, 4], tf.float32, name="x"), tf.TensorSpec([], tf.int32, name="more")

    @tf.function(input_signature=[x, more])
    def signature(x, more):
        return {"sum": x + tf.cast(more, tf.float32), "row": tf.gather(x, more)}

    tf.saved_model.save(tf.Module(), os.fspath(folder), signatures={"serving_default": signature})
    return Model(folder)


def message(x=ROWS, more=1, name="sums", **fields):
    request = predict_pb2.PredictRequest(**fields)
    request.model_spec.name = name
    for key, value in {"x": x, "more": np.int32(more)}.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


def test_it_answers_with_all_outputs_of_the_signature_or_those_that_are_asked_for(model):
    response = model.predict(message())
    assert (response.model_spec.name, response.model_spec.version.value) == ("sums", 3)
    found = {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}
    np.testing.assert_array_equal(found.pop("sum"), ROWS + 1)
    np.testing.assert_array_equal(found.pop("row"), ROWS[1])
    assert not found
    spec = {"version": {"value": 3}, "signature_name": "serving_default"}
    assert [*model.predict(message(model_spec=spec, output_filter=["row"])).outputs] == ["row"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (message(ROWS[:, :2]), r"input x is float32 \(None, 4\), not float32 \(2, 2\)"),
        (message(ROWS.astype("float64")), r"input x is float32 \(None, 4\), not float64"),
        (message(np.array([["a"] * 4])), "input x is float32 .* not string"),
        (message(more=[1, 2]), r"input more is int32 \(\), not int32 \(2,\)"),
        (message(more=7), "indices = 7 is not in"),
        (message(output_filter=["typo"]), "the outputs are .'row', 'sum'., not .'typo'."),
        (message(model_spec={"signature_name": "train"}), "the signature that answers is serving_default, not 'train'"),
        (message(model_spec={"version": {"value": 7}}), "model sums has version 3 only"),
        (message(model_spec={"version_label": "stable"}), "model sums has version 3 only"),
        (message(name="typo"), "there is no model 'typo', but 'sums'"),
        (predict_pb2.PredictRequest(model_spec={"name": "sums"}), "the inputs are .'more', 'x'., not .."),
    ],
)
def test_what_does_not_fit_the_signature_is_refused_with_a_reason(model, request_, said):
    with pytest.raises((NotServed, *model_server.BAD_REQUEST), match=said):
        model.predict(request_)


def test_a_type_that_nobody_knows_is_refused(model):
    request = message()
    request.inputs["x"].dtype = 99
    with pytest.raises(model_server.BAD_REQUEST):
        model.predict(request)


def test_a_short_message_takes_no_more_memory_than_it_holds():
    shape = {"dim": [{"size": 8_000_000}, {"size": 16}]}
    tensor = tf.make_tensor_proto(1.0)
    tensor.tensor_shape.CopyFrom(type(tensor.tensor_shape)(**shape))
    assert tensor.ByteSize() < 48
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"says that its shape is \[8000000, 16\], in .. bytes"):
        array_of(tf.TensorSpec([None, 16], tf.float32, name="x"), tensor)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1e6


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64"])
def test_numbers_arrive_from_bytes_and_from_fields(dtype):
    spec = tf.TensorSpec(None, dtype, name="x")
    for rows in (np.array([[1, 2, 3, 4]], dtype), np.array([[7]], dtype), np.zeros([0, 4], dtype)):
        np.testing.assert_array_equal(array_of(spec, tf.make_tensor_proto(rows)), rows)


@pytest.mark.parametrize("name", ["1", "newest"])
def test_a_folder_that_is_no_version_is_named(tmp_path, monkeypatch, capsys, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr("sys.argv", ["model_server.py", str(tmp_path / name)])
    with pytest.raises(SystemExit):
        model_server.main()
    assert f"{tmp_path / name} is no SavedModel in a folder named by its version" in capsys.readouterr().err
