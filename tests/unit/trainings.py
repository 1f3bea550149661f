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


def compiled(model, loss, *parts, optimizer="adam"):
    """Return a compiled model, and its data."""
    model.compile(optimizer, loss)
    return model, batched(*parts)


def dense(*more, loss, rate=0.01, width=8, hidden=16):
    model = keras.Sequential([keras.Input((width,)), layers.Dense(hidden, "relu"), *more])
    model.compile(keras.optimizers.Adam(rate), loss)
    return model


def classifier(*more, **how):
    return dense(*more, layers.Dense(3, "softmax"), **{"loss": "sparse_categorical_crossentropy", **how})


def regressor(*more, **how):
    return dense(*more, layers.Dense(1), **{"loss": "mse", **how})


def crossentropy(**how):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **how)


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


def step_by_hand(model, data):
    """Take a step on the mean squared error, as a custom `train_step`."""
    x, y = data
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return {"loss": loss}


def with_own_step(train_step, *parts, hidden=(), units=1, rate=0.1):
    """Return a training of dense layers, in a model with this `train_step`."""
    own = type("Own", (keras.Sequential,), {"train_step": train_step})
    model = own([keras.Input((8,)), *hidden, layers.Dense(units)])
    return compiled(model, "mse", *parts, optimizer=keras.optimizers.SGD(rate))


def in_policy(policy, optimizer, own=None):
    """Return a classifier whose layers have this policy, not the global one."""
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu", dtype=policy)(inputs)
    model = (own or keras.Model)(inputs, layers.Dense(3, "softmax", dtype=policy)(hidden))
    return compiled(model, "sparse_categorical_crossentropy", *table(), optimizer=optimizer)


def next_tokens(model, rows):
    return model, batched(rows[:, :-1], rows[:, 1:])


def by_feature(kind, *names):
    """Return a model with a dictionary of inputs, and data with features in the order of ``names``."""
    inputs = {name: keras.Input((4,), name=name) for name in ("age", "width")}
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(list(inputs.values()))))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    parts = {"age": X[:, :4], "width": X[:, 4:], "unused": X[:, :1]}
    return model, batched(kind((name, parts[name]) for name in names), NUMBERS)


X, CLASSES = table()
NUMBERS = numbers()[1]
OF_TWO = table(classes=2)[1]
SORTED = np.argsort(CLASSES, kind="stable")
EXAMPLE = np.arange(len(X))
TOKENS, PADDED = tokens(), padded_tokens(length=13)
WEIGHTED = random().integers(0, 2, len(X)).astype("float32")
HUB_X, HUB_Y, HUB_WEIGHT = hub_models.next_tokens()


def of_classes(*more, y=CLASSES, **how):
    return classifier(*more, **how), batched(X, y)


def of_numbers(*more, y=NUMBERS, **how):
    return regressor(*more, **how), batched(X, y)


