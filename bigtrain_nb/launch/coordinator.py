"""Training with parameter servers: each worker takes its next step when its last one is done, and waits for nobody."""

import os
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from bigtrain_nb.common.addresses import answers
from bigtrain_nb.common.checks import positive, whole_number
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.launch import silence
from bigtrain_nb.launch.serve import end_all
from bigtrain_nb.train.checkpoint_files import CheckpointFiles
from bigtrain_nb.train.preemption import PREEMPTED, Preemption

CLOSING_SECONDS = 0.5  # so long the ports of a process that ends may still answer


@dataclass(frozen=True)
class Round:
    """What was trained between two waits for all workers.

    ``steps`` counts all that were done since the training began, ``repeated`` those of this round that were done twice
    because a worker was lost. ``loss`` is the mean over the round's steps, ``staleness`` the mean number of steps that
    other workers ended while one ran: so many updates its gradient did not know of. ``seconds`` is the round's time.
    """

    steps: int
    repeated: int
    loss: float
    staleness: float
    seconds: float


class Coordinator:
    """Runs a step function on the workers of a `ParameterServerStrategy`; in the chief, with `bigtrain_nb.strategy`.

    ::

        with strategy.scope():
            model = build()
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build(model.trainable_variables)

        def step(batch):  # on a worker: compute a gradient from the variables as they are now, and apply it
            ...
            return loss

        coordinator = bt.Coordinator(strategy, step, batches, folder="checkpoints", model=model, optimizer=optimizer)
        for done in coordinator.rounds(steps=1000, every=100):
            print(done, evaluate(model))

    ``step`` takes a batch and returns a loss []; it is made a `tf.function`. ``batches`` takes nothing and returns a
    `tf.data.Dataset`; each worker calls it for itself, and starts again at the dataset's end: shuffle it without a
    seed, or give the workers shares of one epoch by a `Pipeline` with ``service`` and ``job_name``.

    Steps are counted in a variable of their own, which adds under a lock: ``optimizer.iterations`` loses counts. A step
    whose worker is lost is done again by another, so that it can have been applied twice: at least once, not exactly
    once. It is counted as often as it was applied.

    A lost server, or chief, loses all since the last checkpoint. With ``folder``, which servers and chief see, a
    checkpoint of the Keras models, optimizers and variables in ``saved`` is written after each round, and the newest is
    restored at the start; ``steps`` is then what was done before. After SIGTERM the chief saves at the end of the round
    and ends all with code 75. Which examples were read is not saved.

    A worker or a server that stands still, because it was stopped or its machine hangs, would hold up all for ever. One
    that has not answered for ``silent_after`` seconds is named, and the chief ends with code 1.

    Raises ValueError for an optimizer that is not built, whose variables could not be made on a worker, and for a
    checkpoint of other variables; RuntimeError if another training uses the folder and, from `rounds`, when a server
    is lost: it names which.
    """

    def __init__(self, strategy, step, batches, *, folder=None, silent_after=60.0, **saved):
        tf.get_logger().setLevel("FATAL")  # of a lost task it logs a page for each step that it had, twice
        for name, value in saved.items():
            if isinstance(value, keras.optimizers.Optimizer) and not value.built:
                raise ValueError(f"{name} is not built: call {name}.build(model.trainable_variables) in the scope")
        self._strategy = strategy
        self._silent_after = positive("silent_after", silent_after, "seconds")
        self._step = step
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self._done = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.SUM)
            self._sums = tf.Variable(tf.zeros([2], tf.float64), aggregation=tf.VariableAggregation.SUM)
        self._files = _files(folder, saved, self._done) if folder else None
        if self._files:
            self._files.prepare()
            self._files.restore()
        self._batches = iter(self._coordinator.create_per_worker_dataset(lambda: batches().repeat()))
        self._preemption = Preemption()

    @property
    def steps(self):
        """How many steps were done, those before a restart included."""
        return int(self._done.numpy())

    def rounds(self, steps, every):
        """Train until ``steps`` are done; yield a `Round` after each ``every`` steps, when all workers are at rest."""
        steps, every = whole_number("steps", steps, 1), whole_number("every", every, 1)
        with self._preemption.listening(), self._files.in_use() if self._files else nullcontext():
            while (before := self.steps) < steps:
                scheduled = min(every, steps - before)
                began = time.monotonic()
                self._run(scheduled)
                seconds = time.monotonic() - began
                done = self.steps - before
                loss, staleness = self._sums.numpy() / done
                self._sums.assign([0.0, 0.0])
                if self._files:
                    self._files.save()
                yield Round(before + done, done - scheduled, float(loss), float(staleness), seconds)
                if self._preemption.came():
                    print(f"SIGTERM: {self.steps} steps are done, leaving", flush=True)
                    end_all(PREEMPTED)

    def _run(self, count):
        try:
            for _ in range(count):
                self._coordinator.schedule(self._one_step, args=(self._batches,))
            self._coordinator.join()
        except tf.errors.UnavailableError:
            raise RuntimeError(
                "a parameter server is gone, and the variables that stood on it. Start all tasks again, as"
                " bt.run_workers(..., servers=1, restarts=3) does, to go on from the last checkpoint"
            ) from None

    @tf.function
    def _one_step(self, batches):
        """Do a step on a worker. Each part waits for the one before, which is on other machines too."""
        batch = next(batches)
        begun = self._done.read_value()
        with tf.control_dependencies([begun]):
            loss = self._whole_step(batch)
        with tf.control_dependencies([loss]):
            others = self._done.read_value() - begun
        with tf.control_dependencies([others]):
            self._done.assign_add(1)
            self._sums.assign_add([tf.cast(loss, tf.float64), tf.cast(others, tf.float64)])

    @tf.function
    def _whole_step(self, batch):
        """Return the loss when the step's last operation is done: a function of its own has one end."""
        return self._strategy.run(self._step, args=(batch,))


def _files(folder, saved, done):
    of_keras = {name: value.variables for name, value in saved.items() if isinstance(value, _KERAS)}
    others = {name: value for name, value in saved.items() if not isinstance(value, _KERAS)}
    return CheckpointFiles(folder, 2, of_keras, steps=done, **others)


_KERAS = keras.layers.Layer, keras.optimizers.Optimizer
