"""Losses and outputs over pairs of examples; losses with a custom `__call__`, with state, of unknown sizes."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from equal_models import distance, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train import loss_reduction

Loss = keras.losses.Loss
MICRO_BATCHES, REPLICAS, BOTH = {"micro_batches": 4}, {"replicas": 2}, {"replicas": 2, "micro_batches": 2}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 6)).astype("float32")
CLASSES = RANDOM.integers(0, 3, 24)


class Contrastive(Loss):
    """As in tutorials on supervised contrastive learning, which reduce the loss themselves."""

    def __call__(self, labels, features, sample_weight=None):
        features = tf.math.l2_normalize(features, axis=1)
        others = 1 - tf.eye(tf.shape(labels)[0])
        scores = tf.matmul(features, features, transpose_b=True)
        alike = others * tf.cast(tf.equal(labels[:, None], labels[None]), tf.float32)
        chances = scores - tf.math.log(tf.reduce_sum(others * tf.exp(scores), axis=1, keepdims=True))
        return -tf.reduce_mean(tf.math.divide_no_nan(tf.reduce_sum(alike * chances, 1), tf.reduce_sum(alike, 1)))


class SumByTheGlobalBatch(Loss):
    def __call__(self, y, outputs, sample_weight=None):
        return tf.reduce_sum(outputs**2) / 24


class Several(Loss):
    def __call__(self, y, outputs, sample_weight=None):
        return tf.reduce_sum(outputs**2, 1)


class RowAgainstColumn(Loss):
    """Targets (N,) against outputs (N, 1)."""

    def call(self, y, outputs):
        return (y - outputs[:, :1]) ** 2


def pairs_above_the_diagonal(y, outputs):
    scores = tf.matmul(outputs, outputs, transpose_b=True)
    return tf.boolean_mask(scores, tf.range(tf.shape(scores)[0])[:, None] < tf.range(tf.shape(scores)[0]))


class CountsExamples(Loss):
    def __init__(self):
        super().__init__()
        self.seen = keras.Variable(0.0, trainable=False)

    def call(self, y, outputs):
        self.seen.assign_add(1.0)
        return tf.reduce_mean(outputs**2, 1)


class Counting(Loss):
    """Counts its calls in a TensorFlow variable, assigned in an inner function of the step."""

    def __init__(self, count):
        super().__init__()
        self.count, self.seen = count, tf.Variable([0.0], trainable=False)

    def call(self, y, outputs):
        errors = tf.reduce_mean(outputs**2, 1)
        self.count(self.seen, tf.reduce_mean(errors))
        return errors


COUNTS = {
    "while": lambda seen, size: tf.while_loop(lambda i: i < 1, lambda i: [i + tf.size(seen.assign_add([1.0]))], [0]),
    "function in a branch": lambda seen, size: tf.cond(
        size > -1, lambda: tf.function(lambda: seen.assign_add([1.0]))(), lambda: seen * 1
    ),
    "case": lambda seen, size: tf.switch_case(
        tf.cast(size > -1, tf.int32), [lambda: seen * 1, lambda: seen.assign([1.0])]
    ),
    "slice": lambda seen, size: seen[:1].assign([1.0]),
}


@pytest.mark.parametrize(("count", "eager"), [*((count, False) for count in COUNTS), ("function in a branch", True)])
def test_a_loss_that_assigns_within_a_function_is_refused_and_not_called(count, eager):
    model = compiled(Counting(COUNTS[count]), micro_batches=4, run_eagerly=eager)
    with pytest.raises(ValueError, match="Counting updates its own variables in each call"):
        fit(model)
    assert float(model.loss.seen[0]) == (1 if eager else 0)  # by the step itself


def test_a_loss_that_calls_python_is_not_called_with_drawn_numbers():
    calls = []

    def own(y, outputs):
        def mean_square(outputs):
            calls.append(len(outputs))
            return tf.reduce_mean(outputs**2, 1)

        return tf.ensure_shape(tf.py_function(mean_square, [outputs], tf.float32), outputs.shape[:1])

    with pytest.warns(UserWarning, match="own could not be examined .*it calls Python functions in a step"):
        fit(compiled(own, micro_batches=2))
    assert set(calls) == {12}


def test_drawn_numbers_leave_random_numbers_and_variables_of_a_loss_alone():
    class Noisy(Loss):
        def __init__(self):
            super().__init__()
            self.generator, self.seed = tf.random.Generator.from_seed(1), keras.random.SeedGenerator(1)
            self.pair = tf.Variable([1, 2], trainable=False)  # like the state of a `SeedGenerator`

        def call(self, y, outputs):
            self.pair.assign(self.pair + 1)
            noise = self.generator.normal(tf.shape(outputs)) + keras.random.normal(tf.shape(outputs), seed=self.seed)
            return tf.reduce_mean((outputs + noise) ** 2, 1)

    loss, other = Noisy(), tf.random.Generator.from_seed(1)
    with pytest.warns(UserWarning, match="Noisy could not be examined with random inputs .it draws random numbers"):
        fit(compiled(loss, micro_batches=2))
    assert loss.pair.numpy().tolist() == [3, 4]  # two micro-batches
    assert loss.seed.state.numpy()[1] == 2
    for _ in range(2):
        other.normal([12, 4])
    assert loss.generator.state.numpy().tolist() == other.state.numpy().tolist()


def compiled(loss, replicas=1, micro_batches=1, make=bt.Model, **how):
    keras.utils.set_random_seed(1)
    with on(replicas):
        inputs = keras.Input((6,))
        settings = {} if make is keras.Model else {"micro_batches": micro_batches}
        model = make(inputs, keras.layers.Dense(4)(inputs), **settings)
        model.compile("sgd", loss() if isinstance(loss, type) else loss, **{"jit_compile": False, **how})
    return model


def fit(model, way="fit", y=CLASSES):
    return getattr(model, way)(X, y, batch_size=24, verbose=0, **({"shuffle": False} if way == "fit" else {}))


REFUSED = {
    SumByTheGlobalBatch: (MICRO_BATCHES, "SumByTheGlobalBatch grows with batch size"),
    Several: (REPLICAS, r"Several returns the shape \(.*\), where Keras expects a scalar"),
    RowAgainstColumn: (
        REPLICAS,
        r"the shape \(8, 8\) for 8 examples: .*\(N,\) against \(N, 1\) makes \(N, N\)",
    ),
    pairs_above_the_diagonal: (
        MICRO_BATCHES,
        r"the shape \(28,\) for 8 examples: values for pairs of examples",
    ),
    CountsExamples: (REPLICAS, "CountsExamples updates its own variables in each call"),
}


@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_losses_that_are_no_mean_of_pieces_are_refused_by_name(loss):
    settings, words = REFUSED[loss]
    with pytest.raises(ValueError, match=words):
        fit(compiled(loss, **settings))


def test_an_eager_step_and_an_evaluation_on_replicas_refuse_them_too():
    with pytest.raises(ValueError, match="SumByTheGlobalBatch grows with batch size"):
        fit(compiled(SumByTheGlobalBatch, micro_batches=2, run_eagerly=True))
    with pytest.raises(ValueError, match="SumByTheGlobalBatch grows with batch size"):
        fit(compiled(SumByTheGlobalBatch, 2), "evaluate")


def test_a_loss_that_reduces_by_itself_is_looked_at():
    with pytest.warns(UserWarning, match="Contrastive is one number for a batch, not one for each example"):
        fit(compiled(Contrastive, 2))


def test_a_loss_that_calls_its_super_is_right_and_not_warned_of():
    class Doubled(keras.losses.SparseCategoricalCrossentropy):
        def __call__(self, y, outputs, sample_weight=None):
            return 2 * super().__call__(y, outputs, sample_weight)

    loss = Doubled(from_logits=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(one number|examined|depends)")
        model = compiled(loss, **BOTH)
        fit(model)
    whole = compiled(loss, make=keras.Model)
    fit(whole)
    assert distance(model, whole) < 1e-5
    assert fit(model, "evaluate") == pytest.approx(fit(whole, "evaluate"), rel=1e-5)


def test_a_loss_that_takes_no_drawn_numbers_is_said_to_be_unexamined():
    def ones_only(y, outputs):
        with tf.control_dependencies([tf.debugging.assert_equal(y, tf.fill(tf.shape(y), 7.0))]):
            return tf.reduce_mean(outputs**2, 1)

    def not_finite(y, outputs):
        return tf.reduce_mean(outputs**2, 1) * tf.math.log(y - 6)

    for loss, why, settings in ((ones_only, "did not hold", MICRO_BATCHES), (not_finite, "it is not finite", REPLICAS)):
        with pytest.warns(UserWarning, match=f"(?s){loss.__name__} could not be examined with random inputs .*{why}"):
            fit(compiled(loss, **settings), y=np.full([24, 1], 7.0))


@pytest.mark.parametrize(("replicas", "how"), [(2, {}), (1, {"run_eagerly": True})])
def test_a_loss_is_examined_once_for_batches_of_a_kind(replicas, how):
    calls = []

    def own(y, outputs):
        calls.append(outputs.shape[0])
        return tf.reduce_mean(outputs**2, 1)

    model = compiled(own, replicas, 3, **how)
    drawn = []
    for _ in range(2):
        model.fit(X, CLASSES, batch_size=14, verbose=0)  # and a short batch
        drawn.append(calls.count(8))
    assert drawn[0] == drawn[1] <= 8  # 8 examples are drawn


def test_a_loss_that_is_compared_by_its_values_is_examined_and_forgotten_with_it():
    class Compared(Loss):
        def __eq__(self, other):
            return self.get_config() == other.get_config()

        def call(self, y, outputs):
            return tf.reduce_mean(outputs**2, 1)

    model = compiled(Compared, micro_batches=2)
    fit(model)
    key = id(model.loss)
    assert loss_reduction._KNOWN[key]
    del model
    keras.backend.clear_session()  # collects garbage, too
    assert key not in loss_reduction._KNOWN


def focal(y, outputs):
    logs = tf.gather(tf.nn.log_softmax(outputs), tf.cast(tf.reshape(y, [-1]), tf.int32), batch_dims=1)
    return -((1 - tf.exp(logs)) ** 2) * logs


class ByANetwork(Loss):
    """Compares a frozen network's outputs for targets and outputs."""

    def __init__(self):
        super().__init__()
        self.network = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])

    def call(self, y, outputs):
        return tf.reduce_mean((self.network(tf.reshape(y, [-1, 1])) - self.network(outputs[:, :1])) ** 2, 1)