for check, builds in {
    "weights move": {
        "adam_in_bfloat16": lambda: in_policy("bfloat16", keras.optimizers.Adam(0.01)),
        "adam_in_float16": lambda: in_policy("float16", keras.optimizers.Adam(0.01)),
    },
    "finite values": {
        "nan_in_inputs": lambda: (
            classifier(),
            batched(np.where(EXAMPLE[:, None] == 40, np.nan, X).astype("float32"), CLASSES),
        )
    },
    "targets": {
        "labels_from_one": lambda: of_classes(y=CLASSES + 1),
        "labels_minus_one_with_weight_0": lambda: (
            classifier(),
            batched(X, np.where(WEIGHTED > 0, CLASSES, -1), WEIGHTED),
        ),
        "labels_out_of_range_in_batch_6": lambda: of_classes(y=np.where(EXAMPLE == 6 * 16 + 3, 7, CLASSES)),
        "targets_broadcast": lambda: of_numbers(y=X[:, :4]),
    },
    "the model takes the batch": {
        "tokens_out_of_range_in_batch_2": lambda: (
            language_model(),
            batched(np.where(np.arange(64)[:, None] == 2 * 16 + 1, 20, TOKENS[:, :-1]), TOKENS[:, 1:]),
        ),
        "wrong_width": lambda: (regressor(), batched(*numbers(width=9))),
        "no_example": lambda: (regressor(), batched(X, NUMBERS).filter(lambda *_: False)),
        "targets_left_as_strings": lambda: (regressor(), batched(X, NUMBERS.astype(str))),
        "own_step_that_raises": lambda: with_own_step(lambda model, data: data["inputs"], X, NUMBERS),
    },
    "inputs by name": {"features_in_another_order": lambda: by_feature(OrderedDict, "width", "age")},
    "sample weights": {
        "weights_that_are_all_zero": lambda: (regressor(), batched(X, NUMBERS, np.zeros(len(X), "float32")))
    },
    "order of classes": {"sorted_by_class": lambda: (classifier(), batched(X[SORTED], CLASSES[SORTED], size=8))},
    "repeated batches": {
        "each_batch_twice": lambda: (
            classifier(),
            batched(X, CLASSES).flat_map(lambda *batch: tf.data.Dataset.from_tensors(batch).repeat(2)),
        )
    },
    "validation data": {
        "no_example_in_validation": lambda: (regressor(), batched(X, NUMBERS), batched(X, NUMBERS).skip(1000))
    },
    "train/validation overlap": {
        "validation_within_training": lambda: (
            classifier(),
            batched(X, CLASSES).repeat(3),
            batched(X[96:], CLASSES[96:]),
        )
    },
    "outputs and loss": {
        "no_softmax": lambda: (dense(layers.Dense(3), loss="sparse_categorical_crossentropy"), batched(X, CLASSES)),
        "sigmoid_twice": lambda: (
            dense(layers.Dense(1, "sigmoid"), loss=keras.losses.BinaryFocalCrossentropy(from_logits=True)),
            batched(X, OF_TWO.astype("float32")[:, None]),
        ),
    },
    "gradients": {"gradient_stopped": lambda: of_numbers(layers.Lambda(tf.stop_gradient))},
    "overfit one batch": {"own_step_that_runs_away": lambda: with_own_step(step_by_hand, X, NUMBERS, rate=1.0)},
    "cross-example leakage": {
        "softmax_over_the_batch": lambda: of_classes(layers.Lambda(lambda x: keras.ops.softmax(x, axis=0)))
    },
    "range of outputs": {"relu_at_the_end": lambda: (dense(layers.Dense(1, "relu"), loss="mse"), batched(X, NUMBERS))},
    "dead units": {
        "dead_from_its_bias": lambda: of_numbers(
            layers.Dense(16, "relu", bias_initializer=keras.initializers.Constant(-100))
        )
    },
    "label leakage": {
        "attention_without_causal_mask": lambda: next_tokens(language_model(causal=False), TOKENS),
        "targets_not_shifted": lambda: (language_model(13), batched(TOKENS, TOKENS)),
        "keras_hub_targets_not_shifted": lambda: (
            of_keras_hub(hub_models.gpt2()),
            batched(HUB_X, HUB_X["token_ids"], HUB_WEIGHT, size=7),
        ),
    },
    "padding": {
        "padding_without_mask": lambda: next_tokens(language_model(), PADDED),
        "mask_lost_at_a_sum": lambda: next_tokens(language_model(mask=True, add=False), PADDED),
        "keras_hub_padding_is_trained": lambda: (of_keras_hub(hub_models.gpt2()), batched(HUB_X, HUB_Y, size=7)),
    },
    "memory over passes": {"cached_without_end": lambda: (classifier(), batched(X, CLASSES).repeat().cache())},
}.items():
    FAULTY |= {name: (build, check) for name, build in builds.items()}

HEALTHY |= {
    "causal_language_model_of_keras_hub": lambda: (
        of_keras_hub(hub_models.gpt2(dropout=0.1)),
        batched(HUB_X, HUB_Y, HUB_WEIGHT, size=7),
    ),
    "llama_of_keras_hub": lambda: (of_keras_hub(hub_models.llama()), batched(HUB_X, HUB_Y, HUB_WEIGHT, size=7)),
    "classes": of_classes,
    "cached_and_repeated": lambda: (classifier(), batched(X, CLASSES).cache().repeat()),
    "one_hot": lambda: of_classes(
        loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1), y=np.eye(3, dtype="float32")[CLASSES]
    ),
    "yes_or_no_without_a_last_axis": lambda: (
        dense(layers.Dense(1, "sigmoid"), loss="binary_crossentropy"),
        batched(X, OF_TWO),
    ),
    "several_classes": lambda: (
        dense(layers.Dense(3, "sigmoid"), loss="binary_crossentropy"),
        batched(X, (X[:, :3] > 0).astype("float32")),
    ),
    "regression": of_numbers,
    "positive_targets_with_relu": lambda: (
        dense(layers.Dense(1, "relu", bias_initializer="ones"), loss="mse"),
        batched(X, abs(NUMBERS)),
    ),
    "dropout": lambda: of_classes(layers.Dropout(0.2), hidden=32),
    "sequence_autoencoder": lambda: (language_model(13, causal=False), batched(TOKENS, TOKENS)),
    "language_model_with_mask": lambda: next_tokens(language_model(mask=True, add=None), PADDED),
    "features_by_name": lambda: by_feature(dict, "width", "age"),
    "features_in_the_order_of_the_inputs": lambda: by_feature(OrderedDict, "age", "width"),
    "momentum_in_bfloat16": lambda: in_policy("bfloat16", keras.optimizers.SGD(0.1, momentum=0.9)),
    "adam_in_mixed_bfloat16": lambda: in_policy("mixed_bfloat16", keras.optimizers.Adam(0.01)),
}


