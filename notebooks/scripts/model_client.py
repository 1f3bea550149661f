"""Clients of a model server, TensorFlow Serving's or that of model_server.py, and the load that many of them make."""

import http.client
import json
import threading
import time

import grpc
import numpy as np
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from bigtrain_nb import tf

SECONDS = 20.0
"""So long a client waits for an answer, unless it is told otherwise."""


class Refused(Exception):
    """The server has answered with an error."""


class RestClient:
    """Numbers travel as text, in JSON. One connection, kept open."""

    def __init__(self, port, model, seconds=SECONDS):
        self.path = f"/v1/models/{model}"
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def version(self):
        return int(self._ask("GET", self.path)["model_version_status"][0]["version"])

    def predict(self, rows):
        """Raises Refused if the server refuses, OSError if it is gone or does not answer in time."""
        body = json.dumps({"instances": np.asarray(rows).tolist()})
        return np.array(self._ask("POST", f"{self.path}:predict", body)["predictions"], np.float32)

    def _ask(self, *request):
        try:
            self.connection.request(*request)
            response = self.connection.getresponse()
            answer = json.loads(response.read())
        except OSError:
            self.connection.close()
            raise
        if response.status != 200:
            raise Refused(f"{response.status}: {answer['error']}")
        return answer


class GrpcClient:
    """Numbers travel as bytes."""

    def __init__(self, port, model, input="tokens"):
        self.model, self.input = model, input
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        self.answered_by = None

    def predict(self, rows):
        """Raises grpc.RpcError if the server refuses, is gone, or does not answer in time."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self.model
        request.inputs[self.input].CopyFrom(tf.make_tensor_proto(np.asarray(rows)))
        response = self.stub.Predict(request, timeout=SECONDS)
        self.answered_by = response.model_spec.version.value
        (output,) = response.outputs.values()
        return tf.make_ndarray(output)


def load(make_client, row, rate, requests, clients=16, seed=0):
    """Ask `rate` times a second, at random moments, whether the answers come or not; return the latencies in seconds.

    Raises what a client raises that gets no answer, once all others have theirs: latencies without its own would tell
    of a server that is faster than it was.

    With an infinite `rate` all requests are due at once. So many `clients` ask, each of which waits for its answer.
    The clock starts when each of them has been answered once: making connections does not count.

    A latency counts from the moment when the request was due. Who counts from the moment when it was sent does not see
    how long it had to wait for a free client, and calls a server fast that is not.
    """
    random = np.random.default_rng(seed)
    due = iter(np.cumsum(random.exponential(1 / rate, requests)))
    latencies, failures = [], []
    took = threading.Lock()
    connected = [make_client() for _ in range(clients)]
    for client in connected:
        client.predict([row])
    began = time.perf_counter()

    def ask(client):
        while True:
            with took:
                moment = next(due, None)
            if moment is None:
                return
            time.sleep(max(0, began + moment - time.perf_counter()))
            try:
                client.predict([row])
            except Exception as error:
                failures.append(error)
                return
            latencies.append(time.perf_counter() - began - moment)

    threads = [threading.Thread(target=ask, args=[client]) for client in connected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return latencies
