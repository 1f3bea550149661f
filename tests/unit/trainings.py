"""Small training setups, faulty and healthy, for `bt.preflight`: each returns (model, data[, validation]).

FAULTY: {name: (function, the check that must report "error")}; HEALTHY: {name: function}. Setups that no test
examines are in benchmarks/more_trainings.py.
"""

from collections import OrderedDict

import hub_models
import numpy as np

from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
FAULTY, HEALTHY = {}, {}


def faulty(check):
    """Register a setup whose fault the check must find."""

    def enter(build):
        FAULTY[build.__name__] = build, check
        return build

    return enter


def healthy(build):
    HEALTHY[build.__name__] = build
    return build


def random():
    return np.random.default_rng(0)


def batched(*parts, size=16):
    return tf.data.Dataset.from_tensor_slices(parts).batch(size)


def table(examples=128, width=8, classes=3):
    """Return inputs [examples, width] and classes that follow from them."""
    x = random().normal(size=(examples, width)).astype("float32")
    return x, x[:, :classes].argmax(1).astype("int32")


def numbers(examples=128, width=8):
    """Return inputs and targets [examples, 1] that follow from them."""
    x = random().normal(size=(examples, width)).astype("float32")
    return x, (x[:, :1] + 0.5 * x[:, 1:2]).astype("float32")


def sentences(examples=64):
    """Return strings of 3 to 12 words, labeled 1 for those with "good", 0 for those with "bad"."""
    numbers = random()
    labels = numbers.integers(0, 2, examples)
    found = []
    for label in labels:
        words = [*numbers.choice(["the", "film", "and", "plot"], numbers.integers(2, 12)), ("bad", "good")[label]]
        found.append(" ".join(numbers.permutation(words)))
    return np.array(found), labels.astype("float32")


def images(examples=64, side=8):
    """Return uint8 images [examples, side, side, 3] and their classes: a bright left or right half."""
    labels = random().integers(0, 2, examples)
    values = random().integers(0, 120, (examples, side, side, 3))
    for image, label in zip(values, labels, strict=True):
        half = slice(0, side // 2) if label else slice(side // 2, side)
        image[:, half] += 130
    return values.astype("uint8"), labels.astype("int32")


def tokens(rows=64, length=13, vocabulary=20):
    """Return rows of tokens >= 1, in which each follows from the previous one."""
    first = random().integers(1, vocabulary, (rows, 1))
    return ((first + 3 * np.arange(length)) % (vocabulary - 1) + 1).astype("int32")


def padded_tokens(rows=64, length=12, vocabulary=20):
    found = tokens(rows, length, vocabulary)
    for row, end in zip(found, random().integers(4, length + 1, rows), strict=True):
        row[end:] = 0
    return found


def of_keras_hub(model):
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def dense(*more, loss, rate=0.01, width=8, hidden=16):
    model = keras.Sequential([keras.Input((width,)), layers.Dense(hidden, "relu"), *more])
    model.compile(keras.optimizers.Adam(rate), loss)
    return model


def language_model(length=12, vocabulary=20, causal=True, mask=False, add=True, loss=None, dtype=None):
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, 16, mask_zero=mask, dtype=dtype)(inputs)
    attended = layers.MultiHeadAttention(2, 8, dtype=dtype)(x, x, use_causal_mask=causal)
    if add is not None:
        x = layers.Add(dtype=dtype)([x, attended]) if add else x + attended
    x = layers.LayerNormalization(dtype=dtype)(x)
    logits = layers.Dense(vocabulary, dtype=dtype)(x)
    model = keras.Model(inputs, logits)
    model.compile(keras.optimizers.Adam(0.01), loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def in_policy(policy, optimizer, own=None):
    """Return a classifier whose layers have this policy, not the global one."""
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu", dtype=policy)(inputs)
    model = (own or keras.Model)(inputs, layers.Dense(3, "softmax", dtype=policy)(hidden))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model, batched(*table())


@faulty("weights move")
def adam_in_bfloat16():
    return in_policy("bfloat16", keras.optimizers.Adam(0.01))


@faulty("weights move")
def adamw_in_bfloat16():
    return in_policy("bfloat16", keras.optimizers.AdamW(0.01, weight_decay=0.0))


@faulty("weights move")
def nadam_in_bfloat16():
    return in_policy("bfloat16", keras.optimizers.Nadam(0.01))


@faulty("weights move")
def adam_in_float16():
    return in_policy("float16", keras.optimizers.Adam(0.01))


@faulty("weights move")
def own_step_without_scale_loss():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return {"loss": loss}

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    return in_policy("mixed_float16", optimizer, Own)


# Faulty: data


@faulty("finite values")
def nan_in_inputs():
    x, y = table()
    x[40, 2] = np.nan
    return dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y)