@faulty("weights move")
def own_step_without_scale_loss():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    return in_policy("mixed_float16", optimizer, Own)


@faulty("the model takes the batch")
def dataset_that_fails_in_batch_3():
    def read(x, y):
        return tf.debugging.check_numerics(x, "file 57 is damaged"), y

    return regressor(), batched(np.where(EXAMPLE[:, None] == 50, np.inf, X), NUMBERS).map(read)


@faulty("the model takes the batch")
def update_that_raises():
    class Refusing(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise RuntimeError("this optimizer cannot update")

    model = regressor()
    return compiled(model, "mse", X, NUMBERS, optimizer=Refusing(0.1))


def normalized_by(layer):
    model = keras.Sequential([keras.Input((8,)), layer, layers.Dense(8, "relu"), layers.Dense(1)])
    return compiled(model, "mse", 100 + X, NUMBERS, optimizer=keras.optimizers.Adam(0.01))


@faulty("normalization")
def never_adapted():
    return normalized_by(layers.Normalization())


@faulty("the model takes the batch")
def outputs_that_are_nan():
    model = classifier()
    model.layers[0].kernel.assign(np.nan * model.layers[0].kernel)
    return model, batched(X, CLASSES)


@faulty("second epoch")
def generator_that_ends():
    rows = iter([(X[i : i + 16], NUMBERS[i : i + 16]) for i in range(0, 96, 16)])
    kinds = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1)))
    return regressor(), tf.data.Dataset.from_generator(lambda: rows, output_signature=kinds)


@faulty("validation data")
def validation_not_scaled():
    x, y = images()
    scaled = x.astype("float32") / 255
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(2, "softmax")])
    return *compiled(model, "sparse_categorical_crossentropy", scaled, y), batched(x.astype("float32"), y)


@faulty("start")
def raw_images():
    x, y = images()
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(32, "relu"), layers.Dense(2)])
    return compiled(model, crossentropy(), x, y)


@faulty("gradients")
def nothing_trains():
    model = regressor()
    model.trainable = False
    return compiled(model, "mse", X, NUMBERS)


@faulty("gradients")
def dead_without_a_layer_that_says_so():
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, bias_initializer=keras.initializers.Constant(-20))(inputs)
    model = keras.Model(inputs, layers.Dense(1)(keras.ops.relu(hidden)))
    return compiled(model, "mse", X, NUMBERS, optimizer=keras.optimizers.Adam(0.01))


@faulty("frozen layers")
def frozen_at_random():
    model = classifier()
    model.layers[0].trainable = False
    return compiled(model, "sparse_categorical_crossentropy", X, CLASSES)


@faulty("cross-example leakage")
def reshaped_wrongly():
    inputs = keras.Input((4, 6), batch_size=16)
    x = keras.ops.reshape(keras.ops.transpose(inputs, (1, 0, 2)), (16, 24))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("adam", "mse")
    x = random().normal(size=(64, 4, 6)).astype("float32")
    return model, batched(x, x[:, 0, :1])


@faulty("label leakage")
def convolution_looks_ahead():
    x = random().normal(size=(64, 17, 2)).astype("float32")
    model = keras.Sequential([keras.Input((16, 2)), layers.Conv1D(8, 3, padding="same"), layers.Dense(2)])
    return compiled(model, "mse", x[:, :-1], x[:, 1:])


@faulty("saved and loaded")
def weights_in_a_plain_tensor():
    @keras.saving.register_keras_serializable("trainings")
    class Forgets(layers.Layer):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.values = tf.constant(np.random.default_rng().normal(size=16), "float32")

        def call(self, x):
            return x * self.values

    return regressor(Forgets()), batched(X, NUMBERS)


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
    return model, batched(X, CLASSES)


