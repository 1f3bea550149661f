"""Training that may end at any step and goes on from there, on one device or many: on as many, to the last bit.

Keras' `BackupAndRestore` does not: after a save in the middle of an epoch it trains that epoch from its start again.
"""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext

from bigtrain_nb.common.checks import as_path, of_kind, whole_number
from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import all_gather, several_workers
from bigtrain_nb.train.checkpoint_files import CheckpointFiles
from bigtrain_nb.train.folder_owner import A_NOTEBOOK
from bigtrain_nb.train.preemption import Preemption, leave
from bigtrain_nb.train.train_state import TrainState

SEEN_SECONDS = 10.0
"""So late a worker may see what the chief has written in a folder that they share."""
LONG_SKIP_SECONDS = 10.0
FEW_SKIPPED = 100
"""So few batches are read again quickly: what took long then was compiling the first step."""


class Resume(keras.callbacks.Callback):
    """Saves a training in ``folder`` and, in a new process, goes on from there as if it had never stopped.

    Make it after `compile`. It restores the newest checkpoint in ``folder``, if there is one: weights, the state of the
    optimizer and of loss scaling, each replica's seeds for dropout, epoch and step. Then go through `epochs`, as in the
    example. Optimizers that a model has as attributes beside that of `compile`, as a GAN does, are saved too.

    An epoch that is resumed must have the same order again: the same seeds, and no reshuffling, because `fit` may open
    a dataset a second time, and must get the same order. In a loop of your own, call ``resume.step_done()`` after each
    step.

    Going on in the middle of an epoch, `rest` reads again what was trained before, with all the work in the pipeline:
    hours, where that work is large and a million batches are done. It costs nothing where a batch is made from its
    number: ``resume.rest(tf.data.Dataset.range(steps)).map(read)``, where ``read`` makes batch ``n`` of the epoch.

    Saves every ``every`` steps, and at the end of each epoch (``every=None``: only then); keeps the newest ``keep``
    checkpoints.

    After SIGTERM, to any worker, all save after the same step and end with the exit code `PREEMPTED`, 75; a scheduler,
    or ``bt.run_workers(..., restarts=3)``, starts them again. With several workers that is about half a second or one
    step later, whichever is longer. Python hears signals in the main thread only.

    What is sharded over the replicas, weights or the state of the optimizer, is saved whole, for which the chief's host
    needs room. It goes on sharded or not, with any number of replicas; but with one replica ``shard_optimizer=True``
    raises, as there is nothing to share: a script that may come down to one worker leaves it out then. With another
    number sums are made in another order, so that the result is the same up to rounding, which grows with the steps;
    but each replica draws its own numbers in Dropout, and takes the statistics of its own part of the batch in
    BatchNormalization.

    ``folder`` is seen by all workers and used by one training at a time, which its file owner.json names. The property
    ``restored`` says whether there was a checkpoint. Not in it: the metrics of an epoch's part before a restart, the
    state of other callbacks, random numbers that are not from Keras' seed generators. The last bit may differ on GPUs,
    where sums are made in any order, unless `tf.config.experimental.enable_op_determinism()` was called; and from
    Keras 3.16 on, if an epoch ends with a short batch: Keras traces it apart, and goes on with another graph.

    Raises ValueError for bad settings, a model that is not built or not compiled, an optimizer beside that of `compile`
    that is not built, ``sync_every``, a checkpoint of another model, and in `fit` for a dataset that does not begin
    where `rest` says; TypeError for what is no Keras model; OSError for a folder that cannot be written and checkpoints
    that cannot be read; RuntimeError if another training uses the folder, if the workers do not share it, and in the
    scope of several workers. If one worker cannot start, all raise.

    Example::

        resume = bt.Resume("checkpoints", model, every=100)  # of a model that is compiled
        for epoch in resume.epochs(2):
            data = examples.shuffle(1000, seed=epoch, reshuffle_each_iteration=False).batch(8)
            model.fit(resume.rest(data), initial_epoch=epoch, epochs=epoch + 1, shuffle=False, callbacks=[resume])
    """

    def __init__(self, folder: str | os.PathLike, model: keras.Model, every: int | None = 50, keep: int = 2):
        super().__init__()
        self._folder = as_path("folder", folder)
        if set("*?[\\") & set(self._folder):
            raise ValueError(
                f"folder={self._folder!r}: TensorFlow takes *, ?, [ and \\ in the path of a checkpoint for a pattern,"
                " and would find none: take another name"
            )
        of_kind("model", model, keras.Model, "the Keras model to train, as in Resume(folder, model)")
        self._every = None if every is None else whole_number("every", every, 1)
        keep = whole_number("keep", keep, 1)
        _refuse_scope_of_workers()
        _refuse_what_is_not_ready(model)
        _build_optimizer(model)
        self.set_model(model)
        strategy = model.distribute_strategy
        self._chief = strategy.extended.should_checkpoint
        self._several_workers = several_workers(strategy)
        self._ask = all_gather(strategy, tf.identity)
        self._preemption = Preemption(self._ask if self._several_workers else None)
        self._state = TrainState(model)
        variables = {name: optimizer.variables for name, optimizer in optimizers_of(model).items()}
        variables["weights"] = model.weights
        self._files = CheckpointFiles(folder, keep, variables, state=self._state)
        self._length = None  # batches in this epoch, where known
        self._in_loop = False
        self._skipped = False
        self._skips_since = None  # when `rest` was called, until the first step after it
        self.restored = self._restore() > 0

    @property
    def epoch(self) -> int:
        """The epoch to train, counted from 0: so many are done."""
        return self._state.epoch

    @property
    def step(self) -> int:
        """Number of steps of this epoch that are done."""
        return self._state.step

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs from `epoch` to ``count - 1``. After the loop's body an epoch is done, and saved.

        In this loop SIGTERM is heard.
        """
        count = whole_number("count", count, 1)
        with self._preemption.listening(), self._files.in_use() if self._chief else nullcontext():
            while self.epoch < count:
                self._length = None
                self._skipped = False
                self._in_loop = True
                try:
                    yield self.epoch
                finally:
                    self._in_loop = False
                self._state.epoch += 1
                self._state.step = 0
                self._save(stop=self._preemption.came())

    def rest(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return what is left of this epoch: ``dataset``, in whole batches, without the first `step`.

        The skipped batches are read again, but not trained on, and whatever the pipeline does to them is done again: a
        warning says so where more than a hundred took more than ten seconds. What comes after `rest` is not done for
        them. So give it the numbers of batches, and read behind it:
        ``resume.rest(tf.data.Dataset.range(steps)).map(read)``.

        Several workers each read all of the dataset and keep
        their share (AutoShardPolicy.DATA): only so the number of steps tells which examples are done.

        Raises TypeError for what is no `tf.data.Dataset`, ValueError for one without end, with fewer batches than are
        done, or with another policy.
        """
        of_kind("dataset", dataset, tf.data.Dataset, "a tf.data.Dataset of batches; a Pipeline gives it by .dataset()")
        length = int(dataset.cardinality())
        if length == tf.data.INFINITE_CARDINALITY:
            raise ValueError("this dataset has no end, so no epochs: dataset.take(steps) makes one")
        if 0 <= length < self.step:
            raise ValueError(
                f"{self.step} batches of epoch {self.epoch} are done, but the dataset has {length}: it must be as it"
                " was before the restart, with the same examples and batch size"
            )
        self._length = length if length >= 0 else None
        self._skipped = True
        self._skips_since = time.monotonic() if self.step else None
        if self._several_workers:
            dataset = _sharded_by_batches(dataset)
        return dataset.skip(self.step)

    def step_done(self, steps: int = 1) -> None:
        """Count ``steps`` steps; save if it is time; save and leave if SIGTERM came.

        Raises RuntimeError outside the loop over `epochs`, ValueError for what is no whole number of steps.
        """
        if not self._in_loop:
            raise RuntimeError("train inside `for epoch in resume.epochs(count):`, which counts the epochs")
        before = self.step
        self._warn_of_a_long_skip(before)
        self._state.step += whole_number("steps", steps, 0)
        if self.step == self._length:
            return  # the epoch's end saves
        stop = self._preemption.came_by_now()
        is_time = self._every and self.step // self._every > before // self._every
        if stop or is_time:
            self._save(stop)

    def _warn_of_a_long_skip(self, skipped):
        if self._skips_since is None:
            return
        took = time.monotonic() - self._skips_since
        self._skips_since = None
        if took > LONG_SKIP_SECONDS and skipped > FEW_SKIPPED:
            warnings.warn(
                f"{took:.0f} s passed from resume.rest(dataset) to the end of the first step: {skipped} batches were"
                " read again in that time, and skipped. Numbers are skipped in no time:"
                " resume.rest(tf.data.Dataset.range(steps)).map(read), where read(n) makes batch n",
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch, logs=None):
        if epoch != self.epoch:
            raise ValueError(
                f"fit begins epoch {epoch}, but epoch {self.epoch} is to be trained: in `for epoch in"
                " resume.epochs(count):` give fit initial_epoch=epoch, epochs=epoch + 1"
            )
        if self.step and not self._skipped:
            raise ValueError(f"{self.step} steps of epoch {epoch} are done: give fit resume.rest(dataset)")
        self._before = self.step

    def on_train_batch_end(self, batch, logs=None):
        done = self._before + batch + 1
        if self._length is not None:
            done = min(done, self._length)  # Keras counts the last steps_per_execution as if all steps were there
        self.step_done(done - self.step)

    def _restore(self):
        """Restore. Return the checkpoint's number, 0 for none: the same on all workers, or all raise."""
        token, before = 0, None
        problem = None
        try:
            if self._chief:
                before = self._files.prepare()
                token = self._files.token
        except (OSError, RuntimeError) as error:
            problem = error
        token = max(self._answers(-1 if problem else token, problem))

        number, sees_token = -1, self._sees(token)
        try:
            number = self._files.restore()
        except (OSError, ValueError) as error:
            problem = error
        blind = self._answers(0 if sees_token else 1).count(1)
        if blind:
            raise RuntimeError(
                f"{blind} of {self.model.distribute_strategy.num_replicas_in_sync} replicas do not see in"
                f" {self._folder} what the chief has written there: give a folder that all workers share"
            )
        numbers = self._answers(number, problem)
        if min(numbers) < max(numbers):
            seen = ", ".join(f"ckpt-{number}" if number else "none" for number in numbers)
            raise RuntimeError(
                f"the workers see different checkpoints in {self._folder}: {seen}. Give a folder that all of them share"
            )
        if number:
            self._state.assign_seeds()
        if self._chief:
            self._tell_what_was_found(number, before)
        return number

    def _answers(self, number, problem=None):
        """Return the whole numbers that all replicas give, -1 where there is a problem: then all raise."""
        numbers = self._ask(tf.constant([number, 0], tf.float32))[:, 0].astype(int).tolist()
        if problem:
            raise problem
        if min(numbers) < 0:
            raise RuntimeError(f"another worker cannot use the folder {self._folder}; its own error says why")
        return numbers

    def _sees(self, token):
        """Tell whether this worker sees the chief's note in the folder; it may come late."""
        until = time.monotonic() + SEEN_SECONDS
        while self._files.token != token:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _tell_what_was_found(self, number, before):
        """Print what somebody who starts a training again would not expect."""
        restarts = int(os.environ.get("BIGTRAIN_RESTART") or os.environ.get("SLURM_RESTART_COUNT") or 0)
        if restarts and not number:
            print(
                f"Started again (restart {restarts}), but there is no checkpoint in {self._folder}: training begins at"
                " step 0. If it had saved before, the folder is not the one that it saved in",
                flush=True,
            )
        is_notebook = self._files.runs == A_NOTEBOOK  # where a person chose the folder a moment ago
        if number and before and before["runs"] != self._files.runs and not is_notebook:
            print(
                f"{self._folder} was last used by {before['runs']!r}; this is {self._files.runs!r}, and goes on from"
                f" its checkpoint, epoch {self.epoch}, step {self.step}",
                flush=True,
            )

    def _save(self, stop):
        """Save, and end the process if told to ``stop``; all workers must call it."""
        self._state.gather_seeds()
        self._files.gather(keep=self._chief)
        if self._chief:
            self._files.save()
        if stop:
            self._ask(tf.constant([0, 0], tf.float32))  # until the chief has saved
            print(f"SIGTERM: saved after {self.epoch} epochs and {self.step} steps, leaving", flush=True)
            leave()


