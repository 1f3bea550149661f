"""Train a net and a large table of users on parameter servers, until the training is stopped.

The chief prints a line of JSON at the start, and one after each round.
"""

import json
import time

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

USERS, WIDTH, BATCH = 500_000, 16, 32
RATE, EVERY = 0.05, 25


def new_net():
    layers = [keras.layers.Dense(64, "tanh"), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])


def batches():
    """Return batches of users, of whom a few come often and most hardly ever, and a target [BATCH, 1] to learn."""

    def visit(number):
        chance = tf.cast(number, tf.float32) / 2**32
        user = tf.cast((USERS - 1) * chance**8, tf.int64)
        return user, tf.sin(tf.cast([user], tf.float32))

    return tf.data.Dataset.random().map(visit).batch(BATCH)


def tell(**values):
    print(json.dumps(values | {"clock": time.time()}), flush=True)


def main():
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=2**20, max_shards=2)
    strategy = bt.strategy(variable_partitioner=partitioner)  # workers and servers serve here, and come no further
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([USERS, WIDTH], seed=(1, 2)))
        net = new_net()
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build(net.trainable_variables)
    shards = list(table.variables)

    def step(batch):
        """On a worker: fetch, compute, send back. Nobody else is waited for."""
        users, target = batch
        with tf.GradientTape() as tape:
            outputs = net(tf.nn.embedding_lookup(table, users), training=True)
            loss = tf.reduce_mean((outputs - target) ** 2)
        gradients = tape.gradient(loss, shards + net.trainable_variables)
        for shard, gradient in zip(shards, gradients, strict=False):  # of the rows that were fetched, and no others
            shard.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
        optimizer.apply(gradients[len(shards) :], net.trainable_variables)
        return loss

    coordinator = bt.Coordinator(strategy, step, batches)
    stands = {shard.device: shard.shape.num_elements() * 4 for shard in shards}
    tell(table=stands, net=[weight.value.device for weight in net.weights])
    for done in coordinator.rounds(steps=10**9, every=EVERY):
        tell(**vars(done), iterations=int(optimizer.iterations))


if __name__ == "__main__":
    main()
