"""Training that can stop at any step and resume there, on one device or many; bitwise identical on the same number.

Keras' `BackupAndRestore` cannot: after a save in the middle of an epoch, it repeats that epoch from its start.
"""

import inspect
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, wraps

from bigtrain_nb.common.checks import as_path, function, integer, of_kind
from bigtrain_nb.common.keras_compat import callbacks_in, layers_within, numbered_from, overriding, parts_of
from bigtrain_nb.common.layers import optimizers_of
from bigtrain_nb.common.passes import global_seed, skipping_numbers
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import all_gather, several_workers
from bigtrain_nb.train import callback_state, first_batches
from bigtrain_nb.train.checkpoint_files import CheckpointFiles
from bigtrain_nb.train.epoch_by_epoch import OF_A_PIPELINE, EpochByEpoch, length_of
from bigtrain_nb.train.folder_owner import A_NOTEBOOK
from bigtrain_nb.train.preemption import Preemption, exit_preempted
from bigtrain_nb.train.train_state import TrainState
from bigtrain_nb.train.unlisted import unlisted_variables

SEEN_SECONDS = 10.0
"""Longest delay until a worker sees files that the chief has written in a shared folder."""
ONE_FIT = (
    "model.fit(resume.data(make_epoch), initial_epoch=resume.epoch, epochs=N, callbacks=[..., resume]), where"
    " make_epoch(epoch) returns the dataset of an epoch"
)
say = partial(print, flush=True)


