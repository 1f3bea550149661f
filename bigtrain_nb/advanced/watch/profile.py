"""Where does a step's time go? Steps under TensorFlow's profiler, between others without it."""

import os
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigtrain_nb.advanced.plan.matmul_precision import said_of, shares_in_32_bits, sixteen_bits_of
from bigtrain_nb.advanced.shared.fit_data import batches_of, has_batches, preprocess_like_fit
from bigtrain_nb.advanced.watch import trace
from bigtrain_nb.common.cards import Shown, note, stacked, table
from bigtrain_nb.common.checks import as_path, function, integer, of_kind
from bigtrain_nb.common.keras_compat import overriding
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount, quantity
from bigtrain_nb.measure.source import wait_for_gpus

WARM_UP = 3
"""Steps that do not count: the first one traces and compiles, and after a pause buffers are full."""
OTHERS = "others"
NO_OPERATION = "no operation"
ROWS, KINDS = 10, 3
"""Number of layers and operations shown individually, and of kinds of operations in a figure."""
SEEN = 0.005
"""Share of a step below which a layer has no separate bar in a figure: it would be invisible."""


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The time of a step by place, layer and operation, as measured by `profile`.

    parts: {(place, layer, operation): share of the wall time}, which sum to 1. steps: the number of profiled steps.
    seconds, plain_seconds: of a step with and without the profiler. operations: their number in a step, on the host
    and, as kernels and copies, on accelerators. folder: for `tensorboard --logdir`. products: for a model with a 16-bit
    policy, the matmuls computed in 32 bits, with their share of the FLOPs and advice; "" if that is under 5 %.
    """

    parts: dict
    steps: int
    seconds: float
    plain_seconds: float
    operations: float
    folder: str
    products: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """{kind of operation: share of a step}, with "input", "between operations" and "Python"; the sum is 1."""
        return self._by("operation")

    @property
    def layers(self) -> dict[str, float]:
        """{layer: share of a step}, with the same three; the sum is 1. The optimizer is included by its name."""
        return self._by("layer")

    @property
    def places(self) -> dict[str, float]:
        """{"CPU", "GPU:0", ...: share of a step}, with the same three; the sum is 1."""
        return self._by("place")

    def _by(self, what):
        shares = Counter({"input": 0.0})
        for part, share in self.parts.items():
            shares[getattr(part, what)] += share
        return dict(shares.most_common())

    def words(self) -> list[str]:
        """Return the finding as a list of plain sentences."""
        mean = amount(self.seconds / max(1, self.operations), "s")
        return [
            f"A step takes {amount(self.seconds, 's')}, of which {self.shares['input']:.0%} is waiting for input.",
            f"Without the profiler it takes {amount(self.plain_seconds, 's')}: the profiler makes it"
            f" {quantity(self.seconds / self.plain_seconds, 'x')} as long.",
            f"It runs {self.operations:,.0f} operations, one every {mean}.",
            *([self.products] if self.products else []),
        ]

    def _card(self):
        notes = [note(sentence, "") for sentence in self.words()]
        tables = []
        for name, shares in (("where", self.places), ("operation", self.shares), ("layer", self.layers)):
            rows = []
            for row, share in _largest(shares, ROWS).items():
                rows.append([row, f"{share:.1%}", amount(share * self.seconds, "s")])
            tables.append(table("", [name, "share", "in a step"], rows))
        return stacked(*notes, *tables)

    def figure(self) -> Any:
        """Return a figure: a bar for each visible layer, divided by the most expensive kinds of operations."""
        from bigtrain_nb.advanced.shared.stacked import stacked_figure

        seen = [layer for layer, share in _largest(self.layers, ROWS).items() if share >= SEEN]
        kinds = _largest({kind: share for kind, share in self.shares.items() if kind not in trace.IDLE}, KINDS)
        rows = {layer: Counter() for layer in [*seen, OTHERS]}
        for part, share in self.parts.items():
            layer = part.layer if part.layer in rows else OTHERS
            kind = part.operation if part.operation in kinds else OTHERS
            if part.operation in trace.IDLE:
                kind = NO_OPERATION
            rows[layer][kind] += share * self.seconds
        rows = {layer: parts for layer, parts in rows.items() if parts}
        return stacked_figure(rows, "s", "time in a step")


def _largest(shares, count):
    """Return the first ``count`` of {name: share}, and the sum of the rest."""
    largest = dict(list(shares.items())[:count])
    rest = sum(shares.values()) - sum(largest.values())
    return {**largest, OTHERS: rest} if len(shares) > count else largest


def profile(step: Any, dataset: Any = None, *, steps: int = 20, folder: str | os.PathLike | None = None) -> Profile:
    """Profile ``steps`` training steps and return a `Profile`: where their time goes.

    ``step`` is one of

    - a function without arguments that takes a step, such as `lambda: train_step(batch)`, without ``dataset``;
    - a function of a batch: each step calls `step(batch)` with the next batch of ``dataset``;
    - a compiled Keras model, which trains on ``dataset`` as in `fit`: the weights change. Compiled with
      `steps_per_execution=n`, it takes n batches per call, and a "step" here is all n of them;
    - only a dataset, from which each step takes a batch: the operations are those of the pipeline.

    ``dataset`` is an iterable of batches or has `.dataset()`, as for `throughput`; a finite one is repeated. For a
    model it is a `tf.data.Dataset`. ``folder`` is where the trace is stored for TensorBoard (its profile page needs the
    package xprof); default: a new temporary folder, which you must delete.

    Shares are of the wall time. Each moment is assigned to the work running on accelerators; if there is none, to
    operations on the host; then to waiting for a batch; then to "between operations" within a call of TensorFlow, and
    otherwise to "Python". Concurrent work is weighted equally, so shares sum to 1. Work of the pipeline that the model
    does not wait for is not included. XLA operations have no layers. If TensorFlow sees GPUs but the trace has none of
    their work, a warning says what to do: shares are then those of the host.

    As many steps without the profiler are taken before and after, half each, to measure its overhead. It records each
    operation, which takes some microseconds, so shares of many small operations are too large.

    Raises TypeError for another kind of ``step`` or ``dataset``, ValueError if ``steps`` is not an integer of at least
    1, for a model that is not compiled and for a dataset that yields nothing.

    Example::

        matrix = tf.ones([256, 256])
        found = bt.profile(lambda: tf.matmul(matrix, matrix), steps=5)
        print(found.shares, found.seconds)
    """
    steps = integer("steps", steps, 1)
    is_dataset = dataset is None and has_batches(step)
    take = _step_function(step, dataset)
    place = tempfile.mkdtemp(prefix="bigtrain-profile-") if folder is None else as_path("folder", folder)
    plain = _seconds(take, -(-steps // 2))
    with tf.profiler.experimental.Profile(place):
        _seconds(take, steps)
    plain += _seconds(take, steps // 2)

    newest = max(Path(place).glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    parts, operations, seconds = trace.divide(trace.read(newest), steps_are_input=is_dataset)
    _warn_of_unseen_gpus(parts, is_dataset)
    return Profile(parts, steps, seconds, plain / steps, operations, place, _products_of(step, dataset))


def _products_of(step, dataset):
    """Return the text on the matmul precision of a model with a 16-bit policy; "" for all else.

    A model with a custom step need not have a forward pass.
    """
    if not isinstance(step, keras.Model) or overriding(step):
        return ""
    sixteen = sixteen_bits_of(step)
    if sixteen is None:
        return ""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(next(iter(batches_of(preprocess_like_fit(step, dataset)))))
    return " ".join(said_of(shares_in_32_bits(step, x), sixteen)).strip()


def _warn_of_unseen_gpus(parts, is_dataset):
    gpus = tf.config.get_visible_devices("GPU")
    if gpus and not is_dataset and not any(part.place.startswith("GPU") for part in parts):
        warnings.warn(
            f"the trace has no work on the {len(gpus)} GPUs that TensorFlow sees: all shares are the host's. Usually"
            " this user may not read the GPU's counters (NVIDIA: set NVreg_RestrictProfilingToAdminUsers=0, or be"
            " root), or CUPTI is missing (pip install 'tensorflow[and-cuda]'); or no part of this step runs on a GPU",
            stacklevel=3,
        )


def _step_function(step, dataset):
    """Return a function without arguments that takes one step."""
    if dataset is None and has_batches(step):
        return _next_of(step)
    if has_batches(step) or not callable(step):
        raise TypeError(f"profile takes a step function, a compiled Keras model or a dataset, not {step!r:.99}")
    is_model = isinstance(step, keras.Model)
    if dataset is None and is_model:
        raise TypeError(f"profile needs the dataset that {step.name} trains on: profile(model, dataset)")
    if dataset is None:
        return function("step", step, "a function without arguments, or, with a dataset, of a batch", arguments=[])
    if not is_model:
        if not has_batches(dataset):
            raise TypeError(f"dataset={dataset!r:.99} must be an iterable of batches, or have .dataset()")
        function("step", step, "a function of a batch of the dataset", arguments=[None])
        next_batch = _next_of(dataset)
        return lambda: step(next_batch())
    if not step.compiled:
        raise ValueError(f"{step.name} is not compiled: a step needs the loss and the optimizer of compile(...)")
    given = batches_of(preprocess_like_fit(step, dataset))
    batches = of_kind("dataset", given, tf.data.Dataset, "the tf.data.Dataset that the model trains on")
    iterator = iter(step.distribute_strategy.experimental_distribute_dataset(batches.repeat()))
    step.make_train_function()

    def take():
        try:
            step.train_function(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):  # a repeated dataset ends only if empty
            raise ValueError("the dataset yielded no batch") from None

    return take


def _next_of(source):
    """Return a function that returns the next batch, restarting at the end."""
    batches = _cycle(batches_of(source))

    def next_batch():
        with tf.profiler.experimental.Trace(trace.INPUT):
            return next(batches)

    return next_batch


def _cycle(batches):
    again = ""
    while True:
        batch = None
        for batch in batches:
            yield batch
        if batch is None:
            raise ValueError(f"the dataset yielded no batch{again}")
        again = " in a second pass: give an iterable that can be read again, such as a list, not an iterator"


def _seconds(take, steps):
    """Take some warm-up steps, then ``steps``; return how long the latter took."""
    for _ in range(WARM_UP):
        take()
    wait_for_gpus()
    began = time.perf_counter()
    for number_of_step in range(steps):
        with tf.profiler.experimental.Trace(trace.STEP, step_num=number_of_step, _r=1):
            take()
            if number_of_step == steps - 1:
                wait_for_gpus()
    return time.perf_counter() - began
