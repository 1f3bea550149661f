"""Three and eight replicas that talk by collectives, as GPUs and workers do, train what one device trains.

`bt.mirrored` sums on one device where replicas are CPUs. Two and four replicas that talk by collectives have the tests
of each kind itself, with `each_reduction` and `reducing`.
"""

from functools import cache, partial

import pytest
from equal_models import batches, distance, examples, reducing, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

UNEVEN = batches([16, 13, 2, 12], *examples(43))  # some replicas have no example
EVEN = batches([24, 24], *examples(48))
ADAM = partial(keras.optimizers.Adam, 0.01, epsilon=1e-4)
SGD = partial(keras.optimizers.SGD, 0.1)
WIDTH = 24  # which 3 and 8 divide
# settings, data, optimizer, largest difference
KINDS = {
    "micro-batches": ({"micro_batches": 3}, UNEVEN, ADAM, 1e-5),
    "sharded optimizer": ({"shard_optimizer": True}, UNEVEN, ADAM, 1e-5),
    "fully sharded": ({"fully_shard": "columns|rows"}, UNEVEN, ADAM, 1e-5),
    # gradients of replicas, of 8 bits, mostly cancel in the sum
    "16 bits on the way": ({"reduce_dtype": "bfloat16"}, EVEN, SGD, 0.1),
}


def net(make=bt.Model, **settings):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(WIDTH, "tanh", name="columns")(inputs)
    x = keras.layers.Dense(WIDTH, name="rows")(x)
    return make(inputs, keras.layers.Dense(1)(x), **settings)


@cache
def stock(data, optimizer):
    return trained(partial(net, keras.Model), data, optimizer)


OF_EIGHT = pytest.mark.more("eight replicas, each traced: those of two and four have the tests of the kind itself")


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [
        pytest.param("micro-batches", 8, marks=OF_EIGHT),
        ("sharded optimizer", 3),
        pytest.param("fully sharded", 8, marks=OF_EIGHT),
        ("16 bits on the way", 3),
    ],
)
def test_each_kind_trains_as_stock_keras_on_one_device(kind, replicas):
    settings, data, optimizer, near = KINDS[kind]
    with reducing("by collectives"):
        model = trained(partial(net, **settings), data, optimizer, replicas)
    whole = stock(data, optimizer)
    assert distance(model, whole) < near
    assert model.history.history["loss"] == pytest.approx(whole.history.history["loss"], rel=near)
