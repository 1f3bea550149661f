"""The networks of budget.py, and their training steps in fresh processes."""

import base64
import contextlib
import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from keras_hub.models import GPT2Backbone

import bigtrain_nb as bt
from bigtrain_nb.advanced.watch.peak_memory import ANSWER, CODE, Peak
from bigtrain_nb.common.quiet import keras, tf


def dense(width=2048, layers=4, fully_shard=None):
    """Return a plain network: float32 [batch, width] -> logits [batch, 10]."""
    inputs = keras.Input((width,))
    x = inputs
    for number in range(layers):
        x = keras.layers.Dense(width, activation="relu", name=f"hidden_{number}")(x)
    return bt.Model(inputs, keras.layers.Dense(10, dtype="float32")(x), fully_shard=fully_shard)


def gpt_of_keras_hub(width=256, layers=4, words=256, length=128):
    """Return a GPT-2 of KerasHub, its blocks fully sharded: int32 [batch, length] -> logits [batch, length, words]."""
    backbone = GPT2Backbone(words, layers, 4, width, 4 * width, dropout=0.0, max_sequence_length=length)
    tokens = keras.Input((length,), dtype="int32")
    x = backbone({"token_ids": tokens, "padding_mask": keras.ops.ones_like(tokens)})
    logits = keras.layers.Dense(words, dtype="float32")(x)
    return bt.Model(tokens, logits, fully_shard=r"transformer_layer_\d+")


def recurrent():
    """Return two stacked LSTMs: float32 [batch, 64, 32] -> logits [batch, 10]."""
    inputs = keras.Input((64, 32))
    x = keras.layers.LSTM(128, return_sequences=True)(inputs)
    x = keras.layers.LSTM(128)(x)
    return bt.Model(inputs, keras.layers.Dense(10, dtype="float32")(x))


def text_convolutions(words=1000, width=128):
    """Return three 1-D convolutions over words: int32 [batch, 256] -> logits [batch, 10]."""
    inputs = keras.Input((256,), dtype="int32")
    x = keras.layers.Embedding(words, width)(inputs)
    for _ in range(3):
        x = keras.layers.Conv1D(width, 5, padding="same", activation="relu")(x)
    x = keras.layers.GlobalMaxPooling1D()(x)
    return bt.Model(inputs, keras.layers.Dense(10, dtype="float32")(x))


def large_embedding(words=200_000, width=128):
    """Return the mean of a few words out of many: int32 [batch, 32] -> logits [batch, 10]."""
    inputs = keras.Input((32,), dtype="int32")
    x = keras.layers.Embedding(words, width)(inputs)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return bt.Model(inputs, keras.layers.Dense(10, dtype="float32")(x))


def recomputed(model):
    return bt.recompute(model, r"block_\d+")


def sharded_gpt():
    return bt.Model.of(lambda: bt.gpt(width=256, layers=4, nested_blocks=True), fully_shard=r"block_\d+")


NETWORKS = {
    "conv net": bt.conv_net,
    "conv net, batch norm": partial(bt.conv_net, norm="batch"),
    "conv net, 64 wide": partial(bt.conv_net, width=64),
    "GPT": bt.gpt,
    "GPT, 384 wide": partial(bt.gpt, width=384, layers=6, heads=6, length=256),
    "GPT, 12 blocks": partial(bt.gpt, layers=12),
    "GPT, 12 blocks, recomputed": lambda: recomputed(bt.gpt(layers=12, nested_blocks=True)),
    "conv net, recomputed": lambda: recomputed(bt.conv_net(nested_blocks=True)),
    "dense": dense,
    "dense, fully sharded": partial(dense, fully_shard=r"hidden_\d+"),
    "GPT, 256 wide, fully sharded": sharded_gpt,
    "GPT-2 of KerasHub, fully sharded": gpt_of_keras_hub,
    "LSTM": recurrent,
    "1-D convolutions": text_convolutions,
    "large embedding": large_embedding,
}


@dataclass(frozen=True)
class Case:
    """One network with one configuration, in one process. ``sized``: whether the batch size is static."""

    network: str
    batch: int
    micro_batches: int = 1
    policy: str = "float32"
    devices: int = 1
    sized: bool = True

    @property
    def build(self):
        return NETWORKS[self.network]

    @property
    def settings(self):
        return {"micro_batches": self.micro_batches, "policy": self.policy, "optimizer": "adamw"}

    @property
    def arguments(self):
        names = ("network", "batch", "micro_batches", "policy", "sized", "devices")
        return {name: getattr(self, name) for name in names}

    @property
    def row(self):
        network = self.network + ("" if self.sized else ", batch(n)")
        return [network, str(self.batch), str(self.micro_batches), self.policy, str(self.devices)]


def source(case, model):
    """Return an infinite dataset of one random batch, which costs no work to produce."""
    kind, outputs = tf.as_dtype(model.input.dtype), model.output.shape
    x = tf.random.uniform((case.batch, *model.input.shape[1:]), 0, 8 if kind.is_integer else 1, kind)
    y = tf.random.uniform((case.batch, *outputs[1:-1]), 0, outputs[-1], tf.int32)
    dataset = tf.data.Dataset.from_tensors((x, y))
    if not case.sized:
        dataset = dataset.unbatch().batch(case.batch).cache()
    return dataset.repeat()


def updates(case):
    """Make three updates from ``case.batch`` examples."""
    strategy = bt.mirrored(case.devices) if case.devices > 1 else None
    keras.mixed_precision.set_dtype_policy(case.policy)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = case.build()
        model.micro_batches = case.micro_batches
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss=loss)
    keras.mixed_precision.set_dtype_policy("float32")
    model.fit(source(case, model), steps_per_epoch=3, verbose=0, shuffle=False)


def peak_of_updates(**settings):
    from budget_steps import Case, updates

    updates(Case(**settings))


def peak_of(case):
    """Return the peak MiB of the updates in a fresh process, over all its replicas."""
    if case.devices == 1:
        return bt.peak_memory(peak_of_updates, **case.arguments)
    packed = base64.b64encode(pickle.dumps((peak_of_updates, case.arguments)))
    code = f"import bigtrain_nb as bt; bt.devices({case.devices}); {CODE.format(packed=packed)}"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, check=True)
    return Peak(**json.loads(done.stdout.decode().rpartition(ANSWER)[2]))
