"""A chunked head equals full logits in loss, gradients and metrics, without materializing them, or is refused."""

import copy
import pickle
import warnings
from functools import cache, partial

import numpy as np
import pytest
from equal_models import on, precision
from tiers import in_two_tiers

import bigtrain_nb as bt
from bigtrain_nb.common.keras_compat import operations_within
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train.in_place import own_class

layers = keras.layers
WORDS, LENGTH, WIDTH, EXAMPLES = 61, 5, 8, 6
Sparse = keras.losses.SparseCategoricalCrossentropy


def tokens(count=EXAMPLES, seed=0):
    """Return tokens, next tokens and a weight per position; 0 is padding."""
    random = np.random.default_rng(seed)
    rows = random.integers(1, WORDS, (count, LENGTH + 1)).astype("int32")
    there = np.arange(LENGTH + 1) < random.integers(3, LENGTH + 2, (count, 1))
    rows *= there
    return rows[:, :-1], rows[:, 1:], there[:, 1:].astype("float32")


def dense(x, embedding, **settings):
    return layers.Dense(WORDS, name="head", **settings)(x)


HEADS = {
    "dense": dense,
    "no bias": lambda x, embedding: dense(x, embedding, use_bias=False),
    "softmax": lambda x, embedding: dense(x, embedding, activation="softmax"),
    "cast": lambda x, embedding: layers.Activation("linear", dtype="float32")(dense(x, embedding)),
    "operations": lambda x, embedding: keras.ops.tanh(dense(x, embedding) / 5) * 5,
    "tied": lambda x, embedding: embedding(x, reverse=True),
}
EMBEDDINGS = {"tied": {}, "untied": {"tie_weights": False}, "capped": {"logit_soft_cap": 3.0}}
HEADS |= dict.fromkeys(EMBEDDINGS, HEADS["tied"])
DRAWN = [*HEADS]
HEADS["in 32 bits"] = lambda x, embedding: dense(x, embedding, dtype="float32")


def network(head="dense", mask_zero=False, seed=1, make=keras.Model):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.ReversibleEmbedding(WORDS, WIDTH, mask_zero=mask_zero, **EMBEDDINGS.get(head, {}))
    x = layers.Dense(WIDTH, "gelu", name="block")(embedding(inputs))
    model = make(inputs, HEADS[head](layers.LayerNormalization()(x), embedding))
    for number, weight in enumerate(model.weights):
        weight.assign(weight + 0.3 * np.random.default_rng(number).normal(size=weight.shape))
    return model


def compiled(model, loss=None, **settings):
    settings = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"], **settings}
    settings = {"optimizer": keras.optimizers.SGD(0.5), "loss": loss or Sparse(from_logits=True), **settings}
    model.compile(**settings)
    return model


def fitted(model, data=None, **settings):
    x, y, weight = data or tokens(14)
    model.fit(x, y, 4, sample_weight=weight, shuffle=False, verbose=0, **settings)
    return model


def assert_equal(model, stock, within=2e-6):
    """Assert that two models have the same final weights and logs."""
    for one, other in zip(model.get_weights(), stock.get_weights(), strict=True):
        assert np.abs(one - other).max() < within * (1 + np.abs(other).max())
    assert model.history.history.keys() == stock.history.history.keys()
    for name, values in stock.history.history.items():
        np.testing.assert_allclose(model.history.history[name], values, rtol=10 * within, err_msg=name)


# Exact