class Resume(keras.callbacks.Callback):
    """Saves a training run in ``folder`` and, in a new process, resumes it as if it had never stopped.

    Make it after `compile`. It restores the newest checkpoint in ``folder``, if any: weights, optimizer state and loss
    scale, each replica's dropout seeds, epoch and step. Then call `fit` once, as in the example, with
    ``resume.data(make_epoch)`` and ``initial_epoch=resume.epoch``. Additional optimizers in a model's attributes, like
    a GAN's, are saved too, as are variables that Keras does not list: the states of stateful RNNs, and attributes of
    custom layers and losses. So is the state of Keras callbacks: how long `EarlyStopping` and `ReduceLROnPlateau` have
    waited, the best value of `ModelCheckpoint`, the rows of `CSVLogger`, the epochs of `History`. A run ended by
    `EarlyStopping` stays ended. The best weights of ``EarlyStopping(restore_best_weights=True)`` are not in a
    checkpoint: a restart looks for the best of later epochs; ``ModelCheckpoint(save_best_only=True)`` keeps it.

    A resumed epoch must have the same order as before, so ``make_epoch`` seeds it with the epoch's number, and the
    script starts with the same `keras.utils.set_random_seed`, if any. A checkpoint has TensorFlow's global seed and a
    summary of the epoch's first four batches, so that another order is refused, but not random changes by a `map`. If
    ``make_epoch`` draws a new order at each call without a shuffle, that is refused at the start, by reading the first
    batches twice. In a custom loop, iterate over `epochs`, pass each epoch's dataset to `rest`, and call
    ``resume.step_done()`` after each step.

    Resuming in the middle of an epoch reads the completed batches again, with all the pipeline's work: hours, for an
    expensive pipeline and a million batches. It costs nothing if batches are made from their numbers:
    ``tf.data.Dataset.range(steps).map(read)``, where ``read(n)`` makes batch ``n`` of the epoch.

    A nonfinite state, as after a NaN loss, is not saved, with a warning: the last finite checkpoint remains.

    Saves every ``every`` steps and after each epoch (``every=None``: only then); keeps the newest two checkpoints.

    After SIGTERM to any worker, all save after the same step and exit with code `PREEMPTED`, 75; a scheduler, or
    ``bt.run_workers(..., restarts=3)``, restarts them. With several workers, the save comes about half a second or one
    step later, whichever is longer. After an epoch's last step it comes after the validation, because no checkpoint has
    the epoch's metrics: allow time for it. Python handles signals only in the main thread.

    Sharded weights and optimizer state are saved unsharded, for which the chief's host needs memory. They can be
    restored sharded or not, on any number of replicas; but with one replica ``shard_optimizer=True`` raises, so a
    script that may be left with one worker must omit it then. Another number of replicas changes the order of
    summation: the result is the same up to rounding, which grows with the steps. But each replica draws its own numbers
    in Dropout, and uses statistics of its own part of the batch in BatchNormalization.

    ``folder`` is shared by all workers and used by one run at a time, named in its file owner.json: a second run is
    refused on the same host, but takes the folder over from another host, where the first raises at its next save. The
    property ``restored`` is whether there was a checkpoint. Not saved: metrics of the part of an epoch before a
    restart, the state of non-Keras callbacks, random numbers from other sources than Keras' seed generators or a
    `tf.random.Generator` attribute, and, of state that replicas keep apart, as in BatchNormalization of a stock model,
    all but the first replica's. Results may differ in the last bit on GPUs, where the order of sums is
    nondeterministic, unless `tf.config.experimental.enable_op_determinism()` was called; and from Keras 3.16 on, if an
    epoch ends with a short batch, which Keras traces separately before it continues with another graph.

    Raises ValueError for invalid settings, a model or optimizer that is not built or compiled, a checkpoint of another
    model, and in `fit` for a dataset that is not from `data` and arguments that contradict it; TypeError if ``model``
    is not a Keras model; OSError for a folder that cannot be written and checkpoints that cannot be read; RuntimeError
    if another run uses the folder, and if the workers do not share it. If one worker cannot start, all raise.

    Example::

        def make_epoch(epoch):
            return examples.shuffle(1000, seed=epoch).batch(8)

        resume = bt.Resume("checkpoints", model, every=100)  # of a model that is compiled
        model.fit(resume.data(make_epoch), initial_epoch=resume.epoch, epochs=2, callbacks=[resume])
    """

    def __init__(self, folder: str | os.PathLike, model: keras.Model, every: int | None = 50):
        super().__init__()
        self._folder = as_path("folder", folder)
        if set("*?[\\") & set(self._folder):
            raise ValueError(
                f"folder={self._folder!r} must not contain *, ?, [ or \\: TensorFlow would treat the path of a"
                " checkpoint as a pattern, and find none. Use another name"
            )
        of_kind("model", model, keras.Model, "the Keras model to train, as in Resume(folder, model)")
        self._every = None if every is None else integer("every", every, 1)
        _refuse_scope_of_workers()
        _refuse_what_is_not_ready(model)
        strategy = model.distribute_strategy
        if not model.optimizer.built:
            with strategy.scope():
                model.optimizer.build(model.trainable_variables)
        self.set_model(model)
        self._chief = strategy.extended.should_checkpoint
        self._several_workers = several_workers(strategy)
        self._ask = all_gather(strategy, tf.identity)
        self._preemption = Preemption(self._ask if self._several_workers else None)
        self._state = TrainState(model)
        self._optimizer = model.optimizer
        of_optimizers = {name: optimizer.variables for name, optimizer in optimizers_of(model).items()}
        variables = {"weights": model.weights, **of_optimizers}
        self._unlisted = unlisted_variables(model)
        unlisted = list(self._unlisted.values())
        self._files = CheckpointFiles(self._folder, variables, state=self._state, unlisted=unlisted)
        self._has_done_a_step = False
        self._length = None  # batches in this epoch, if known
        self._before = 0  # completed steps of this epoch when its dataset was opened
        self._first_batches = first_batches.FirstBatches()
        self._compare = None  # compares batches skipped by a custom loop with those trained
        self._seed = global_seed()  # TensorFlow's, when this epoch's dataset was made
        self._loop_sets_seed = False  # per epoch, so the seed is not for the next one
        self._checked_order = False  # of the epoch in which training resumes
        self._in_loop = False
        self._done_before_loop = 0  # steps of this epoch
        self._in_step = False  # of `fit`
        self._stops_within_epoch = False
        self._callbacks = None  # of the running `fit`
        self._epochs = None  # the result of `data`
        self._suppressed_warnings = ExitStack()
        self._warned_nonfinite = False
        self._told_to_wait = False  # for the end of a validation
        self.restored = self._restore(of_optimizers) > 0
        self._files.watch_only_finite()
        model.fit = self._wrap_fit(model)

    @property
    def epoch(self) -> int:
        """The epoch to train, from 0, which is also the number of completed epochs."""
        return self._state.epoch

    @property
    def step(self) -> int:
        """Number of completed steps in this epoch."""
        return self._state.step

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs from `epoch` to ``count - 1``, for a custom loop that does not call `fit`.

        After the loop's body an epoch is complete, and is saved; a ``break`` saves nothing. The loop handles SIGTERM.
        """
        count = integer("count", count, 1)
        with self._guarded():
            while self.epoch < count:
                self._length = None
                self._in_loop = True
                self._done_before_loop = self.step
                try:
                    yield self.epoch
                finally:
                    self._in_loop = False
                self._refuse_other_batches()
                self._end_epoch()

    def data(self, make_epoch: Callable[[int], tf.data.Dataset]) -> tf.data.Dataset:
        """Return the dataset for `fit`: the batches of each epoch, and of this one those that are left.

        ``make_epoch(epoch)`` returns the dataset of an epoch, from 0, in global batches: the same examples in the same
        order at each call. It is called in each epoch, and must return the same number of batches in all epochs.

        If that number is unknown, as after `filter`, Keras uses that of the first epoch; to resume in the middle of
        that one, its batches are counted first, which reads them all.

        Several workers each read the full dataset and keep their share (AutoShardPolicy.DATA): only then does the
        number of steps determine which examples are done.

        Raises TypeError if ``make_epoch`` is not a function of an epoch's number or does not return a
        `tf.data.Dataset`; ValueError for a dataset that is infinite, has fewer batches than are done, another order
        after a restart, or another policy.
        """
        _refuse_scope_of_workers()
        function("make_epoch", make_epoch, "a function of the epoch number", arguments=(0,))
        self._epochs = self._raise_on_all(lambda: self._epochs_of(make_epoch))
        self._checked_order = True
        return self._epochs.dataset

    def _epochs_of(self, make_epoch):
        noting = self._first_batches.noting
        epochs = EpochByEpoch(make_epoch, self.epoch, self._state.length, noting, self.step)
        if epochs.length is None and self.step:
            count = epochs.count(self.epoch)
            epochs = EpochByEpoch(make_epoch, self.epoch, count, noting, self.step)
            if self.step < count + self.model.steps_per_execution:
                self._state.step = min(self.step, count)  # the last execution was counted as full
        self._refuse_fewer(epochs.length)
        if self.step or not self._checked_order:
            before = self._first_batches.found or self._state.first_batches
            first_batches.refuse_another_order(epochs.first, self.epoch, self.step, before, self._state.global_seed)
            if not self.step:
                first_batches.refuse_changing_order(epochs.first, epochs.made, epochs.number)
        if epochs.number == self.epoch:
            epochs.select_epoch(self.epoch, self.step)
        if self._several_workers:
            epochs.dataset = _sharded_by_batches(epochs.dataset)
        return epochs

    def rest(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return the rest of this epoch, for a custom loop: ``dataset`` without the first `step` batches.

        As by `data`, skipped batches are read again with all the pipeline's work, but not trained on. Only if batches
        are made from their numbers, as in ``tf.data.Dataset.range(steps).map(read)``, are just the numbers skipped.

        The dataset is not read in advance: one that changes with each pass, or a stream that is read once, loses
        nothing. If its first batches, once read, differ from those before the restart, the first `step_done` raises.

        Raises TypeError if ``dataset`` is not a `tf.data.Dataset`, ValueError if it is infinite, has fewer batches than
        are done, or another policy. Several workers shard it as in `data`.
        """
        of_kind("dataset", dataset, tf.data.Dataset, f"a tf.data.Dataset of batches; for a Pipeline, {OF_A_PIPELINE}")
        return self._raise_on_all(lambda: self._left_of(dataset))

    def _left_of(self, dataset):
        self._length = length_of(dataset)
        self._refuse_fewer(self._length)
        first_batches.refuse_another_seed(dataset, self.epoch, self._state.global_seed)
        seed = global_seed()
        self._loop_sets_seed |= seed != self._seed
        self._seed = seed
        self._before = self.step
        left = self._skip_completed(dataset) if self.step else self._first_batches.noting(dataset)
        return _sharded_by_batches(left) if self._several_workers else left

    def _skip_completed(self, dataset):
        """Return the rest of a dataset, whose first batches are compared when they are read again.

        It is not read in advance: another pass may have another order, and a stream has no second pass.
        """
        before = self._first_batches.found or self._state.first_batches
        by_number = skipping_numbers(dataset, self.step)
        if by_number:
            first_batches.refuse_another_order(dataset, self.epoch, self.step, before, None)
            return by_number
        again = first_batches.FirstBatches()
        read = again.noting(dataset)
        self._compare = lambda: first_batches.refuse_other_batches(dataset, self.epoch, self.step, before, again.found)
        return read.skip(self.step)

    def _refuse_other_batches(self):
        """Raise ValueError, before a step is counted, if the skipped batches differ from those trained."""
        compare, self._compare = self._compare, None
        if compare:
            self._raise_on_all(compare)

    def step_done(self, steps: int = 1) -> None:
        """Count ``steps`` steps; save if it is time; save and exit after SIGTERM.

        Raises RuntimeError outside the loop over `epochs`, ValueError if ``steps`` is not an integer; in the first step
        after a restart, RuntimeError if `rest` was not called, ValueError if the dataset begins in another way.
        """
        if not self._in_loop and self._callbacks is None:
            raise RuntimeError(
                "call step_done inside `for epoch in resume.epochs(count):`, which counts the epochs; or train with one"
                f" call of fit: {ONE_FIT}"
            )
        if self._in_loop and self._before < self._done_before_loop:
            raise RuntimeError(
                f"{self.step} steps of epoch {self.epoch} were done before, and this loop would repeat them: iterate"
                " over resume.rest(dataset), which skips their batches. Without a tf.data.Dataset, take the numbers of"
                " the batches from resume.rest(tf.data.Dataset.range(steps))"
            )
        before = self.step
        if not self._has_done_a_step:
            self._has_done_a_step = True
            self._refuse_new_variables()
        self._refuse_other_batches()
        self._state.step += integer("steps", steps, 0)
        self._in_step = self._callbacks is not None and self.step == self._length  # until the epoch's end
        if self.step == self._length:
            return  # the epoch's end saves
        stop = self._preemption.was_requested_by_now()
        is_time = self._every and self.step // self._every > before // self._every
        if stop or is_time:
            self._save(stop)

    # In `fit`

    def _wrap_fit(self, model):
        """Return a replacement for a model's `fit`, because Keras has no callbacks before and after it."""

        @wraps(model.fit)
        def fit(*args, **kwargs):
            own_fit = type(model).fit
            given = _by_name(own_fit, args, kwargs)
            callbacks = callbacks_in(given.get("callbacks"))
            if self._in_loop:
                raise RuntimeError(
                    "fit in a loop over resume.epochs(count) would begin and end training, and its callbacks, in each"
                    f" epoch: call it once, {ONE_FIT}"
                )
            if self in callbacks:
                return self._fit(own_fit, given, callbacks)
            if self._epochs and given.get("x") is self._epochs.dataset:
                raise ValueError(f"without this Resume among the callbacks, fit would save nothing: {ONE_FIT}")
            return own_fit(model, **given)

        return fit

    def _fit(self, own_fit, given, callbacks):
        """Train; restore and save after the other callbacks, whose effects a save has, whatever their order."""
        self._refuse_wrong_fit(given, callbacks)
        before_others = keras.callbacks.LambdaCallback(on_train_batch_begin=self._begin_batch)
        after_others = keras.callbacks.LambdaCallback(
            on_train_begin=self._begin_fit,
            on_epoch_begin=self._begin_epoch,
            on_train_batch_end=self._end_batch,
            on_epoch_end=self._end_epoch_of_fit,
        )
        given["callbacks"] = [before_others, *callbacks, after_others]
        best_is_lost = callback_state.best_weights_are_lost(callbacks, self._state.callbacks)
        if callback_state.has_stopped(callbacks, self._state.callbacks):
            say(f"EarlyStopping has ended this training after {self.epoch} epochs: nothing is left to do")
            given["epochs"] = self.epoch
            if best_is_lost:
                say("The model has the weights of the last epoch: load the best ones from ModelCheckpoint")
        elif best_is_lost:
            say(
                'EarlyStopping(restore_best_weights=True): checkpoints do not hold the best weights, so "best" begins'
                f" again after {self.epoch} epochs; ModelCheckpoint(path, save_best_only=True) keeps the best"
            )
        if self.epoch or self.step:
            callback_state.continue_csv_logs(callbacks, self._state.callbacks)
        self._callbacks = callbacks
        self._length = self._epochs.length
        if self.epoch < given.get("epochs", 1):  # Keras may read a batch before training begins
            self._raise_on_all(lambda: self._epochs.select_epoch(self.epoch))
        try:
            with self._guarded(), numbered_from(lambda: self._before, callbacks):
                result = own_fit(self.model, **given)
            self._restore_history()  # if no epoch was left
            return result
        finally:
            self._callbacks = None
            self._suppressed_warnings.close()

    def _refuse_wrong_fit(self, given, callbacks):
        first = given.get("initial_epoch", 0)
        if self._epochs is None:
            raise ValueError(f"fit needs a dataset returned by resume.data: {ONE_FIT}")
        if first != self.epoch:
            raise ValueError(f"initial_epoch={first}, but {self.epoch} epochs are done: {ONE_FIT}")
        if steps := given.get("steps_per_epoch") or keras.config.max_steps_per_epoch():
            raise ValueError(
                f"steps_per_epoch={steps} must be left out, also in keras.config: an epoch has the batches that"
                " make_epoch returns. For fewer, let make_epoch return dataset.take(steps)"
            )
        if self.model.optimizer is not self._optimizer:
            raise ValueError("the model was compiled again, with another optimizer: make Resume after compile")
        if any(isinstance(one, keras.callbacks.BackupAndRestore) for one in callbacks):
            raise ValueError("BackupAndRestore and Resume both set where training resumes: leave out one of them")
        if self._in_step:
            raise RuntimeError(
                "fit was interrupted in a step, or after the last one of an epoch, as in validation: make Resume again,"
                " which restores the last saved step"
            )

    def on_train_begin(self, logs=None):
        if self._callbacks is None:
            raise RuntimeError(f"another Resume was made for this model after this one: {ONE_FIT}")

    def _begin_fit(self, logs):
        callback_state.restore_states(self._callbacks, self._state.callbacks)
        rates = [one.learning_rate for one in parts_of(self.model.optimizer)]
        self._rates = [(rate, rate.numpy()) for rate in rates if isinstance(rate, keras.Variable)]
        self._opened = self._epochs.times_opened

    def _begin_epoch(self, epoch, logs):
        self._stops_within_epoch = False
        self._restore_history()
        for rate, value in self._rates if self.step else ():
            rate.assign(value)  # a per-epoch schedule has set it again
        self._raise_on_all(lambda: self._epochs.select_epoch(epoch, self.step))
        self._seed = self._epochs.seed
        self._before = self.step

    def _restore_history(self):
        history = self.model.history
        if not history.epoch:
            for done, shown in self._state.history:
                history.on_epoch_end(done, shown)

    def _begin_batch(self, batch, logs):
        if self.step == self._length:
            raise StopIteration  # Keras does not know the end of a resumed epoch, and would do one more step
        self._in_step = True

    def _end_batch(self, batch, logs):
        if self._epochs.times_opened == self._opened:
            raise ValueError(f"fit does not train on the dataset that resume.data(make_epoch) returned: {ONE_FIT}")
        done = self._before + batch + 1
        if self._length is not None:
            done = min(done, self._length)  # Keras counts the last execution as full
        self.step_done(done - self.step)
        if self.step == self._length:
            self._epochs.select_nothing()
            if self._before:  # Keras warns if data ends before the epoch's length
                self._suppressed_warnings.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "Your input ran out of data")
        self._stops_within_epoch = self.model.stop_training and self.step != self._length
        if self._stops_within_epoch:  # before the other callbacks end the epoch, which a restart continues
            self._save(stop=self._preemption.was_requested())

    def on_test_begin(self, logs=None):
        self._suppressed_warnings.close()

    def on_test_batch_begin(self, batch, logs=None):
        if self._preemption.noted and not self._told_to_wait:
            self._told_to_wait = True
            say("SIGTERM: this process saves and exits after the validation")

    def _end_epoch_of_fit(self, epoch, logs):
        self._suppressed_warnings.close()
        self._in_step = False  # Keras has begun another batch if it did not know that this was the last
        if self._stops_within_epoch:
            return
        self._state.length = self._length = self._length or self.step
        self._state.history.append([epoch, callback_state.plain(logs)])
        self._end_epoch()

    def _end_epoch(self):
        self._state.epoch += 1
        self._state.step = self._before = 0
        self._first_batches.forget()
        self._refuse_new_variables()
        self._save(stop=self._preemption.was_requested())

    @contextmanager
    def _guarded(self):
        """Handle SIGTERM, and keep other runs from using the folder."""
        with self._preemption.listening(), self._files.owner.training() if self._chief else nullcontext():
            yield

    def _refuse_new_variables(self):
        known = {id(variable) for variable in self._unlisted.values()}
        later = [where for where, variable in unlisted_variables(self.model).items() if id(variable) not in known]
        if later:
            raise ValueError(
                f"{', '.join(later)}: not listed by Keras, and created after Resume, which therefore neither restores"
                " nor saves it: create it in the layer's build or __init__, or call the model once, on a batch, before"
                " Resume"
            )

    def _raise_on_all(self, action):
        """Return an action's result on this worker; if it fails on one worker, all raise, and none hangs."""
        result = problem = None
        try:
            result = action()
        except Exception as error:
            problem = error
        self._answers(-1 if problem else 0, problem)
        return result

    def _refuse_fewer(self, length):
        if length is not None and length < self.step:
            raise ValueError(
                f"{self.step} batches of epoch {self.epoch} are done, but the dataset has only {length}: it must be the"
                " same as before the restart, with the same examples and batch size"
            )

    # Checkpoints

    def _restore(self, of_optimizers):
        """Restore and return the checkpoint's number, 0 for none: the same on all workers, or all raise."""
        named = [(name, variable) for name, variables in of_optimizers.items() for variable in variables]
        rates = [(name, one, float(one.numpy())) for name, one in named if one.name == "learning_rate"]

        def take():
            return (self._files.prepare(), self._files.owner.token) if self._chief else (None, 0)

        before, token = self._raise_on_all(take)
        token = max(self._answers(token))
        blind = self._answers(0 if self._sees(token) else 1).count(1)
        if blind:
            raise RuntimeError(
                f"{blind} of {self.model.distribute_strategy.num_replicas_in_sync} replicas do not see the"
                f" chief's file in {self._folder}: give a folder that all workers share"
            )
        number = self._raise_on_all(self._files.restore)
        numbers = self._answers(number)
        if min(numbers) < max(numbers):
            seen = ", ".join(f"ckpt-{number}" if number else "none" for number in numbers)
            raise RuntimeError(
                f"the workers see different checkpoints in {self._folder}: {seen}. Give a folder that all of them share"
            )
        if number:
            self._state.assign_seeds()
        if self._chief:
            self._report_restore(number, before, rates)
        return number

    def _answers(self, number, problem=None):
        """Return the integers of all replicas; with a problem on one (-1), all raise."""
        numbers = self._ask(tf.constant([number, 0], tf.float32))[:, 0].astype(int).tolist()
        if problem:
            raise problem
        if min(numbers) < 0:
            raise RuntimeError(f"another worker cannot resume from {self._folder}; its own error says why")
        return numbers

    def _sees(self, token):
        """Return whether this worker sees the chief's note in the folder, which may take a while."""
        until = time.monotonic() + SEEN_SECONDS
        while self._files.owner.token != token and time.monotonic() < until:
            time.sleep(0.1)
        return self._files.owner.token == token

    def _report_restore(self, number, before, rates):
        """Print findings that a user who restarts a run might not expect."""
        restarts = int(os.environ.get("BIGTRAIN_RESTART") or os.environ.get("SLURM_RESTART_COUNT") or 0)
        if restarts and not number:
            say(
                f"This is restart {restarts}, but there is no checkpoint in {self._folder}: training begins at step 0."
                " If it saved before, this is not the folder that it saved in"
            )
        runs = self._files.owner.runs
        if number and before and before["runs"] != runs and runs != A_NOTEBOOK:  # where the user has just chosen it
            say(
                f"{self._folder} was last used by {before['runs']!r}; this is {runs!r}, and resumes from"
                f" its checkpoint, epoch {self.epoch}, step {self.step}"
            )
        for name, rate, compiled in rates:
            if float(rate.numpy()) != compiled:
                say(
                    f"The learning rate of model.{name} is {rate.numpy():g}, as in the checkpoint, not {compiled:g}, as"
                    " compiled: to change it, assign its learning_rate after Resume"
                )

    def _save(self, stop):
        """Save, and exit if ``stop``; all workers must call it."""
        self._state.gather_seeds()
        sets_seed = self._loop_sets_seed if self._callbacks is None else self._epochs.sets_seed
        self._state.global_seed = self._seed if self.step or not sets_seed else None
        if not self._before:
            self._state.first_batches = self._first_batches.found
        if self._callbacks is not None:
            self._state.callbacks = callback_state.get_states(self._callbacks)
        nonfinite = self._files.save(self._chief)
        if nonfinite and not self._warned_nonfinite:
            self._warned_nonfinite = True
            warnings.warn(
                f"{nonfinite} is not finite after {self.epoch} epochs and {self.step} steps, so this state is not"
                f" saved; checkpoints in {self._folder} are kept. Find the cause with bt.find_overflow(model, batch)",
                stacklevel=2,
            )
        if stop:
            what = "nothing saved" if any(self._answers(1 if nonfinite else 0)) else "saved"  # waits for the chief
            say(f"SIGTERM: {what} after {self.epoch} epochs and {self.step} steps, exiting")
            exit_preempted()


