"""Persistent workers that run steps on request from a notebook, all at the same time, to be timed.

In the notebook: ``workers = Asked(2)``, then ``workers.ask(20, "all_reduce", bytes=4096)`` -> seconds for each of 20
steps. Run as a script, once per worker, this file answers the requests.
"""

import json
import socket
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

START_SECONDS, ANSWER_SECONDS = 120, 120
SLICE = 8  # examples per micro-batch


class Asked:
    """Worker processes that wait for requests until this object is deleted.

    If one of them ends, all end, and the next request restarts them.
    """

    def __init__(self, workers):
        self._count, self._lock = workers, threading.Lock()
        self._start()

    def _start(self):
        self._server, self._ends = socket.create_server(("127.0.0.1", 0)), []
        port = self._server.getsockname()[1]
        self.job = bt.run_workers(Path(__file__), self._count, arguments=[port], gpus_per_worker=1)

    def ask(self, times, kind, **settings):
        """Let all workers run ``times`` steps of a kind together; return the seconds per step of the slowest worker.

        The first request builds the step and warms it up. Raises RuntimeError if a worker ends or does not answer.
        """
        with self._lock:
            if self.job.exit_code is not None:
                self._start()
            self._meet()
            try:
                for end in self._ends:
                    end.write(json.dumps([times, kind, settings]) + "\n")
                    end.flush()
                return max(float(end.readline()) for end in self._ends)
            except (OSError, ValueError):
                self._complain()
            except BaseException:  # after an interrupt, late answers would be taken for those of the next request
                self.job.stop()
                raise

    def _meet(self):
        """Wait until all workers are connected."""
        self._server.settimeout(0.5)
        until = time.monotonic() + START_SECONDS
        while len(self._ends) < self._count:
            try:
                connection, _ = self._server.accept()
                connection.settimeout(ANSWER_SECONDS)
                self._ends.append(connection.makefile("rw"))
            except TimeoutError:
                if any(self.job.codes) or time.monotonic() > until:
                    self._complain()

    def _complain(self):
        self.job.stop()
        said = "\n".join(self.job.logs(worker) for worker in range(self._count))
        raise RuntimeError(f"a worker does not answer; the workers' logs:\n{said}") from None


def all_reduce(strategy, bytes, dtype="float32"):
    """Return a step that all-reduces so many bytes of float32 over all workers, sent as ``dtype``."""
    values = tf.ones(bytes // 4, dtype)

    def add():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)

    return tf.function(lambda: strategy.run(add))


def late(strategy, milliseconds, one_in, together=True):
    """Return a step that sleeps for some milliseconds once in ``one_in`` steps, at random; then the workers meet."""
    random = np.random.default_rng(strategy.cluster_resolver.task_id)
    meet = all_reduce(strategy, bytes=4)

    def step():
        if random.random() < 1 / one_in:
            time.sleep(milliseconds / 1000)
        if together:
            meet()

    return step


def train(strategy, width, micro_batches=1, together=True):
    """Return a training step of a model with 2 width^2 + 35 width parameters; ``together``: with the other workers."""
    with strategy.scope() if together else nullcontext():
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
        model = bt.Model.of(keras.Sequential([keras.Input((32,)), *layers]), micro_batches=micro_batches)
        model.compile("sgd", "mse")
    examples = SLICE * micro_batches
    x, y = tf.ones((examples, 32)), tf.ones((examples, width))
    return lambda: model.train_on_batch(x, y)


def epoch(strategy, width, steps, **arguments):
    """Return a `fit` of ``steps`` steps with AdamW, of a model with width^2 + 34 width parameters.

    ``arguments``: those of `bt.Model`.
    """
    with strategy.scope():
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
        model = bt.Model.of(keras.Sequential([keras.Input((32,)), *layers]), **arguments)
        model.compile("adamw", "mse")
    batch = 2 * SLICE
    data = tf.data.Dataset.from_tensors((tf.ones((batch, 32)), tf.ones((batch, width)))).repeat()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = data.with_options(options)
    return lambda: model.fit(batches, steps_per_epoch=steps, verbose=0)


def seconds_of(step, times):
    began = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - began) / times


def answer(port):
    """Run the steps that the notebook requests, until it disconnects."""
    strategy = bt.strategy()
    kinds = {"all_reduce": all_reduce, "epoch": epoch, "late": late, "train": train}
    steps = {}
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rw") as notebook:
        for question in notebook:
            times, kind, settings = json.loads(question)
            key = json.dumps([kind, settings])
            if key not in steps:
                steps[key] = kinds[kind](strategy, **settings)
                seconds_of(steps[key], 1)
            notebook.write(f"{seconds_of(steps[key], times)}\n")
            notebook.flush()


if __name__ == "__main__":
    answer(int(sys.argv[1]))
