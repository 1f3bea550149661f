"""What the processes of talking.py do, ``talking_job.py alone|step|loss SETTING PACK ANSWER``; the chief answers."""

import contextlib
import json
import os
import sys
import time
from itertools import count
from pathlib import Path

from training_workers import BATCH, dataset, layers
from workers_job import Peer, exchanges, timed

from bigtrain_nb.common.files import write_text

MIB = 2**20
SIZES = [MIB, 16 * MIB, 64 * MIB]
"""Bytes of a message, as float32."""
BYTES_A_ROUND = 2**26
PIECES = 16
GROUP, INSTANCES = 1000, count(1)
"""Of all-reduces that are not asked for through the strategy: keys that both workers give in the same order."""
ALONE = {
    "in one tensor": {"pieces": 1},
    "in one tensor, chunks of 4 MiB": {"pieces": 1, "chunks": True},
    "in 16 tensors, one pack": {},
    "in 16 tensors, packs of 4 MiB": {"bytes_per_pack": 4 * MIB},
    "in 16 tensors, packs of 1 MiB": {"bytes_per_pack": MIB},
    "in one tensor, bfloat16": {"pieces": 1, "dtype": "bfloat16"},
    "in 16 tensors, packs of 1 MiB, bfloat16": {"bytes_per_pack": MIB, "dtype": "bfloat16"},
}
STEPS = {"wide": 16, "conv": 32}
"""Steps of an epoch: some times the 8 that replicas take apart."""
WAYS = {
    "float32": {},
    "bfloat16": {"reduce_dtype": "bfloat16"},
    "sync_every=8": {"sync_every": 8},
    "sync_every=8, bfloat16": {"sync_every": 8, "reduce_dtype": "bfloat16"},
}
LENGTH, WIDTH, LOSS_BATCH, HELD_OUT, SEEDS = 64, 64, 32, 1024, 2
OUTER = {"mean": None, "0.7, momentum 0.5": (0.7, 0.5), "0.7, momentum 0.9": (0.7, 0.9)}
"""Rate and Nesterov momentum of the outer step; the last ones are DiLoCo's."""
EVERY = (1, 8, 32)
IN_STEP = "together"
LOSS_WAYS = {
    IN_STEP: {},
    "together, bfloat16": {"reduce_dtype": "bfloat16"},
    **{f"sync_every={every}, {name}": {"sync_every": every, "outer": name} for every in EVERY for name in OUTER},
    "sync_every=8, mean, bfloat16": {"sync_every": 8, "outer": "mean", "reduce_dtype": "bfloat16"},
    **{f"one replica, sync_every=8, {name}": {"sync_every": 8, "outer": name, "alone": True} for name in OUTER},
}