def _by_name(fit, args, kwargs):
    """Return the arguments of a call of `fit` by name; a custom `fit` may pass them all on as ``*args``."""
    parameters = inspect.signature(fit).parameters.values()
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD][1:]
    if len(names) < len(args):
        names = list(inspect.signature(keras.Model.fit).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _refuse_scope_of_workers():
    if tf.distribute.has_strategy() and several_workers(tf.distribute.get_strategy()):
        raise RuntimeError(
            "Resume is called within strategy.scope(), where every worker must create the same variables, but saving"
            " creates some on the first worker only: build and compile the model in the scope, call Resume and fit"
            " outside it"
        )


def _refuse_what_is_not_ready(model):
    inner = layers_within(model)[1:]
    if not model.built and not (inner and all(layer.built for layer in inner)):
        raise ValueError(f"{model.name} has no weights yet: start it with keras.Input(shape), or call it once, first")
    if not model.compiled:
        raise ValueError(f"{model.name} has no optimizer yet: compile it, then make Resume")
    for owner in layers_within(model) if overriding(model) else [model]:
        for name, optimizer in optimizers_of(owner).items():
            if optimizer is not model.optimizer and not optimizer.built:
                raise ValueError(
                    f"{name} of {owner.name} has no variables yet, so they cannot be restored: before"
                    f" Resume, call {name}.build(variables) with the variables that it updates"
                )


def _sharded_by_batches(dataset):
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (policies.AUTO, policies.DATA):
        raise ValueError(
            f"the dataset's auto_shard_policy is {policy.name}, so the number of steps does not show which"
            " examples are done: leave it out, or set AutoShardPolicy.DATA"
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)