@healthy
def eagerly():
    model = classifier()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model, batched(X, CLASSES)


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
def as_many_classes_as_positions():
    model = keras.Sequential([keras.Input((12,), dtype="int32"), layers.Embedding(20, 8, mask_zero=True)])
    for layer in (layers.GlobalAveragePooling1D(), layers.Dense(12, "softmax")):
        model.add(layer)
    rows = padded_tokens(128)
    return compiled(model, "sparse_categorical_crossentropy", rows, rows[:, 0] % 12)


@healthy
def numbers_in_the_order_of_time():
    hours = np.arange(400) / 10
    values = (np.sin(hours) + 0.01 * hours).astype("float32")
    windows = np.stack([values[i : i + 8] for i in range(380)])
    return regressor(), batched(windows, values[8:388, None])


@healthy
def two_outputs():
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    outputs = {"kind": layers.Dense(3, "softmax")(hidden), "size": layers.Dense(1)(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adam(0.01), {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model, batched(X, {"kind": CLASSES, "size": X[:, :1]})


@healthy
def two_outputs_of_one_shape():
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(1, "sigmoid")(hidden)])
    model.compile(keras.optimizers.Adam(0.01), ["mse", "binary_crossentropy"])
    return model, batched(X, (NUMBERS, (NUMBERS > 0).astype("float32")))


@healthy
def contrastive():
    class Contrastive(keras.Model):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(2)
            self.encoder = keras.Sequential([layers.Dense(32, "relu"), layers.Dense(8)])

        def call(self, x):
            return keras.utils.normalize(self.encoder(x))

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            other = self(x + 0.05 * keras.random.normal(keras.ops.shape(x), seed=self.seeds))
            scores = 5 * keras.ops.matmul(y_pred, keras.ops.transpose(other))
            own = keras.ops.arange(keras.ops.shape(scores)[0])
            return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(own, scores, from_logits=True))

    model = Contrastive()
    model.compile(keras.optimizers.Adam(0.01))
    return model, tf.data.Dataset.from_tensor_slices((X,)).shuffle(128).batch(16)


@healthy
def variational_autoencoder():
    class Sampling(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, mean, spread):
            self.add_loss(0.01 * keras.ops.mean(mean**2 + keras.ops.exp(spread) - spread - 1))
            return mean + keras.ops.exp(spread / 2) * keras.random.normal(keras.ops.shape(mean), seed=self.seeds)

    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    spread = layers.Dense(8, bias_initializer=keras.initializers.Constant(-4))(hidden)
    model = keras.Model(inputs, layers.Dense(8)(Sampling()(layers.Dense(8)(hidden), spread)))
    return compiled(model, "mse", X, X, optimizer=keras.optimizers.Adam(0.01))


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

    model = Gan()
    model.compile()
    return model, tf.data.Dataset.from_tensor_slices(X).batch(16)


@healthy
def fine_tuned():
    model = classifier()
    model.layers[0].bias.assign(0.1 * random().normal(size=16))
    model.layers[0].trainable = False
    return compiled(model, "sparse_categorical_crossentropy", X, CLASSES, optimizer=keras.optimizers.Adam(0.01))


@healthy
def low_rank_adapters():
    model = classifier()
    model.layers[0].enable_lora(2)
    return compiled(model, "sparse_categorical_crossentropy", X, CLASSES, optimizer=keras.optimizers.Adam(0.01))


@healthy
def warm_up_from_zero():
    model = classifier()
    rates = keras.optimizers.schedules.CosineDecay(0.0, 1000, warmup_target=0.01, warmup_steps=500)
    return compiled(model, "sparse_categorical_crossentropy", X, CLASSES, optimizer=keras.optimizers.Adam(rates))


@healthy
def adapted():
    normalize = layers.Normalization()
    normalize.adapt(100 + X)
    return normalized_by(normalize)


@healthy
def half_precision():
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu", dtype="mixed_float16")(inputs)
    model = keras.Model(inputs, layers.Dense(3, "softmax", dtype="float32")(hidden))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
    return compiled(model, "sparse_categorical_crossentropy", X, CLASSES, optimizer=optimizer)


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

    return regressor(Always()), batched(X, NUMBERS)


@healthy
def strings_of_words():
    x, y = sentences()
    words = layers.TextVectorization(20, output_sequence_length=12)
    words.adapt(x)
    inputs = keras.Input((), dtype="string")
    hidden = layers.GlobalAveragePooling1D()(layers.Embedding(20, 16, mask_zero=True)(words(inputs)))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))
    return compiled(model, "binary_crossentropy", x, y, optimizer=keras.optimizers.Adam(0.02))
