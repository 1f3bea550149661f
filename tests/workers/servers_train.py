"""What a job with parameter servers trains: ``python servers_train.py FOLDER STEPS``. A table of two shards, and a net.

The chief prints a line of JSON at the start, after each round, and at the end.
"""

import json
import os
import sys
import time
from pathlib import Path

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

ROWS = 50_000
EVERY = 25


def numbers(folder):
    """Write the numbers of the table's rows into shards; return a pipeline that reads them."""
    shards = [Path(folder, f"{index}.tfrecord") for index in range(4)]
    for index, shard in enumerate(shards):
        with tf.io.TFRecordWriter(str(shard)) as writer:
            for row in range(index, ROWS, 400):
                writer.write(str(row).encode())

    def parse(record):
        return tf.strings.to_number(record, tf.int64)

    def with_target(rows):
        return rows, tf.sin(tf.cast(rows[:, None], tf.float32))

    service = os.environ.get("BIGTRAIN_DATA_SERVICE")
    return bt.Pipeline(data=shards, parse=parse, finish=with_target, vectorize=True, batch=16, service=service)


def main(folder, steps):
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=2**18, max_shards=2)
    strategy = bt.strategy(timeout=100, variable_partitioner=partitioner)
    assert json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"  # nobody else comes here
    with strategy.scope():
        table = tf.Variable(tf.random.stateless_normal([ROWS, 4], (1, 2)))
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        applied = tf.Variable(0, aggregation=tf.VariableAggregation.SUM)

    def step(batch):
        rows, target = batch
        with tf.GradientTape() as tape:
            outputs = model(tf.nn.embedding_lookup(table, rows))
            loss = tf.reduce_mean((outputs - target) ** 2)
        shards = list(table.variables)
        gradients = tape.gradient(loss, shards + model.trainable_variables)
        for shard, gradient in zip(shards, gradients[:2], strict=True):
            shard.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        optimizer.apply(gradients[2:], model.trainable_variables)
        applied.assign_add(1)
        return loss

    pipeline = numbers(folder)
    saved = {"model": model, "optimizer": optimizer, "table": table, "applied": applied}
    coordinator = bt.Coordinator(strategy, step, pipeline.dataset, folder=Path(folder, "checkpoints"), **saved)
    devices = [variable.device for variable in table.variables]
    tell(begins=coordinator.steps, applied=int(applied), table=devices, weights=model.weights[0].value.device)
    for done in coordinator.rounds(steps, EVERY):
        tell(**vars(done), applied=int(applied), outputs=float(model(table[:8]).numpy().sum()))
        time.sleep(0.2)  # leaves the processor to tasks that start again
    tell(ends=coordinator.steps)


def tell(**values):
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
