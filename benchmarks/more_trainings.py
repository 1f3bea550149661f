"""More small trainings for benchmarks/preflight.py, not examined by tests. Importing this file registers them."""

import numpy as np
from trainings import (
    batched,
    dense,
    faulty,
    healthy,
    images,
    in_policy,
    language_model,
    numbers,
    padded_tokens,
    random,
    table,
    tokens,
)

from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers


def prices(windows=200, length=16):
    """Return windows of prices around 5,000 in chronological order, and the price after each."""
    walk = (5000 + np.cumsum(random().normal(size=windows + length) * 10)).astype("float32")
    return np.stack([walk[start : start + length] for start in range(windows)]), walk[length:, None]


@faulty("weights move")
def adamw_in_bfloat16():
    return in_policy("bfloat16", keras.optimizers.AdamW(0.01, weight_decay=0.0))


@faulty("weights move")
def nadam_in_bfloat16():
    return in_policy("bfloat16", keras.optimizers.Nadam(0.01))


@faulty("targets")
def labels_minus_one():
    x, y = table(classes=2)
    return dense(layers.Dense(2, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, 2 * y - 1)


@faulty("targets")
def binary_minus_one():
    x, y = table(classes=2)
    return dense(layers.Dense(1, "sigmoid"), loss="binary_crossentropy"), batched(x, (2 * y - 1).astype("float32"))


@faulty("targets")
def several_classes_with_categorical():
    x, _ = table()
    model = dense(layers.Dense(3, "softmax"), loss="categorical_crossentropy")
    return model, batched(x, (x[:, :3] > 0).astype("float32"))


@faulty("train/validation overlap")
def divided_behind_a_shuffle():
    x, y = images(128)
    shuffled = tf.data.Dataset.from_tensor_slices(((x / 255).astype("float32"), y)).shuffle(128, seed=1)
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, shuffled.skip(32).batch(16), shuffled.take(32).batch(16)


@faulty("outputs and loss")
def softmax_twice():
    """In 32 bits Keras would take the logits from before the first one."""
    x, y = table()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return dense(layers.Dense(3, "softmax", dtype="mixed_float16"), loss=loss), batched(x, y)


@faulty("outputs and loss")
def no_sigmoid():
    x, y = table(classes=2)
    return dense(layers.Dense(1), loss="binary_crossentropy"), batched(x, y.astype("float32")[:, None])


@faulty("outputs and loss")
def softmax_for_several_classes():
    x, _ = table()
    model = dense(layers.Dense(3, "softmax"), loss="binary_crossentropy")
    return model, batched(x, (x[:, :3] > 0).astype("float32"))


@faulty("outputs and loss")
def softmax_of_one():
    x, y = table(classes=1)
    return dense(layers.Dense(1, "softmax"), loss="sparse_categorical_crossentropy"), batched(x, y)


@faulty("range of outputs")
def sigmoid_for_numbers():
    x, y = numbers()
    return dense(layers.Dense(1, "sigmoid"), loss="mse"), batched(x, 10 * y)


@faulty("range of outputs")
def tanh_for_pixels():
    x, _ = images()
    flat = x.reshape(len(x), -1).astype("float32")
    model = dense(layers.Dense(192, "tanh"), loss="mse", width=192)
    return model, batched(flat / 255, flat)


@faulty("overfit one batch")
def rate_far_too_large():
    x, y = table()
    model = dense(layers.Dense(3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.compile(keras.optimizers.SGD(300.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batched(x, y)


@faulty("overfit one batch")
def rate_that_diverges():
    x, y = numbers()
    model = dense(layers.Dense(1), loss="mse")
    model.compile(keras.optimizers.SGD(3.0), "mse")
    return model, batched(x, y)


@faulty("gradients")
def rounded():
    class Rounds(layers.Layer):
        def call(self, x):
            return keras.ops.round(4 * x) / 4

    x, y = numbers()
    return dense(Rounds(), layers.Dense(1), loss="mse"), batched(x, y)


@faulty("cross-example leakage")
def centred_by_the_batch():
    class Centres(layers.Layer):
        def call(self, x):
            return x - keras.ops.mean(x, axis=0, keepdims=True)

    x, y = numbers()
    return dense(Centres(), layers.Dense(1), loss="mse"), batched(x, y)


@faulty("label leakage")
def bidirectional_language_model():
    found = tokens()
    model = keras.Sequential(
        [keras.Input((12,)), layers.Embedding(20, 8), layers.Bidirectional(layers.GRU(8, return_sequences=True))]
    )
    model.add(layers.Dense(20))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batched(found[:, :-1], found[:, 1:])


@faulty("label leakage")
def targets_shifted_twice():
    found = random().integers(1, 20, (64, 14)).astype("int32")
    return language_model(), batched(found[:, :-2], found[:, 2:])


@faulty("padding")
def tagger_without_weights():
    found = padded_tokens()
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 8), layers.GRU(8, return_sequences=True)])
    model.add(layers.Dense(3))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batched(found, (found % 3).astype("int32"))


@faulty("the model takes the batch")
def overflow_in_a_step():
    x, y = numbers()
    model = dense(layers.Dense(16, "exponential"), layers.Dense(1), loss="mse")
    model.layers[1].kernel.assign(100 * model.layers[1].kernel)
    return model, batched(100 * x, y)


@faulty("gradients")
def expert_chosen_by_argmax():
    inputs = keras.Input((8,))
    chosen = keras.ops.one_hot(keras.ops.argmax(layers.Dense(3, name="router")(inputs), axis=-1), 3)
    experts = keras.ops.stack([layers.Dense(8, "tanh")(inputs) for _ in range(3)], axis=1)
    model = keras.Model(inputs, layers.Dense(1)(keras.ops.sum(experts * chosen[:, :, None], axis=1)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(*numbers())


@faulty("start")
def prices_not_scaled():
    x, y = prices()
    return dense(layers.Dense(32, "relu"), layers.Dense(1), loss="mse", width=16), batched(x, (y - 5000) / 50)


@healthy
def best_expert_weighed():
    inputs = keras.Input((8,))
    shares = layers.Dense(3, "softmax")(inputs)
    best = keras.ops.max(shares, axis=-1, keepdims=True)
    kept = keras.ops.where(shares >= best, shares, 0.0)
    experts = keras.ops.stack([layers.Dense(8, "tanh")(inputs) for _ in range(3)], axis=1)
    model = keras.Model(inputs, layers.Dense(1)(keras.ops.sum(experts * kept[:, :, None], axis=1)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(*numbers())


@healthy
def prices_in_the_order_of_time():
    x, y = prices()
    scale = layers.Normalization()
    scale.adapt(x)
    model = keras.Sequential([keras.Input((16,)), scale, layers.Dense(16, "relu"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, batched(x, (y - y.mean()) / y.std())


@healthy
def two_towers():
    one, two = keras.Input((8,)), keras.Input((8,))
    tower = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(4)])
    model = keras.Model([one, two], layers.Dot(-1)([tower(one), tower(two)]))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    x, _ = numbers()
    other = np.where(random().random((len(x), 1)) < 0.5, x, -x).astype("float32")
    same = (x[:, :1] == other[:, :1]).astype("float32")
    return model, tf.data.Dataset.from_tensor_slices(((x, other), same)).batch(16)


@healthy
def classes_as_logits():
    x, y = table()
    return dense(layers.Dense(3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)), batched(x, y)


@healthy
def rare_class():
    x, _ = table(examples=256)
    model = dense(layers.Dense(1), loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model, batched(x, (x[:, 0] > 1.6).astype("float32"))


@healthy
def absolute_error_of_large_targets():
    x, y = numbers()
    return dense(layers.Dense(1), loss="mae", rate=0.05), batched(x, 20 * y)


@healthy
def counts():
    x, y = numbers()
    return dense(layers.Dense(1, "softplus"), loss="poisson"), batched(x, np.floor(np.exp(y)).astype("float32"))


@healthy
def two_inputs():
    x, y = numbers()
    one, two = keras.Input((8,), name="one"), keras.Input((8,), name="two")
    joined = layers.Concatenate()([one, two])
    model = keras.Model({"one": one, "two": two}, layers.Dense(1)(layers.Dense(16, "relu")(joined)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, tf.data.Dataset.from_tensor_slices(({"one": x, "two": -x}, y)).batch(16)


@healthy
def images_rescaled_inside():
    x, y = images(128)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Rescaling(1 / 127.5, -1), layers.Conv2D(8, 3, activation="relu")]
    )
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(2, "softmax"))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(x[:64], y[:64]), batched(x[64:], y[64:])


@healthy
def batch_normalization():
    x, y = images()
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Rescaling(1 / 255), layers.Conv2D(8, 3)])
    for layer in (layers.BatchNormalization(), layers.ReLU(), layers.Flatten(), layers.Dense(2, "softmax")):
        model.add(layer)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def segmentation():
    x, _ = images()
    y = (x.mean(-1) > 120).astype("int32")
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Rescaling(1 / 255), layers.Conv2D(8, 3, padding="same")])
    model.add(layers.Conv2D(2, 1, activation="softmax"))
    model.compile(keras.optimizers.Adam(0.03), "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def autoencoder():
    x, _ = numbers()
    return dense(layers.Dense(8), loss="mse"), batched(x, x)


@healthy
def pixels_with_sigmoid():
    x, _ = images()
    flat = x.reshape(len(x), -1).astype("float32") / 255
    return dense(layers.Dense(192, "sigmoid"), loss="binary_crossentropy", width=192), batched(flat, flat)


@healthy
def causal_language_model():
    found = tokens()
    return language_model(), batched(found[:, :-1], found[:, 1:])


@healthy
def language_model_in_bfloat16():
    found = tokens()
    return language_model(dtype="mixed_bfloat16"), batched(found[:, :-1], found[:, 1:])


@healthy
def language_model_with_weights():
    found = padded_tokens(length=13)
    weights = (found[:, :-1] != 0).astype("float32")
    return language_model(), batched(found[:, :-1], found[:, 1:], weights)


@healthy
def language_model_with_ignored_class():
    found = padded_tokens(length=13)
    targets = np.where(found[:, :-1] == 0, -1, found[:, 1:])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    return language_model(loss=loss), batched(found[:, :-1], targets)


@healthy
def recurrent_language_model():
    found = tokens()
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 16), layers.GRU(16, return_sequences=True)])
    model.add(layers.Dense(20))
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batched(found[:, :-1], found[:, 1:])


@healthy
def masked_language_model():
    found = tokens(length=12)
    hidden = random().random(found.shape) < 0.3
    return language_model(causal=False), batched(np.where(hidden, 0, found), found, hidden.astype("float32"))


@healthy
def encoder():
    found = padded_tokens()
    inputs = keras.Input((12,), dtype="int32")
    x = layers.Embedding(20, 16, mask_zero=True)(inputs)
    x = layers.MultiHeadAttention(2, 8)(x, x)
    model = keras.Model(inputs, layers.Dense(3, "softmax")(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(found, found[:, 0] % 3)


@healthy
def from_sequence_to_sequence():
    source, target = tokens(length=10), tokens(length=13)
    one, two = keras.Input((10,), dtype="int32"), keras.Input((12,), dtype="int32")
    memory = layers.Embedding(20, 16)(one)
    x = layers.Embedding(20, 16)(two)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)])
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, memory)])
    model = keras.Model([one, two], layers.Dense(20)(x))
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = tf.data.Dataset.from_tensor_slices(((source, target[:, :-1]), target[:, 1:])).batch(16)
    return model, data