@faulty("targets")
def labels_from_one():
    x, y = table()
    return dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y + 1)


@faulty("targets")
def labels_minus_one():
    x, y = table(classes=2)
    return dense(layers.Dense(2, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, 2 * y - 1)


@faulty("targets")
def labels_minus_one_with_weight_0():
    x, y = table(classes=2)
    weights = random().integers(0, 2, len(y)).astype("float32")
    model = dense(layers.Dense(2, "softmax"), loss="sparse_categorical_crossentropy")
    return model, batched(x, np.where(weights > 0, y, -1), weights)


@faulty("targets")
def labels_out_of_range_in_batch_6():
    x, y = table()
    y = np.where(np.arange(len(y)) == 6 * 16 + 3, 7, y)
    return dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y)


@faulty("the model takes the batch")
def tokens_out_of_range_in_batch_2():
    found = tokens()
    inputs = np.where(np.arange(64)[:, None] == 2 * 16 + 1, 20, found[:, :-1])
    return language_model(), batched(inputs, found[:, 1:])


@faulty("the model takes the batch")
def dataset_that_fails_in_batch_3():
    x, y = numbers()

    def read(x, y):
        return tf.debugging.check_numerics(x, "file 57 is damaged"), y

    return dense(layers.Dense(1), loss="mse"), batched(np.where(np.arange(128)[:, None] == 50, np.inf, x), y).map(read)


@faulty("the model takes the batch")
def update_that_raises():
    class Refusing(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise RuntimeError("this optimizer cannot update")

    x, y = numbers()
    model = dense(layers.Dense(1), loss="mse")
    model.compile(Refusing(0.1), "mse")
    return model, batched(x, y)


@faulty("the model takes the batch")
def own_step_that_raises():
    class Own(keras.Sequential):
        def train_step(self, data):
            raise ValueError("no such key: 'lables'")

    x, y = numbers()
    model = Own([keras.Input((8,)), layers.Dense(1)])
    model.compile("adam", "mse")
    return model, batched(x, y)


def by_feature(kind, *names):
    """Return a model with a dictionary of inputs, and data with features in the order of ``names``."""
    x, y = numbers()
    inputs = {name: keras.Input((4,), name=name) for name in ("age", "width")}
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(list(inputs.values()))))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    parts = {"age": x[:, :4], "width": x[:, 4:], "unused": x[:, :1]}
    return model, batched(kind((name, parts[name]) for name in names), y)


@faulty("inputs by name")
def features_in_another_order():
    return by_feature(OrderedDict, "width", "age")


