"""What one of several workers does, as a process of its own: ``python worker.py FOLDER``, with TF_CONFIG set."""

import json
import sys

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.model import Model

BATCH = 16
COUNT = 3 * BATCH + 1  # the last batch has one example, so one worker none
CASES = {
    "float32-adamw-1": ("float32", lambda: keras.optimizers.AdamW(0.01, epsilon=1e-4, global_clipnorm=0.1), 1),
    "float32-momentum-3": ("float32", lambda: keras.optimizers.SGD(0.1, momentum=0.9), 3),
    "mixed_float16-adamw-3": ("mixed_float16", lambda: keras.optimizers.AdamW(0.01, epsilon=1e-4), 3),
}


def examples(count):
    x = np.random.default_rng(0).normal(size=(count, 6)).astype("float32")
    return x, np.sin(x.sum(-1, keepdims=True))


def batched(*tensors):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(tensors).batch(BATCH).with_options(options)


def net(strategy, policy, optimizer, make=Model, **options):
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    with strategy.scope():
        inputs = keras.Input((6,))
        x = keras.layers.Dense(8, activation="tanh")(inputs)
        model = make(inputs, keras.layers.Dense(1, dtype="float32")(x), **options)
        model.compile(optimizer(), "mse", metrics=["mae"])
    keras.config.set_dtype_policy("float32")
    return model


def weights(model):
    return [float(value) for weight in model.get_weights() for value in weight.ravel()]


def train(strategy):
    """Return for each case what fit, evaluate and predict give."""
    x, y = examples(COUNT)
    results = {}
    for name, (policy, optimizer, micro_batches) in CASES.items():
        model = net(strategy, policy, optimizer, micro_batches=micro_batches)
        data = batched(x, y)
        history = model.fit(data, epochs=3, verbose=0, shuffle=False, validation_data=data).history
        results[name] = {
            "history": {key: values[-1] for key, values in history.items()},
            "evaluation": model.evaluate(data, verbose=0, return_dict=True),
            "predictions": model.predict(batched(x), verbose=0).ravel().tolist(),
            "weights": weights(model),
            "scale": model.loss_scale,
        }
    return results


def sharded(strategy):
    """Train with sharded state, leave a checkpoint and a file; return each case's weights, and the file's state."""
    found = {}
    for name, (policy, optimizer, micro_batches) in reversed(CASES.items()):
        model = net(strategy, policy, optimizer, micro_batches=micro_batches, shard_optimizer=True)
        resume = bt.Resume(f"{sys.argv[1]}/{name}", model)
        for epoch in resume.epochs(3):
            run = {"initial_epoch": epoch, "epochs": epoch + 1, "shuffle": False, "verbose": 0}
            model.fit(resume.rest(batched(*examples(COUNT))), callbacks=[resume], **run)
        found[name] = {"weights": weights(model), "scale": model.loss_scale}
    model.save(f"{sys.argv[1]}/{strategy.cluster_resolver.task_id}.keras")
    found["state"] = [variable.numpy().tolist() for variable in model.optimizer.variables]
    return found


def poison(strategy):
    """Return scale and weights after every step; the third and sixth batch hold an inf, for one worker each."""
    x, y = examples(8 * BATCH)
    x[2 * BATCH] = x[6 * BATCH - 1] = np.inf
    seen = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps = int(self.model.optimizer.iterations.numpy())
            seen.append({"scale": self.model.loss_scale, "weights": weights(self.model), "steps": steps})

    for micro_batches in (1, 3):
        model = net(strategy, "mixed_float16", keras.optimizers.Adam, micro_batches=micro_batches)
        model.fit(batched(x, y), verbose=0, shuffle=False, callbacks=[Record()])
    return seen


def reductions(strategy):
    """Return how many collective reductions a traced step has, for each number of micro-batches."""
    counts = {}
    for micro_batches in (1, 3):
        model = net(strategy, *CASES["float32-adamw-1"][:2], micro_batches=micro_batches)
        data = iter(strategy.experimental_distribute_dataset(batched(*examples(COUNT))))
        model.train_on_batch(*examples(BATCH))
        step = tf.function(lambda batch, model=model: strategy.run(model.train_step, args=(batch,)))
        graph = step.get_concrete_function(next(data)).graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        counts[micro_batches] = sum(node.op.startswith("CollectiveReduce") for node in nodes)
    return counts


def stock(strategy):
    """Return the first line of what stock Keras raises in fit, as it is and with its symbolic build left out."""

    class Built(keras.Model):
        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            pass

    raised = []
    for make in (keras.Model, Built):
        model = net(strategy, *CASES["float32-momentum-3"][:2], make)
        try:
            model.fit(batched(*examples(COUNT)), verbose=0, shuffle=False)
        except Exception as error:  # noqa: BLE001
            raised.append(f"{type(error).__name__}: {error}".splitlines()[0])
    return raised


if __name__ == "__main__":
    strategy = bt.strategy()
    done = {job.__name__: job(strategy) for job in (train, sharded, poison, reductions, stock)}
    with open(f"{sys.argv[1]}/{strategy.cluster_resolver.task_id}.json", "w", encoding="utf-8") as file:
        json.dump(done, file)