@pytest.mark.parametrize("loss", [focal, ByANetwork])
def test_right_losses_of_ones_own_are_equal_and_not_warned_of(loss):
    whole = compiled(loss, make=keras.Model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(one number|examined|depends)")
        model = compiled(loss, **BOTH)
        found = fit(model).history["loss"]
    assert found == pytest.approx(fit(whole).history["loss"], rel=1e-5)
    assert distance(model, whole) < 1e-5


def computing(own, is_set=False, loss="mse", **settings):
    """Return a compiled model whose `compute_loss` returns ``own(Keras' loss, x, y, outputs)``."""

    class Own(bt.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return own(super().compute_loss(x, y, y_pred, sample_weight, training), x, y, y_pred)

    if not is_set:
        return compiled(loss, make=Own, **settings)
    model = compiled(loss, **settings)
    model.compute_loss = lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: own(None, x, y, y_pred)
    return model


@pytest.mark.parametrize(
    ("own", "is_set", "settings"),
    [
        (lambda loss, x, y, outputs: loss + 0.1 * tf.reduce_sum(outputs**2), False, MICRO_BATCHES),
        (lambda loss, x, y, outputs: loss + tf.reduce_mean(tf.matmul(outputs, outputs, transpose_b=True)), False, BOTH),
        (
            lambda loss, x, y, outputs: tf.reduce_mean(tf.matmul(outputs, outputs, transpose_b=True)),
            True,
            REPLICAS,
        ),
    ],
    ids=["a sum added to Keras' loss", "pairs added", "pairs alone"],
)
def test_a_compute_loss_that_is_no_mean_over_examples_is_warned_of(own, is_set, settings):
    with pytest.warns(
        UserWarning, match="its compute_loss is one number for a batch.*divide sums by the number of examples"
    ):
        fit(computing(own, is_set, **settings), y=X[:, :4])


def test_a_compute_loss_that_is_a_sum_is_refused():
    with pytest.raises(
        ValueError, match="its compute_loss grows with batch size.*divide by their number in compute_loss"
    ):
        fit(computing(lambda loss, x, y, outputs: tf.reduce_sum((y - outputs) ** 2), **REPLICAS), y=X[:, :4])


@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": True}, {}], ids=str)
def test_a_compute_loss_that_is_several_numbers_is_refused(how):
    model = computing(lambda loss, x, y, outputs: tf.reduce_mean((y - outputs) ** 2, 1), **MICRO_BATCHES)
    model.compile("sgd", **{"jit_compile": False, **how})
    with pytest.raises(ValueError, match=r"its compute_loss returns the shape \((6|None),\), where Keras expects"):
        fit(model, y=X[:, :4])


def test_a_compute_loss_of_one_number_may_keep_its_axis():
    def trained(keepdims):
        model = computing(lambda *given: tf.reduce_mean((given[2] - given[3]) ** 2, keepdims=keepdims), **MICRO_BATCHES)
        fit(model, y=X[:, :4])
        return model.get_weights()

    with pytest.warns(UserWarning, match="one number for a batch"):
        found = trained(True)
    for weight, expected in zip(found, trained(False), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)


def test_a_compute_loss_is_examined_again_after_compile():
    def own(reduce):
        return lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: reduce((y - y_pred) ** 2)

    model = compiled("mse", **MICRO_BATCHES)
    for reduce in (tf.reduce_sum, tf.reduce_mean, tf.reduce_sum):
        model.compute_loss = own(reduce)
        model.compile("sgd", jit_compile=False)
        refused = pytest.raises(ValueError, match="grows with batch size") if reduce is tf.reduce_sum else nullcontext()
        with refused:
            fit(model, y=X[:, :4])


def test_a_loss_of_two_outputs_is_examined_for_each():
    inputs = keras.Input((6,))
    outputs = [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)]
    model = bt.Model(inputs, outputs, micro_batches=2)
    shared = RowAgainstColumn()
    model.compile("sgd", [shared, shared], jit_compile=False)
    with pytest.raises(ValueError, match=r"the shape \(8, 8\) for 8 examples"):
        fit(model, y=(X[:, 0], X[:, :1]))


def test_a_compute_loss_with_random_numbers_is_said_to_be_unexamined():
    def own(loss, x, y, outputs):
        return loss + tf.reduce_mean(outputs * keras.random.normal(tf.shape(outputs)))

    with pytest.warns(UserWarning, match="its compute_loss could not be examined with random inputs .it draws random"):
        fit(computing(own, **MICRO_BATCHES), y=X[:, :4])


@pytest.mark.parametrize(("is_set", "settings"), [(True, MICRO_BATCHES), (False, REPLICAS)], ids=["set", "own"])
def test_a_compute_loss_that_is_a_mean_over_examples_is_not_warned_of(is_set, settings):
    def own(loss, x, y, outputs):
        return tf.reduce_mean((y - outputs) ** 2) + 0.1 * tf.reduce_mean(x[:, :1] * outputs)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*compute_loss")
        fit(computing(own, is_set, **settings), y=X[:, :4])


def test_as_many_classes_as_examples_and_sequences_of_any_length_are_let_through():
    inputs = keras.Input((None, 6))
    words = bt.Model(inputs, keras.layers.Dense(12)(inputs), micro_batches=2)
    words.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    words.fit(np.ones([24, 12, 6]), np.ones([24, 12], int), batch_size=24, verbose=0)


class Retrieval(keras.Model):
    """Scores of queries against the output of `rows` for passages and hard negatives."""

    def __init__(self, rows):
        super().__init__()
        self.dense, self.rows = keras.layers.Dense(4), rows

    def call(self, x, training=False):
        return self.rows(self.dense(x["q"]), self.dense(x["p"]), self.dense(x["n"]), training)


def against(q, rows):
    return tf.matmul(q, rows, transpose_b=True)


def both_views(q, p):
    views = tf.concat([q, p], 0)
    return tf.matmul(views, views, transpose_b=True)


def others(q, p):
    length = tf.shape(q)[0]
    apart = tf.boolean_mask(against(q, p), ~tf.eye(length, dtype=bool))
    return tf.ensure_shape(
        tf.reshape(apart, [length, length - 1]), [q.shape[0], None if q.shape[0] is None else q.shape[0] - 1]
    )


def mean_of_all(q):
    return tf.reduce_mean(q, 0, keepdims=True)


OF_PAIRS = {
    "(B, 2B)": lambda q, p, n, _: against(q, tf.concat([p, n], 0)),
    "(2B, 2B)": lambda q, p, n, _: both_views(q, p),
    "(B, B-1)": lambda q, p, n, _: others(q, p),
    "(B*B, 1)": lambda q, p, n, _: tf.reshape(against(q, p), [-1, 1]),
    "(1, 4)": lambda q, p, n, _: mean_of_all(q),
}
Q, P, N = RANDOM.normal(size=(3, 8, 6)).astype("float32")


def retrieval(rows, loss, replicas=1, micro_batches=1, stock=False):
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = Retrieval(rows) if stock else bt.Model.of(Retrieval(rows), micro_batches=micro_batches)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def as_scores(y, outputs):
    return tf.reduce_logsumexp(outputs, -1)


@pytest.mark.parametrize("name", OF_PAIRS)
def test_outputs_of_which_an_axis_changes_with_the_batch_are_refused(name):
    is_known = name in ("(B, 2B)", "(B*B, 1)")
    data = tf.data.Dataset.from_tensor_slices(({"q": Q, "p": P, "n": N}, np.arange(8)))
    data = data.batch(8, drop_remainder=is_known)
    model = retrieval(OF_PAIRS[name], as_scores, replicas=2 if is_known else 1, micro_batches=2)
    is_first_axis = name in ("(B*B, 1)", "(1, 4)")
    what = "the first axis is not a multiple" if is_first_axis else "an axis other than the first changes"
    for way in ("fit", "evaluate", "predict") if is_known else ("fit",):
        with pytest.raises(ValueError, match=f"for [0-9]+ examples of x/n and x/p and x/q it returns .*{what}"):
            getattr(model, way)(data, verbose=0)


def test_outputs_of_pairs_without_a_loss_are_let_through():
    def rows(q, p, n, _):
        return {"scores": against(q, p), "class": n}

    data = tf.data.Dataset.from_tensor_slices(({"q": Q, "p": P, "n": N}, {"class": np.arange(8) % 4})).batch(8)
    loss = {"class": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    whole, model = retrieval(rows, loss, stock=True), retrieval(rows, loss, 2, 2)
    for each in (whole, model):
        each.fit(data, verbose=0)
    assert distance(model, whole) < 1e-5


def test_words_of_all_sequences_in_one_axis_are_let_through():
    def words(q, p, n, _):
        return tf.reshape(tf.stack([q, p, n], 1), [-1, 4])

    def loss(y, outputs):
        return tf.reduce_mean(outputs**2, -1)

    x = {"q": Q, "p": P, "n": N}
    whole, model = retrieval(words, loss, stock=True), retrieval(words, loss, 2, 2)
    due, found = (each.fit(x, np.arange(8), batch_size=8, verbose=0).history["loss"] for each in (whole, model))
    assert found == pytest.approx(due, rel=1e-5)
    assert distance(model, whole) < 1e-5


def test_what_layers_add_and_keep_in_a_call_is_there_after_their_outputs_were_examined():
    class Keeps(keras.layers.Layer):
        def call(self, x):
            self.kept = tf.reduce_mean(x)
            self.add_loss(tf.reduce_sum(x**2))
            return x

    class Shows(keras.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "kept": self.get_layer("keeps").kept}

    inputs = keras.Input((6,))
    model = bt.Model.of(Shows(inputs, keras.layers.Dense(4)(Keeps(name="keeps")(inputs))), micro_batches=2)
    model.compile("sgd", "mse", jit_compile=False)
    with pytest.warns(UserWarning, match="keeps adds a loss with add_loss"):
        logs = model.fit(X, X[:, :4], batch_size=24, verbose=0).history
    assert logs["kept"] == pytest.approx([X.mean()], rel=1e-4)


@pytest.mark.parametrize("settings", [{"micro_batches": 4}, {"micro_batches": 3, "run_eagerly": True}])
def test_outputs_are_examined_once_for_batches_of_a_kind(settings, monkeypatch):
    asked = []
    shapes_for = loss_reduction._shapes_for
    monkeypatch.setattr(loss_reduction, "_shapes_for", lambda *given: asked.append(given) or shapes_for(*given))
    model = compiled("mse", replicas=2, **settings)
    for _ in range(2):
        model.fit(X, X[:, :4], batch_size=14, verbose=0)  # and a short batch
        model.make_train_function(force=True)
    assert len(asked) == 1
    model.evaluate(X, X[:, :4], batch_size=14, verbose=0)
    model.predict(X, batch_size=14, verbose=0)
    assert len(asked) == 2  # with training=False


class Auxiliary(keras.Model):
    """Has an additional output in training."""

    def __init__(self):
        super().__init__()
        self.dense, self.spare = keras.layers.Dense(4), keras.layers.Dense(4)

    def build(self, shape):
        self.dense.build(shape)
        self.spare.build(shape)

    def call(self, x, training=False):
        return [self.dense(x), self.spare(x)] if training else [self.dense(x)]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred[0], sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred[0], sample_weight)


def test_a_model_with_an_output_for_training_alone_is_examined_in_training():
    def trained(make, replicas=1):
        keras.utils.set_random_seed(1)
        with on(replicas):
            model = make(Auxiliary())
            model.compile("sgd", "mse", jit_compile=False)
        model.fit(X, X[:, :4], batch_size=24, verbose=0)
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*could not be examined")
        model = trained(lambda model: bt.Model.of(model, micro_batches=2), replicas=2)
    assert distance(model, trained(lambda model: model)) < 1e-5


class OfShape(keras.Model):
    """Returns tensors whose static shape is only this."""

    def __init__(self, shape):
        super().__init__()
        self.scale, self.known = self.add_weight((), "ones"), tf.TensorShape(shape)

    def call(self, x):
        return tf.raw_ops.PlaceholderWithDefault(input=x * self.scale, shape=self.known)


def test_outputs_of_an_unknown_shape_are_said_to_be_unexamined():
    model = bt.Model.of(OfShape([None, None]), micro_batches=4)
    model.compile("sgd", lambda y, outputs: tf.reduce_mean((y - outputs) ** 2, -1), jit_compile=False)
    with pytest.warns(UserWarning, match="outputs are for pairs .* could not be examined .it returns the shape"):
        model.fit(X, X, batch_size=24, verbose=0)
    with pytest.warns(UserWarning, match="could not be examined .it returns the shape <unknown> for 24 examples"):
        loss_reduction.refuse_outputs_of_pairs(OfShape(None), tf.constant(X), X, [tf.TensorShape(None)], training=True)
    with pytest.warns(UserWarning, match="could not be examined .it has 2 in a step, but 1 when examined"):
        shapes = [tf.TensorShape([24, 6])]
        loss_reduction.refuse_outputs_of_pairs(model, tf.constant(X), [tf.constant(X)] * 2, shapes, training=True)


def test_a_batch_that_is_not_dense_is_not_taken_for_outputs_of_pairs():
    def fit_sparse(**settings):
        with on(2):
            model = bt.Model.of(keras.Sequential([keras.Input((6,), sparse=True), keras.layers.Dense(1)]))
            model.compile("sgd", "mse", **settings)
        rows = tf.sparse.from_dense(X[:8])
        model.fit(tf.data.Dataset.from_tensor_slices((rows, X[:8, :1])).batch(8, drop_remainder=True), verbose=0)

    with pytest.warns(UserWarning, match=r"could not be examined \(it gets a SparseTensor\)"):
        fit_sparse(run_eagerly=True)