@faulty("normalization")
def never_adapted():
    x, y = numbers()
    model = keras.Sequential([keras.Input((8,)), layers.Normalization(), layers.Dense(8, "relu"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(100 + x, y)


@faulty("sample weights")
def weights_that_are_all_zero():
    x, y = numbers()
    return dense(layers.Dense(1), loss="mse"), batched(x, y, np.zeros(len(x), "float32"))


@faulty("the model takes the batch")
def outputs_that_are_nan():
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    model.layers[0].kernel.assign(np.nan * model.layers[0].kernel)
    return model, batched(*table())


@faulty("overfit one batch")
def own_step_that_runs_away():
    class Own(keras.Sequential):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(data[0], training=True) - data[1]) ** 2)
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return {"loss": loss}

    model = Own([keras.Input((8,)), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    return model, batched(*numbers())


@faulty("targets")
def targets_broadcast():
    x, _ = numbers()
    return dense(layers.Dense(1), loss="mse"), batched(x, x[:, :4])


@faulty("order of classes")
def sorted_by_class():
    x, y = table(examples=192)
    order = np.argsort(y, kind="stable")
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    return model, batched(x[order], y[order], size=8)


@faulty("repeated batches")
def one_batch_for_ever():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    return model, batched(x, y).take(1).repeat(8)


@faulty("second epoch")
def generator_that_ends():
    x, y = numbers()
    rows = iter([(x[i : i + 16], y[i : i + 16]) for i in range(0, 128, 16)] * 8)
    kinds = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
    taken = iter([next(rows) for _ in range(6)])
    return dense(layers.Dense(1), loss="mse"), tf.data.Dataset.from_generator(lambda: taken, output_signature=kinds)


@faulty("the model takes the batch")
def no_example():
    model, data = dense(loss="mse"), batched(*numbers())
    return model, data.filter(lambda *_: False)


@faulty("validation data")
def no_example_in_validation():
    model, data = dense(loss="mse"), batched(*numbers())
    return model, data, data.skip(1000)


@faulty("validation data")
def validation_not_scaled():
    x, y = images()
    scaled = x.astype("float32") / 255
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(scaled, y), batched(x.astype("float32"), y)


@faulty("train/validation overlap")
def validation_within_training():
    x, y = table()
    return (
        dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"),
        batched(x, y),
        batched(x[96:], y[96:]),
    )


@faulty("the model takes the batch")
def wrong_width():
    x, y = numbers(width=9)
    return dense(layers.Dense(1), loss="mse"), batched(x, y)


# Faulty: loss and outputs


@faulty("outputs and loss")
def no_softmax():
    x, y = table()
    return dense(layers.Dense(3), loss="sparse_categorical_crossentropy"), batched(x, y)


@faulty("outputs and loss")
def sigmoid_twice():
    x, y = table(classes=2)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return dense(layers.Dense(1, "sigmoid"), loss=loss), batched(x, y.astype("float32")[:, None])


@faulty("range of outputs")
def relu_at_the_end():
    x, y = numbers()
    return dense(layers.Dense(1, "relu"), loss="mse"), batched(x, y)


@faulty("start")
def raw_images():
    x, y = images()
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batched(x, y)


@faulty("gradients")
def gradient_stopped():
    class Stops(layers.Layer):
        def call(self, x):
            return tf.stop_gradient(x)

    x, y = numbers()
    return dense(Stops(), layers.Dense(1), loss="mse"), batched(x, y)


@faulty("gradients")
def nothing_trains():
    x, y = numbers()
    model = dense(layers.Dense(1), loss="mse")
    model.trainable = False
    model.compile("adam", "mse")
    return model, batched(x, y)


@faulty("dead units")
def dead_from_its_bias():
    x, y = numbers()
    dead = layers.Dense(16, "relu", bias_initializer=keras.initializers.Constant(-100))
    return dense(dead, layers.Dense(1), loss="mse"), batched(x, y)


@faulty("gradients")
def dead_without_a_layer_that_says_so():
    x, y = numbers()
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, bias_initializer=keras.initializers.Constant(-20))(inputs)
    model = keras.Model(inputs, layers.Dense(1)(keras.ops.relu(hidden)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(x, y)


@faulty("frozen layers")
def frozen_at_random():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    model.layers[0].trainable = False
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(x, y)


# Faulty: leaks


@faulty("cross-example leakage")
def softmax_over_the_batch():
    class Mixes(layers.Layer):
        def call(self, x):
            return keras.ops.softmax(x, axis=0)

    x, y = table()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return dense(Mixes(), layers.Dense(3), loss=loss), batched(x, y)


@faulty("cross-example leakage")
def reshaped_wrongly():
    inputs = keras.Input((4, 6), batch_size=16)
    x = keras.ops.reshape(keras.ops.transpose(inputs, (1, 0, 2)), (16, 24))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("adam", "mse")
    x = random().normal(size=(64, 4, 6)).astype("float32")
    return model, batched(x, x[:, 0, :1])


@faulty("label leakage")
def attention_without_causal_mask():
    found = tokens()
    return language_model(causal=False), batched(found[:, :-1], found[:, 1:])


@faulty("label leakage")
def convolution_looks_ahead():
    x = random().normal(size=(64, 17, 2)).astype("float32")
    model = keras.Sequential([keras.Input((16, 2)), layers.Conv1D(8, 3, padding="same"), layers.Dense(2)])
    model.compile("adam", "mse")
    return model, batched(x[:, :-1], x[:, 1:])


@faulty("label leakage")
def targets_not_shifted():
    found = tokens(length=12)
    return language_model(), batched(found, found)


@faulty("padding")
def padding_without_mask():
    found = padded_tokens(length=13)
    return language_model(), batched(found[:, :-1], found[:, 1:])


@faulty("padding")
def mask_lost_at_a_sum():
    found = padded_tokens(length=13)
    return language_model(mask=True, add=False), batched(found[:, :-1], found[:, 1:])


# Faulty: precision and files


@faulty("saved and loaded")
def weights_in_a_plain_tensor():
    @keras.saving.register_keras_serializable("trainings")
    class Forgets(layers.Layer):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.values = tf.constant(np.random.default_rng().normal(size=16), "float32")

        def call(self, x):
            return x * self.values

    x, y = numbers()
    return dense(Forgets(), layers.Dense(1), loss="mse"), batched(x, y)


# Faulty: KerasHub


@faulty("label leakage")
def keras_hub_targets_not_shifted():
    x, _, weight = hub_models.next_tokens()
    return of_keras_hub(hub_models.gpt2()), batched(x, x["token_ids"], weight, size=7)


@faulty("padding")
def keras_hub_padding_is_trained():
    x, y, _ = hub_models.next_tokens()
    return of_keras_hub(hub_models.gpt2()), batched(x, y, size=7)


# Healthy


@healthy
def causal_language_model_of_keras_hub():
    return of_keras_hub(hub_models.gpt2(dropout=0.1)), batched(*hub_models.next_tokens(), size=7)


@healthy
def llama_of_keras_hub():
    return of_keras_hub(hub_models.llama()), batched(*hub_models.next_tokens(), size=7)


@faulty("memory over passes")
def cached_without_end():
    x, y = table()
    return dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y).repeat().cache()


@faulty("memory over passes")
def a_function_traced_in_each_step():
    class Counting(keras.Model):
        def train_step(self, data):
            self.done = getattr(self, "done", 0) + 1
            x, y = data
            scaled(x, self.done)  # a Python number that changes in each step
            return super().train_step((x, y))

    scaled = tf.function(lambda x, number: x / number)
    inputs = keras.Input((8,))
    model = Counting(inputs, layers.Dense(3, "softmax")(inputs))
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    return model, batched(*table())


@healthy
def cached_and_repeated():
    x, y = table()
    return dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y).cache().repeat()


@healthy
def eagerly():
    model, data = classes()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model, data


@healthy
def sequences_of_any_length():
    inputs = keras.Input((None,), dtype="int32")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 8)(inputs))
    model = keras.Model(inputs, layers.Dense(3, "softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy")
    rows, labels = tokens(128, 30), table()[1]
    data = tf.data.Dataset.from_generator(
        lambda: ((row[: 4 + place % 20], label) for place, (row, label) in enumerate(zip(rows, labels, strict=True))),
        output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.int32)),
    )
    return model, data.padded_batch(8)