def _refuse_scope_of_workers():
    if tf.distribute.has_strategy() and several_workers(tf.distribute.get_strategy()):
        raise RuntimeError(
            "Resume stands within strategy.scope(), where a variable is made on all workers at once, and to save only"
            " the first one makes some: build and compile the model in the scope, call Resume and fit outside of it"
        )


def _refuse_what_is_not_ready(model):
    inner = layers_within(model)[1:]
    if not model.built and not (inner and all(layer.built for layer in inner)):
        raise ValueError(f"{model.name} has no weights yet: start it with keras.Input(shape), or call it once, first")
    if not model.compiled:
        raise ValueError(f"{model.name} has no optimizer yet: compile it, then make Resume")
    if getattr(model, "sync_every", None):
        raise ValueError(
            f"Resume cannot go on exactly with sync_every={model.sync_every}: each replica has an optimizer state of"
            " its own, and a checkpoint holds that of the first. Save the model at the end of an epoch instead, with"
            " keras.callbacks.ModelCheckpoint"
        )
    for name, optimizer in optimizers_of(model).items():
        if optimizer is not model.optimizer and not optimizer.built:
            raise ValueError(
                f"{name} of {model.name} has no variables yet, so they cannot be restored: call"
                f" {name}.build(variables), with those that it changes, before Resume"
            )


def _build_optimizer(model):
    if not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)


def _sharded_by_batches(dataset):
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (policies.AUTO, policies.DATA):
        raise ValueError(
            f"the dataset's auto_shard_policy is {policy.name}, with which the number of steps does not tell which"
            " examples are done: leave it out, or set AutoShardPolicy.DATA"
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)