def drawn_settings(seed):
    """Return randomly drawn settings of a network, its loss and its data."""
    random = np.random.default_rng(seed)
    head = str(random.choice(DRAWN))
    x, y, weight = tokens(seed=seed)
    settings = {"reduction": str(random.choice(["sum_over_batch_size", "sum", "mean_with_sample_weight"]))}
    settings |= {"from_logits": head != "softmax", "dtype": "float64"}
    if random.uniform() < 0.3:
        loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1, **settings)
        y = np.eye(WORDS, dtype="float32")[y]
    else:
        left_out = [None, 0, -100][random.integers(3)]
        y = np.where(y == 0, left_out, y) if left_out is not None else y
        loss = Sparse(ignore_class=left_out, **settings)
    if left_out_somewhere(loss, y):  # Keras' accuracy refuses absent classes
        metrics = {"metrics": None, "weighted_metrics": []}
    else:
        entropy = keras.metrics.SparseCategoricalCrossentropy if y.ndim == 2 else keras.metrics.CategoricalCrossentropy
        again = partial(entropy, from_logits=head != "softmax")
        metrics = {"metrics": ["accuracy", again()], "weighted_metrics": ["accuracy", again()]}
    weight = [None, weight, 1.5 * weight, np.linspace(0.5, 2, EXAMPLES)[:, None]][random.integers(4)]
    rows = int(random.choice([1, 4, 7, 10, 29, 30, 100]))
    return head, bool(random.integers(2)), loss, metrics, (x, y, weight), rows


def left_out_somewhere(loss, y):
    return getattr(loss, "ignore_class", None) == -100 and y.min() == -100


def one_step(seed, chunked):
    head, mask_zero, loss, metrics, (x, y, weight), rows = drawn_settings(seed)
    with precision("float64"):
        model = network(head, mask_zero)
    if seed % 5 == 0:
        model.layers[-1 if head in ("dense", "softmax", "no bias") else 1].trainable = False
    compiled(model, loss, run_eagerly=seed % 7 == 0, jit_compile=seed % 4 == 1 and seed % 7 > 0, **metrics)
    if chunked:
        bt.chunk_head(model, rows=rows)
    return model.train_on_batch(x, y, sample_weight=weight, return_dict=True), model.get_weights()


COVERING = [5, 9, 14, 16, 17, 20, 21, 22]
"""Draw every head, loss, reduction and kind of weights, with several chunks."""


@pytest.mark.parametrize("seed", in_two_tiers(range(60), COVERING, pytest.mark.more("more of what is drawn")))
def test_a_step_of_drawn_settings_is_that_of_whole_logits(seed):
    (logs, weights), (stock_logs, stock_weights) = one_step(seed, True), one_step(seed, False)
    assert logs == pytest.approx(stock_logs, rel=2e-6), drawn_settings(seed)
    for one, other in zip(weights, stock_weights, strict=True):
        assert np.abs(one - other).max() < 1e-7, drawn_settings(seed)


def of(**settings):
    return lambda model: bt.Model.of(model, **settings)


def lora_and_recomputed(model):
    for layer in model.layers:
        if isinstance(layer, layers.Dense):
            layer.enable_lora(2)
    return bt.recompute(model, "block")


TRAININGS = {
    "steps_per_execution": ("tied", lambda model: model, {"steps_per_execution": 2}),
    "XLA, micro-batches, steps_per_execution": (
        "tied",
        of(micro_batches=2),
        {"jit_compile": True, "steps_per_execution": 2},
    ),
    "LoRA, recompute": ("dense", lora_and_recomputed, {}),
    "micro-batches": ("capped", of(micro_batches=3), {"optimizer": keras.optimizers.SGD(0.5, global_clipnorm=0.1)}),
}
OTHER_DATA = {"validation_data": tokens(9, seed=3), "validation_batch_size": 4}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_ends_where_that_of_whole_logits_ends(name):
    """In the other order: notebooks 10 and 14, and the test of two replicas."""

    def trained(change):
        head, prepare, settings = TRAININGS[name]
        model = compiled(prepare(change(network(head, mask_zero=True))), **copy.deepcopy(settings))
        return fitted(model, **OTHER_DATA)

    assert_equal(trained(partial(bt.chunk_head, rows=7)), trained(lambda model: model))


IGNORING = Sparse(from_logits=True, ignore_class=0)
REPLICAS = [{"micro_batches": 2}, {"shard_optimizer": True}, {"fully_shard": "block"}]


@cache
def of_one_device():
    return fitted(compiled(bt.Model.of(network(mask_zero=True)), IGNORING), **OTHER_DATA)


