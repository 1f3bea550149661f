"""Throughput inside `fit`: a callback that counts examples and excludes time that is not training."""

import math
import time
from contextlib import ExitStack
from functools import partial
from types import FunctionType

from bigtrain_nb.advanced.plan.matmul_precision import sixteen_bits_of
from bigtrain_nb.advanced.plan.utilization import accelerator_here, flops_of_an_example
from bigtrain_nb.advanced.watch.gradient_noise import GradientNoise, refuse_unmeasurable
from bigtrain_nb.common.cards import Shown, note, stacked
from bigtrain_nb.common.checks import switch
from bigtrain_nb.common.keras_compat import layers_within, overriding, patched_method
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount, cause, interval, number
from bigtrain_nb.measure.results import Result
from bigtrain_nb.measure.source import wait_for_gpus
from bigtrain_nb.train.model import Model

ROUND = 0.25
"""Minimum seconds of training in a round."""

_now = time.perf_counter


class Meter(Shown, keras.callbacks.Callback):
    """A Keras callback that measures examples/s, tokens/s, MFU and gradient noise inside `fit`.

    It works with any Keras model that trains by Keras' step or that of `bt.Model`, with any settings. Several calls of
    `fit` with one meter add up. With several workers, each measures itself and assumes that the others process as many
    examples.

    - ``result``: examples/s as a `Result`, with `.save` and `.figure`; `bt.load` reads it. A round has at least 0.25 s
      of training, and the devices are synchronized at both ends. Examples are those that the steps processed. The time
      of Keras and other callbacks between batches counts; validation, the first execution and executions with tracing
      do not. Neither does that of callbacks after the meter between epochs, so put the meter first. ``first_seconds``
      is the time from the start of the first `fit` to the end of its first execution. It was not interleaved with
      others: a ratio of two such results does not replace `bt.compare`, so its name contains "not paired".
    - ``mfu``: model FLOPs utilization, from 0 to 1: the FLOPs of the forward and backward pass, as counted by
      `bt.plan_step`, without recomputation, over the peak of the devices, in 16 bits if any layer computes in them
      (Chowdhery et al. 2022, "PaLM"). None if the plan does not know the FLOPs, as for a cuDNN LSTM, or
      `bt.ACCELERATORS` lacks the device, as for CPUs, or the dtype, as for float64; the meter prints the reason.
    - ``examples_per_second``: the median of ``result``, or None; available at any time.
    - ``tokens_per_second``: the same in tokens, if the model has an embedding and its input is integers
      [batch, length]; padding counts. None for other models, and if the length differs between batches. With XLA a
      short last batch is compiled within its round: use ``drop_remainder=True``.

    With ``gradients=True``, for `bt.Model`, over the steps of the last epoch:

    - ``gradient_norm``: the mean of the global gradient norm, before clipping.
    - ``noise_scale``: the simple gradient noise scale ``tr(Σ) / |G|²``, in examples: the batch size at which the noise
      of the gradient is as large as the gradient (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
      appendix A.1). Unbiased estimates of both come from the gradients of micro-batches and replicas in each step, and
      their means are divided. NaN if the mean of ``|G|²`` is not positive: then more steps are needed.

    At the end of an epoch these values are added to ``logs``, NaN if not known yet. Callbacks after the meter, such as
    TensorBoard, and the history show them.

    The resulting weights are bitwise identical to those without a meter. `result` raises ValueError if there is no
    round yet, or if custom steps count no examples, or count batches. `fit` raises TypeError for ``gradients=True`` and
    a model that is not a `bt.Model`; ValueError if neither micro-batches nor replicas split the batch, and for losses
    that are sums; ValueError also for two meters in one `fit`.

    Example::

        model = bt.Model.of(keras.Sequential([keras.layers.Dense(1)]), micro_batches=2)
        model.compile("sgd", "mse")
        meter = bt.Meter(gradients=True)
        model.fit(tf.ones([8192, 8]), tf.ones([8192, 1]), batch_size=8, verbose=0, callbacks=[meter])
        print(meter)
    """

    def __init__(self, *, gradients: bool = False):
        super().__init__()
        self._gradients = switch("gradients", gradients)
        self._rounds = []  # (examples of this process, seconds)
        self._examples, self._seconds = 0.0, 0.0  # of the incomplete round
        self._since = None  # the start of its current interval; None in a pause
        self._last = None  # end of the last execution of this `fit`, which calls no other hook if it is interrupted
        self._base = None  # the counter of examples at that time
        self._counts_batches = False
        self._of_all = None  # ratio of the examples of all processes to those of this one
        self._first_seconds = None
        self._inspected = None  # the model and the batch's specs
        self._tokens = None  # per example
        self._busy_seconds = None  # per example, for all devices at their peak
        self._no_mfu = None  # why
        self._sums = None  # of `GradientNoise`

    # Results

    @property
    def result(self) -> Result:
        """Examples/s inside `fit`, of all workers together."""
        if not self._rounds and self._since is not None:
            self._collect(self._last)
        rounds = self._rounds
        if not rounds and self._seconds > 0:
            rounds = [(self._examples, self._seconds)]  # an incomplete round is better than none
        if not rounds:
            raise ValueError(
                f"nothing is measured yet: train for {ROUND} s or more after the first execution, which does not count"
            )
        examples = sum(count for count, _ in rounds)
        if examples == 0 or self._counts_batches:
            what = "batches, not the examples" if self._counts_batches else "no examples"
            raise ValueError(
                f"the train_step of {type(self.model).__name__} counts {what}; Keras' own counts them in its loss"
                " tracker. Override compute_loss instead, or call the loss tracker's"
                " update_state(loss, sample_weight=the number of examples). (Batches of one example are counted right"
                " if the dataset's shape is static: batch(1, drop_remainder=True).)"
            )
        return Result(
            name=f"{self.model.name} in fit, not paired",
            rounds=tuple(self._of_all * count / seconds for count, seconds in rounds),
            unit="examples/s",
            first_seconds=self._first_seconds,
            examples=round(self._of_all * examples),
            seconds=sum(seconds for _, seconds in rounds),
            note="" if self._rounds else f"less than {ROUND} s of training",
        )

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization."""
        rate = self.examples_per_second
        return rate * self._busy_seconds if rate and self._busy_seconds else None

    @property
    def examples_per_second(self) -> float | None:
        """The median of `result`; None if that raises."""
        try:
            return self.result.median
        except ValueError:
            return None

    @property
    def tokens_per_second(self) -> float | None:
        """`examples_per_second` times the length of an example; None if the data are not tokens."""
        rate = self.examples_per_second
        return rate * self._tokens if rate and self._tokens else None

    @property
    def gradient_norm(self) -> float | None:
        """The mean global gradient norm; None without ``gradients=True``, or before a step."""
        if self._sums is None or self._sums[4] == 0:
            return None
        return float(self._sums[3] / self._sums[4])

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale, in examples; None without ``gradients=True``, or before a step."""
        if self._sums is None or self._sums[2] == 0:
            return None
        covariance, true_square = self._sums[:2]
        return float(covariance / true_square) if true_square > 0 else math.nan

    def _told(self):
        """Return {name: value} for the logs, the same names in each epoch; NaN for unknown values."""
        names = ["examples_per_second"]
        if self._tokens:
            names.append("tokens_per_second")
        if self._busy_seconds:
            names.append("mfu")
        if self._gradients:
            names += ["gradient_norm", "noise_scale"]
        values = {name: getattr(self, name) for name in names}
        return {name: math.nan if value is None else value for name, value in values.items()}

    def _card(self):
        if self._first_seconds is None:
            return note("Meter", "nothing is measured yet: give it to fit(..., callbacks=[meter])")
        try:
            result = self.result
        except ValueError as error:
            return note("Meter", str(error))
        few = f", {result.note}" if result.note else ""
        rounds = f"{len(result.rounds)} rounds, inside fit, not paired{few}"
        notes = [note("examples/s", f"{interval(result)} ({rounds})")]
        if self.tokens_per_second is not None:
            notes.append(note("tokens/s", number(self.tokens_per_second)))
        if self.mfu is not None:
            notes.append(note("MFU", f"{self.mfu:.1%} of the peak of {accelerator_here().name}"))
        if self._no_mfu:
            notes.append(note("MFU", f"unknown: {self._no_mfu}"))
        if self.gradient_norm is not None:
            notes.append(note("norm of the gradient", number(self.gradient_norm)))
        noise = self.noise_scale
        if noise is not None:
            words = "unknown: more steps are needed" if math.isnan(noise) else amount(noise, "examples")
            notes.append(note("gradient noise scale", words))
        return stacked(*notes)

    # In `fit`

    def set_model(self, model):
        """Called by Keras before it makes the function that `fit` calls for an execution."""
        super().set_model(model)
        if self._gradients:
            if not isinstance(model, Model):
                raise TypeError(
                    f"gradients=True measures each micro-batch and replica, but {type(model).__name__} does not keep"
                    " them apart: train bt.Model.of(model), or leave out gradients"
                )
            refuse_unmeasurable(model)
            self._noise = model.measure_gradients(GradientNoise)

    def on_train_begin(self, logs=None):
        model = self.model
        before = getattr(model.train_function, "__self__", None)
        if isinstance(before, Meter):
            before._leave()
            if before._history is model.history:  # not of an interrupted `fit`
                raise ValueError("callbacks has two meters, but fit takes only one bt.Meter")
        replicas, here = model.distribute_strategy.num_replicas_in_sync, len(examples_counted(model))
        self._of_all = replicas / here
        self._since = self._last = None
        self._history = model.history  # each `fit` has a new one
        self._began = _now()
        self._train_function = model.train_function
        self._tracings = tracings_of(model.train_function)
        self._hooked = ExitStack()
        reset = partial(self._count_and_reset, model.reset_metrics)
        self._hooked.enter_context(patched_method(model, "reset_metrics", reset))
        model.train_function = self._execute

    def on_epoch_begin(self, epoch, logs=None):
        if self._gradients:
            self._noise.restart()

    def on_test_begin(self, logs=None):
        self._pause()

    def on_epoch_end(self, epoch, logs=None):
        self._pause()
        if self._gradients:
            self._sums = self._noise.sums()
        if logs is not None:
            logs.update(self._told())

    def on_train_end(self, logs=None):
        self._leave()

    def _leave(self):
        self._since = None
        if self.model.train_function == self._execute:
            self.model.train_function = self._train_function
        self._hooked.close()

    def _fit_is_over(self):
        """Return whether the measured `fit` is over; an interrupted one does not notify callbacks."""
        is_over = self.model.history is not self._history
        if is_over:
            self._leave()
        return is_over

    def _execute(self, iterator):
        """Called by `fit` for an execution, instead of the model's train function."""
        if self._fit_is_over():
            return self._train_function(iterator)
        self._resume()
        traced = self._tracings()
        try:
            logs = self._train_function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except BaseException:
            self._leave()
            raise
        is_first, self._last = self._last is None, _now()
        if self._first_seconds is None:
            self._first_seconds = self._last - self._began
        if is_first and self._inspect_batch(iterator):
            self._since = None  # this execution does not count
        elif self._tracings() != traced:
            self._drop()
        elif self._seconds + self._last - self._since >= ROUND:
            self._collect()
            self._rounds.append((self._examples, self._seconds))
            self._examples, self._seconds = 0.0, 0.0
        return logs

    # The incomplete round

    def _resume(self):
        """Resume it after a pause or a reset of the metrics."""
        if self._since is None:
            wait_for_gpus()
            self._base, self._since = sum(examples_counted(self.model)), _now()
        elif self._base is None:
            self._base = sum(examples_counted(self.model))

    def _collect(self, until=None):
        """Add the work since it was resumed, until now or ``until``."""
        wait_for_gpus()
        now = _now() if until is None else max(until, self._since)
        self._seconds += now - self._since
        self._since = now
        self._count()
        self._base = sum(examples_counted(self.model))

    def _count(self):
        if self._base is not None:
            self._examples += sum(examples_counted(self.model)) - self._base
            self._base = None

    def _pause(self):
        if self._since is not None:
            self._collect()
            self._since = None

    def _drop(self):
        self._examples, self._seconds = 0.0, 0.0
        self._since = None

    def _count_and_reset(self, reset):
        """Called instead of `model.reset_metrics`, which also resets the counter of examples."""
        if not self._fit_is_over() and self._since is not None:
            self._count()
        reset()

    # Properties of the model and its data

    def _inspect_batch(self, iterator):
        """Get tokens and FLOPs per example from a batch's shapes; return whether it has other ones than before."""
        model, spec, device = self.model, getattr(iterator, "element_spec", None), accelerator_here()
        before, self._inspected = self._inspected, (model, spec)
        if before == self._inspected:
            return False
        known = self._tokens, self._busy_seconds
        self._counts_batches |= _counts_batches(model, spec)
        self._tokens = tokens_of_an_example(model, spec)
        self._busy_seconds = self._no_mfu = None
        if device is not None:
            try:
                peak = device.flops(sixteen_bits_of(model) or model.compute_dtype)
                peak *= model.distribute_strategy.num_replicas_in_sync
                self._busy_seconds = flops_of_an_example(model, _one_example(spec)) / peak
            except Exception as error:  # of the plan, for an unsupported model: training continues
                self._no_mfu = cause(error) or type(error).__name__
        if before is not None:
            self._tokens = self._tokens if self._tokens == known[0] else None
            self._busy_seconds = self._busy_seconds if self._busy_seconds == known[1] else None
        return True