@healthy
def classes():
    x, y = table()
    return dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y)


@healthy
def one_hot():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1))
    return model, batched(x, np.eye(3, dtype="float32")[y])


@healthy
def yes_or_no_without_a_last_axis():
    x, y = table(classes=2)
    return dense(layers.Dense(1, "sigmoid"), loss="binary_crossentropy"), batched(x, y)


@healthy
def several_classes():
    x, _ = table()
    model = dense(layers.Dense(3, "sigmoid"), loss="binary_crossentropy")
    return model, batched(x, (x[:, :3] > 0).astype("float32"))


@healthy
def regression():
    x, y = numbers()
    return dense(layers.Dense(1), loss="mse"), batched(x, y)


@healthy
def positive_targets_with_relu():
    x, y = numbers()
    return dense(layers.Dense(1, "relu", bias_initializer="ones"), loss="mse"), batched(x, abs(y))


@healthy
def numbers_in_the_order_of_time():
    hours = np.arange(400) / 10
    values = (np.sin(hours) + 0.01 * hours).astype("float32")
    windows = np.stack([values[i : i + 8] for i in range(380)])
    return dense(layers.Dense(1), loss="mse"), batched(windows, values[8:388, None])


@healthy
def two_outputs():
    x, y = table()
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    outputs = {"kind": layers.Dense(3, "softmax")(hidden), "size": layers.Dense(1)(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.01), {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    data = tf.data.Dataset.from_tensor_slices((x, {"kind": y, "size": x[:, :1]})).batch(16)
    return model, data


@healthy
def dropout():
    x, y = table()
    return (
        dense(layers.Dropout(0.2), layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy", hidden=32),
        batched(x, y),
    )


@healthy
def sequence_autoencoder():
    found = tokens(length=12)
    return language_model(causal=False), batched(found, found)


@healthy
def language_model_with_mask():
    found = padded_tokens(length=13)
    return language_model(mask=True, add=None), batched(found[:, :-1], found[:, 1:])


@healthy
def contrastive():
    class Contrastive(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([layers.Dense(16, "relu"), layers.Dense(8)])

        def call(self, x):
            return keras.utils.normalize(self.encoder(x))

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            scores = 5 * y_pred @ tf.transpose(self(x + 0.01))
            places = tf.range(tf.shape(scores)[0])
            return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(places, scores, from_logits=True))

    x, _ = numbers()
    model = Contrastive()
    model.compile(keras.optimizers.Adam(0.01))
    return model, batched(x)


@healthy
def variational_autoencoder():
    class Sampling(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, mean, spread):
            self.add_loss(0.01 * keras.ops.mean(mean**2 + keras.ops.exp(spread) - spread - 1))
            return mean + keras.ops.exp(spread / 2) * keras.random.normal(keras.ops.shape(mean), seed=self.seeds)

    x, _ = numbers()
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    code = Sampling()(
        layers.Dense(8)(hidden), layers.Dense(8, bias_initializer=keras.initializers.Constant(-4))(hidden)
    )
    model = keras.Model(inputs, layers.Dense(8)(code))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(x, x)


@healthy
def generative_adversarial():
    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)
            self.generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, "relu"), layers.Dense(8)])
            self.judge = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1)])

        def compile(self, **settings):
            super().compile(**settings)
            self.of_generator, self.of_judge = keras.optimizers.Adam(0.001), keras.optimizers.Adam(0.001)

        def train_step(self, real):
            noise = keras.random.normal((tf.shape(real)[0], 4), seed=self.seeds)
            crossentropy = keras.losses.BinaryCrossentropy(from_logits=True)
            ones, zeros = tf.ones_like(real[:, :1]), tf.zeros_like(real[:, :1])
            with tf.GradientTape(persistent=True) as tape:
                made = self.generator(noise)
                of_made = self.judge(made)
                of_judge = crossentropy(ones, self.judge(real)) + crossentropy(zeros, of_made)
                of_generator = crossentropy(ones, of_made)
            for part, optimizer, value in (
                (self.judge, self.of_judge, of_judge),
                (self.generator, self.of_generator, of_generator),
            ):
                weights = part.trainable_variables
                optimizer.apply(tape.gradient(value, weights), weights)
            return {"judge": of_judge, "generator": of_generator}

    x, _ = numbers()
    model = Gan()
    model.compile()
    return model, tf.data.Dataset.from_tensor_slices(x).batch(16)


