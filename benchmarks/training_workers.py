"""Two worker processes on this machine's loopback: `rates` starts them; run as a script, this file is one of them.

The workers train on the CPU: the question is what the all-reduce costs, and one GPU cannot serve two workers.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from statistics import median

WORKERS, MICRO_BATCHES, BATCH, EPOCHS, LIMIT = 2, 4, 64, 4, 180
STEPS = {"wide": 12, "conv": 20}
"""Steps of an epoch: about a second on two cores. The first epoch does not count."""
JOBS = {
    "bt.Model": [("wide", 1), ("wide", MICRO_BATCHES), ("conv", 1)],
    "by hand": [("wide", MICRO_BATCHES)],
    "tf-keras": [("wide", 1), ("conv", 1)],
}
"""What each pair of processes trains, one after the other: the network and its micro-batches."""


def rates(job):
    """Run a pair of workers; return {(network, micro-batches): examples/s of the global batch}.

    Raises RuntimeError with the end of a worker's log if one fails or takes longer than three minutes; ends both.
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(WORKERS)]}
    with ExitStack() as stack:
        answers, logs, workers = [], [], []
        for index in range(WORKERS):
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
                "TF_USE_LEGACY_KERAS": str(int(job == "tf-keras")),
                "CUDA_VISIBLE_DEVICES": "-1",
            }
            for files in (answers, logs):
                files.append(stack.enter_context(tempfile.TemporaryFile("w+")))
            command = [sys.executable, __file__, job]
            workers.append(subprocess.Popen(command, env=environment, stdout=answers[-1], stderr=logs[-1]))
            stack.callback(end, workers[-1])
        wait(workers, logs, job)
        return dict(zip(JOBS[job], json.loads(text_of(answers[0]).splitlines()[-1]), strict=True))


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait(workers, logs, job):
    """Return when all have ended well; raise RuntimeError as soon as one has not."""
    until = time.monotonic() + LIMIT
    while any(codes := [worker.poll() for worker in workers]) or None in codes:
        if time.monotonic() > until:
            raise RuntimeError(f"{job}: not done after {LIMIT} s; the first worker's log:\n{text_of(logs[0])[-2000:]}")
        for code, log in zip(codes, logs, strict=True):
            if code:
                raise RuntimeError(f"{job}: a worker ended with {code}; its log:\n{text_of(log)[-2000:]}")
        time.sleep(0.05)


def text_of(log):
    log.seek(0)
    return log.read()


def end(worker):
    worker.kill()
    worker.wait()


# From here on: a worker.


def main(job):
    """Train what ``job`` lists; print the rates of the median epochs as the last line of standard output."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else runs
    found = []
    for network, micro_batches in JOBS[job]:
        epochs = by_hand if job == "by hand" else fit
        seconds = epochs(tf, strategy, job, network, micro_batches)
        found.append(STEPS[network] * BATCH / median(seconds[1:]))
    print(json.dumps(found))


def fit(tf, strategy, job, network, micro_batches):
    """Return the seconds of each epoch of `fit`."""
    if job == "tf-keras":
        import tf_keras as keras

        make, settings = keras.Model, {}
    else:
        import keras

        from bigtrain_nb.models import Model

        make, settings = Model, {"micro_batches": micro_batches}
    with strategy.scope():
        model = make(*layers(keras, network), **settings)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    began, seconds = [], []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: began.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: seconds.append(time.perf_counter() - began[-1]),
    )
    data = dataset(tf, network, BATCH)
    model.fit(data, steps_per_epoch=STEPS[network], epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[clock])
    return seconds


def by_hand(tf, strategy, job, network, micro_batches):
    """Return the seconds of each epoch of a loop that accumulates micro-batches, and all-reduces each as it comes."""
    import keras

    with strategy.scope():
        model = keras.Model(*layers(keras, network))
    variables = [variable.value for variable in model.trainable_variables]
    batches = iter(strategy.experimental_distribute_dataset(dataset(tf, network, BATCH // micro_batches)))

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
        for _ in range(STEPS[network]):
            update()
        seconds.append(time.perf_counter() - began)
    return seconds


def layers(keras, network):
    """Return inputs and logits: "wide" has 5.3 million weights and little to compute, "conv" the opposite."""
    if network == "wide":
        x = inputs = keras.Input([512])
        for _ in range(2):
            x = keras.layers.Dense(2048, activation="relu")(x)
    else:
        x = inputs = keras.Input([64, 64, 3])
        for width in (16, 32, 64):
            x = keras.layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
        x = keras.layers.GlobalAveragePooling2D()(x)
    return inputs, keras.layers.Dense(10)(x)


def dataset(tf, network, batch):
    """Return endless batches of noise in the network's shape, with labels in 0..9."""
    shape = [512] if network == "wide" else [64, 64, 3]
    noise = tf.random.stateless_normal([512, *shape], seed=[1, 2])
    labels = tf.random.stateless_uniform([512], seed=[3, 4], maxval=10, dtype=tf.int32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((noise, labels)).repeat().batch(batch).with_options(options)


if __name__ == "__main__":
    main(sys.argv[1])
