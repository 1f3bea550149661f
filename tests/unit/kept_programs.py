"""Train changed models, compiled by XLA, in the order of the arguments; print {change: losses} as JSON.

All have the same inputs and weights, so only their programs differ.
"""

import json
import sys

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
TABLE = np.linspace(-1, 1, 8, dtype="float32")
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(16, 8)).astype("float32"), RANDOM.normal(size=(16, 8)).astype("float32")
CHANGES = {
    "none": {},
    "activation": {"activation": "relu"},
    "array in a lambda": {"table": TABLE[::-1].copy()},
    "clipping": {"global_clipnorm": 0.01},
    "dropout": {"rate": 0.5},
    "beta": {"beta_1": 0.5},
    "loss": {"loss": "mae"},
    "constant in a loss": {"loss": lambda y, outputs: keras.ops.mean((1.5 * y - outputs) ** 2, -1)},
    "micro-batches": {"micro_batches": 2},
    "recomputed layer": {"recompute": "inner"},
    "steps per execution": {"steps_per_execution": 2},
    "weight decay": {"weight_decay": 0.5},
}
SAME_LOSSES = {"micro-batches", "recomputed layer", "steps per execution"}
"""Changes of the program that leave the losses as they are, up to rounding."""


def losses_of(
    activation="tanh",
    table=TABLE,
    rate=0.0,
    loss="mse",
    micro_batches=1,
    recompute=None,
    steps_per_execution=1,
    **of_optimizer,
):
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((8,))
    x = layers.Lambda(lambda x: x * table)(x)
    x = layers.Dense(8, activation, name="inner")(x)
    outputs = layers.Dense(8)(layers.Dropout(rate, seed=5)(x))
    model = bt.Model(inputs, outputs, micro_batches=micro_batches)
    if recompute:
        bt.recompute(model, recompute)
    optimizer = keras.optimizers.AdamW(0.01, **of_optimizer)
    model.compile(optimizer, loss, jit_compile=True, steps_per_execution=steps_per_execution)
    return model.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]


if __name__ == "__main__":
    made_before, *changes = sys.argv[1:]
    kept = [tf.constant(number) for number in range(int(made_before))]
    print(json.dumps({change: losses_of(**CHANGES[change]) for change in changes}))
