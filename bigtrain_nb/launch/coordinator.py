"""Training with parameter servers: each worker takes its next step when its last one is done, and waits for nobody."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from bigtrain_nb.common.addresses import answers
from bigtrain_nb.common.checks import as_path, function, of_kind, positive, whole_number
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.launch import silence
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.serve import end_all
from bigtrain_nb.train.checkpoint_files import CheckpointFiles
from bigtrain_nb.train.preemption import PREEMPTED, Preemption

CLOSING_SECONDS = 0.5  # so long the ports of a process that ends may still answer
START_AGAIN = (
    "Start all tasks again, as bt.run_workers(..., servers=1, restarts=3) does, to go on from the last checkpoint"
)


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
    that has not answered for ``silent_after`` seconds (60) is named, and the chief ends with code 1.

    Raises TypeError for what is no such strategy or function; ValueError for workers with several GPUs each, for an
    optimizer that is not built, whose variables could not be made on a worker, and for a checkpoint of other variables;
    RuntimeError if another training uses the folder and, from `rounds`, when a server is lost: it names which.

    Example::

        coordinator = bt.Coordinator(strategy, step, batches, folder="checkpoints", model=model, optimizer=optimizer)
        for done in coordinator.rounds(steps=20, every=10):
            print(done.steps, done.loss, done.staleness)
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        step: Callable,
        batches: Callable,
        *,
        folder: str | os.PathLike | None = None,
        silent_after: float = silence.SILENT_SECONDS,
        **saved: Any,
    ):
        of_kind("strategy", strategy, tf.distribute.ParameterServerStrategy, _STRATEGY)
        gpus = strategy.num_replicas_in_sync  # of a worker
        if gpus > 1:
            raise ValueError(
                f"each worker has {gpus} GPUs, and a step runs on one: give each worker one GPU"
                " (bt.run_workers(..., gpus_each=1), or script's --gpus=1), and start more workers"
            )
        function("step", step, "a function of a batch that returns a loss")
        function("batches", batches, "a function without arguments that returns a tf.data.Dataset", arguments=[])
        if folder is not None:
            as_path("folder", folder)
        tf.get_logger().setLevel("FATAL")  # of a lost task it logs a page for each step that it had, twice
        for name, value in saved.items():
            if isinstance(value, keras.optimizers.Optimizer) and not value.built:
                raise ValueError(f"{name} is not built: call {name}.build(model.trainable_variables) in the scope")
        self._strategy = strategy
        self._silent_after = positive("silent_after", silent_after, "seconds")
        self._spec = cluster_spec()
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
    def steps(self) -> int:
        """How many steps were done, those before a restart included."""
        return int(self._done.numpy())

    def rounds(self, steps: int, every: int) -> Iterator[Round]:
        """Train until ``steps`` are done; yield a `Round` after each ``every`` steps, when all workers are at rest."""
        steps, every = whole_number("steps", steps, 1), whole_number("every", every, 1)
        in_use = self._files.in_use() if self._files else nullcontext()
        with self._preemption.listening(), in_use, self._ending_with_a_silent_task():
            while done := self._next_round(steps, every):
                yield done
                if self._preemption.came():
                    print(f"SIGTERM: {done.steps} steps are done, leaving", flush=True)
                    end_all(PREEMPTED)

    def _next_round(self, steps, every):
        """Return the next `Round`, or None if all steps are done."""
        with self._naming_a_lost_server():
            before = self.steps
            if before >= steps:
                return None
            scheduled = min(every, steps - before)
            began = time.monotonic()
            for _ in range(scheduled):
                self._coordinator.schedule(self._one_step, args=(self._batches,))
            self._coordinator.join()
            seconds = time.monotonic() - began
            done = self.steps - before
            loss, staleness = self._sums.numpy() / done
            self._sums.assign([0.0, 0.0])
            if self._files:
                self._files.save()
            return Round(before + done, done - scheduled, float(loss), float(staleness), seconds)

    @contextmanager
    def _naming_a_lost_server(self):
        """Raise RuntimeError in place of what the loss of a server leads to, which may be an error of saving too."""
        try:
            yield
        except (tf.errors.OpError, OSError) as error:
            time.sleep(CLOSING_SECONDS)
            first_server = len(self._spec.addresses) - self._spec.servers
            servers = list(enumerate(self._spec.addresses))[first_server:]
            lost = [self._spec.name(rank) for rank, address in servers if not answers(address)]
            if not lost and not isinstance(error, tf.errors.UnavailableError):
                raise
            raise RuntimeError(
                f"{', '.join(lost) or 'a parameter server'} is gone, and the variables that stood on it. {START_AGAIN}"
            ) from None

    @contextmanager
    def _ending_with_a_silent_task(self):
        """Meanwhile end this process if a task is silent: what waits for it cannot be interrupted."""

        def end(index):
            said = silence.sentence(self._spec.name(1 + index), self._silent_after)
            print(f"{said} All wait for it, so the chief ends. {START_AGAIN}", flush=True)
            os._exit(1)

        over = threading.Event()
        silence.watch(self._spec.addresses[1:], self._silent_after, end, over)
        try:
            yield
        finally:
            over.set()

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


_STRATEGY = "a ParameterServerStrategy, as bt.strategy() returns in the chief of a job with servers"
_KERAS = keras.layers.Layer, keras.optimizers.Optimizer
