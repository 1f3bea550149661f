"""Two worker processes on this machine's loopback: `rates` starts them; run as a script, this file is one of them.

The workers train on the CPU: the benchmark measures the cost of the all-reduce, and one GPU cannot serve two workers.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import bigtrain_nb as bt

WORKERS, MICRO_BATCHES, BATCH, EPOCHS, LIMIT = 2, 4, 64, 4, 180
STEPS = 12
"""Steps per epoch: about a second on two cores. The first epoch does not count."""
JOBS = {
    "bt.Model": [("wide", 1), ("wide", MICRO_BATCHES)],
    "by hand": [("wide", MICRO_BATCHES)],
}
"""The (network, micro-batches) that each pair of processes trains in sequence."""


def rates(job):
    """Run a pair of workers; return {(network, micro-batches): examples/s of the global batch}.

    Raises RuntimeError with the end of a worker's log if one fails or takes longer than three minutes; ends both.
    """
    return dict(zip(JOBS[job], chiefs_answer(__file__, WORKERS, [job], {}), strict=True))


def chiefs_answer(script, workers, arguments, env, seconds=LIMIT):
    """Run a script in workers, on the CPU; return the JSON that the chief writes to the file in the last argument."""
    env = env | {"CUDA_VISIBLE_DEVICES": "-1"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        job = bt.run_workers(script, workers, arguments=[*arguments, answer], env=env, timeout=seconds)
        if any(job.wait(show=False)):
            first = job.failed or 0
            raise RuntimeError(f"{arguments}: {job!r}\nworker {first} said:\n{job.logs(first)[-2000:]}")
        return json.loads(answer.read_text(encoding="utf-8"))


# From here on: a worker.


def main(job, answer):
    """Train what ``job`` lists; the chief writes the rates of the median epochs."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
    found = []
    for _, micro_batches in JOBS[job]:
        epochs = by_hand if job == "by hand" else fit
        seconds = epochs(tf, strategy, micro_batches)
        found.append(STEPS * BATCH / median(seconds[1:]))
    if strategy.cluster_resolver.task_id == 0:
        Path(answer).write_text(json.dumps(found), encoding="utf-8")


def fit(tf, strategy, micro_batches):
    """Return the seconds of each epoch of `fit`."""
    import keras

    with strategy.scope():
        model = bt.Model(*layers(keras), micro_batches=micro_batches)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    began, seconds = [], []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: began.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: seconds.append(time.perf_counter() - began[-1]),
    )
    data = dataset(tf, BATCH)
    model.fit(data, steps_per_epoch=STEPS, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[clock])
    return seconds


def by_hand(tf, strategy, micro_batches):
    """Return the seconds of each epoch of a loop that accumulates micro-batches, with an all-reduce after each."""
    import keras

    with strategy.scope():
        model = keras.Model(*layers(keras))
    variables = [variable.value for variable in model.trainable_variables]
    batches = iter(strategy.experimental_distribute_dataset(dataset(tf, BATCH // micro_batches)))

    def descend(strategy, gradients):
        for variable, gradient in zip(variables, gradients, strict=True):
            strategy.extended.update(variable, lambda v, g: v.assign_sub(0.01 * g), args=(gradient,))

    def replica_step(*parts):
        context = tf.distribute.get_replica_context()
        total = [tf.zeros_like(variable) for variable in variables]
        for x, y in parts:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
                loss = tf.reduce_sum(losses) / BATCH
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, variables))
            total = [a + b for a, b in zip(total, gradients, strict=True)]
        context.merge_call(descend, args=(total,))

    @tf.function
    def update():
        strategy.run(replica_step, args=[next(batches) for _ in range(micro_batches)])

    seconds = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        for _ in range(STEPS):
            update()
        seconds.append(time.perf_counter() - began)
    return seconds


def layers(keras):
    """Return inputs and logits: 5.3 million parameters and little compute."""
    x = inputs = keras.Input([512])
    for _ in range(2):
        x = keras.layers.Dense(2048, activation="relu")(x)
    return inputs, keras.layers.Dense(10)(x)


def dataset(tf, batch):
    """Return infinite batches of noise, with labels in 0..9."""
    noise = tf.random.stateless_normal([512, 512], seed=[1, 2])
    labels = tf.random.stateless_uniform([512], seed=[3, 4], maxval=10, dtype=tf.int32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((noise, labels)).repeat().batch(batch).with_options(options)


if __name__ == "__main__":
    main(*sys.argv[1:])