@healthy
def fine_tuned():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    model.layers[0].bias.assign(0.1 * random().normal(size=16))
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def low_rank_adapters():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    model.layers[0].enable_lora(2)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def warm_up_from_zero():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    rates = keras.optimizers.schedules.CosineDecay(0.0, 1000, warmup_target=0.01, warmup_steps=500)
    model.compile(keras.optimizers.Adam(rates), "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def features_by_name():
    return by_feature(dict, "width", "age")


@healthy
def features_in_the_order_of_the_inputs():
    return by_feature(OrderedDict, "age", "width")


@healthy
def adapted():
    x, y = numbers()
    normalize = layers.Normalization()
    normalize.adapt(100 + x)
    model = keras.Sequential([keras.Input((8,)), normalize, layers.Dense(8, "relu"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(100 + x, y)


@healthy
def momentum_in_bfloat16():
    return in_policy("bfloat16", keras.optimizers.SGD(0.1, momentum=0.9))


@healthy
def adam_in_mixed_bfloat16():
    return in_policy("mixed_bfloat16", keras.optimizers.Adam(0.01))


@healthy
def half_precision():
    x, y = table()
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu", dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, layers.Dense(3, "softmax", dtype="float32")(hidden))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def subclassed():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(16, "relu")
            self.last = layers.Dense(1)

        def call(self, x):
            return self.last(self.hidden(x))

    model = Net()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(*numbers())


@healthy
def few_different_inputs():
    """Nearly all of the 81 possible inputs occur in both training and validation, at random."""
    x = random().integers(0, 3, (640, 4)).astype("int32")
    y = (x.sum(1) > 4).astype("float32")
    model = keras.Sequential([keras.Input((4,), dtype="int32"), layers.Embedding(3, 4), layers.Flatten()])
    model.add(layers.Dense(16, "relu"))
    model.add(layers.Dense(1, "sigmoid"))
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    return model, batched(x[:512], y[:512]), batched(x[512:], y[512:])


@healthy
def monte_carlo_dropout():
    class Always(layers.Layer):
        """A functional model would pass its own training=False to a Dropout."""

        def __init__(self):
            super().__init__()
            self.dropout = layers.Dropout(0.2, name="always")

        def call(self, x):
            return self.dropout(x, training=True)

    return dense(Always(), layers.Dense(1), loss="mse"), batched(*numbers())


@healthy
def strings_of_words():
    x, y = sentences()
    words = layers.TextVectorization(20, output_sequence_length=12)
    words.adapt(x)
    inputs = keras.Input((), dtype="string")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 16, mask_zero=True)(words(inputs)))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    return model, batched(x, y)
