"""A loop with TensorFlow's own PreemptionCheckpointHandler. `python preempted.py FOLDER`, under `bt.run_workers`.

The first start gets SIGTERM after step 9, as from a scheduler that wants the machine back. Each start prints what it
has, as JSON, before its first step and after each.
"""

import json
import os
import signal
import sys

import numpy as np

from bigtrain_nb.common.quiet import keras, tf

STEPS = 14


def batches():
    """Return the numbers of the examples in their order: six batches of 8 an epoch, without end."""
    return tf.data.Dataset.range(48).shuffle(48, seed=1).repeat().batch(8)


def main(folder):
    keras.utils.set_random_seed(1)
    dropout = keras.layers.Dropout(0.2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), dropout, keras.layers.Dense(1)])
    momentum = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(momentum, initial_scale=2.0**10, dynamic_growth_steps=4)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64)
    order = iter(batches())

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, order=order)
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(None, checkpoint, folder)
    examples = tf.constant(np.random.default_rng(0).normal(size=(48, 4)), tf.float32)

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(model(x, training=True) ** 2))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        step.assign_add(1)

    def tell(numbers):
        has = {
            "step": int(step),
            "weights": float(tf.linalg.global_norm(model.trainable_variables)),
            "optimizer": float(tf.linalg.global_norm(momentum.variables[2:])),
            "loss scale": float(optimizer.dynamic_scale),
            "seeds": dropout.seed_generator.state.numpy().tolist(),
            "batch": numbers,
        }
        print(json.dumps(has), flush=True)

    tell([])
    while int(step) < STEPS:
        numbers = next(order)
        handler.run(train_step, tf.gather(examples, numbers))
        tell(numbers.numpy().tolist())
        if int(step) == 9 and os.environ["BIGTRAIN_RESTART"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
