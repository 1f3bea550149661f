"""One of two workers, in a separate process: ``python two_workers.py FOLDER``, with TF_CONFIG set."""

import json
import sys
from pathlib import Path

import numpy as np
import shared_data

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import all_gather

BATCH = 16
COUNT = 3 * BATCH + 1  # the last batch has one example, so one worker has none
EPOCHS = 2


def adamw(**settings):
    return keras.optimizers.AdamW(0.01, epsilon=1e-4, **settings)


def clipping():
    return adamw(global_clipnorm=0.1)


def examples(count):
    x = np.random.default_rng(0).normal(size=(count, 6)).astype("float32")
    return x, np.sin(x.sum(-1, keepdims=True))


def batched(*tensors):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(tensors).batch(BATCH).with_options(options)


def net(strategy, optimizer=clipping, policy="float32", steps=1, **options):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    with strategy.scope():
        inputs = keras.Input((6,))
        x = keras.layers.Dense(8, activation="tanh")(inputs)
        model = bt.Model(inputs, keras.layers.Dense(1, dtype="float32")(x), **options)
        model.compile(optimizer(), "mse", metrics=["mae"], steps_per_execution=steps)
    keras.config.set_dtype_policy("float32")
    return model


def weights(model):
    return [float(value) for weight in model.get_weights() for value in weight.ravel()]


def graph_of_step(strategy, model):
    """Return the graph of a step on a worker."""
    data = strategy.experimental_distribute_dataset(batched(*examples(COUNT)))
    run = tf.function(lambda batch: strategy.run(model.train_step, (batch,)))
    return run.get_concrete_function(next(iter(data))).graph


def reductions(graph):
    """Return the number of collective reductions in a graph."""
    graph = graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return sum(node.op.startswith("CollectiveReduce") for node in nodes)


