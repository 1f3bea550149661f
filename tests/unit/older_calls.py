"""Execute lines of notebooks/older-tutorials.md in one fresh process: read them as JSON, write their outcomes."""

import json
import os
import shutil
import socket
import sys
import tempfile
import warnings

import keras
import tensorflow as tf

import bigtrain_nb as bt


def names():
    """Return the names that the page's lines assume."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    optimizer = keras.optimizers.SGD(0.1)
    variables = [keras.Variable([1.0, 2.0])]
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    for one in (optimizer, scaled):
        one.build(variables)
    folder = tempfile.mkdtemp(dir=".")
    shutil.copytree("exported", f"{folder}/saved")

    def step():
        return tf.constant(1.0)

    def with_gradient(value):
        return value * value, lambda upstream: upstream * 2 * value

    return {
        "tf": tf, "keras": keras, "bt": bt, "model": model, "optimizer": optimizer, "variables": variables,
        "scaled": scaled, "gradients": [tf.ones(2)], "accumulators": [tf.Variable(tf.zeros(2))],
        "loss": tf.constant(1.0), "x": tf.constant(3.0), "with_gradient": with_gradient, "resolver": RESOLVER,
        "dataset": tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 1)))), "parse": lambda *example: example,
        "strategy": STRATEGY, "step": step, "losses": STRATEGY.run(step), "folder": f"{folder}/saved",
        "metric": keras.metrics.Mean(),
    }  # fmt: skip


def cluster():
    """Start a worker and a parameter server in this process."""
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    worker, server = (f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    spec = tf.train.ClusterSpec({"worker": [worker], "ps": [server]})
    SERVERS.extend(tf.distribute.Server(spec, job_name=job, task_index=0, protocol="grpc") for job in ("worker", "ps"))
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


def outcome(line):
    """Return a line's error, by its type, or its value and warnings."""
    given = names()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            if line.startswith(("optimizer.lr =", "optimizer.learning_rate =")):
                exec(line, given)
                value = f"learning rate {float(given['optimizer'].learning_rate.numpy()):.2f}"
            else:
                value = eval(line, given)
                if isinstance(value, tf.data.Dataset):
                    value = len(list(value))
        except Exception as error:
            said = {"raised": type(error).__name__, "words": str(error)[:500]}
        else:
            said = {"raised": None, "value": str(value)}
    if keras.config.dtype_policy().name != "float32":
        said["value"] = keras.config.dtype_policy().name
        keras.config.set_dtype_policy("float32")
    return said | {"warned": [str(warning.message) for warning in warned]}


if __name__ == "__main__":
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    SERVERS, RESOLVER = [], None
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).export("exported", verbose=False)
    found = {}
    lines = json.load(sys.stdin)
    for line in sorted(lines, key=lambda line: "(resolver)" in line):  # connecting to servers changes the process
        if "(resolver)" in line:
            RESOLVER = cluster()
        found[line] = outcome(line)
    with open("found.json", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)  # servers do not exit on their own
