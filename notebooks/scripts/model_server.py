"""A model server that speaks TensorFlow Serving's REST and gRPC; notebook 14 shows it and starts it.

    python model_server.py MODELS [--batching NAME ...] [--largest-body BYTES]

MODELS has a folder for each model, and in it a folder for each version, named by its number, with a SavedModel of one
input and one output that answers each row of numbers with a row. The newest version of each model answers; what cannot
be served is left out, and the reason printed. Requests to a model named after --batching are put together.

What it speaks is TensorFlow Serving's, so the clients of the one fit the other. It does only what the notebook needs,
refuses the rest, and listens on this machine alone.
"""

import argparse
import json
import math
import queue
import re
import reprlib
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import tornado
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tornado.ioloop import IOLoop
from tornado.web import HTTPError

from bigtrain_nb import tf

SIGNATURE = "serving_default"
LOOK_SECONDS = 0.1
LARGEST_BATCH = 16
LARGEST_BODY, LARGEST_OF_ALL = 4 * 2**20, 100 * 2**20
THREADS = 16

VALUES = dict.fromkeys(["int8", "int16", "int32", "uint8", "uint16"], "int_val") | {
    "int64": "int64_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
    "float16": "half_val",
    "float32": "float_val",
    "float64": "double_val",
}
"""The field of a TensorProto that holds the numbers of a type, unless they are all bytes in `tensor_content`."""


class NotServed(Exception):
    """The server has no such model, or not this version of it."""


BAD_REQUEST = (ValueError, tf.errors.InvalidArgumentError)


class Version:
    """One version of a model, loaded. Raises ValueError for one that this server cannot serve."""

    def __init__(self, folder):
        self.number = int(folder.name)
        self.loaded = tf.saved_model.load(str(folder))  # must be kept: the signature does not hold it
        if SIGNATURE not in self.loaded.signatures:
            raise ValueError(f"it must have the signature {SIGNATURE}, and has {[*self.loaded.signatures]}")
        self.signature = self.loaded.signatures[SIGNATURE]
        inputs, outputs = self.signature.structured_input_signature[1], self.signature.structured_outputs
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(f"it must have one input and one output, and has {[*inputs]} and {[*outputs]}")
        (self.input,), (self.output,) = inputs.values(), outputs
        shape = self.input.shape
        if not shape.rank or shape[0] is not None or not shape[1:].is_fully_defined():
            raise ValueError(f"input {self.input.name} has shape {shape}: only the first dimension must be open")

        self.dtype = np.dtype(self.input.dtype.as_numpy_dtype)
        if self.dtype.kind not in "iuf":
            raise ValueError(f"input {self.input.name} takes {self.dtype}: it must take numbers")
        self.types = {int, float} if self.dtype.kind == "f" else {int}
        limits = np.finfo(self.dtype) if self.dtype.kind == "f" else np.iinfo(self.dtype)
        self.least, self.most = np.array([limits.min, limits.max], self.dtype).tolist()

    def warm_up(self):
        """Run for one row and for two: no request waits for a slow first run, and `run` sees whether rows come back."""
        for count in (1, 2):
            self.run(np.zeros([count, *self.input.shape[1:]], self.dtype))

    def checked(self, rows):
        """Return the rows as an array that fits: one that does not must not spoil a batch.

        Raises ValueError for another shape, and names the first value that would become another number. (That the
        decimals of a float are rounded is no error.)
        """
        rows = np.asarray(rows, object)
        if not self.input.shape.is_compatible_with(rows.shape):
            raise ValueError(f"input {self.input.name} must have shape {self.input.shape}, not {rows.shape}")
        for value in rows.flat:
            if type(value) not in self.types or not self.least <= value <= self.most:
                allowed = f"{self.dtype} from {self.least} to {self.most}"
                raise ValueError(f"input {self.input.name} takes {allowed}, not {reprlib.repr(value)}")
        return rows.astype(self.dtype)

    def run(self, rows):
        """Return the outputs for rows that were checked. Raises RuntimeError unless each row gets one."""
        found = self.signature(**{self.input.name: tf.constant(rows)})[self.output].numpy()
        if found.shape[:1] != rows.shape[:1]:
            raise RuntimeError(f"output {self.output} must have a row for each of {len(rows)}, not shape {found.shape}")
        return found