def saving(folder):
    """Return callbacks that save at the end of each epoch, both workers to the same paths."""
    return [
        keras.callbacks.ModelCheckpoint(f"{folder}/best.keras"),
        keras.callbacks.ModelCheckpoint(f"{folder}/best.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False),
    ]


def files(strategy, model, folder):
    """Save to the same paths from both workers; return {file: is it complete?}, also of the callbacks' files."""
    model.save(f"{folder}/model.keras")
    model.save(f"{folder}/model.h5")
    model.save_weights(f"{folder}/model.weights.h5")
    all_gather(strategy, tf.identity)(tf.constant(0))  # the chief has written
    found = {}
    of_callbacks = ("best.keras", "best.weights.h5", "backup/latest.weights.h5")
    for name in (*of_callbacks, "model.keras", "model.h5", "model.weights.h5"):
        if name.endswith(".weights.h5"):
            loaded = net(tf.distribute.get_strategy())
            loaded.load_weights(f"{folder}/{name}")
        else:
            loaded = keras.saving.load_model(f"{folder}/{name}", compile=False)
        found[name] = weights(loaded) == weights(model)
    return found


def train(strategy, steps=3, callbacks=()):
    """Return a model trained in three micro-batches, and the results of fit, evaluate and predict.

    The last execution has one step, and that one example.
    """
    data = batched(*examples(COUNT))
    model = net(strategy, steps=steps, micro_batches=3)
    run = {"epochs": EPOCHS, "verbose": 0, "shuffle": False, "validation_data": data, "callbacks": [*callbacks]}
    history = model.fit(data, **run).history
    return model, {
        "history": {key: values[-1] for key, values in history.items()},
        "evaluation": model.evaluate(data, verbose=0, return_dict=True),
        "predictions": model.predict(batched(examples(COUNT)[0]), verbose=0).ravel().tolist(),
        "weights": weights(model),
    }


def trained(strategy):
    folder = f"{sys.argv[1]}/files"
    Path(folder, "backup").mkdir(parents=True, exist_ok=True)  # Keras' callbacks create it too, in a race
    model, results = train(strategy, callbacks=saving(folder))
    whole = files(strategy, model, folder)
    return results | {"files": whole, "collectives": reductions(graph_of_step(strategy, model))}


def sharded(strategy):
    """Train with a sharded optimizer, save a checkpoint and a file; return the weights and the optimizer state."""
    model = net(strategy, shard_optimizer=True)
    resume = bt.Resume(f"{sys.argv[1]}/checkpoints", model)
    data = resume.data(lambda epoch: batched(*examples(COUNT)))
    run = {"initial_epoch": resume.epoch, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(data, **run, callbacks=[resume])
    model.save(f"{sys.argv[1]}/{strategy.cluster_resolver.task_id}.keras")
    state = [variable.numpy().tolist() for variable in model.optimizer.variables]
    shapes = {"CollectiveReduceV2": [], "CollectiveAllToAllV2": []}
    for operation in graph_of_step(strategy, model).get_operations():
        if operation.type in shapes:
            shapes[operation.type].append(operation.inputs[0].shape.as_list())
    return {"weights": weights(model), "state": state, "collectives": shapes}


def in_two_blocks():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8)(inputs)
    for number in range(2):
        block = keras.Input((8,))
        y = keras.layers.Dense(8)(keras.layers.Dense(9, "tanh")(block))
        x = keras.Model(block, keras.layers.Add()([block, y]), name=f"block_{number}")(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def train_blocks(strategy, folder, **settings):
    """Train two blocks in micro-batches, save a checkpoint; return the model, and the error of `Resume` in a scope."""
    with strategy.scope():
        model = bt.Model.of(in_two_blocks, micro_batches=2, **settings)
        model.compile(clipping(), "mse")
        try:
            refused = bt.Resume(folder, model) and None
        except RuntimeError as error:
            refused = str(error)
    resume = bt.Resume(folder, model)
    data = resume.data(lambda epoch: batched(*examples(COUNT)))
    model.fit(data, initial_epoch=resume.epoch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[resume])
    return model, refused


def fully(strategy):
    """Train fully sharded, save a checkpoint and a file; return the weights and the result of evaluate."""
    model, refused = train_blocks(strategy, f"{sys.argv[1]}/fully", fully_shard=r"block_\d")
    model.save(f"{sys.argv[1]}/fully-{strategy.cluster_resolver.task_id}.keras")
    return {
        "evaluation": model.evaluate(batched(*examples(COUNT)), verbose=0),
        "weights": weights(model),
        "refused": refused,
    }


class Record(keras.callbacks.Callback):
    """Records scale, weights and steps after every batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        steps = int(self.model.optimizer.iterations.numpy())
        self.seen.append({"scale": self.model.loss_scale, "weights": weights(self.model), "steps": steps})


def poison(strategy):
    """Return the records if the third and sixth batch contain an inf, for one worker each."""
    x, y = examples(8 * BATCH)
    x[2 * BATCH] = x[6 * BATCH - 1] = np.inf
    record = Record()
    model = net(strategy, adamw, "mixed_float16", micro_batches=3)
    model.fit(batched(x, y), verbose=0, shuffle=False, callbacks=[record])
    return record.seen


def in_chunks(strategy, rows=3, callbacks=()):
    """Return weights, history and evaluation of a language model whose head is computed by so many rows."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = bt.Model.of(bt.gpt(vocabulary=32, length=5, width=8, layers=1, heads=2), micro_batches=2)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, weighted_metrics=["accuracy"])
        bt.chunk_head(model, rows=rows)
    data = batched(*[np.random.default_rng(seed).integers(0, 32, (COUNT, 5)) for seed in range(2)])
    history = model.fit(data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[*callbacks]).history
    return {"weights": weights(model), "history": history, "evaluation": model.evaluate(data, verbose=0)}


def metered(strategy):
    """Return the results of `in_chunks`, and those of a meter; the last batch has no example for the second worker."""
    meter = bt.Meter(gradients=True)
    results = in_chunks(strategy, callbacks=[meter])
    here = sum(count for count, _ in meter._rounds) or meter._examples
    return results | {"examples": meter.result.examples, "examples here": here}


def shared(strategy):
    return shared_data.trained_by_kind(strategy, Path(sys.argv[1]))


JOBS = (shared, trained, sharded, fully, poison, metered)

if __name__ == "__main__":
    strategy = bt.strategy()
    done = {job.__name__: job(strategy) for job in JOBS}
    with open(f"{sys.argv[1]}/{strategy.cluster_resolver.task_id}.json", "w", encoding="utf-8") as file:
        json.dump(done, file)