def _counts_batches(model, spec):
    """Return whether a custom step counts batches, as seen after the first execution."""
    sizes = {one.shape[0] for one in _specs_of_inputs(spec) if one.shape.rank}
    counted = max(examples_counted(model))
    return overriding(model) is not None and 0 < counted <= model.steps_per_execution and sizes != {1}


def tokens_of_an_example(model, spec):
    """Return the length of a model's token input; None without one, or if its length varies."""
    if not any(isinstance(layer, keras.layers.Embedding) for layer in layers_within(model)):
        return None
    shapes = [one.shape for one in _specs_of_inputs(spec) if one.dtype.is_integer]
    for one in getattr(model, "inputs", None) or []:
        if tf.as_dtype(one.dtype).is_integer:
            shapes.append(one.shape)
    return next((shape[1] for shape in shapes if len(shape) == 2 and shape[1] is not None and shape[1] > 1), None)


def _specs_of_inputs(spec):
    """Return the `tf.TensorSpec`s of the inputs in a batch's spec; under a strategy those of a replica."""
    if not isinstance(spec, tuple) or not spec:
        return []
    inputs = tf.nest.flatten(spec[0], expand_composites=True)
    return [one for one in inputs if isinstance(one, tf.TensorSpec) and one.shape.rank is not None]


