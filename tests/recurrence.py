"""The recurrence h[t] = a[t] h[t-1] + x[t] by two kernels, by plain operations, and in float64."""

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

TEXT = """
extern "C" __global__ void recurrence(
    const NUMBER *__restrict__ a, const NUMBER *__restrict__ x, NUMBER *__restrict__ h)
{
    int channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= CHANNELS) return;
    long long at = (long long)blockIdx.y * TIME * CHANNELS + channel;
    float now = 0;
    for (int time = 0; time < TIME; time++, at += CHANNELS) {
        now = load(a + at) * now + load(x + at);
        store(h + at, now);
    }
}

extern "C" __global__ void recurrence_backward(  // (of h, as of a, a row per time)
    const NUMBER *__restrict__ a, const NUMBER *__restrict__ h, const NUMBER *__restrict__ upstream,
    NUMBER *__restrict__ to_a, NUMBER *__restrict__ to_x)
{
    int channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= CHANNELS) return;
    long long at = ((long long)blockIdx.y * TIME + TIME - 1) * CHANNELS + channel;
    float later = 0;
    for (int time = TIME - 1; time >= 0; time--, at -= CHANNELS) {
        float now = later + load(upstream + at);
        store(to_x + at, now);
        store(to_a + at, time > 0 ? now * load(h + at - CHANNELS) : 0);
        later = now * load(a + at);
    }
}
"""
COMPILED = {"jit_compile": True, "autograph": False}
NUMBERS = {tf.float32: "float", tf.bfloat16: "bfloat16"}


def kernel(name="recurrence", results=1, source=TEXT, block=64):
    return bt.cuda_kernel(
        source,
        name,
        grid=lambda a, *_: (-(-a.shape[2] // block), a.shape[0]),
        block=block,
        results=lambda a, *_: [tf.TensorSpec(a.shape, a.dtype)] * results,
        macros=lambda a, *_: {"NUMBER": NUMBERS[a.dtype], "TIME": a.shape[1], "CHANNELS": a.shape[2]},
    )


@tf.custom_gradient
def recurrence(a, x):
    (h,) = kernel()(a, x)
    return h, lambda upstream: kernel("recurrence_backward", 2)(a, h, upstream)


def by_doubling(a, x):
    length, far = x.shape[1], 1
    while far < length:
        x = a * tf.pad(x, [[0, 0], [far, 0], [0, 0]])[:, :length] + x
        a = a * tf.pad(a, [[0, 0], [far, 0], [0, 0]])[:, :length]
        far *= 2
    return x


def expected(a, x, upstream):
    """Return h and the gradients of a and x in float64."""
    a, x, upstream = (np.asarray(one, "float64") for one in (a, x, upstream))
    h, to_x = np.zeros_like(x), np.zeros_like(x)
    now = later = 0
    for time in range(x.shape[1]):
        h[:, time] = now = a[:, time] * now + x[:, time]
    for time in reversed(range(x.shape[1])):
        to_x[:, time] = later + upstream[:, time]
        later = to_x[:, time] * a[:, time]
    return h, to_x * np.pad(h, [(0, 0), (1, 0), (0, 0)])[:, :-1], to_x


def numbers(shape, dtype="float32", seed=0):
    random = np.random.default_rng(seed)
    values = random.uniform(0, 1, shape), random.normal(size=shape), random.normal(size=shape)
    return [tf.cast(tf.constant(one), dtype) for one in values]


def both_passes(function):
    @tf.function(**COMPILED)
    def run(a, x, upstream):
        with tf.GradientTape() as tape:
            tape.watch([a, x])
            h = function(a, x)
        return h, *tape.gradient(h, [a, x], upstream)

    return run


def far(found, right):
    found, right = (np.asarray(tf.cast(one, "float64")) for one in (found, right))
    return float(np.linalg.norm(found - right) / max(np.linalg.norm(right), 1e-30))


def everywhere():
    """Return (found, expected) for each place in a program: the same operand twice, in a loop, two sizes, eagerly, and
    in a function not compiled by XLA.
    """
    a, x, _ = numbers((2, 9, 40))
    once = expected(a, x, x)[0]
    twice = tf.function(lambda x: recurrence(x, x), **COMPILED)(x)
    thrice = tf.function(
        lambda a, x: tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, recurrence(a, x)), (0, x))[1], **COMPILED
    )
    whole, part = tf.function(lambda a, x: (recurrence(a, x), recurrence(a[:, :5], x[:, :5])), **COMPILED)(a, x)
    return [
        (twice, expected(x, x, x)[0]),
        (thrice(a, x), expected(a, expected(a, once, x)[0], x)[0]),
        (whole, once),
        (part, once[:, :5]),
        (recurrence(a, x), once),
        (tf.function(lambda a, x: recurrence(a, x) + 1)(a, x), once + 1),
    ]


class Recurrent(keras.layers.Layer):
    """h[t] = a[t] h[t-1] + (1 - a[t]) new[t]; a and new depend only on the input at t."""

    def __init__(self, units, function=recurrence, **others):
        super().__init__(**others)
        self.units, self.function = units, function
        self.both = keras.layers.Dense(2 * units)

    def build(self, shape):
        self.both.build(shape)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.units)

    def call(self, x):
        a, new = tf.split(self.both(x), 2, axis=-1)
        a = tf.sigmoid(a + 2)
        return self.function(a, (1 - a) * tf.tanh(new))


def trained(function, of=None, shape=(16, 8), batch=4, examples=30, drop_remainder=False, **compiled):
    """Train for two epochs; return their losses."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape)
    h = Recurrent(16, function)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", dtype="float32")(h[:, -1]))
    model = of(model) if of else model
    x = np.random.default_rng(1).normal(size=(examples, *shape)).astype("float32")
    y = (x.sum(axis=(1, 2)) > 0).astype("float32")[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, drop_remainder=drop_remainder)
    model.compile(keras.optimizers.AdamW(1e-2), "binary_crossentropy", jit_compile=True, **compiled)
    return model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