@pytest.mark.parametrize("settings", REPLICAS, ids=str)
def test_two_replicas_end_where_one_device_ends(settings):
    with on(2):
        model = compiled(bt.chunk_head(bt.Model.of(network(mask_zero=True), **settings), rows=3), IGNORING)
    assert_equal(fitted(model, **OTHER_DATA), of_one_device(), within=1e-5)


def test_in_16_bits_it_is_as_far_from_32_as_whole_logits_are():
    def moved(chunked, policy):
        with precision(policy):
            model = network("tied")
        before = model.get_weights()
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**12)
        compiled(model, optimizer=optimizer)
        fitted(bt.chunk_head(model, rows=7) if chunked else model)
        return np.concatenate([np.ravel(a - b) for a, b in zip(model.get_weights(), before, strict=True)])

    exact, stock, chunked = moved(False, "float32"), moved(False, "mixed_float16"), moved(True, "mixed_float16")
    far, stock_far = (np.linalg.norm(one - exact) / np.linalg.norm(exact) for one in (chunked, stock))
    assert far < max(4e-3, 1.5 * stock_far)


def test_a_head_in_32_bits_of_a_model_in_16_computes_in_32():
    def trained(chunked):
        with precision("mixed_bfloat16"):
            model = compiled(network("in 32 bits"))
        return fitted(bt.chunk_head(model, rows=7) if chunked else model, tokens(4))

    assert_equal(trained(True), trained(False))


def test_a_sequential_model_and_one_row_for_each_example():
    def model(chunked, returns):
        keras.utils.set_random_seed(1)
        recurrent = layers.GRU(WIDTH, return_sequences=returns)
        inputs = keras.Input((LENGTH,)), layers.Embedding(WORDS, WIDTH)
        made = keras.Sequential([*inputs, recurrent, layers.Dense(WORDS)])
        return compiled(bt.chunk_head(made, rows=3) if chunked else made)

    for returns in (True, False):
        x, y, weight = tokens(14)
        data = x, y if returns else y[:, :1], weight if returns else None
        assert_equal(fitted(model(True, returns), data), fitted(model(False, returns), data), within=1e-5)


# In place


def test_all_but_steps_is_stock(tmp_path):
    stock, model = compiled(network()), bt.chunk_head(compiled(network()), rows=4)
    x, _, _ = tokens()
    assert own_class(model) is type(stock)
    np.testing.assert_array_equal(model.predict(x, verbose=0), stock.predict(x, verbose=0))
    assert tf.is_tensor(model(x, training=True))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras")(x), stock(x))
    for same in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert same.rows_of_logits == 4
    assert graph_of(model)[0] == 4
    assert graph_of(bt.chunk_head(model, rows=False))[0] == 8 * LENGTH


def operations_of_a_step(model):
    x, y, weight = tokens(8)

    def step(x, y, weight):
        return model.train_step((x, y, weight))

    batch = [tf.constant(each) for each in (x, y, weight)]
    graph = tf.function(step, autograph=False).get_concrete_function(*batch).graph
    return operations_within(graph.get_operations())


def graph_of(model):
    """Return the largest row count of tensors [*, vocabulary] in a traced step, and all row counts."""
    shapes = [one.shape for operation in operations_of_a_step(model) for one in operation.outputs]
    of_words = [shape for shape in shapes if shape.rank and shape.rank > 1 and shape[-1] == WORDS]
    rows = {shape[:-1].num_elements() for shape in of_words} - {WIDTH}  # a kernel is [width, vocabulary]
    return max(rows - {None}), rows


@pytest.mark.parametrize("head", ["tied", "operations"])
def test_no_logits_of_more_rows_than_a_chunk_are_in_the_graph_of_a_step(head):
    largest, rows = graph_of(bt.chunk_head(compiled(network(head)), rows=10))
    assert largest == 10 and None not in rows


