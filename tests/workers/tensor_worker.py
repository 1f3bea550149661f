"""What one of two workers does with a model that is cut over them: ``python tensor_worker.py FOLDER``."""

import json
import sys
from pathlib import Path

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

TOKENS = np.random.default_rng(0).integers(0, 20, (20, 9))


def batches():
    """Return batches of 12 and 8, of which each worker reads its share."""
    data = tf.data.Dataset.from_tensor_slices((TOKENS[:, :-1], TOKENS[:, 1:])).batch(12)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def new_model(strategy, tensor_parallel, layers=2):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = bt.gpt(20, 8, 16, layers, 4, tensor_parallel=tensor_parallel)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-4, global_clipnorm=0.5), loss)
    return model


def train(model):
    """Return what ten steps of Adam give."""
    history = model.fit(batches(), epochs=5, verbose=0, shuffle=False, validation_data=batches()).history
    return {"history": history, "predictions": model.predict(TOKENS[:7, :-1], verbose=0).tolist()}


def reductions(strategy, model):
    """Return how many collective reductions the graph of a model's gradients has."""

    def gradients(tokens):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tokens, training=True))
        return tape.gradient(loss, model.trainable_variables)

    step = tf.function(lambda tokens: strategy.run(gradients, args=(tokens,)))
    graph = step.get_concrete_function(tf.constant(TOKENS[:4, :-1])).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return sum(node.op.startswith("CollectiveReduce") for node in nodes)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    strategy = bt.strategy()
    worker = strategy.cluster_resolver.task_id
    model = new_model(strategy, 2)
    found = train(model)
    model.save(folder / f"{worker}.keras")
    with_one_block = new_model(strategy, 2, layers=1)
    found["reductions"] = {1: reductions(strategy, with_one_block), 2: reductions(strategy, model)}
    (folder / f"{worker}.json").write_text(json.dumps(found), encoding="utf-8")
