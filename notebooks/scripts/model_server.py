"""A gRPC model server that follows the exported signature; notebook 14 shows and starts it.

    python model_server.py MODELS/NAME/VERSION

The folder holds a SavedModel. The protocol is TensorFlow Serving's `Predict`, so one client works with both servers. It
serves this one version, prints its port, and listens on this machine only.
"""

import argparse
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from bigtrain_nb import tf

SIGNATURE = "serving_default"
THREADS = 16


class NotServed(Exception):
    """The server has no such model, or not this version of it."""


BAD_REQUEST = (ValueError, TypeError, tf.errors.InvalidArgumentError)


class Model:
    """An exported model. Its signature specifies the inputs and outputs."""

    def __init__(self, folder):
        self.name, self.version = folder.parent.name, int(folder.name)
        self.loaded = tf.saved_model.load(str(folder))  # must be kept alive: the signature has no reference to it
        if SIGNATURE not in self.loaded.signatures:
            raise ValueError(f"{folder} has the signatures {[*self.loaded.signatures]}, and not {SIGNATURE}")
        self.signature = self.loaded.signatures[SIGNATURE]
        self.inputs = self.signature.structured_input_signature[1]

    def predict(self, request):
        """Return the answer to a request. Raises NotServed, or ValueError naming what does not match the signature."""
        self.check_model(request.model_spec)
        if {*request.inputs} != {*self.inputs}:
            raise ValueError(f"the inputs are {sorted(self.inputs)}, not {sorted(request.inputs)}")
        arrays = {name: array_of(spec, request.inputs[name]) for name, spec in self.inputs.items()}
        found = self.signature(**{name: tf.constant(array) for name, array in arrays.items()})
        if unknown := {*request.output_filter} - {*found}:
            raise ValueError(f"the outputs are {sorted(found)}, not {sorted(unknown)}")

        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.version.value = self.name, self.version
        for name in request.output_filter or found:
            response.outputs[name].CopyFrom(tf.make_tensor_proto(found[name]))
        return response

    def check_model(self, asked):
        if asked.name != self.name:
            raise NotServed(f"there is no model {asked.name!r}, but {self.name!r}")
        if asked.version_label or (asked.HasField("version") and asked.version.value != self.version):
            raise NotServed(f"model {self.name} has version {self.version} only")
        if asked.signature_name not in ("", SIGNATURE):
            raise ValueError(f"the signature that answers is {SIGNATURE}, not {asked.signature_name!r}")


def array_of(spec, tensor):
    """Return the array of a TensorProto that matches the input; raise ValueError if it does not.

    Every value takes at least a byte, so a message that claims more values than it has bytes is refused: TensorFlow
    would repeat the last value, and a message of 50 bytes would become gigabytes.
    """
    dtype, shape = tf.as_dtype(tensor.dtype), [dimension.size for dimension in tensor.tensor_shape.dim]
    if dtype != spec.dtype or tensor.tensor_shape.unknown_rank or not spec.shape.is_compatible_with(shape):
        raise ValueError(f"input {spec.name} is {spec.dtype.name} {spec.shape}, not {dtype.name} {tuple(shape)}")
    if math.prod(shape) > tensor.ByteSize():
        raise ValueError(f"input {spec.name} says that its shape is {shape}, in {tensor.ByteSize()} bytes")
    return tf.make_ndarray(tensor)


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Passes requests to the model. Errors are returned as answers: no thread ends because of a bad request."""

    def __init__(self, model):
        self.model = model

    def Predict(self, request, context):
        try:
            return self.model.predict(request)
        except NotServed as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except BAD_REQUEST as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    if not folder.name.isdecimal() or not (folder / "saved_model.pb").is_file():
        parser.error(f"{folder} is no SavedModel in a folder named by its version, such as models/words/1")
    server = grpc.server(ThreadPoolExecutor(THREADS))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(Model(folder)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(json.dumps({"port": port}), flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