@pytest.mark.parametrize("head", ["tied", "capped"])
def test_a_tied_head_transposes_neither_embeddings_nor_their_gradient(head):
    operations = operations_of_a_step(bt.chunk_head(compiled(network(head)), rows=10))
    in_loop = [one for one in operations if "while" in one.name and one.type == "Transpose"]
    assert not [one for one in in_loop if WORDS in one.outputs[0].shape]


def test_metrics_see_the_parts_of_a_chunk_one_after_another():
    operations = operations_of_a_step(bt.chunk_head(compiled(network()), rows=64))
    first, second = (one for one in operations if one.type == "Slice" and one.outputs[0].shape[-1] == WORDS)
    earlier = [second]
    for operation in earlier:  # grows during the loop
        needed = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
        earlier += [one for one in needed if one not in earlier]
    assert first in earlier


def test_a_metric_that_subtracts_cumulative_sums_is_taken_with_several_columns():
    inputs = keras.Input((7,))
    model = bt.chunk_head(keras.Model(inputs, layers.Dense(4, "sigmoid")(inputs)), rows=4)
    model.compile("sgd", "binary_crossentropy", weighted_metrics=[keras.metrics.AUC()])
    random = np.random.default_rng(1)
    x, y = random.normal(size=(10, 7)).astype("float32"), random.integers(0, 2, (10, 4))
    assert model.train_on_batch(x, y, sample_weight=random.uniform(0, 2, 10)) is not None


def test_a_metric_of_probabilities_computes_from_the_logits_as_the_loss_does():
    metrics = {"metrics": [keras.metrics.SparseCategoricalCrossentropy("entropy")]}
    logs = []
    for change in (lambda model: model, partial(bt.chunk_head, rows=7)):
        model = network("softmax")
        model.get_layer("head").kernel.assign(200 * model.get_layer("head").kernel)
        model = compiled(change(model), Sparse(), weighted_metrics=[], **metrics)
        logs.append(model.evaluate(*tokens(14)[:2], verbose=0, return_dict=True))
    assert logs[1] == pytest.approx(logs[0], rel=1e-5) and logs[0]["entropy"] > 20


class ReadingMetrics(keras.Model):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "most": tf.reduce_max(y_pred)}


class ReadingLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        far = tf.reduce_mean(abs(2 * y_pred[:, :-1] - 1) / (y_pred[:, 1:] ** 2 + 1))
        return super().compute_loss(x, y, y_pred, sample_weight) + far


@pytest.mark.parametrize("make", [ReadingMetrics, ReadingLoss])
def test_who_reads_the_logits_in_a_step_gets_all_of_them_and_a_warning(make):
    stock = fitted(compiled(network(make=make)))
    model = compiled(bt.chunk_head(network(make=make), rows=7))
    with pytest.warns(UserWarning, match="the full logits are computed"):
        fitted(model)
    assert_equal(model, stock, within=1e-5)


# Models that cannot be chunked


class Outermost(keras.metrics.Sum):
    """The sum over batches of the largest logit; with chunks there would be more terms."""

    def update_state(self, y, y_pred, sample_weight=None):
        super().update_state(tf.reduce_max(y_pred))


class OfCalls(keras.metrics.Mean):
    def update_state(self, y, y_pred):
        super().update_state(tf.reduce_mean(y_pred))


def against_the_mean(y, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y, y_pred - tf.reduce_mean(y_pred, 0), from_logits=True)


def one_number(y, y_pred):
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True))


def ignoring(y, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True, ignore_class=-1)


class ByItself(keras.losses.Loss):
    def __call__(self, y, y_pred, sample_weight=None):
        return one_number(y, y_pred)


