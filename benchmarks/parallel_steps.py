"""The methods of parallel.py to train a GPT; as a script, a worker: ``parallel_steps.py JOB ROUNDS ANSWER``."""

import gc
import json
import math
import os
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import psutil

import bigtrain_nb as bt
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.quiet import keras, tf

if find_spec("torch"):
    import parallel_torch as peers
else:
    peers = None

DEEP, WIDE, LARGE = "GPT, 12 blocks", "GPT, 512 wide", "GPT, 512 wide, 6 blocks"
SMALL = "GPT, 32 wide, 6 blocks"
LONG = {f"GPT, {length:,} tokens": {"width": 64, "length": length} for length in (1024, 2048, 4096)}
NETWORKS = {
    DEEP: {"layers": 12},
    WIDE: {"width": 512, "length": 32},
    LARGE: {"width": 512, "layers": 6},
    SMALL: {"width": 32, "layers": 6},
    **LONG,
}
"""Compute-bound with 2.4 million parameters; communication-bound with 6.6 or 19 million; tiny; few long sequences."""
FEW_TEXTS = 2
FEW_EXAMPLES = 8
BATCH, STEPS, SEED = 32, 4, 0
WHOLE, RECOMPUTED, SHARDED = "whole", "recompute=True", "shard_optimizer=True"
FULLY = "fully_shard=True"
IN_16_BITS = 'reduce_dtype="bfloat16"'
CHUNKED, BOTH = "chunk_attention=16", "recompute=True, chunk_attention=16"
BLOCKS = r"block_\d+"
OF_THE_MODEL = {
    FULLY: {"fully_shard": BLOCKS},
    SHARDED: {"shard_optimizer": True},
    IN_16_BITS: {"reduce_dtype": "bfloat16"},
}
JOBS = {
    "deep": (DEEP, [WHOLE, RECOMPUTED, SHARDED, FULLY, IN_16_BITS]),
    "wide": (WIDE, [WHOLE, SHARDED, FULLY, IN_16_BITS]),
}
PAIRS = {"deep pair": (DEEP, [WHOLE, SHARDED]), "wide pair": (WIDE, [WHOLE, SHARDED])}
"""Two methods alone: their rounds are closer in time, so drift of the machine's speed affects the ratio less."""
REDUCES = 8


def new_gpt(network, way=WHOLE):
    """Return the GPT for this method, not compiled."""
    keras.utils.set_random_seed(SEED)

    def build():
        return bt.gpt(**NETWORKS[network], nested_blocks=way in (RECOMPUTED, BOTH, FULLY))

    model = bt.Model.of(build, **OF_THE_MODEL.get(way, {}))
    if way in (CHUNKED, BOTH):
        bt.chunk_attention(model, chunks=16)
    return bt.recompute(model, BLOCKS) if way in (RECOMPUTED, BOTH) else model


def start(network, way, strategy, batch=BATCH):
    """Return a model and a function that trains it for an epoch of STEPS steps."""
    with strategy.scope():
        model = new_gpt(network, way)
        compile_it(model)
    return model, epochs(model, NETWORKS[network].get("length", 128), batch)


def compile_it(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss)


def epochs(model, length, batch):
    """Return a function that trains an epoch of `fit` on noise."""
    tokens, targets = noise(length, batch)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((tokens, targets)).repeat().batch(batch).with_options(options)
    return lambda: model.fit(data, steps_per_epoch=STEPS, shuffle=False, verbose=0)


def noise(length, batch):
    """Return tokens and targets, int32 [batch, length] each."""
    both = tf.random.stateless_uniform([2, batch, length], [1, 2], maxval=256, dtype=tf.int32)
    return tf.unstack(both)


def size(variables):
    """Return the bytes of these variables on one replica."""
    return sum(math.prod(variable.value.shape) * tf.as_dtype(variable.dtype).size for variable in variables)


def measured(begin):
    """Return the bytes of tensors that a method holds in this process, and its epoch.

    TensorFlow's allocator reports the memory of a step above the initial state; the sizes of the weights are known.
    """
    gc.collect()
    model, epoch = begin()
    epoch()  # traces, and creates the optimizer state
    info = tf.config.experimental.get_memory_info
    before = info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    epoch()
    step = info("CPU:0")["peak"] - before
    first = model.trainable_variables[0].value
    replicas = len(model.distribute_strategy.experimental_local_results(first))  # of this process
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    weights = replicas * size(model.trainable_variables)
    slots = replicas * size([slot for slot in inner.variables if slot.shape])  # not the number of steps
    return {"weights": weights, "slots": slots, "stays": weights + slots, "peak": weights + slots + step}, epoch


def in_turn(ours, theirs, rounds):
    """Return the bytes of each method and its seconds per step in each round, interleaved in alternating order."""
    found, ready = {}, {}
    for begins, measure in ((ours, measured), (theirs, peers and peers.measured)):
        for way, begin in begins.items():
            print(way, file=sys.stderr, flush=True)
            found[way], ready[way] = measure(begin)
            found[way]["seconds"], found[way]["sent"] = [], []
    for count in range(rounds):
        for way in reversed(ready) if count % 2 else ready:
            before, began = bytes_on_loopback(), time.perf_counter()
            ready[way]()
            found[way]["seconds"].append((time.perf_counter() - began) / STEPS)
            found[way]["sent"].append((bytes_on_loopback() - before) / STEPS)
    return found


def bytes_on_loopback():
    """Return the bytes sent over this machine's loopback device, or 0 if they are not reported (macOS)."""
    counters = psutil.net_io_counters(pernic=True)
    return counters["lo"].bytes_sent if "lo" in counters else 0


def an_epoch(way):
    """Run an epoch in a fresh process to measure its memory."""
    if way in (WHOLE, RECOMPUTED, CHUNKED, BOTH, FULLY):
        _, epoch = start(DEEP, way, tf.distribute.get_strategy())
    else:
        epoch = peers.start(way, NETWORKS[DEEP], BATCH, STEPS)
    epoch()


def all_reduces(strategy, size, often):
    """Return a function that all-reduces ``size`` bytes of zeros ``often`` times in sequence."""
    zeros = tf.zeros([size // 4])

    def one_after_the_other(x):
        x = tf.identity(x)  # on the replica's device
        for _ in range(often):
            x = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)
        return x[0]

    step = tf.function(lambda: strategy.run(one_after_the_other, args=(zeros,)))
    return lambda: step().numpy()


def together(job, rounds, rank, folder):
    """Return the results of two workers for each method, and the bandwidth between them in bytes/s."""
    strategy = bt.strategy()
    workers = strategy.num_replicas_in_sync
    network, ways = (JOBS | PAIRS)[job]
    message = size(new_gpt(network).trainable_variables)
    reduces = all_reduces(strategy, message, REDUCES)
    linked = []
    for _ in range(5):
        began = time.perf_counter()
        reduces()
        linked.append((time.perf_counter() - began) / REDUCES)
    ours = {way: partial(start, network, way, strategy) for way in ways}
    theirs = {}
    if peers and job in JOBS:
        peers.join(rank, workers, folder)
        theirs = peers.starts(peers.TOGETHER, NETWORKS[network], BATCH // workers, STEPS)
    found = in_turn(ours, theirs, rounds)
    return {"ways": found, "link": 2 * (1 - 1 / workers) * message / median(linked)}


def main(job, rounds, answer):
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    found = together(job, int(rounds), rank, Path(answer).parent)
    if rank == 0:
        write_text(Path(answer), json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