def alone(strategy, rounds, index, folder):
    """Return for each size and way, then for the bytes through a socket, each round's seconds and core seconds."""
    found = []
    with Peer(index, folder / "port") as peer:
        for size in SIZES:
            often = max(2, BYTES_A_ROUND // size)
            ways = [all_reduces(strategy, size, often, **way) for way in ALONE.values()]
            ways.append(exchanges(peer, size, often))
            times = [[timed(work, peer, often) for work in ways] for _ in range(1 + int(rounds))]
            found.append(list(zip(*times[1:], strict=True)))  # the first warms up
    return found


def all_reduces(strategy, size, often, pieces=PIECES, bytes_per_pack=0, dtype="float32", chunks=False):
    """Return a function that all-reduces ``size`` bytes of float32 zeros so often, cast there and back if need be.

    With ``chunks`` the ring moves pieces of 4 MiB, which TensorFlow has, but `tf.distribute` does not ask for.
    """
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
    zeros = [tf.zeros([size // 4 // pieces])] * pieces

    def one_after_the_other(tensors):
        context = tf.distribute.get_replica_context()
        for _ in range(often):
            sent = [tf.cast(tf.identity(tensor), dtype) for tensor in tensors]
            if chunks:
                sums = [in_chunks(tensor) for tensor in sent]
            else:
                sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sent, options=options)
            tensors = [tf.cast(total, tf.float32) for total in sums]
        return sum(tensor[0] for tensor in tensors)

    step = tf.function(lambda: strategy.run(one_after_the_other, args=(zeros,)))
    return lambda: step().numpy()


def in_chunks(tensor):
    import tensorflow as tf

    return tf.raw_ops.CollectiveReduceV2(
        input=tensor,
        group_size=2,
        group_key=GROUP,
        instance_key=next(INSTANCES),
        ordering_token=[],
        merge_op="Add",
        final_op="Id",
        max_subdivs_per_device=8,
    )


def step(strategy, rounds, index, folder):
    """Return for each network and way each round's seconds a step."""
    found = []
    for network in STEPS:
        ways = [epochs(strategy, network, settings) for settings in WAYS.values()]
        times = [[epoch() for epoch in ways] for _ in range(1 + int(rounds))]
        found.append(list(zip(*times[1:], strict=True)))  # the first traces
    return found


def epochs(strategy, network, settings):
    """Return a function that trains an epoch of `fit` and returns the seconds of a step."""
    import keras
    import tensorflow as tf

    from bigtrain_nb.train.model import Model

    with strategy.scope():
        model = Model(*layers(keras, network), **settings)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=loss)
    moments = []
    clock = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: moments.append(time.perf_counter()),
        on_epoch_end=lambda epoch, logs: moments.append(time.perf_counter()),
    )
    data = dataset(tf, network, BATCH)

    def epoch():
        model.fit(data, steps_per_epoch=STEPS[network], shuffle=False, verbose=0, callbacks=[clock])
        return (moments[-1] - moments[-2]) / STEPS[network]

    return epoch


def loss(strategy, steps, index, folder):
    """Return for each way and seed the held-out loss of a small GPT after so many steps, in nats a byte.

    One replica alone has the whole batch, and each worker trains it.
    """
    import keras

    import bigtrain_nb as bt

    text = bt.source_text(megabytes=1)
    train, test = pieces(text.array()), pieces(text.array("test"))[:HELD_OUT]
    found = []
    for way in LOSS_WAYS.values():
        settings = {name: value for name, value in way.items() if name not in ("outer", "alone")}
        losses = []
        for seed in range(SEEDS):
            keras.utils.set_random_seed(seed)
            with contextlib.nullcontext() if "alone" in way else strategy.scope():
                if outer := OUTER[way.get("outer", "mean")]:
                    settings["outer_optimizer"] = keras.optimizers.SGD(*outer, nesterov=True)
                model = bt.Model.of(bt.gpt(length=LENGTH, width=WIDTH), **settings)
                rate = bt.warmup_cosine(3e-3, int(steps) // 10, int(steps))
                entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(keras.optimizers.AdamW(rate), entropy)
            data = batches(train, seed).repeat()
            model.fit(data, steps_per_epoch=int(steps), shuffle=False, verbose=0)
            losses.append(model.evaluate(batches(test, seed), verbose=0))
        found.append(losses)
    return found


def pieces(text):
    """Return int32 [pieces, LENGTH + 1] of a text's bytes."""
    count = len(text) // (LENGTH + 1)
    return text[: count * (LENGTH + 1)].reshape(count, LENGTH + 1).astype("int32")


def batches(rows, seed):
    """Return the batches of one pass, in an order of the seed."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    shuffled = tf.data.Dataset.from_tensor_slices(rows).shuffle(len(rows), seed=seed)
    pairs = shuffled.map(lambda row: (row[:-1], row[1:]))
    return pairs.batch(LOSS_BATCH, drop_remainder=True).with_options(options)


def main(job, setting, bytes_per_pack, answer):
    import tensorflow as tf

    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=int(bytes_per_pack))
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    found = {"alone": alone, "step": step, "loss": loss}[job](strategy, setting, index, Path(answer).parent)
    if index == 0:
        write_text(Path(answer), json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