IN_A_STEP = {
    "compares rows": ({"loss": against_the_mean}, "against_the_mean cannot be computed row by row: on random data"),
    "one number": ({"loss": one_number}, "the loss one_number cannot be computed row by row"),
    "masks its values": (
        {"loss": ignoring},
        "the loss ignoring cannot be computed row by row: it could not be computed on random data (it masks its own",
    ),
    "reduces": ({"loss": ByItself()}, "the loss ByItself cannot be computed row by row: it overrides __call__"),
    "two losses": (
        {"loss": [Sparse(), Sparse()], "metrics": None, "weighted_metrics": None},
        "has 2 losses for its one output, of which Keras uses only the first",
    ),
    "no reduction": ({"loss": Sparse(reduction=None)}, "it has reduction=None"),
    "maximum": ({"metrics": [Outermost("outermost")]}, "outermost does not add up row by row: on random data"),
    "without weights": ({"metrics": [OfCalls(name="calls")]}, "calls does not add up row by row: it could not"),
}


@pytest.fixture(scope="module")
def chunked():
    return bt.chunk_head(network(), rows=7)


@pytest.mark.parametrize("name", IN_A_STEP)
def test_a_loss_or_metric_that_rows_do_not_add_up_to_is_refused_by_name(name, chunked):
    settings, words = IN_A_STEP[name]
    compiled(chunked, **settings)
    with pytest.raises(ValueError) as caught:
        fitted(chunked)
    assert words in str(caught.value) and "rows=False" in str(caught.value)


def test_losses_and_metrics_of_ones_own_that_take_row_by_row_are_taken():
    def scaled(y, y_pred):
        return 2 * keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    class Places(keras.metrics.Sum):
        """The number of positions with an odd prediction: each counts 1, however many an example has."""

        def update_state(self, y, y_pred, sample_weight=None):
            super().update_state(tf.argmax(y_pred, -1) % 2, sample_weight)

    stock, model = (compiled(network(), scaled, metrics=[Places("places")]) for _ in range(2))
    assert_equal(fitted(bt.chunk_head(model, rows=7)), fitted(stock))
    assert stock.history.history["places"][0] > 0


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def call(self, x):
        return self.inner(x)


def from_hidden(*ends):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(inputs)
    return keras.Model(inputs, [end(x) for end in ends] if len(ends) > 1 else ends[0](x))


def quantized(model):
    model.quantize("int8")
    return model


def regularized():
    return from_hidden(layers.Dense(3, activity_regularizer="l2", name="head"))


def head_then(layer):
    return from_hidden(lambda x: layer(layers.Dense(WORDS, name="head")(x)))


REFUSED = {
    "subclassed": (Subclassed, "has a custom call or is not built"),
    "recomputed": (lambda: bt.recompute(network()), "recompute only its blocks"),
    "two outputs": (lambda: from_hidden(layers.Dense(3), layers.Dense(3)), "has 2 outputs"),
    "quantized": (lambda: quantized(network()), "is quantized"),
    "regularized": (regularized, "its activity_regularizer"),
    "ids": (lambda: keras.Model(inputs := keras.Input((LENGTH,), dtype="int32"), network()(inputs)), "of int32"),
    "two heads": (lambda: from_hidden(lambda x: layers.Dense(3)(x) + layers.Dense(3)(x)), "of float32, float32"),
    "over places": (lambda: head_then(layers.Softmax(1)), "head (Dense)"),
    "dropout": (lambda: head_then(layers.Dropout(0.5)), "mixes positions in its logits"),
    "batch norm": (lambda: head_then(layers.BatchNormalization()), "mixes positions in its logits"),
    "a kernel per position": (
        lambda: from_hidden(layers.EinsumDense("btd,tdv->btv", (LENGTH, WORDS))),
        "cannot be computed in chunks of rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_head_that_has_no_chunks_is_refused_by_name(name):
    build, words = REFUSED[name]
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        bt.chunk_head(build())


def test_a_model_with_a_chunked_head_is_not_recomputed_entirely():
    model = bt.chunk_head(network())
    with pytest.raises(ValueError, match="recompute its blocks, not the entire model"):
        bt.recompute(model)
    bt.recompute(bt.chunk_head(model, rows=False))


def test_a_head_that_is_sharded_later_is_refused():
    with on(2):
        model = bt.Model.of(bt.chunk_head(network()), fully_shard="head")
        compiled(model)
    with pytest.raises(ValueError, match="head is fully sharded"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted(model)
