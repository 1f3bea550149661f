"""Randomly drawn training setups match stock Keras on one device with the full batch, in 64 bits.

Model, loss, optimizer, replicas, reduction, micro-batches and sample weights come from a seeded generator: a failure
can be reproduced by its number, and a larger range tests more setups.
"""

import warnings
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from equal_models import OneHot, batches, distance, precision, reducing, replicas_agree, trained
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

layers = keras.layers
NEAR = 1e-6
"""The weights of shares are computed in 32 bits. Losing an example gives an error a thousand times as large."""


def words(make):
    """Return the inputs and outputs of an embedding; the reference uses `OneHot`."""
    inputs = keras.Input((5,), dtype="int32")
    kind = OneHot if make is keras.Model else layers.Embedding
    return inputs, kind(9, 4, mask_zero=True, name="hidden_1")(inputs)


def dense(make):
    inputs = keras.Input((6,))
    x = layers.Dense(8, "tanh", name="hidden_1")(inputs)
    return make(inputs, layers.Dense(2)(layers.Dense(6, "tanh", name="hidden_2")(x)))


def recurrent(make):
    inputs, x = words(make)
    return make(inputs, layers.Dense(2)(layers.GRU(6)(x)))


def of_each_place(make):
    inputs, x = words(make)
    return make(inputs, layers.Dense(2)(layers.Dense(6, "tanh", name="hidden_2")(x)))  # the loss is masked


def attending(make):
    inputs = keras.Input((5, 6))
    x = layers.MultiHeadAttention(2, 3, name="hidden_1")(inputs, inputs)
    return make(inputs, layers.Dense(2)(layers.LayerNormalization()(layers.Add()([inputs, x]))))


MODELS = {dense: (6,), recurrent: (), of_each_place: (5,), attending: (5, 6)}
OPTIMIZERS = {
    "momentum": partial(keras.optimizers.SGD, 0.1, momentum=0.9),
    "adamw": partial(keras.optimizers.AdamW, 0.01, weight_decay=0.1, epsilon=1e-4),
    "global_clipnorm": partial(keras.optimizers.Adam, 0.01, epsilon=1e-4, global_clipnorm=0.1),
    "clipnorm": partial(keras.optimizers.SGD, 0.1, momentum=0.9, clipnorm=0.05),
    "rmsprop": partial(keras.optimizers.RMSprop, 0.01, epsilon=1e-4, clipvalue=0.02),
}
REDUCTIONS = ["sum_over_batch_size", "mean_with_sample_weight", "sum"]
SETTINGS = [{}, {"shard_optimizer": True}, {"fully_shard": r"hidden_\d"}]
FIRST = [0, 4, 5, 6, 19, 20]
"""Each model but the plain one, optimizer but momentum, loss reduction and setting; on one, two and four replicas."""
DRAWN = range(40)


@contextmanager
def in_64_bits():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        with precision("float64"):
            yield
    finally:
        keras.config.set_floatx(before)


def data_of(build, random, weighted):
    sizes = random.integers(1, 17, 4)
    count = sizes.sum()
    if build in (recurrent, of_each_place):
        x = random.integers(1, 9, (count, 5))
        x[np.arange(5) >= random.integers(1, 6, (count, 1))] = 0
    else:
        x = random.normal(size=(count, *MODELS[build]))
    of_places = (5,) if build in (of_each_place, attending) else ()
    y = random.normal(size=(count, *of_places, 2))
    weights = [random.uniform(0, 2, (count, *of_places)) * random.integers(0, 2, (count, *of_places))]
    return batches(sizes, x, y, *(weights if weighted else []))


@pytest.mark.parametrize(
    "number", in_two_tiers(DRAWN, FIRST, pytest.mark.more("drawn trainings, of which the first show every setting"))
)
def test_a_drawn_training_ends_where_stock_keras_ends(number):
    random = np.random.default_rng(number)
    build = random.choice(list(MODELS))
    optimizer = random.choice(list(OPTIMIZERS))
    reduction = random.choice(REDUCTIONS)
    replicas = int(random.choice([1, 2, 4]))
    settings = {"micro_batches": int(random.integers(1, 5)), **(random.choice(SETTINGS) if replicas > 1 else {})}
    how = random.choice(["on one device", "by collectives"])
    weighted = random.random() < 0.5
    print(build.__name__, optimizer, reduction, replicas, how, settings, "weighted" if weighted else "")

    def of(make):
        keras.utils.set_random_seed(1)
        return build(make)

    with in_64_bits():
        data = data_of(build, random, weighted)
        compiled = {"loss": keras.losses.MeanSquaredError(reduction=reduction), "epochs": 2}
        whole = trained(partial(of, keras.Model), data, OPTIMIZERS[optimizer], **compiled)
        with reducing(how), warnings.catch_warnings():
            warnings.filterwarnings("error", ".*(leaves out positions|mask)")
            ours = partial(of, partial(bt.Model, **settings))
            model = trained(ours, data, OPTIMIZERS[optimizer], replicas, **compiled)
    assert distance(model, whole) < NEAR
    assert model.history.history["loss"] == pytest.approx(whole.history.history["loss"], rel=NEAR)
    if len(settings) == 1:  # otherwise each replica has its own shards
        assert replicas_agree(model)
