"""Dropout in cuDNN's fused attention: does `fuse_attention` have to refuse it, and where?

By XLA's source (cudnn_thunk.cc), each compiled call keeps a random offset that advances at each execution, and forward
and backward calls with one seed agree as long as both have run equally often. A failing test names what to refuse.

With queries of zeros and values of the identity, outputs are the mask divided by keys and share of kept scores; so is
the gradient of the values where the upstream gradient is the identity.
"""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import bigtrain_nb as bt
from bigtrain_nb.advanced.parallel import cudnn, fused
from bigtrain_nb.common.quiet import keras, tf

BATCH, HEADS, SIZE = 2, 4, 128  # as many queries, keys and components
SHAPE = (BATCH, SIZE, HEADS, SIZE)
STEPS = 5
COMPILED = {"jit_compile": True, "autograph": False}


def identity():
    return tf.broadcast_to(tf.eye(SIZE, dtype="bfloat16")[None, :, None], SHAPE)


def attend(query, key, value, seed=1, rate=0.5):
    return cudnn.kernel(query, key, value, None, [], cudnn.Settings(0.1, False, 0, dropout_rate=rate, seed=seed))


def masks_of(function):
    """Return the masks of both passes, [batch, heads, queries, keys], of a function of the values."""
    value = identity()
    with tf.GradientTape() as tape:
        tape.watch(value)
        out = function(value)
    gradient = tape.gradient(out, value, identity())
    return tf.transpose(out, [0, 2, 1, 3]) > 0, tf.transpose(gradient, [0, 2, 3, 1]) > 0


def plain(value, **settings):
    zeros = tf.zeros_like(value)
    return attend(zeros, zeros, value, **settings)


def in_steps(function, **compiled):
    """Run the function of no arguments in several steps; return its results as arrays, each with a leading axis."""
    run = tf.function(function, **(compiled or COMPILED))
    steps = [[one.numpy() for one in run()] for _ in range(STEPS)]
    return [np.stack(each) for each in zip(*steps, strict=True)]


def expect_unlike(*masks):
    """No two rows of 128 scores may agree: of steps, layers, examples, heads or queries."""
    rows = np.concatenate([np.packbits(mask.reshape(-1, SIZE), axis=1) for mask in masks])
    repeated = 1 - len(np.unique(rows, axis=0)) / len(rows)
    assert repeated == 0, f"{repeated:.0%} of the rows repeat"


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_both_passes_use_one_mask(rate):
    forward, backward = in_steps(lambda: masks_of(lambda value: plain(value, rate=rate)))
    print(
        f"rate {rate}: kept {forward.mean():.4f}, first rows", np.packbits(forward[:, 0, 0, 0], axis=1)[:, :4].tolist()
    )
    np.testing.assert_array_equal(forward, backward)
    assert abs(forward.mean() - (1 - rate)) < 0.005


def test_masks_differ_between_steps():
    forward, _ = in_steps(lambda: masks_of(plain))
    expect_unlike(forward)
    for one, other in itertools.combinations(forward, 2):
        assert abs((one == other).mean() - 0.5) < 0.01


def test_masks_differ_between_layers_with_a_seed_each():
    def two_layers():
        (one, back), (other, back_of_other) = masks_of(plain), masks_of(lambda value: plain(value, seed=2))
        return one, back, other, back_of_other

    one, back, other, back_of_other = in_steps(two_layers)
    np.testing.assert_array_equal(one, back)
    np.testing.assert_array_equal(other, back_of_other)
    expect_unlike(one, other)


def test_gradients_are_those_of_single_operations_with_the_recovered_mask():
    query, key, upstream = tf.unstack(tf.cast(tf.random.stateless_normal([3, *SHAPE], [1, 2]), "bfloat16"))

    @tf.function(**COMPILED)
    def by_kernel():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            out = attend(*inputs)
        return out, *tape.gradient(out, inputs, upstream)

    inputs = [query, key, identity()]
    for _ in range(STEPS):
        found = [tf.cast(one, "float32") for one in by_kernel()]
        mask = tf.cast(tf.transpose(found[0], [0, 2, 1, 3]) > 0, "float32")
        assert abs(float(tf.reduce_mean(mask)) - 0.5) < 0.005
        wide = [tf.cast(one, "float32") for one in inputs]
        with tf.GradientTape() as tape:
            tape.watch(wide)
            weights = tf.nn.softmax(0.1 * tf.einsum("btnh,bsnh->bnts", *wide[:2])) * mask / 0.5
            out = tf.einsum("bnts,bsnh->btnh", weights, wide[2])
        expected = [out, *tape.gradient(out, wide, tf.cast(upstream, "float32"))]
        errors = [float(tf.norm(ours - right) / tf.norm(right)) for ours, right in zip(found, expected, strict=True)]
        print("errors", *(f"{one:.1e}" for one in errors))
        assert max(errors) < 1e-2


class Plain(keras.layers.Layer):
    def call(self, value):
        return plain(value)