@healthy
def sample_weights():
    x, y = numbers()
    weights = random().integers(0, 3, len(x)).astype("float32")
    return dense(layers.Dense(1), loss="mse"), batched(x, y, weights)


@healthy
def momentum_and_decay():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=1e-4, clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, batched(x, y)


@healthy
def embeddings_of_categories():
    codes = random().integers(0, 10, (128, 3)).astype("int32")
    inputs = keras.Input((3,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(10, 4)(inputs))
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model, batched(codes, (codes[:, :1] > 4).astype("float32"))


@healthy
def own_loss():
    x, y = numbers()

    def smooth(target, output):
        return tf.reduce_mean(tf.sqrt(1e-3 + tf.square(target - output)), -1)

    return dense(layers.Dense(1), loss=smooth), batched(x, y)


@healthy
def list_of_batches():
    x, y = numbers()
    model = dense(layers.Dense(1), loss="mse")
    return model, [(x[i : i + 16], y[i : i + 16]) for i in range(0, 128, 16)]


@healthy
def sequence_of_keras():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 8

        def __getitem__(self, number):
            x, y = numbers()
            return x[16 * number : 16 * number + 16], y[16 * number : 16 * number + 16]

    return dense(layers.Dense(1), loss="mse"), Batches()


@healthy
def forecast_with_causal_convolution():
    walk = np.cumsum(random().normal(size=(64, 17, 2)), 1).astype("float32") / 4
    model = keras.Sequential([keras.Input((16, 2)), layers.Conv1D(8, 3, padding="causal"), layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model, batched(walk[:, :-1], walk[:, 1:])


@healthy
def three_outputs_with_loss_weights():
    x, y = table()
    inputs = keras.Input((8,))
    hidden = layers.Dense(32, "relu")(inputs)
    heads = {"kind": layers.Dense(3), "first": layers.Dense(1, "sigmoid"), "size": layers.Dense(1)}
    model = keras.Model(inputs, {name: layer(hidden) for name, layer in heads.items()})
    of_kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"kind": of_kind, "first": "binary_crossentropy", "size": "mse"}
    model.compile(keras.optimizers.Adam(0.01), losses, loss_weights={"kind": 1.0, "first": 0.3, "size": 0.1})
    targets = {"kind": y, "first": (y == 0).astype("float32"), "size": x.mean(1)}
    return model, batched(x, targets)


class SquaresAsTheyAre(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_mean((y_true - y_pred) ** 2, -1)


class Contrasts(keras.losses.Loss):
    """Makes features of the same class similar; overrides __call__, as many copies of this loss do."""

    def __call__(self, labels, features, sample_weight=None):
        features = tf.math.l2_normalize(features, 1)
        scores = tf.matmul(features, features, transpose_b=True) / 0.1
        same = tf.cast(labels[:, None] == labels[None], "float32")
        same /= tf.reduce_sum(same, 1, keepdims=True)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(same, scores))


class Ranks(keras.losses.Loss):
    def call(self, y_true, y_pred):
        y_true, y_pred = (tf.reshape(each, [-1]) for each in (y_true, y_pred))
        above = tf.cast(y_true[:, None] > y_true[None], "float32")
        return above * tf.nn.softplus(y_pred[None] - y_pred[:, None])


def speech(labels, steps=20, classes=6):
    x = random().normal(size=(len(labels), steps, 4)).astype("float32")
    inputs = keras.Input((steps, 4))
    model = keras.Model(inputs, layers.Dense(classes)(layers.GRU(16, return_sequences=True)(inputs)))
    model.compile(keras.optimizers.Adam(0.01), keras.losses.CTC())
    return model, batched(x, labels.astype("int32"))


def translation(weighed):
    """Padded sources and targets of different lengths; the outputs have the positions of the target."""
    source, target = padded_tokens(length=12), padded_tokens(length=13)[::-1].copy()
    one, two = (keras.Input((12,), dtype="int32", name=name) for name in ("source", "target"))
    memory = layers.Embedding(20, 16)(one)
    x = layers.Embedding(20, 16)(two)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)])
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, memory)])
    model = keras.Model({"source": one, "target": two}, layers.Dense(20)(x))
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    parts = [{"source": source, "target": target[:, :-1]}, target[:, 1:]]
    return model, batched(*parts, *([(target[:, 1:] > 0).astype("float32")] if weighed else []))


