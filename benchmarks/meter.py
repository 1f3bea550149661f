"""What `bt.Meter` costs in a step of 10 ms: executions with and without it take turns, in one run.

python benchmarks/meter.py [--seconds 60]

The step sleeps for 10 ms, so that nothing but the meter's own work differs. On a busy machine look at the second line,
processor time of the thread that calls `fit`, which others hardly change. The profiler's looks are counted apart:
they come at the 16th, the 256th, the 4,096th execution.
"""

import argparse
import time

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.measure.intervals import mean_interval

STEP, STEPS = 0.010, 20  # seconds; steps in an epoch


class Step(keras.layers.Layer):
    def call(self, x):
        def sleep(x):
            time.sleep(STEP)
            return x

        y = tf.numpy_function(sleep, [x], tf.float32)
        y.set_shape(x.shape)
        return tf.stop_gradient(y) + x - tf.stop_gradient(x)


class Epochs(keras.callbacks.Callback):
    """Times the steps of each epoch, without its ends."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.began, self.worked_before = time.perf_counter(), time.thread_time()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds, self.worked = time.perf_counter() - self.began, time.thread_time() - self.worked_before


def main(seconds):
    model = keras.Sequential([keras.Input((8,)), Step(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    data = tf.data.Dataset.from_tensors((tf.ones([8, 8]), tf.ones([8, 1]))).repeat(STEPS)
    data = data.apply(tf.data.experimental.assert_cardinality(STEPS))
    epochs, meter = Epochs(), bt.Meter()
    meter._waiting._next = -1  # the looks are counted apart

    def epoch(*callbacks):
        model.fit(data, verbose=0, shuffle=False, callbacks=[*callbacks, epochs])
        return epochs.seconds, epochs.worked

    epoch(), epoch(meter)
    logs, more_work = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        turns = np.array([epoch(), epoch(meter), epoch(meter), epoch()])
        with_one, without = turns[1] + turns[2], turns[0] + turns[3]
        logs.append(np.log(with_one[0] / without[0]))
        more_work.append((with_one[1] - without[1]) / (2 * STEPS))
    mean, low, high = np.exp(mean_interval(logs))
    print(f"with a meter over without: {mean:.4f} ({low:.4f} to {high:.4f}), {len(logs)} blocks of {4 * STEPS} steps")
    mean, low, high = 1e6 * np.array(mean_interval(more_work))
    print(f"work of the thread that calls fit: {mean:.0f} us more a step ({low:.0f} to {high:.0f})")

    looked_at = bt.Meter()
    began = time.perf_counter()
    looks = 0.0
    for name in ("_start", "stop", "read"):
        inner = getattr(looked_at._waiting, name)

        def timed(inner=inner):
            nonlocal looks
            began = time.perf_counter()
            inner()
            looks += time.perf_counter() - began

        setattr(looked_at._waiting, name, timed)
    epoch(looked_at)
    epoch(looked_at)
    print(f"one look: {looks:.2f} s; {time.perf_counter() - began:.1f} s for {2 * STEPS} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    main(parser.parse_args().seconds)
