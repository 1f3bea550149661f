"""Run several training steps as one XLA program, so that a GPU does not wait for Python between them."""

import threading
import time
from contextlib import contextmanager
from itertools import groupby

from bigtrain_nb.common.keras_compat import (
    build_like_fit,
    overriding,
    same_names_in_next_process,
    traced_for_each_shape,
)
from bigtrain_nb.common.quiet import keras, tf

# isort: split
from keras.src.backend.tensorflow.trainer import reduce_per_replica


def steps_in_one_program(model, step, trains):
    """Return the function for one execution of ``steps_per_execution`` steps in `fit` or `evaluate`: one program.

    Launching an XLA program costs about 20 to 50 µs per variable that it reads: milliseconds for a large model. Stock
    Keras launches one program per step; here a program takes stacked batches and loops over them. A batch of another
    shape, like a short last one, has a separate program. Shapes are static in tracing, as fused kernels require. The
    logs are those of the last step, as in Keras.
    """
    one_step = traced_for_each_shape(step)
    converted = model._autoconvert_optionals(lambda batch: batch)  # private: Keras

    @traced_for_each_shape
    def several_steps(batches, count):
        """Do a step on each of the first ``count`` stacked batches."""

        def one_of_them(number, _):
            return number + 1, one_step(_unstacked(batches, number))

        spec = one_step.get_concrete_function(_unstacked(batches, 0))
        zeros = tf.nest.map_structure(lambda log: tf.zeros(log.shape, log.dtype), spec.structured_outputs)
        _, logs = tf.while_loop(lambda number, _: number < count, one_of_them, (0, zeros), parallel_iterations=1)
        return logs

    compiled = set()

    def run(program, batches, *count):
        kind = program, tuple(map(str, _shapes(batches)))
        if kind in compiled:
            return program(batches, *count)
        compiled.add(kind)
        with report_if_slow("XLA compiles the step"), same_names_in_next_process():
            return program(batches, *count)

    def execution(iterator):
        next_ones = zip(range(model.steps_per_execution), iterator, strict=False)
        batches = [converted(batch) for _, batch in next_ones]
        if not batches:
            raise StopIteration
        if not compiled and not overriding(model, "train_step" if trains else "test_step"):  # whose data may be others
            build_like_fit(model, batches[0], trains)  # otherwise variables are made in tracing
        logs = None
        for _, of_one_shape in groupby(batches, _shapes):
            alike = list(of_one_shape)
            if model.steps_per_execution == 1 or len(alike) == 1 and len(batches) > 1:
                logs = run(one_step, alike[0])
            else:
                rest = [alike[-1]] * (model.steps_per_execution - len(alike))  # padding, for a single program
                logs = run(several_steps, _stacked(alike + rest), tf.constant(len(alike)))
        return logs

    return execution


@contextmanager
def report_if_slow(words, seconds=5.0):
    """Print the duration of a block so far, after ``seconds``, twice as many and so on, and in the end."""
    began, ended, said = time.monotonic(), threading.Event(), []

    def tell():
        wait = seconds
        while not ended.wait(began + wait - time.monotonic()):
            print(f"{words}: {wait:.0f} s so far", flush=True)
            said.append(wait)
            wait *= 2

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        if said:
            print(f"{words}: {time.monotonic() - began:.0f} s in all", flush=True)


def _stacked(batches):
    return keras.tree.map_structure(lambda *parts: None if parts[0] is None else tf.stack(parts), *batches)


def _unstacked(batches, number):
    return keras.tree.map_structure(lambda stack: None if stack is None else stack[number], batches)


def _shapes(batch):
    return [(tuple(value.shape), value.dtype) for value in keras.tree.flatten(batch) if value is not None]


def steps_in_python_loop(model, step):  # private: Keras
    """Return the function for one execution in `fit` or `evaluate`, with its steps in a Python loop.

    Keras uses a graph loop, in which replicas on GPUs or workers cannot communicate: TensorFlow fails, asking for the
    value of a placeholder. The logs are those of the last step, as in Keras.
    """
    strategy = model.distribute_strategy
    step = model._autoconvert_optionals(step)

    def on_batch(data):
        logs = strategy.run(step, args=(data,))
        return reduce_per_replica(logs, strategy, "auto")

    def one_step(iterator):
        return on_batch(next(iterator))

    if not model.run_eagerly:
        on_batch = tf.function(on_batch, reduce_retracing=True, autograph=False, jit_compile=model.jit_compile)
        one_step = tf.function(one_step, reduce_retracing=True, autograph=False)

    def execution(iterator):
        logs = None
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):  # of `train_on_batch`
            for _, data in zip(range(model.steps_per_execution), iterator, strict=False):
                logs = on_batch(data)
            return logs
        for _ in range(model.steps_per_execution):
            try:
                logs = one_step(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if logs is None:
                    raise
                break  # fewer steps were left
        return logs

    return execution
