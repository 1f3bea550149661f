"""What five tools restore after a training was killed. `python survive.py FOLDER`, under `bt.run_workers`.

The training has two epochs of four steps. The first start runs it to the end. Then it starts again with each tool, one
after the other, and blocks after step 6 until SIGKILL ends the process. The second start resumes with what each tool
has saved in FOLDER. Every worker prints the state before each step as JSON.
"""

import json
import os
import signal
import sys
import threading
import time

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

EPOCHS, STEPS, BATCH = 2, 4, 8
EVERY = 2  # steps from one checkpoint to the next
LAST = 6  # the training is killed after this step
EXAMPLES = STEPS * BATCH


def target(y, predicted):
    """A metric: the mean target of a batch identifies the batch."""
    return y


def new_model(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((4,))
        model = bt.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.2, name="dropout")(inputs)))
        momentum = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer = keras.optimizers.LossScaleOptimizer(momentum, initial_scale=2.0**10, dynamic_growth_steps=3)
        model.compile(optimizer, "mse", metrics=[target], jit_compile=False)
        optimizer.build(model.trainable_variables)
    return model


def one_epoch(epoch):
    """Return the epoch's batches, in an order that depends only on the epoch's number."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(EXAMPLES, 4)), random.normal(size=(EXAMPLES, 1))
    data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y.astype("float32")))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.shuffle(EXAMPLES, seed=epoch, reshuffle_each_iteration=False).batch(BATCH).with_options(options)


def all_epochs():
    return one_epoch(0).concatenate(one_epoch(1)).repeat()


class Tell(keras.callbacks.Callback):
    """Prints the state before each step and the step's batch; blocks after step ``last``."""

    def __init__(self, tool, start, last):
        super().__init__()
        self.facts = {"tool": tool, "start": start}
        self.steps, self.last = 0, last
        self.stands = threading.Event()

    def on_epoch_begin(self, epoch, logs=None):
        self.facts["epoch"] = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.steps == self.last:  # only now, because bt.Resume saves after all callbacks
            self.stands.set()
            threading.Event().wait()  # forever
        optimizer = self.model.optimizer
        self.facts["weights"] = numbers(self.model.trainable_variables)
        self.facts["optimizer"] = numbers(optimizer.inner_optimizer.variables[2:])
        self.facts["loss scale"] = numbers([optimizer.dynamic_scale])
        self.facts["random state"] = numbers([self.model.get_layer("dropout").seed_generator.state])

    def on_train_batch_end(self, batch, logs=None):
        print(json.dumps({**self.facts, "batch": [float(logs["target"])]}), flush=True)
        self.model.reset_metrics()  # Keras' own are means over the epoch so far
        self.steps += 1


def numbers(variables):
    return [float(number) for variable in variables for number in np.ravel(variable.numpy())]


def fit(model, *callbacks):
    how = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "shuffle": False, "verbose": 0}
    model.fit(all_epochs(), callbacks=callbacks, **how)


def backup(strategy, folder, tell):
    fit(new_model(strategy), keras.callbacks.BackupAndRestore(folder), tell)


def backup_often(strategy, folder, tell):
    fit(new_model(strategy), keras.callbacks.BackupAndRestore(folder, save_freq=EVERY), tell)


def model_checkpoint(strategy, folder, tell):
    path = os.path.join(folder, "newest.keras")
    if os.path.exists(path):
        with strategy.scope():
            model = bt.load_model(path, custom_objects={"target": target})
    else:
        model = new_model(strategy)
    fit(model, keras.callbacks.ModelCheckpoint(path, save_freq=EVERY), tell)


def resume(strategy, folder, tell):
    model = new_model(strategy)
    resume = bt.Resume(os.path.dirname(folder), model, every=EVERY)  # one folder for all workers
    how = {"initial_epoch": resume.epoch, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(resume.data(one_epoch), callbacks=[resume, tell], **how)


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def preemption(strategy, folder, tell):
    """A custom loop. One worker gets SIGTERM after step 5; all complete step 6, save, and are killed."""
    model = new_model(strategy)
    batches = iter(strategy.experimental_distribute_dataset(all_epochs()))
    shared = os.path.join(os.path.dirname(folder), "checkpoints")
    handler = tf.distribute.experimental.PreemptionCheckpointHandler(
        strategy.cluster_resolver,
        tf.train.Checkpoint(model=model),
        shared,
        tf.distribute.experimental.TerminationConfig(exit_fn=kill_myself),
    )

    @tf.function
    def train_step(batch):
        logs = strategy.run(model.train_step, args=(batch,))
        return tf.reduce_mean(strategy.reduce("MEAN", logs["target"], axis=None))

    tell.set_model(model)
    while steps_done(model) < EPOCHS * STEPS:
        tell.on_epoch_begin(steps_done(model) // STEPS)
        tell.on_train_batch_begin(None)
        done = handler.run(train_step, next(batches))
        tell.on_train_batch_end(None, {"target": done})
        if tell.facts["start"] == 0 and tell.steps == LAST - 1 and is_last_worker(strategy):
            os.kill(os.getpid(), signal.SIGTERM)
    leave(strategy)


def steps_done(model):
    return int(model.optimizer.iterations.numpy())


def is_last_worker(strategy):
    return rank(strategy) == strategy.num_replicas_in_sync - 1


def rank(strategy):
    return strategy.cluster_resolver.task_id if strategy.cluster_resolver else 0


def leave(strategy):
    """End the process at once: the handler's own exit would wait for workers that have ended. The chief exits last."""
    if not is_last_worker(strategy):
        time.sleep(1)
    os._exit(0)


TOOLS = {
    "BackupAndRestore": backup,
    "BackupAndRestore, save_freq=2": backup_often,
    "ModelCheckpoint, save_freq=2": model_checkpoint,
    "bt.Resume, every=2": resume,
    "PreemptionCheckpointHandler": preemption,
}


def main(folder):
    strategy = bt.strategy()
    start = int(os.environ["BIGTRAIN_RESTART"])
    if start == 0:
        fit(new_model(strategy), Tell("none", start, None))
    for number, (tool, train) in enumerate(TOOLS.items()):
        place = os.path.join(folder, str(number), f"worker-{rank(strategy)}")
        if start == 0 and train != preemption:
            tell = Tell(tool, start, LAST)
            threading.Thread(target=train, args=(strategy, place, tell), daemon=True).start()
            tell.stands.wait()
        else:
            train(strategy, place, Tell(tool, start, None))


if __name__ == "__main__":
    main(sys.argv[1])
