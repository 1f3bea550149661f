"""Keras on JAX with `keras.distribution`, on four virtual CPU devices: is the result the same as on one device?

It needs JAX (`pip install jax`, in a separate environment): python on_jax.py
"""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import jax
import keras
import numpy as np
import tensorflow as tf
from keras import layers

TOKENS = np.random.default_rng(0).integers(0, 64, (64, 17)).astype("int32")
EXAMPLES = (TOKENS[:, :-1], TOKENS[:, 1:])
DATA = tf.data.Dataset.from_tensor_slices(EXAMPLES).batch(16)


def small_gpt():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((16,), dtype="int32")
    x = layers.Embedding(64, 32, name="words")(inputs)
    for block in range(2):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, 8, name=f"attention_{block}")
        x = x + attention(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(128, activation="gelu", name=f"up_{block}")(layers.LayerNormalization()(x))
        x = x + layers.Dense(32, name=f"down_{block}")(hidden)
    return keras.Model(inputs, layers.Dense(64, name="logits")(x))


def trained(distribution=None, **adam):
    """Return a model after three epochs under a distribution, and its last loss."""
    keras.distribution.set_distribution(distribution)
    model = small_gpt()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001, epsilon=1e-4, **adam), loss)
    history = model.fit(DATA, epochs=3, shuffle=False, verbose=0)
    return model, history.history["loss"][-1]


def bytes_on_first(model):
    """Return the bytes of weights and optimizer state on the first device."""
    variables = [*model.variables, *model.optimizer.variables]
    return sum(variable.value.addressable_shards[0].data.nbytes for variable in variables)


def tell(name, model, loss, reference):
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    apart = max(np.abs(one - other).max() for one, other in pairs)
    share = bytes_on_first(model) / bytes_on_first(reference)
    print(f"{name:34} loss {loss:.6f}, weights apart {apart:.0e}, bytes on the first device {share:.2f}")


devices = keras.distribution.list_devices()
print("keras", keras.__version__, "jax", jax.__version__, devices)

one_device, loss = trained()
tell("one device", one_device, loss, one_device)

copies = keras.distribution.DataParallel(devices=devices)
tell("DataParallel over 4", *trained(copies), one_device)

grid = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices)
megatron = keras.distribution.LayoutMap(grid)
megatron["attention.*(query|key|value).*kernel"] = (None, "model", None)
megatron["attention.*output.*kernel"] = ("model", None, None)
megatron["up.*kernel"] = (None, "model")
megatron["down.*kernel"] = ("model", None)
both = keras.distribution.ModelParallel(layout_map=megatron, batch_dim_name="batch")
tell("2 over the batch x 2 in each layer", *trained(both), one_device)

line = keras.distribution.DeviceMesh((4,), ["batch"], devices)
sharded = keras.distribution.LayoutMap(line)
sharded[".*(kernel|embeddings)"] = ("batch",)
fully_sharded = keras.distribution.ModelParallel(layout_map=sharded, batch_dim_name="batch")
tell("weights and slots over 4", *trained(fully_sharded), one_device)

in_slices, loss = trained(gradient_accumulation_steps=2)
tell("Adam, 2 batches added up, 4 copies", *trained(copies, gradient_accumulation_steps=2), in_slices)