def two_heads(x, y):
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    model = keras.Model(inputs, {"kind": layers.Dense(3, "softmax")(hidden), "size": layers.Dense(1)(hidden)})
    model.compile(keras.optimizers.Adam(0.01), {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model, batched(x, {"kind": y, "size": x[:, :1] + x[:, 1:2]}, size=8)


@faulty("targets")
def broadcast_in_a_loss_of_its_own():
    x, y = numbers()
    return dense(layers.Dense(1), loss=SquaresAsTheyAre()), batched(x, y[:, 0])


@faulty("targets")
def ctc_labels_beyond_the_classes():
    return speech(random().integers(1, 9, (32, 5)))


@faulty("targets")
def ctc_filled_up_with_minus_one():
    return speech(np.where(np.arange(5) < 3, random().integers(1, 6, (32, 5)), -1))


@faulty("order of classes")
def one_of_two_targets_sorted():
    x, y = table(examples=192)
    order = np.argsort(y, kind="stable")
    return two_heads(x[order], y[order])


@faulty("padding")
def target_padding_is_trained():
    return translation(weighed=False)


@faulty("padding")
def padding_behind_a_softmax():
    found = padded_tokens(length=13)
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 8), layers.GRU(8, return_sequences=True)])
    model.add(layers.Dense(20, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(found[:, :-1], found[:, 1:])


@faulty("frozen layers")
def frozen_convolutions_without_a_bias():
    x, y = images()
    base = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(32, 3, use_bias=False), layers.BatchNormalization()])
    base.trainable = False
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Rescaling(1 / 255), base, layers.Flatten()])
    model.add(layers.Dense(2, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(x, y)


@healthy
def two_targets_mixed():
    return two_heads(*table(examples=192))


@healthy
def translation_with_weights():
    return translation(weighed=True)


@healthy
def translation_with_a_padded_source():
    model, _ = translation(weighed=True)
    target = tokens(length=13)
    return model, batched({"source": padded_tokens(length=12), "target": target[:, :-1]}, target[:, 1:])


@healthy
def speech_recognition():
    return speech(random().integers(1, 6, (32, 5)))


@healthy
def contrasts_of_classes():
    return dense(layers.Dense(16), loss=Contrasts()), batched(*table())


@healthy
def ranks():
    x, y = numbers()
    return dense(layers.Dense(1), loss=Ranks()), batched(x, y[:, 0])


class OfRows(keras.Model):
    """A model with tensors in its batches that do not have one row per example."""

    def __init__(self, width=1):
        super().__init__()
        self.hidden, self.last = layers.Dense(8), layers.Dense(width)


@healthy
def graphs():
    class Pools(OfRows):
        def call(self, x):
            graph_of_node = tf.repeat(tf.range(tf.shape(x["lengths"])[0]), x["lengths"])
            return self.last(tf.math.segment_mean(self.hidden(x["a_nodes"]), graph_of_node))

    draw, batches = random(), []
    for _ in range(6):
        lengths = draw.integers(3, 9, 8).astype("int32")
        nodes = draw.normal(size=(lengths.sum(), 3)).astype("float32")
        targets = np.add.reduceat(nodes[:, :1], np.cumsum([0, *lengths[:-1]])) / lengths[:, None]
        batches.append(({"a_nodes": nodes, "lengths": lengths}, targets))
    model = Pools()
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model, batches


@healthy
def queries_against_a_table():
    class Scores(OfRows):
        def call(self, x):
            return tf.matmul(self.hidden(x["query"]), self.hidden(x["table"]), transpose_b=True)

    draw, batches = random(), []
    for _ in range(6):
        query, rows = draw.normal(size=(8, 3)).astype("float32"), draw.normal(size=(16, 3)).astype("float32")
        batches.append(({"query": query, "table": rows}, (query @ rows.T).argmax(1)))
    model = Scores()
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, batches


@healthy
def a_scalar_in_the_batch():
    class Scales(OfRows):
        def call(self, x):
            return self.last(x["values"]) * x["zoom"]

    draw = random()
    parts = [draw.normal(size=(8, 3)).astype("float32") for _ in range(6)]
    model = Scales()
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model, [({"zoom": np.float32(0.5), "values": x}, x[:, :1] + x[:, 1:2]) for x in parts]


@healthy
def stateful_recurrence():
    x = random().normal(size=(64, 5, 3)).astype("float32")
    inputs = keras.Input((5, 3), batch_size=16)
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(8, stateful=True)(inputs)))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model, batched(x, x.mean((1, 2))[:, None])


