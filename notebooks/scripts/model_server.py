"""A model server that speaks TensorFlow Serving's REST and gRPC; notebook 11 shows it and starts it.

    python model_server.py MODELS [--batching NAME ...]

MODELS has a folder for each model, and in it a folder for each version, named by its number, with a SavedModel. The
newest version of each model answers. Requests to a model named after --batching are put together. What it speaks is
TensorFlow Serving's, so the clients of the one fit the other; it does only what the notebook needs.
"""

import argparse
import json
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import tornado
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from tornado.ioloop import IOLoop

from bigtrain_nb import tf

LOOK_SECONDS = 0.1
LARGEST_BATCH = 16
THREADS = 16


class NoSuchModel(Exception):
    """The server has no such model, or not this version of it."""


class Version:
    """One version of a model, loaded."""

    def __init__(self, folder):
        self.number = int(folder.name)
        self.loaded = tf.saved_model.load(str(folder))  # must be kept: the signature does not hold it
        self.signature = self.loaded.signatures["serving_default"]
        (self.input,) = self.signature.structured_input_signature[1].values()
        (self.output,) = self.signature.structured_outputs

    def warm_up(self):
        """Run once, so that no request has to wait for the slow first run."""
        shape = [1, *self.input.shape[1:]]
        self.run(np.zeros(shape, self.input.dtype.as_numpy_dtype))

    def run(self, rows):
        found = self.signature(**{self.input.name: tf.constant(rows)})
        return found[self.output].numpy()


class Model:
    """A model with versions. A request takes `newest` once and keeps it, so that it ends with the one it began with."""

    def __init__(self, folder, batching):
        self.folder = folder
        self.newest = None
        self.tried = 0
        self.waiting = queue.Queue()
        self.batching = batching
        self.look()
        if batching:
            threading.Thread(target=self.answer_in_batches, daemon=True).start()

    def look(self):
        """Load the newest version, if it is new; only then does it answer."""
        number = max((int(path.name) for path in self.folder.iterdir() if path.name.isdigit()), default=0)
        if number > self.tried:
            self.tried = number
            version = Version(self.folder / str(number))
            version.warm_up()
            self.newest = version

    def answer(self, rows, wanted=None):
        """Return the outputs for an array of inputs, and the number of the version that made them.

        Raises ValueError for rows that the model cannot take, NoSuchModel for a version that is not here.
        """
        newest = self.newest
        if newest is None or wanted not in (None, newest.number):
            raise NoSuchModel(f"Servable not found for request: Specific({self.folder.name}, {wanted})")
        rows = self.checked(rows, newest.input)
        if not self.batching:
            return newest.run(rows), newest.number
        asked = rows, Future()
        self.waiting.put(asked)
        return asked[1].result()

    def checked(self, rows, spec):
        """Return the rows as an array that fits: one that does not must not spoil a batch."""
        try:
            rows = np.asarray(rows, spec.dtype.as_numpy_dtype)
        except (TypeError, ValueError) as error:
            raise ValueError(f"input {spec.name} does not become an array of {spec.dtype.name}: {error}") from error
        if not spec.shape.is_compatible_with(rows.shape):
            raise ValueError(f"input {spec.name} must have shape {spec.shape}, not {rows.shape}")
        return rows

    def answer_in_batches(self):
        """Take all that wait, up to `LARGEST_BATCH` requests, and run them together; those that come meanwhile wait."""
        while True:
            asked = [self.waiting.get()]
            while len(asked) < LARGEST_BATCH and not self.waiting.empty():
                asked.append(self.waiting.get())
            newest = self.newest
            ends = np.cumsum([len(rows) for rows, _ in asked])
            try:
                found = newest.run(np.concatenate([rows for rows, _ in asked]))
            except Exception as error:
                for _, future in asked:
                    future.set_exception(error)
                continue
            for part, (_, future) in zip(np.split(found, ends[:-1]), asked, strict=True):
                future.set_result((part, newest.number))


class Models(dict):
    """All models by name, and a thread that looks for new versions."""

    def __init__(self, folder, batching):
        super().__init__({path.name: Model(path, path.name in batching) for path in sorted(folder.iterdir())})
        threading.Thread(target=self.watch, daemon=True).start()

    def __missing__(self, name):
        raise NoSuchModel(f"Servable not found for request: Latest({name})")

    def watch(self):
        while True:
            time.sleep(LOOK_SECONDS)
            for model in self.values():
                try:
                    model.look()
                except Exception as error:  # the old version goes on answering
                    print(f"{model.folder.name}: a new version cannot be loaded: {error}", flush=True)


class Rest(tornado.web.RequestHandler):
    """GET /v1/models/NAME says which version answers; POST /v1/models/NAME:predict takes {"instances": rows}."""

    def initialize(self, models, threads):
        self.models, self.threads = models, threads

    def get(self, name, version):
        state = {"version": str(self.models[name].newest.number), "state": "AVAILABLE"}
        self.finish({"model_version_status": [state | {"status": {"error_code": "OK", "error_message": ""}}]})

    async def post(self, name, version):
        try:
            rows = json.loads(self.request.body)["instances"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f'the body must be JSON like {{"instances": [[1, 2, 3]]}}: {error!r}') from error
        wanted = int(version) if version else None
        found, _ = await IOLoop.current().run_in_executor(self.threads, self.models[name].answer, rows, wanted)
        self.finish({"predictions": found.tolist()})

    def write_error(self, status, exc_info=None, **_):
        error = exc_info[1] if exc_info else None
        if isinstance(error, NoSuchModel):
            self.set_status(404)
        elif isinstance(error, ValueError):
            self.set_status(400)
        self.finish({"error": str(error or self._reason)})

    def log_exception(self, kind, error, traceback):
        print(f"{self.request.method} {self.request.path}: {error}", flush=True)


class Grpc(prediction_service_pb2_grpc.PredictionServiceServicer):
    """The same models as messages in bytes: no number becomes text."""

    def __init__(self, models):
        self.models = models

    def Predict(self, request, context):
        spec = request.model_spec
        wanted = spec.version.value if spec.HasField("version") else None
        try:
            model = self.models[spec.name]
            (rows,) = request.inputs.values()
            found, number = model.answer(tf.make_ndarray(rows), wanted)
        except NoSuchModel as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except (ValueError, TypeError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.version.value = spec.name, number
        response.outputs[model.newest.output].CopyFrom(tf.make_tensor_proto(found))
        return response


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("--batching", nargs="*", default=[])
    arguments = parser.parse_args()
    models = Models(arguments.models, arguments.batching)

    server = grpc.server(ThreadPoolExecutor(THREADS))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Grpc(models), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    handler = {"models": models, "threads": ThreadPoolExecutor(THREADS)}
    path = r"/v1/models/(\w+)(?:/versions/(\d+))?(?::predict)?"
    sockets = tornado.netutil.bind_sockets(0, "127.0.0.1")
    http = tornado.httpserver.HTTPServer(tornado.web.Application([(path, Rest, handler)]))
    http.add_sockets(sockets)
    print(json.dumps({"rest": sockets[0].getsockname()[1], "grpc": grpc_port}), flush=True)
    IOLoop.current().start()


if __name__ == "__main__":
    main()