def test_both_passes_of_a_recomputed_layer_use_one_mask():
    layer = bt.recompute(Plain(dtype="bfloat16"))
    forward, backward = in_steps(lambda: masks_of(layer))
    np.testing.assert_array_equal(forward, backward)
    expect_unlike(forward)


def test_steps_within_one_program():
    def steps():
        masks = [tf.TensorArray("bool", STEPS, element_shape=[BATCH, HEADS, SIZE, SIZE]) for _ in range(2)]

        def step(number, *masks):  # depends on the number, else XLA moves the call out of the loop
            found = masks_of(lambda value: plain(value + tf.cast(number // STEPS, value.dtype)))
            return number + 1, *(array.write(number, mask) for array, mask in zip(masks, found, strict=True))

        _, *masks = tf.while_loop(lambda number, *_: number < STEPS, step, (0, *masks))
        return [array.stack() for array in masks]

    forward, backward = in_steps(steps)
    np.testing.assert_array_equal(forward, backward)
    expect_unlike(forward)


def test_both_passes_use_one_mask_where_xla_does_not_compile_the_step():
    forward, backward = in_steps(lambda: masks_of(plain), autograph=False)
    np.testing.assert_array_equal(forward, backward)
    expect_unlike(forward)


def test_a_forward_pass_alone_does_not_separate_the_passes_of_later_steps():
    """Forward and backward calls are separate programs here; in a step that XLA compiles as a whole they are one."""
    plain(identity(), seed=3)
    forward, backward = in_steps(lambda: masks_of(lambda value: plain(value, seed=3)), autograph=False)
    np.testing.assert_array_equal(forward, backward)


def gpt2_losses(seed, change=lambda model: model, steps=200):
    """Train a small GPT-2 from fixed weights with the dropout masks of a seed; return the loss of each step."""
    import keras_hub

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        keras.utils.set_random_seed(seed)
        backbone = keras_hub.models.GPT2Backbone(128, 2, 2, 128, 256, dropout=0.1, max_sequence_length=64)
        model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    finally:
        keras.config.set_dtype_policy("float32")
    random = np.random.default_rng(0)
    model.set_weights([random.normal(0, 0.02, weight.shape) + ("gamma" in weight.path) for weight in model.weights])
    tokens = np.cumsum(random.integers(0, 4, (steps * 16, 65)), axis=1).astype("int32") % 128
    x = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((steps * 16, 64), "int32")}
    data = tf.data.Dataset.from_tensor_slices((x, tokens[:, 1:])).batch(16, drop_remainder=True)
    model = change(model)
    model.compile(
        keras.optimizers.AdamW(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=True
    )
    sums = []
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: sums.append(logs["loss"] * (step + 1)))
    model.fit(data, verbose=0, callbacks=[clock])
    return np.diff(sums, prepend=0)


def test_trains_as_stock_keras_does(monkeypatch):
    stock = np.stack([gpt2_losses(seed) for seed in (1, 2, 3)])
    seeds = itertools.count(1)
    settings = cudnn.Settings
    monkeypatch.setattr(fused, "_layer_problem", lambda layer: None)
    monkeypatch.setattr(cudnn, "Settings", lambda *given: settings(*given, dropout_rate=0.1, seed=next(seeds)))
    kernel = gpt2_losses(4, bt.fuse_attention)
    windows = np.split(np.arange(stock.shape[1]), 4)
    for window in windows:
        each = stock[:, window].mean(axis=1)
        spread, apart = np.ptp(each), abs(kernel[window].mean() - each.mean())
        print(f"loss {each.mean():.4f}, seeds apart by {spread:.4f}, the kernel by {apart:.4f}")
        assert apart < 3 * spread + 0.002 * each.mean()


OTHER_FLAGS = {
    "CUDA graphs as in large programs": "--xla_gpu_graph_min_graph_size=1",
    "no CUDA graphs": "--xla_gpu_enable_command_buffer=",
    "cuDNN outside CUDA graphs": "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=-CUDNN",
    "cuDNN and loops in CUDA graphs": "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=+CUDNN,+WHILE",
}


@pytest.fixture(scope="module")
def others():
    """Start the tests of masks in a process for each of the flags, concurrently."""
    if not tf.config.list_physical_devices("GPU"):
        return {}  # set up before `a_gpu` skips
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-m", "gpu", __file__]
    command += ["-k", "(mask or program) and not where_xla and not other_flags"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    own = os.environ.get("XLA_FLAGS", "")
    return {
        name: subprocess.Popen(command, env=os.environ | {"XLA_FLAGS": f"{own} {flags}"}, **pipes)
        for name, flags in OTHER_FLAGS.items()
    }


@pytest.mark.parametrize("name", OTHER_FLAGS)
def test_with_other_flags(name, others):
    """XLA makes CUDA graphs of five operations or more, so not of most programs above."""
    said, _ = others[name].communicate()
    print(name, *(line for line in said.splitlines() if "kept" in line or "PASSED" in line), sep="\n")
    assert others[name].returncode == 0, said[-3000:]