@healthy
def activity_regularized():
    model = dense(layers.Dense(8, activity_regularizer="l2"), layers.Dense(1), loss="mse")
    return model, batched(*numbers())


@healthy
def frozen_convolution_with_biases_of_0():
    """As if converted from another framework, where biases before a batch normalization are left out."""
    convolution, statistics = layers.Conv2D(32, 3, trainable=False), layers.BatchNormalization(trainable=False)
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Rescaling(1 / 255), convolution, statistics])
    model.add(layers.Flatten())
    model.add(layers.Dense(2, "softmax"))
    convolution.kernel.assign(random().laplace(0, 0.1, convolution.kernel.shape))
    statistics.moving_mean.assign(random().normal(0, 0.1, 32))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(*images())


@healthy
def metric_in_python():
    def hits(y, outputs):
        return tf.constant(float(np.mean(y.numpy() == outputs.numpy().argmax(-1))))

    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=[hits], run_eagerly=True)
    return model, batched(*table())


@healthy
def normalization_behind_rescaling():
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Rescaling(1 / 255), layers.Normalization()])
    model.add(layers.Flatten())
    model.add(layers.Dense(2, "softmax"))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    return model, batched(*images())


@healthy
def softmax_of_which_keras_takes_the_logits():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return dense(layers.Dense(3, "softmax"), loss=loss), batched(*table())


@healthy
def full_batch():
    x, y = numbers()
    return dense(layers.Dense(1), loss="mse"), tf.data.Dataset.from_tensors((x, y)).repeat()


@healthy
def only_an_added_loss():
    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean((x - 3) ** 2))
            return x

    return dense(layers.Dense(4), Adds(), loss=None), batched(numbers()[0])