class Model:
    """A model with versions. A request takes `newest` once and keeps it, so that it ends with the one it began with."""

    def __init__(self, folder, batching):
        self.folder = folder
        self.newest = None
        self.trouble = "no version is loaded yet"
        self.looks = {}
        self.waiting = queue.Queue()
        self.batching = batching
        if batching:
            threading.Thread(target=self.answer_in_batches, daemon=True).start()

    def look(self):
        """Load the newest version, if it is new; only then does it answer.

        It must have stood still from one look to the next: so it is whole. If it cannot be loaded, the one before goes
        on answering, and it is tried again when its files change.
        """
        versions = [path for path in self.folder.glob("*") if re.fullmatch("[0-9]{1,18}", path.name)]
        if not versions and not self.newest:
            self.complain("there is no version of it")
        for path in sorted(versions, key=lambda path: int(path.name), reverse=True):
            if self.newest and int(path.name) <= self.newest.number:
                return
            try:
                if self.stands_still(path):
                    version = Version(path)
                    version.warm_up()
                    self.newest = version
                    return
            except Exception as error:
                self.complain(f"version {path.name} cannot be loaded: {error}")

    def stands_still(self, path):
        """Tell whether the files are those of the last look. The same files are told of only once."""
        files = sorted((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in path.rglob("*"))
        before, looks = self.looks.get(path, (files, 0))
        looks = looks + 1 if files == before else 1
        self.looks[path] = files, looks
        return looks == 2

    def complain(self, trouble):
        if trouble != self.trouble:
            self.trouble = trouble
            print(f"{self.folder.name}: {trouble}", flush=True)

    def version(self, wanted=None):
        """Return the version that answers; raise NotServed if there is none, or another one is wanted."""
        newest = self.newest
        if newest is None:
            raise NotServed(f"model {self.folder.name} cannot answer: {self.trouble}")
        if wanted not in (None, newest.number):
            raise NotServed(f"model {self.folder.name} has version {newest.number}, not {wanted}")
        return newest

    def answer(self, version, rows):
        """Return the version's outputs for the rows of a request. Raises ValueError for rows that it cannot take."""
        rows = version.checked(rows)
        if not self.batching:
            return version.run(rows)
        found = Future()
        self.waiting.put((version, rows, found))
        return found.result()

    def answer_in_batches(self):
        while True:
            self.answer_batch()

    def answer_batch(self):
        """Take all that wait, up to `LARGEST_BATCH` requests, and run them together; those that come meanwhile wait."""
        asked = [self.waiting.get()]
        while len(asked) < LARGEST_BATCH and not self.waiting.empty():
            asked.append(self.waiting.get())
        for version in {version for version, _, _ in asked}:
            run_together(version, [(rows, found) for its, rows, found in asked if its is version])


def run_together(version, asked):
    """Run requests as one batch; if that fails, each by itself: one must not spoil the others."""
    try:
        found = version.run(np.concatenate([rows for rows, _ in asked]))
    except Exception as error:
        if len(asked) == 1:
            asked[0][1].set_exception(error)
        else:
            for one in asked:
                run_together(version, [one])
        return
    ends = np.cumsum([len(rows) for rows, _ in asked])
    for part, (_, future) in zip(np.split(found, ends[:-1]), asked, strict=True):
        future.set_result(part)


class Models(dict):
    """All models by name, and a thread that looks for new versions."""

    def __init__(self, folder, batching):
        super().__init__()
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                self[path.name] = Model(path, path.name in batching)
            else:
                print(f"{path.name}: it is left out, for it is no folder", flush=True)
        self.look()
        time.sleep(LOOK_SECONDS)
        self.look()
        threading.Thread(target=self.watch, daemon=True).start()

    def __missing__(self, name):
        raise NotServed(f"there is no model {name!r}, but {[*self]}")

    def look(self):
        for model in self.values():
            model.look()

    def watch(self):
        while True:
            time.sleep(LOOK_SECONDS)
            self.look()


def check_signature(name):
    if name != SIGNATURE:
        raise ValueError(f"the signature that answers is {SIGNATURE}, not {name!r}")


class Rest(tornado.web.RequestHandler):
    """An error is an answer, too."""

    def initialize(self, models, threads, largest_body):
        self.models, self.threads, self.largest_body = models, threads, largest_body

    def version_of(self, name, wanted):
        return self.models[name].version(int(wanted) if wanted else None)

    def write_error(self, status, exc_info=None, **_):
        error = exc_info[1] if exc_info else None
        if isinstance(error, NotServed):
            self.set_status(404)
        elif isinstance(error, BAD_REQUEST):
            self.set_status(400)
        self.finish({"error": str(error or self._reason)})

    def log_exception(self, kind, error, traceback):
        print(f"{self.request.method} {self.request.path}: {error}", flush=True)


class Status(Rest):
    """GET /v1/models/NAME says which version answers."""

    def get(self, name, wanted):
        state = {"version": str(self.version_of(name, wanted).number), "state": "AVAILABLE"}
        self.finish({"model_version_status": [state | {"status": {"error_code": "OK", "error_message": ""}}]})


@tornado.web.stream_request_body
class Predict(Rest):
    """POST /v1/models/NAME:predict takes {"instances": rows}; the answer's header Model-Version says whose it is."""

    def prepare(self):
        self.body = bytearray()

    def data_received(self, chunk):
        """Keep no more than is allowed. The rest is read all the same, for a client that still sends hears nothing."""
        if len(self.body) <= self.largest_body:
            self.body += chunk

    async def post(self, name, wanted):
        if len(self.body) > self.largest_body:
            raise HTTPError(413, f"--largest-body allows {self.largest_body} bytes")
        answer, number = await IOLoop.current().run_in_executor(self.threads, self.predict, name, wanted)
        self.set_header("Content-Type", "application/json")
        self.set_header("Model-Version", number)
        self.finish(answer)

    def predict(self, name, wanted):
        """Return the answer in JSON and the version's number. It runs in a thread, for a long body takes a while."""
        version = self.version_of(name, wanted)
        try:
            asked = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the body must be JSON: {error}") from error
        if not isinstance(asked, dict) or not {"instances"} <= {*asked} <= {"instances", "signature_name"}:
            raise ValueError('the body must be like {"instances": [[1, 2, 3]]}; "signature_name" may stand in it, too')
        check_signature(asked.get("signature_name", SIGNATURE))
        found = self.models[name].answer(version, asked["instances"])
        return json.dumps({"predictions": found.tolist()}), version.number


class Grpc(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The same models as messages in bytes: no number becomes text."""

    def __init__(self, models):
        self.models = models

    def Predict(self, request, context):
        try:
            return self.predict(request)
        except NotServed as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except (*BAD_REQUEST, TypeError, OverflowError) as error:  # the last two from messages of no known type
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            context.abort(grpc.StatusCode.INTERNAL, str(error))

    def predict(self, request):
        spec = request.model_spec
        if spec.HasField("version_label"):
            raise NotServed(f"versions have numbers here, no labels such as {spec.version_label!r}")
        check_signature(spec.signature_name or SIGNATURE)
        model = self.models[spec.name]
        version = model.version(spec.version.value if spec.HasField("version") else None)
        if [*request.inputs] != [version.input.name]:
            raise ValueError(f"the input is {version.input.name}, not {[*request.inputs]}")
        if not {*request.output_filter} <= {version.output}:
            raise ValueError(f"the output is {version.output}, not {[*request.output_filter]}")
        found = model.answer(version, array_of(version.input.name, request.inputs[version.input.name]))

        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.version.value = spec.name, version.number
        response.outputs[version.output].CopyFrom(tf.make_tensor_proto(found))
        return response


def array_of(name, tensor):
    """Return the array of a TensorProto; raise ValueError unless it holds as many numbers as its shape says.

    TensorFlow would fill up with the last one: a message of 50 bytes becomes an array of gigabytes.
    """
    dtype = tf.as_dtype(tensor.dtype)
    if dtype.name not in VALUES:
        raise ValueError(f"input {name} is sent as {dtype.name}, and must be sent as one of {[*VALUES]}")
    shape = [dimension.size for dimension in tensor.tensor_shape.dim]
    held = len(tensor.tensor_content) / dtype.size + len(getattr(tensor, VALUES[dtype.name]))
    if held != math.prod(shape):
        raise ValueError(f"input {name} says that it has shape {shape}, and holds {held:g} numbers of {dtype.name}")
    return tf.make_ndarray(tensor)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--batching", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--largest-body", type=int, default=LARGEST_BODY, metavar="BYTES")
    arguments = parser.parse_args()
    if not 0 < arguments.largest_body <= LARGEST_OF_ALL:
        parser.error(f"--largest-body: {arguments.largest_body} must be from 1 to {LARGEST_OF_ALL} bytes")
    if not arguments.models.is_dir():
        parser.error(f"MODELS: {arguments.models} is no folder")
    models = Models(arguments.models, arguments.batching)
    if unknown := {*arguments.batching} - {*models}:
        parser.error(f"--batching: there is no model {sorted(unknown)}, but {[*models]}")

    limit = ("grpc.max_receive_message_length", arguments.largest_body)
    server = grpc.server(ThreadPoolExecutor(THREADS), options=[limit])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Grpc(models), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    shared = {"models": models, "threads": ThreadPoolExecutor(THREADS), "largest_body": arguments.largest_body}
    path = "/v1/models/([^/:]+)(?:/versions/([0-9]+))?"
    sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    routes = [(path, Status, shared), (f"{path}:predict", Predict, shared)]
    http = tornado.httpserver.HTTPServer(tornado.web.Application(routes))
    http.add_sockets(sockets)
    print(json.dumps({"rest": sockets[0].getsockname()[1], "grpc": grpc_port}), flush=True)
    IOLoop.current().start()


if __name__ == "__main__":
    main()
