"""A small training run that can be interrupted and resumed, for the tests of `Resume`."""

import os
import signal
from functools import cache
from shutil import copytree
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from equal_models import precision

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.model import Model
from bigtrain_nb.train.resume import Resume

EPOCHS, BATCH, EXAMPLES = 3, 6, 49  # nine batches; the last has one example, for one replica only
BATCHES = -(-EXAMPLES // BATCH)
rng = np.random.default_rng(0)
X = rng.normal(size=(EXAMPLES, 5)).astype("float32")
Y = np.sin(X.sum(-1, keepdims=True))
ALONE = tf.distribute.get_strategy


class Crash(Exception):
    pass


class At(keras.callbacks.Callback):
    """Does something after this many steps."""

    def __init__(self, step, action):
        super().__init__()
        self.left, self.action = step, action

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.action()


def crash():
    raise Crash


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def of_unknown_size(epoch):
    return epoch_of(epoch).filter(lambda *_: True)


def epoch_of(epoch):
    examples = tf.data.Dataset.from_tensor_slices((X, Y))
    return examples.shuffle(EXAMPLES, seed=epoch, reshuffle_each_iteration=False).batch(BATCH)


def by_number(order, note=lambda number: None, **how):
    """Return an epoch whose batches a `map` makes from their numbers."""

    def batch(number):
        note(int(number))
        examples = order[BATCH * number : BATCH * (number + 1)]
        return X[examples], Y[examples]

    def read(number):
        x, y = tf.numpy_function(batch, [number], [tf.float32, tf.float32])
        return tf.ensure_shape(x, [None, 5]), tf.ensure_shape(y, [None, 1])

    return tf.data.Dataset.range(BATCHES - 1).map(read, **how)


def model_of(strategy=None, seed=1, policy="float32", optimizer=None, micro_batches=1, units=8, **options):
    keras.utils.set_random_seed(seed)
    with precision(policy), (strategy or ALONE()).scope():
        inputs = keras.Input((5,))
        x = keras.layers.Dropout(0.3)(keras.layers.Dense(units, activation="tanh")(inputs))
        x = keras.layers.GaussianNoise(0.1)(keras.layers.BatchNormalization()(x))
        outputs = keras.layers.Dense(1, dtype="float32")(x)
        model = Model(inputs, outputs, micro_batches=micro_batches)
        model.compile((optimizer or adamw)(), "mse", **options)
    tf.random.set_seed(0)  # the order of examples depends on it
    return model


def adamw():
    return keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 27), global_clipnorm=0.5)


def growing_scale():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), dynamic_growth_steps=4)


def train(resume, last=None, first=None, epoch_of=epoch_of, epochs=EPOCHS, **more):
    """Train the remaining steps; ``first`` and ``last`` are callbacks before and after ``resume``."""
    callbacks = [one for one in (first, resume, last) if one]
    run = {"initial_epoch": resume.epoch, "epochs": epochs, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    resume.model.fit(resume.data(epoch_of), **run, **more)
    return state(resume.model)


def state(model):
    """Return all state that training changes, on every replica."""
    local = model.distribute_strategy.experimental_local_results
    variables = [*model.variables, *model.optimizer.variables]
    return [part.numpy().tobytes() for variable in variables for part in local(variable.value)]


@cache
def whole():
    """Return the final state of an uninterrupted training run."""
    with TemporaryDirectory() as folder:
        return train(Resume(folder, model_of()))


@cache
def _cut_after_5():
    folder = TemporaryDirectory()
    cut(folder.name, 5)
    return folder


def cut_after_5(folder):
    """Fill the folder with the checkpoints of steps 2 and 4, from a run that crashed after 5; return it."""
    return copytree(_cut_after_5().name, folder, dirs_exist_ok=True)


def cut(folder, step, make=model_of, every=2, epoch_of=epoch_of):
    """Train until a crash after ``step`` steps."""
    with pytest.raises(Crash):
        train(Resume(folder, make(), every), At(step, crash), epoch_of=epoch_of)


def names(folder):
    return sorted(path.name for path in folder.iterdir())
