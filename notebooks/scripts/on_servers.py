"""Train a network with a large embedding table of users on parameter servers, until stopped.

Five processes run this script: a chief, two workers and two parameter servers. ``bt.run_workers`` gives each one all
addresses, and this script assigns the roles. To replace a lost process: ``on_servers.py ADDRESSES NUMBER``.
The chief prints a line of JSON at the start and after each round.
"""

import json
import os
import sys
import time

from bigtrain_nb.common.addresses import answers
from bigtrain_nb.common.quiet import keras, tf

CHIEF, WORKER_0, WORKER_1, SERVER_0, SERVER_1 = range(5)
NAMES = "chief", "worker 0", "worker 1", "server 0", "server 1"
WAIT_SECONDS = 60  # for the other processes to start serving
USERS, WIDTH, BATCH = 500_000, 16, 32
RATE, EVERY = 0.05, 25


def new_net():
    layers = [keras.layers.Dense(64, "tanh"), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])


def batches():
    """Return batches of users (a few are frequent, most are rare), and a target [BATCH, 1] to learn."""

    def visit(number):
        chance = tf.cast(number, tf.float32) / 2**32
        user = tf.cast((USERS - 1) * chance**8, tf.int64)
        return user, tf.sin(tf.cast([user], tf.float32))

    return tf.data.Dataset.random().map(visit).batch(BATCH)


def partitioner(shape, dtype):
    """Return the number of shards along each axis. Only the table is sharded: Keras cannot train a sharded weight."""
    return [2 if shape[0] == USERS else 1] + [1] * (len(shape) - 1)


def tell(**values):
    print(json.dumps(values | {"clock": time.time()}), flush=True)


def main():
    os.environ["GRPC_FAIL_FAST"] = "use_caller"  # otherwise the chief would wait for a lost process
    if len(sys.argv) == 3:
        addresses, number = sys.argv[1].split(","), int(sys.argv[2])
    else:
        config = json.loads(os.environ["TF_CONFIG"])
        addresses, number = config["cluster"]["worker"], config["task"]["index"]
    cluster = tf.train.ClusterSpec({"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]})
    if number == CHIEF:
        lead(cluster, addresses)
    else:
        kind, index = ("worker", number - WORKER_0) if number < SERVER_0 else ("ps", number - SERVER_0)
        server = tf.distribute.Server(cluster, kind, index, protocol="grpc")
        print("serving", flush=True)
        server.join()  # until the job is stopped


def wait_for_all(addresses):
    """Wait until all others are serving. After `WAIT_SECONDS`, end the chief and name the missing ones."""
    began = time.monotonic()
    while silent := [f"{NAMES[n]} at {addresses[n]}" for n in range(1, len(addresses)) if not answers(addresses[n])]:
        if time.monotonic() - began > WAIT_SECONDS:
            sys.exit(
                f"no answer within {WAIT_SECONDS} s from {', '.join(silent)}: read its log, and start the job again"
            )
        time.sleep(0.1)


def lead(cluster, addresses):
    wait_for_all(addresses)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([USERS, WIDTH], seed=(1, 2)))
        net = new_net()
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build(net.trainable_variables)
        done = tf.Variable(0, dtype=tf.int64)  # steps, counted where they are applied
        sums = tf.Variable([0.0, 0.0])  # of losses, and of other workers' steps that ended meanwhile
    shards = list(table.variables)

    @tf.function
    def train(users, target):
        """On a worker: fetch weights, compute gradients, send them back. It waits for no other worker."""
        with tf.GradientTape() as tape:
            outputs = net(tf.nn.embedding_lookup(table, users), training=True)
            loss = tf.reduce_mean((outputs - target) ** 2)
        gradients = tape.gradient(loss, shards + net.trainable_variables)
        for shard, gradient in zip(shards, gradients, strict=False):  # only of the rows that were fetched
            shard.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
        optimizer.apply(gradients[len(shards) :], net.trainable_variables)
        return loss

    @tf.function
    def step(visits):
        """Train, then count. Each part waits for the previous one, also on other machines."""
        users, target = next(visits)
        before = done.read_value()
        with tf.control_dependencies([before]):
            loss = strategy.run(train, args=(users, target))
        with tf.control_dependencies([loss]):
            meanwhile = done.read_value() - before
        with tf.control_dependencies([meanwhile]):
            done.assign_add(1)
            sums.assign_add([loss, tf.cast(meanwhile, tf.float32)])

    visits = iter(coordinator.create_per_worker_dataset(batches))
    stands = {shard.device: shard.shape.num_elements() * 4 for shard in shards}
    tell(table=stands, net=[weight.value.device for weight in net.weights])
    while True:
        before, began = int(done), time.monotonic()
        for _ in range(EVERY):
            coordinator.schedule(step, args=(visits,))  # runs on whichever worker is free
        coordinator.join()
        seconds = time.monotonic() - began
        steps = int(done) - before
        loss, staleness = (float(total) / steps for total in sums.numpy())
        sums.assign([0.0, 0.0])
        applied = {"steps": int(done), "repeated": steps - EVERY, "iterations": int(optimizer.iterations)}
        tell(**applied, loss=loss, staleness=staleness, seconds=seconds)


if __name__ == "__main__":
    main()