def _one_example(spec):
    """Return a batch of one example for `flops_of_an_example`: its specs, or 1 if they are not fully defined."""
    parts = tf.nest.flatten(spec)
    told = parts and all(isinstance(one, tf.TensorSpec) and one.shape[1:].is_fully_defined() for one in parts)
    if not told:
        return 1
    return tf.nest.map_structure(lambda one: tf.TensorSpec([1, *one.shape[1:]], one.dtype), spec)


def examples_counted(model):  # private: Keras
    """Return how many examples each replica of this process has trained on since the last metrics reset, as floats.

    Keras' step, and ours, count them in the loss tracker. It is the first of the public ``metrics``, but a model may
    have others there, and other trackers count batches.
    """
    if model._loss_tracker is None:  # a custom `compile`
        return [0.0]
    counts = model.distribute_strategy.experimental_local_results(model._loss_tracker.count.value)
    return [float(count.numpy()) for count in counts]


def tracings_of(train_function):  # private: Keras
    """Return a function that returns the number of tracings so far of the function that `fit` calls for an execution.

    Keras wraps traced functions in a plain one; Keras 3.16 adds one more wrapper.
    """
    traced = _traced_within(train_function, set())

    def tracings():
        return sum(one.experimental_get_tracing_count() for one in traced)

    return tracings


def _traced_within(function, seen):  # private: Keras
    """Return the functions traced by TensorFlow among a function and those in its closure."""
    if id(function) in seen:
        return []
    seen.add(id(function))
    if hasattr(function, "experimental_get_tracing_count"):
        return [function]
    if not isinstance(function, FunctionType):
        return []
    found = []
    for cell in function.__closure__ or ():
        found += _traced_within(cell.cell_contents, seen)
    return found
