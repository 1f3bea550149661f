"""`bt.preflight` finds the fault of faulty training, reports no error for healthy training, and changes nothing."""

import inspect
import json
import re
import sys
import time
from collections import deque
from pathlib import Path

import hub_models
import numpy as np
import psutil
import pytest
from trainings import (
    FAULTY,
    HEALTHY,
    batched,
    by_feature,
    dense,
    language_model,
    numbers,
    of_keras_hub,
    padded_tokens,
    table,
    tokens,
)

import bigtrain_nb as bt
from bigtrain_nb.advanced.preflight import memory
from bigtrain_nb.advanced.preflight import preflight as room
from bigtrain_nb.advanced.preflight.__main__ import main
from bigtrain_nb.advanced.preflight.loss import best_constant
from bigtrain_nb.advanced.preflight.training import Training
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
HELPERS = {
    "overfit one batch": ["_own_steps"],
    "order of classes": ["_order_of"],
    "label leakage": ["_answer_within"],
    "memory over passes": ["_tracings"],
}  # {check: helpers that report further lines}
QUICK = ["data", "leaks", "weights move", "outputs and loss", "range of outputs", "dead units", "frozen layers"]


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(1)


def only(model, data, check, **more):
    """Return the finding of one check; the group "memory" has another one."""
    (finding,) = [each for each in bt.preflight(model, data, checks=[check], **more).findings if each.check == check]
    return finding


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_of_a_faulty_training_is_named_with_a_number_and_what_to_do(name):
    build, cause = FAULTY[name]
    model, data, *validation = build()
    report = bt.preflight(model, data, validation=validation[0] if validation else None, checks=[cause])
    assert [finding.check for finding in report.of("error")] == [cause], report
    (error,) = report.of("error")
    assert report.failed and error.advice and re.search(r"\d|Nothing|no examples", error.message)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_gets_no_error(name):
    model, data, *validation = HEALTHY[name]()
    report = bt.preflight(model, data, validation=validation[0] if validation else None, checks=QUICK)
    assert not report.failed, report
    assert not any("It failed" in finding.message for finding in report.findings), report
    assert len(report.of("ok")) >= 3


def weights_after(examine, build):
    """Call ``examine``, then `fit`; return weights, optimizer state and history."""
    keras.utils.set_random_seed(3)
    model, data = build()
    examine(model, data)
    history = model.fit(data, epochs=2, verbose=0).history
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]], history


def with_dropout_and_statistics():
    x, y = table(examples=48)
    hidden = [layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3, "softmax")]
    model = dense(*hidden, loss="sparse_categorical_crossentropy")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(48).batch(16)


def test_fit_afterwards_is_bitwise_identical_with_dropout_statistics_and_a_shuffled_dataset():
    def examine(model, data):
        report = bt.preflight(model, data, minutes=0.15)
        assert report.of("ok")

    weights, history = weights_after(lambda model, data: None, with_dropout_and_statistics)
    others, other_history = weights_after(examine, with_dropout_and_statistics)
    assert history == other_history
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_numbers_go_on_where_they_were():
    model, data = HEALTHY["dropout"]()

    def drawn():
        return float(tf.random.uniform([])), float(keras.random.uniform([])), float(np.random.rand())

    keras.utils.set_random_seed(5)
    drawn()
    expected = drawn()
    keras.utils.set_random_seed(5)
    drawn()
    bt.preflight(model, data, checks=["data", "gradients"])
    assert drawn() == expected


def test_a_check_that_raises_is_a_line(monkeypatch):
    def fails(training):
        raise KeyError("no such thing")

    monkeypatch.setitem(room.GROUPS, "accumulation", {"first": fails, "second": lambda training: None})
    model, data = HEALTHY["regression"]()
    report = bt.preflight(model, data, checks=["accumulation", "finite values"])
    assert [(each.check, each.verdict) for each in report.findings] == [
        ("finite values", "ok"),
        ("first", "skipped"),
    ]
    assert "KeyError: 'no such thing'" in report.findings[1].message and not report.failed


def test_after_the_time_limit_no_check_begins():
    model, data = HEALTHY["regression"]()
    report = bt.preflight(model, data, minutes=1e-6)
    assert {finding.verdict for finding in report.findings} == {"skipped"} and report.seconds < 30
    assert ": give more minutes" in report.findings[0].message


class Slow(layers.Layer):
    def call(self, x):
        time.sleep(0.2)  # eager: at each call
        return x


def test_a_check_that_has_begun_ends_when_the_time_is_over():
    x, y = numbers(examples=32)
    model = dense(Slow(), layers.Dense(1), loss="mse")
    report = bt.preflight(model, batched(x, y, size=16), minutes=0.1)
    cut = [finding for finding in report.of("skipped") if ": give more minutes" in finding.message]
    assert report.of("ok") and cut and report.seconds < 6 + 15, "6 s, and what a busy machine takes for one call more"


def test_stop_leaves_the_model_as_it_was(monkeypatch):
    def stopped(training):
        training.model.train_step(training.first)
        raise KeyboardInterrupt

    monkeypatch.setitem(room.GROUPS, "accumulation", {"first": stopped})
    model, data = HEALTHY["regression"]()
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        bt.preflight(model, data, checks=["accumulation"])
    assert all((one == two).all() for one, two in zip(before, model.get_weights(), strict=True))


def test_a_model_of_an_own_step_is_examined_as_far_as_it_can_be_and_stays_as_it_was():
    model, data = HEALTHY["generative_adversarial"]()
    before = model.get_weights()
    report = bt.preflight(model, data, checks=["overfit one batch", "start", "cross-example leakage"])
    assert {each.check: each.verdict for each in report.findings} == {
        "overfit one batch": "ok",
        "start": "skipped",
        "cross-example leakage": "skipped",
    }
    assert all((one == two).all() for one, two in zip(before, model.get_weights(), strict=True))
    assert int(model.of_judge.iterations) == 0 and not any(
        np.any(slot.numpy()) for slot in model.of_judge.variables[2:]
    )


def test_where_a_mask_is_lost_is_named():
    model, data = FAULTY["mask_lost_at_a_sum"][0]()
    (finding,) = bt.preflight(model, data, checks=["padding"]).of("error")
    assert "lost behind" in finding.message and "so that layer_normalization" in finding.message, finding


def test_the_best_constant_output_has_the_entropy_of_the_labels():
    x, y = table()
    model = dense(layers.Dense(3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    finding = only(model, batched(x, y, size=128), "start")
    shares = np.bincount(y) / len(y)
    said = float(re.search(r"best constant predictor scores (\d+\.\d+)", finding.message)[1])
    assert said == pytest.approx(-(shares * np.log(shares)).sum(), rel=0.02)


def test_a_report_is_shown_in_words_a_card_and_a_page_that_needs_no_network():
    x, y = table()
    model = dense(layers.Dense(3), loss="sparse_categorical_crossentropy")
    report = bt.preflight(model, batched(x, y), checks=["outputs and loss", "finite values"])
    assert "1 error, 1 ok" in report.words() and repr(report).splitlines()[1].startswith("error")
    page = report.html()
    assert page.startswith("<!doctype html>") and 'content="light dark"' in page
    assert not re.search(r"https?://|<script|<link|<img", page)
    assert report.findings[0].message.split(":")[0] in report._repr_html_() and "color: inherit" in report._repr_html_()


SCRIPT = """
import keras, tensorflow as tf

def sick():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, tf.data.Dataset.from_tensor_slices((tf.random.normal([32, 4]), tf.range(32) % 2)).batch(8)

def healthy():
    model, data = sick()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, data

def broken():
    import no_such_module_at_all
"""


def test_the_exit_code_of_the_command_tells(tmp_path, capsys):
    script = tmp_path / "train_of_mine.py"
    script.write_text(SCRIPT)
    page = tmp_path / "report.html"
    checks = ["--checks", "outputs and loss"]
    assert main([f"{script}:sick", *checks, "--html", str(page)]) == 1
    assert "from_logits=True" in capsys.readouterr().out and "from_logits" in page.read_text()
    assert main([f"{script}:healthy", *checks]) == 0
    for words in (f"{script}:nothing", f"{script}:broken", "no_such.py:build", "train.py"):
        with pytest.raises(SystemExit) as ended:
            main([words])
        assert ended.value.code == 2
    assert "No module named 'no_such_module_at_all'" in capsys.readouterr().err


def test_the_name_is_the_function_whatever_is_imported_first():
    assert callable(bt.preflight) and bt.preflight.__module__ == "bigtrain_nb.advanced.preflight.preflight"


def test_causality_is_seen_in_a_language_model_of_ours():
    found = tokens(rows=8)
    model = language_model()
    finding = only(model, batched(found[:, :-1], found[:, 1:], size=8), "label leakage")
    assert "do not change with what comes after t" in finding.message


def test_a_loss_that_compares_examples_is_only_a_warning():
    x, y = numbers(examples=32)

    def of_pairs(target, output):
        return tf.reduce_mean(tf.square((target - target[::-1]) - (output - output[::-1])) * tf.reduce_max(output), -1)

    model = dense(layers.Dense(1), loss=of_pairs)
    report = bt.preflight(model, batched(x, y, size=16), checks=["accumulation"])
    assert not report.failed and report.findings[0].verdict in ("warning", "skipped")


def test_outputs_that_are_random_are_compared_with_the_same_random_numbers_or_not_at_all():
    model, data = HEALTHY["variational_autoencoder"]()
    report = bt.preflight(model, data, checks=["cross-example leakage", "saved and loaded"])
    assert {each.check: each.verdict for each in report.findings} == {
        "cross-example leakage": "ok",
        "saved and loaded": "skipped",
    }

    class Noise(layers.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    finding = only(dense(Noise(), layers.Dense(1), loss="mse"), batched(*numbers()), "cross-example leakage")
    assert finding.verdict == "skipped" and "Outputs are random" in finding.message


def test_dropout_that_acts_in_evaluation_is_a_warning_by_its_name():
    finding = only(*HEALTHY["monte_carlo_dropout"](), "evaluation")
    assert (
        finding.verdict == "warning"
        and "always also drops or adds noise" in finding.message
        and "training=True" in finding.advice
    )
    finding = only(*HEALTHY["classes"](), "evaluation")
    assert finding.verdict == "ok"


def test_examples_that_validation_shares_with_training_are_counted_beside_chance():
    model, data, validation = HEALTHY["few_different_inputs"]()
    finding = only(model, data, "train/validation overlap", validation=validation)
    share, by_chance = (float(each) for each in re.findall(r"(\d+)%", finding.message))
    assert finding.verdict == "ok" and share > 80 and by_chance > 80
    finding = only(model, data, "train/validation overlap", validation=data)
    assert finding.message.startswith("100% of 512 examples of validation are among the 512")
    assert bt.preflight(model, data, checks=["train/validation overlap"]).findings == []


ONE_MORE = pytest.param("generator_that_ends", marks=pytest.mark.more("a fourth fault after which lines go on"))


@pytest.mark.parametrize("name", ["labels_from_one", "wrong_width", ONE_MORE, "reshaped_wrongly"])
def test_what_one_line_has_found_lets_no_other_fail(name):
    checks = ["data", "accumulation", "weights move", "memory"]
    report = bt.preflight(*FAULTY[name][0](), checks=checks, minutes=0.5)
    assert not any("It failed" in finding.message or "\x1b" in finding.message for finding in report.findings), report
    if name == "reshaped_wrongly":
        assert "not 5 or 11" in str(report.of("warning")), report


def test_a_ragged_batch_is_refused_with_what_to_do():
    rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7]])).batch(2)
    model = dense(layers.Dense(1), loss="mse")
    with pytest.raises(TypeError, match=r"RaggedTensor of shape \(2, None\).*x\.to_tensor\(\)"):
        bt.preflight(model, rows.map(lambda x: (x, [1.0, 2.0])))


def test_the_peak_of_steps_is_told_beside_what_the_machine_has(monkeypatch):
    x = np.ones((8192, 256), "float32")
    model = dense(layers.Dense(1024, "relu"), layers.Dense(1), loss="mse", width=256, hidden=1024)
    finding = only(model, batched(x, x[:, :1], size=8192), "memory")
    assert finding.verdict == "ok" and "while 3 steps ran" in finding.message and model.train_function is None
    monkeypatch.setattr(memory, "reset_peak", lambda: False)
    finding = only(model, batched(x, x[:, :1], size=8192), "memory")
    assert "since this process began" in finding.message, finding
    monkeypatch.setattr(memory, "memory_limit", lambda: 1.1 * psutil.Process().memory_info().rss)
    finding = only(model, batched(x, x[:, :1], size=8192), "memory")
    assert finding.verdict == "warning" and "micro_batches=4" in finding.advice, finding


def with_vocabulary(size):
    rows = np.random.default_rng(0).integers(1, size, (16, 33))
    return language_model(length=32, vocabulary=size), batched(rows[:, :-1], rows[:, 1:], size=16)


def test_chunk_head_is_suggested_where_logits_are_over_a_quarter_of_the_planned_peak():
    model, data = with_vocabulary(4096)
    finding = only(model, data, "memory")
    assert finding.verdict == "ok" and finding.notebook == "07", finding
    part = int(re.search(r"Logits of .* are (\d+)% of the planned peak: use bt.chunk_head", finding.advice)[1])
    assert 25 < part < 100
    assert not only(bt.chunk_head(model, rows=64), data, "memory").advice


def test_chunk_head_is_not_suggested_for_a_small_vocabulary_or_a_classifier():
    classifier = dense(layers.Dense(4096), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = table(examples=512)
    for model, data in (with_vocabulary(20), (classifier, batched(x, y, size=512))):
        finding = only(model, data, "memory")
        assert finding.verdict == "ok" and not finding.advice, finding


def test_memory_of_a_task_with_a_preprocessor_is_measured_too():
    model = of_keras_hub(hub_models.gpt2_of_texts())
    texts = tf.data.Dataset.from_tensor_slices(["the hat", "that cat", "then", "a thing"] * 4).batch(8)
    finding = only(model, texts, "memory")
    assert finding.verdict == "ok" and "at most, of the" in finding.message, finding


# Survival


def test_what_stock_keras_loads_in_a_process_without_us_is_compared():
    finding = only(*HEALTHY["classes"](), "saved and loaded")
    assert finding.verdict == "ok" and "by stock Keras in a process without bigtrain_nb" in finding.message, finding


def test_a_class_that_no_new_process_knows_is_a_warning():
    @keras.saving.register_keras_serializable("only_here")
    class Doubles(layers.Layer):
        def call(self, x):
            return 2 * x

    model = dense(Doubles(), layers.Dense(1), loss="mse")
    finding = only(model, batched(*numbers()), "saved and loaded")
    assert finding.verdict == "warning" and "Doubles" in finding.message, finding
    assert "Keras alone cannot load" in finding.message


def test_stopped_and_resumed_it_is_bitwise_identical():
    model, data = HEALTHY["dropout"]()
    finding = only(model, data, "stopped and resumed", minutes=0.5)
    assert finding.verdict == "ok" and "bitwise identical" in finding.message, finding
    finding = only(model, data.shuffle(8), "stopped and resumed", minutes=0.5)
    assert finding.verdict == "warning" and "another order, in each pass" in finding.message, finding


def test_state_that_no_checkpoint_holds_is_a_warning():
    class Remembers(layers.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            return x * (1 + 0.01 * self.calls)

    model = dense(Remembers(), layers.Dense(1), loss="mse")
    finding = only(model, batched(*numbers()), "stopped and resumed", minutes=0.5)
    assert finding.verdict == "warning" and "from the same start differ" in finding.message, finding


# As `fit` does it


def test_texts_go_through_the_preprocessor_of_a_task():
    class Task(keras.Sequential):
        """Like a KerasHub task, which applies its preprocessor in `fit`."""

        preprocessor = "one"

        def preprocess_samples(self, x, y=None, sample_weight=None):
            return keras.utils.pack_x_y_sample_weight(tf.strings.to_number(x)[:, None], y, sample_weight)

    model = Task([keras.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    texts = tf.data.Dataset.from_tensor_slices((["1", "2", "3", "4"], [[1.0], [2.0], [3.0], [4.0]])).batch(2)
    finding = only(model, texts, "the model takes the batch")
    assert finding.verdict == "ok", finding


TAUGHT = {  # {(check, notebook that it refers to): words in that notebook}
    ("matmul precision", "07"): "reverse_dtype",
    ("finite values", "11"): "Where does the NaN come from?",
    ("order of classes", "01"): "Step 4: shuffle",
    ("outputs and loss", "04"): "from_logits=True",
    ("start", "11"): "bt.find_overflow",
    ("gradients", "11"): "A loss that stalls",
    ("gradients", "06"): "Fine-tuning",
    ("dead units", "11"): "*dead*",
    ("frozen layers", "06"): "frozen layer",
    ("overfit one batch", "02"): "The learning rate",
    ("overfit one batch", "11"): "bt.find_overflow",
    ("label leakage", "10"): "labels shifted twice",
    ("train/validation overlap", "11"): "held-out examples reveal it",
    ("padding", "11"): "## A lost mask",
    ("cross-example leakage", "11"): "**Cross-example leakage.**",
    ("label leakage", "11"): "**Label leakage.**",
    ("micro-batches", "05"): "## Batch normalization",
    ("weights move", "04"): "bfloat16: range without digits",
    ("weights move", "02"): "The learning rate",
    ("memory", "05"): "What it saves",
    ("memory", "07"): "bt.chunk_head(model)",
    ("memory over passes", "11"): "pass numbers as tensors",
    ("saved and loaded", "14"): "neither your code nor Keras",
    ("stopped and resumed", "11"): "How often?",
    ("stopped and resumed", "03"): "Make it survive",
}


def test_the_notebook_that_a_line_names_teaches_it():
    named = set()
    for checks in room.GROUPS.values():
        for name, check in checks.items():
            functions = [check, *[vars(sys.modules[check.__module__])[each] for each in HELPERS.get(name, ())]]
            for function in functions:
                named |= {(name, number) for number in re.findall(r'"([01]\d)"', inspect.getsource(function))}
    assert named == set(TAUGHT)
    for (_, number), words in TAUGHT.items():
        (notebook,) = NOTEBOOKS.glob(f"{number}-*.ipynb")
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert words in "\n".join("".join(cell["source"]) for cell in cells), (number, words)


def test_of_two_outputs_of_one_shape_each_is_judged_by_itself():
    x, y = numbers()
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(1, "sigmoid")(hidden)])
    model.compile(keras.optimizers.Adam(0.01), ["mse", "binary_crossentropy"])
    data = tf.data.Dataset.from_tensor_slices((x, (y, (y > 0).astype("float32")))).batch(16)
    report = bt.preflight(model, data, checks=["outputs and loss", "range of outputs"])
    assert not report.failed and report.of("ok"), report


def test_targets_that_are_not_finite_are_wrong_also_with_a_weight_of_0():
    x, y = numbers()
    y[7] = np.nan
    weight = np.ones(len(x), "float32")
    weight[7] = 0
    model = dense(layers.Dense(1), loss="mse")
    finding = only(model, batched(x, y, weight), "finite values")
    assert finding.verdict == "error" and "0 times NaN is NaN" in finding.advice
    model.fit(batched(x, y, weight), verbose=0)
    assert np.isnan(model.get_weights()[0]).any(), "as it says"


def test_the_best_constant_counts_no_padding():
    x = tokens(length=12)
    x[:, 3:] = 0
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 8, mask_zero=True), layers.Dense(20)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    constant = best_constant(Training(model, batched(x, x), None, 1))
    shares = np.bincount(x[:16, :3].ravel(), minlength=20) / x[:16, :3].size
    entropy = -sum(share * np.log(share) for share in shares if share)
    assert constant == pytest.approx(entropy, rel=0.02)


def test_weights_of_a_trial_that_overflow_do_not_speak_of_the_models_own():
    model = keras.Sequential([keras.Input((4, 4, 3))])
    for _ in range(40):
        model.add(layers.Conv2D(16, 3, padding="same", activation="relu", kernel_initializer="he_normal"))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(3, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy")
    data = batched(np.random.default_rng(0).normal(size=(32, 4, 4, 3)).astype("float32"), np.arange(32) % 3)
    report = bt.preflight(model, data, checks=["outputs and loss", "start", "gradients"])
    assert not report.failed and len(report.of("skipped")) == 0, report


def test_an_optimizer_that_accumulates_is_given_its_time():
    x, y = numbers()
    model = dense(layers.Dense(1), loss="mse")
    model.compile(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=32), "mse")
    finding = only(model, batched(x, y), "weights move")
    assert finding.verdict == "ok", finding


@pytest.mark.parametrize(("least", "verdict"), [(0, "warning"), (1, "error")])
def test_zeros_at_the_end_are_padding_for_certain_only_where_0_is_no_symbol(least, verdict):
    x = np.random.default_rng(0).integers(least, 9, (64, 17))
    x[:, -3:] = 0
    model = keras.Sequential([keras.Input((16,), dtype="int32"), layers.Embedding(9, 8), layers.Dense(9)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    finding = only(model, batched(x[:, :-1], x[:, 1:]), "padding")
    assert finding.verdict == verdict, finding


def test_values_that_are_not_finite_are_a_warning_where_the_model_fills_them_in():
    x, y = numbers()
    x[3, 2] = np.nan
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, layers.Dense(1)(keras.ops.nan_to_num(inputs)))
    model.compile("adam", "mse")
    report = bt.preflight(model, batched(x, y), checks=["finite values", "start"])
    assert [finding.verdict for finding in report.findings] == ["warning", "ok"], report
    assert bt.find_overflow(model, (x, y)) is None


def test_an_output_without_a_loss_needs_no_gradient():
    x, y = numbers()
    inputs = keras.Input(x.shape[1:])
    hidden = layers.Dense(16, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(1, name="now")(hidden), layers.Dense(4, name="later")(hidden)])
    model.compile("adam", ["mse", None])
    data = tf.data.Dataset.from_tensor_slices((x, (y, np.zeros((len(x), 4))))).batch(16)
    finding = only(model, data, "gradients")
    assert finding.verdict == "warning" and "no output with a loss depends on them: later" in finding.message, finding


def test_numbers_may_be_forecast_several_steps_ahead():
    walk = np.cumsum(np.random.default_rng(0).normal(size=(64, 19, 2)), 1).astype("float32")
    model = keras.Sequential([keras.Input((16, 2)), layers.Conv1D(8, 3, padding="causal"), layers.Dense(2)])
    model.compile("adam", "mse")
    finding = only(model, batched(walk[:, :-3], walk[:, 3:]), "label leakage")
    assert finding.verdict == "warning" and "at t+3" in finding.message, finding


def test_a_py_dataset_may_say_its_length_as_keras_asks_for_it():
    class Batches(keras.utils.PyDataset):
        num_batches = 4

        def __getitem__(self, number):
            x, y = numbers()
            return x[16 * number : 16 * number + 16], y[16 * number : 16 * number + 16]

    report = bt.preflight(dense(layers.Dense(1), loss="mse"), Batches(), checks=["data"])
    assert not report.failed and "4 batches" in str(report)


def test_outputs_that_start_at_0_are_not_taken_for_probabilities():
    x, y = numbers()
    model = dense(layers.Dense(1, kernel_initializer="zeros"), loss="mse")
    assert best_constant(Training(model, batched(x, y + 50), None, 1)) == pytest.approx(np.var(y[:16]), rel=0.02)


def test_a_loss_below_0_has_no_share_that_tells_what_was_learned():
    x, y = numbers()
    model = dense(layers.Dense(4), loss=keras.losses.CosineSimilarity())
    finding = only(model, batched(x, np.repeat(y, 4, 1) + [0, 1, 2, 3]), "overfit one batch")
    assert finding.verdict == "skipped" and "oss can be negative" in finding.message


def test_a_training_that_repeats_for_ever_does_not_tell_whether_validation_is_apart():
    x, y = numbers()
    data = batched(x, y)
    finding = only(dense(layers.Dense(1), loss="mse"), data.repeat(), "train/validation overlap", validation=data)
    assert finding.verdict == "skipped" and "leave out repeat()" in finding.message


def by_the_global_batch(y, outputs):
    return tf.reduce_sum((y - outputs) ** 2) / 16


def over_places_above_0(y, outputs):
    counted = tf.cast(y > 0, "float32")
    return tf.reduce_sum(counted * (y - outputs) ** 2) / tf.reduce_sum(counted)


PIECES = {
    by_the_global_batch: "add up to that of the full batch: by_the_global_batch divides by a number",
    over_places_above_0: r"differs from that of .*%: over_places_above_0 returns one value per batch",
    "dice": "dice returns one value per batch",
    keras.losses.MeanSquaredError("sum"): r'add up .* the reduction of the loss is "sum"\.',
}


@pytest.mark.parametrize("loss", PIECES)
def test_a_loss_that_is_no_mean_over_examples_is_named_with_its_cause(loss):
    model, data = dense(layers.Dense(1), loss=loss), batched(*numbers())
    finding = only(model, data, "micro-batches")
    assert finding.verdict == "warning" and re.search(PIECES[loss], finding.message), finding


def test_a_mean_over_examples_is_right_in_micro_batches():
    model, data = dense(layers.Dense(1), loss="mse"), batched(*numbers())
    finding = only(model, data, "micro-batches")
    assert finding.verdict == "ok" and "of 5 and 11 examples equals that of the full batch" in finding.message, finding


def test_of_a_masked_loss_it_says_who_counts_it_right():
    finding = only(*HEALTHY["language_model_with_mask"](), "micro-batches")
    assert finding.verdict == "warning" and "a masked loss" in finding.message, finding
    assert finding.advice.startswith("A bt.Model handles this correctly"), finding


def test_of_two_losses_it_names_the_one_that_ignores_a_class():
    x, y = numbers()
    inputs = keras.Input(x.shape[1:])
    model = keras.Model(inputs, {"kind": layers.Dense(3)(inputs), "size": layers.Dense(1)(inputs)})
    kind = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("sgd", {"kind": kind, "size": "mse"})
    data = batched(x, {"kind": np.arange(len(x)) ** 2 % 3, "size": y})
    finding = only(model, data, "micro-batches")
    assert "SparseCategoricalCrossentropy skips positions" in finding.message, finding


@pytest.mark.parametrize("name", ["update_that_raises", "own_step_that_raises", "tokens_out_of_range_in_batch_2"])
def test_a_training_that_raises_is_wrong_whatever_is_asked(name):
    report = bt.preflight(*FAULTY[name][0](), minutes=0.5, checks=["data", "loss", "weights move"])
    assert report.failed and not any("It failed" in finding.message for finding in report.findings), report


def test_a_sample_weight_is_no_remedy_for_a_label_that_is_looked_up():
    finding = only(*FAULTY["labels_minus_one_with_weight_0"][0](), "targets")
    assert "A sample weight of 0 does not help" in finding.advice and "ignore_class=-1" in finding.advice
    model, data = FAULTY["labels_minus_one_with_weight_0"][0]()
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(data, verbose=0)


def test_a_resume_that_is_tried_leaves_fit_as_it_was():
    model, data = HEALTHY["regression"]()
    bt.preflight(model, data, checks=["stopped and resumed"], minutes=0.5)
    assert "fit" not in vars(model)


def test_outputs_that_are_nan_make_no_other_line_false():
    report = bt.preflight(
        *FAULTY["outputs_that_are_nan"][0](), checks=["data", "leaks", "loss", "accumulation"], minutes=0.5
    )
    assert [finding.check for finding in report.of("error")] == ["the model takes the batch"] and not report.of(
        "warning"
    )
    report = bt.preflight(*FAULTY["outputs_that_are_nan"][0](), checks=["leaks", "loss"], minutes=0.5)
    assert [finding.check for finding in report.of("error")] == ["cross-example leakage"], report
    assert not report.of("warning"), report


def test_a_feature_is_named_where_it_is_not_finite():
    model, data = by_feature(dict, "age", "width")
    data = data.map(lambda x, y: ({"age": x["age"], "width": x["width"] / 0.0}, y))
    finding = only(model, data, "finite values")
    assert finding.verdict == "error" and "inputs 'width' of batch 0" in finding.message, finding


def scaled(x, **scales):
    return {name: value * scales.get(name, 1) for name, value in x.items()}


def test_a_feature_is_named_where_its_scale_is_wrong():
    model, data = by_feature(dict, "age", "width")
    large = data.map(lambda x, y: (scaled(x, width=1000.0), y))
    finding = only(model, large, "start")
    assert "inputs 'width' (root mean square" in finding.message and "the largest of 2" in finding.message, finding
    finding = only(model, data, "validation data", validation=large)
    assert finding.message.startswith("The inputs 'width' of validation have mean"), finding
    other = data.map(lambda x, y: ({"age": x["age"], "height": x["width"]}, y))
    finding = only(model, data, "validation data", validation=other)
    assert (
        "only these are floating-point: inputs 'height' in validation, inputs 'width' in training" in finding.message
    ), finding


def test_features_are_named_where_a_step_fails_and_where_all_are_the_same():
    model, data = by_feature(dict, "age", "width")
    cut = data.map(lambda x, y: ({"age": x["age"], "width": x["width"][:, :3]}, y))
    finding = only(model, cut, "the model takes the batch")
    assert "inputs 'width' (16, 3) float32" in finding.message, finding
    same = data.map(lambda x, y: ({name: tf.ones_like(value) for name, value in x.items()}, y))
    finding = only(model, same, "constant data")
    assert "The inputs 'age' and the inputs 'width' of all" in finding.message, finding
    finding = only(model, data, "constant data")
    assert finding.verdict == "ok"


@pytest.mark.parametrize(("check", "said"), [("label leakage", "at t"), ("padding", "are padding")])
def test_tokens_are_named_where_they_are_the_answer_or_padding(check, said):
    rows = np.random.default_rng(0).integers(1, 20, (32, 9))
    rows[::2, 5:] = 0
    inputs = {name: keras.Input((8,), name=name, dtype="int32") for name in ("tokens", "kinds")}
    seen = [layers.Embedding(20, 8)(each) for each in inputs.values()]
    model = keras.Model(inputs, layers.Dense(20)(layers.Bidirectional(layers.GRU(8, return_sequences=True))(sum(seen))))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
    x = {"tokens": rows[:, :-1], "kinds": np.ones((32, 8), int)}
    finding = only(model, batched(x, rows[:, 1:]), check)
    assert finding.verdict == "error" and said in finding.message and "inputs 'tokens'" in finding.message, finding


def test_a_feature_without_an_input_is_a_warning():
    _, data = by_feature(dict, "age", "width", "unused")
    inputs = [keras.Input((4,), name=name) for name in ("age", "width")]
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(inputs)))
    model.compile("adam", "mse")
    finding = only(model, data, "inputs by name")
    assert finding.verdict == "warning" and "'unused'" in finding.message, finding


def below_a_threshold(x):
    return (x[:, 2] > 0.3).astype("int32")


def between_two(x):
    return np.digitize(x[:, 2], [-0.4, 0.4])


def the_same_in_other_units(x):
    return 3 - 2 * x[:, 2:3]


ANSWERS = {
    below_a_threshold: "with a threshold",
    between_two: "with a threshold",
    the_same_in_other_units: "up to a factor",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_feature_that_is_the_target_is_a_warning(answer):
    x, y = numbers()
    model = dense(layers.Dense(1), loss="mse")
    finding = only(model, batched(x, answer(x)), "target leakage")
    assert finding.verdict == "warning" and "Feature 2" in finding.message and ANSWERS[answer] in finding.message, (
        finding
    )
    finding = only(model, batched(*table()), "target leakage")
    assert finding.verdict == "ok"


def test_a_schedule_that_has_run_to_its_end_is_said_before_steps_are_wasted():
    rates = keras.optimizers.schedules.PolynomialDecay(0.01, 5, 0.0)
    model = dense(layers.Dense(1), loss="mse", rate=rates)
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(10)
    finding = only(model, batched(*numbers()), "overfit one batch", minutes=0.5)
    assert finding.verdict == "warning" and "it has ended, and steps do nothing" in finding.message


@pytest.mark.parametrize("times", [1, 3])
def test_validation_within_a_training_that_repeats_itself_is_found(times):
    model, data, validation = FAULTY["validation_within_training"][0]()
    finding = only(model, data.repeat(times), "train/validation overlap", validation=validation)
    assert finding.verdict == "error" and "at random: 0%" in finding.message, finding


def test_what_takes_a_share_of_the_time_comes_last():
    names = list(room._chosen(None))
    assert set(names[-len(room.LAST) :]) == set(room.LAST) and len(names) > 2 * len(room.LAST)


def test_without_a_terminal_it_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(room, "SILENT_SECONDS", 0)
    bt.preflight(*HEALTHY["regression"](), checks=["data"])
    assert re.search(r"preflight, \d+ s: finite values\n", capsys.readouterr().err)


def test_the_order_within_batches_does_not_count_and_few_classes_at_a_time_are_a_warning():
    x, y = np.random.default_rng(0).normal(size=(320, 8)).astype("float32"), np.arange(320) // 16 % 2
    model = dense(layers.Dense(2), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    balanced = only(model, batched(x, y, size=32), "order of classes")
    assert balanced.verdict == "ok" and "holds 2 classes on average" in balanced.message
    model = dense(layers.Dense(40), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    chosen = only(model, batched(x, np.arange(320) // 8, size=32), "order of classes")
    assert chosen.verdict == "warning" and "Few classes at a time" in chosen.message


def test_a_relu_that_stands_at_two_widths_is_two_layers():
    relu = layers.ReLU()
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(1)(relu(layers.Dense(8)(relu(layers.Dense(16)(inputs))))))
    model.compile("sgd", "mse")
    finding = only(model, batched(np.ones((32, 4), "float32"), np.ones((32, 1), "float32")), "dead units")
    assert "failed" not in finding.message


def test_what_starts_at_zero_gets_its_gradient_after_an_update_of_several_steps():
    inputs = keras.Input((4,))
    narrow = layers.Dense(2, use_bias=False)(inputs)
    model = keras.Model(
        inputs, layers.Add()([layers.Dense(1)(inputs), layers.Dense(1, kernel_initializer="zeros")(narrow)])
    )
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), "mse")
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    assert only(model, batched(x, x[:, :1] + 1), "gradients").verdict == "ok"


def test_classes_along_another_axis_are_skipped():
    inputs = keras.Input((3, 4, 4))
    scores = layers.Permute((3, 1, 2))(layers.Dense(3)(layers.Permute((2, 3, 1))(inputs)))  # on CPUs, NCHW needs oneDNN
    model = keras.Model(inputs, layers.Softmax(axis=1)(scores))
    model.compile("sgd", keras.losses.CategoricalCrossentropy(axis=1))
    y = np.eye(3, dtype="float32")[np.zeros((8, 4, 4), int)].transpose(0, 3, 1, 2)
    finding = only(model, batched(np.ones((8, 3, 4, 4), "float32"), y, size=4), "outputs and loss")
    assert finding.verdict == "skipped" and "axis=1" in finding.message


def test_a_frozen_teacher_of_a_step_of_ones_own_is_only_a_warning():
    class Taught(keras.Model):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = layers.Dense(3), layers.Dense(3, trainable=False)

        def call(self, x):
            return self.student(x) - self.teacher(x)

        def train_step(self, data):
            return {"loss": tf.reduce_mean(self(data[0]) ** 2)}

    model = Taught()
    model.compile("sgd")
    data = batched(np.ones((16, 2), "float32"), np.ones((16, 3), "float32"))
    model(np.ones((1, 2), "float32"))
    finding = only(model, data, "frozen layers")
    assert finding.verdict == "warning" and "mean teacher" in finding.advice


# Never "ok" without an examination


class Squares(keras.losses.Loss):
    """Compares its arguments as they are: Keras aligns shapes only for functions."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean((tf.cast(y_true, y_pred.dtype) - y_pred) ** 2, -1)


class Distances(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_mean(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred))


class Ranks(keras.losses.Loss):
    """Deliberately compares all pairs of examples, whatever the shape."""

    def call(self, y_true, y_pred):
        y_true, y_pred = (tf.reshape(tf.cast(each, "float32"), [-1]) for each in (y_true, y_pred))
        above = tf.cast(y_true[:, None] > y_true[None], "float32")
        return above * tf.nn.softplus(y_pred[None] - y_pred[:, None])


class LossOfItsOwn(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean((tf.cast(y, y_pred.dtype) - y_pred) ** 2)


@pytest.mark.parametrize("loss", [Squares, Distances, "compute_loss"])
def test_targets_that_are_broadcast_against_outputs_are_wrong(loss):
    x, y = numbers()
    model = dense(layers.Dense(1), loss=loss()) if loss != "compute_loss" else LossOfItsOwn([layers.Dense(1)])
    if loss == "compute_loss":
        model.compile("adam")
    finding = only(model, batched(x, y[:, 0]), "targets")
    assert finding.verdict == "error" and "Targets (16,) and outputs (16, 1) are broadcast" in finding.message, finding
    assert only(model, batched(x, y), "targets").verdict == "skipped"


def test_a_loss_that_is_meant_to_compare_examples_gets_no_error():
    x, y = numbers()
    report = bt.preflight(
        dense(layers.Dense(1), loss=Ranks()), batched(x, y[:, 0]), checks=["data", "leaks", "accumulation"]
    )
    assert not report.failed, report
    (finding,) = (each for each in report.findings if each.check == "targets")
    assert finding.verdict == "skipped" and "Which targets Ranks takes" in finding.message, finding


def speech(labels, steps=12, classes=6):
    x = np.random.default_rng(0).normal(size=(len(labels), steps, 4)).astype("float32")
    inputs = keras.Input((steps, 4))
    model = keras.Model(inputs, layers.Dense(classes)(layers.GRU(8, return_sequences=True)(inputs)))
    model.compile("adam", keras.losses.CTC())
    return model, batched(x, np.array(labels), size=8)


LABELS_OF_CTC = {  # {case: (labels, part of the message)}
    "beyond": ([[1, 2, 6]] * 8, "labels from 1 to 6"),
    "minus one": ([[1, 2, -1]] * 8, "labels from -1 to 2"),
    "blank": ([[1, 0, 2]] * 8, "rows have a 0 before a label"),
    "too long": ([[1] * 7] * 8, "need up to 13 outputs, but there are 12"),
}


@pytest.mark.parametrize("name", LABELS_OF_CTC)
def test_labels_that_ctc_does_not_take_are_wrong(name):
    labels, said = LABELS_OF_CTC[name]
    finding = only(*speech(labels), "targets")
    assert finding.verdict == "error" and said in finding.message, finding


def test_labels_that_ctc_takes_are_ok():
    finding = only(*speech([[1, 5, 5, 0]] * 8), "targets")
    assert finding.verdict == "ok" and "labels are from 1 to 5" in finding.message, finding


def test_numbers_may_be_any_where_the_loss_takes_any_and_counts_may_not_be_below_0():
    x, y = numbers()
    finding = only(dense(layers.Dense(1), loss="mse"), batched(x, y), "targets")
    assert finding.verdict == "ok" and "takes any number" in finding.message
    finding = only(dense(layers.Dense(1, "softplus"), loss="poisson"), batched(x, y), "targets")
    assert finding.verdict == "error" and "are not 0 or more" in finding.message, finding


def test_labels_of_generalized_crossentropy_are_classes():
    x, y = table()
    model = dense(layers.Dense(3, "softmax"), loss=keras.losses.CategoricalGeneralizedCrossEntropy())
    assert only(model, batched(x, y), "targets").verdict == "ok"
    finding = only(model, batched(x, y + 1), "targets")
    assert finding.verdict == "error" and "no class of 0 to 2" in finding.message, finding


def two_targets(x, y, **others):
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    model = keras.Model(inputs, {"kind": layers.Dense(3, "softmax")(hidden), "size": layers.Dense(1)(hidden)})
    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model, batched(x, {"kind": y, "size": x[:, :1] + x[:, 1:2], **others}, size=8)


def test_of_several_targets_each_is_looked_at_for_order_and_for_the_answer():
    x, y = table(examples=192)
    order = np.argsort(y, kind="stable")
    finding = only(*two_targets(x[order], y[order]), "order of classes")
    assert finding.verdict == "error" and "sorted by class of targets 'kind'" in finding.message, finding
    finding = only(*two_targets(x, y), "order of classes")
    assert finding.verdict == "ok" and "targets 'kind'" in finding.message, finding
    finding = only(*two_targets(x, y), "target leakage")
    assert finding.verdict == "ok" and "targets 'kind'" in finding.message and "targets 'size'" in finding.message, (
        finding
    )
    finding = only(*two_targets(x, y, size=2 - 3 * x[:, 4:5]), "target leakage")
    assert finding.verdict == "warning" and "Feature 4" in finding.message and "targets 'size'" in finding.message, (
        finding
    )


@pytest.mark.parametrize("check", ["order of classes", "repeated batches", "target leakage"])
def test_what_few_batches_cannot_tell_is_said(check):
    model = dense(layers.Dense(3), loss=keras.losses.SparseCategoricalCrossentropy(True))
    finding = only(model, batched(*table(32)), check)
    assert finding.verdict == "skipped" and re.search("32 examples|fewer than 3", finding.message), finding


def test_validation_without_zoom_or_with_nan_is_not_ok():
    found = tokens()
    data = batched(found[:, :-1], found[:, 1:])
    finding = only(language_model(), data, "validation data", validation=data)
    assert finding.verdict == "skipped" and "have no scale" in finding.message, finding
    x, y = numbers()
    spoilt = np.where(np.arange(128)[:, None] == 3, np.nan, x).astype("float32")
    finding = only(dense(layers.Dense(1), loss="mse"), batched(x, y), "validation data", validation=batched(spoilt, y))
    assert finding.verdict == "error" and "non-finite" in finding.message, finding


def test_strings_that_are_all_the_same_are_seen():
    texts, y = np.array(["the"] * 32), np.arange(32.0)[:, None]
    words = layers.TextVectorization(20, output_sequence_length=2)
    words.adapt(texts)
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(20, 4)(words(inputs)))))
    model.compile("adam", "mse")
    assert only(model, batched(texts, y), "constant data").verdict == "warning"


@pytest.mark.parametrize("checks", [["loss"], ["leaks", "accumulation"]])
def test_why_a_step_fails_is_said_whatever_is_asked(checks):
    report = bt.preflight(*FAULTY["wrong_width"][0](), checks=checks)
    (finding,) = report.of("error")
    assert "expected axis -1" in finding.message or "incompatible" in finding.message, report


def test_a_dataset_that_ends_with_an_error_is_said_whatever_is_asked():
    report = bt.preflight(*FAULTY["dataset_that_fails_in_batch_3"][0](), checks=["finite values"])
    assert "file 57 is damaged" in str(report.of("error")), report


def test_a_step_of_ones_own_that_fills_in_values_that_are_not_finite_is_only_a_warning():
    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = (tf.where(tf.math.is_finite(each), each, 0.0) for each in data)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    x, y = numbers()
    x[3, 2] = np.nan
    model = Own([keras.Input((8,)), layers.Dense(1)])
    model.compile("adam", "mse")
    assert only(model, batched(x, y), "finite values").verdict == "warning"


# Which examples there are


def of_rows(call, *batches, loss="mse", width=1):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = layers.Dense(8), layers.Dense(width)

    Model.call = call
    model = Model()
    model.compile("adam", loss)
    return model, list(batches)


def against_a_table(self, x):
    return tf.matmul(self.hidden(x["query"]), self.hidden(x["table"]), transpose_b=True)


def pooled(self, x):
    graph_of_node = tf.repeat(tf.range(tf.shape(x["lengths"])[0]), x["lengths"])
    return self.last(tf.math.segment_mean(self.hidden(x["a_nodes"]), graph_of_node))


def tempered(self, x):
    return self.last(x["values"]) * x["zoom"]


def queries():
    draw = np.random.default_rng(0)
    parts = [
        {name: draw.normal(size=(n, 3)).astype("float32") for name, n in (("query", 8), ("table", 16))} for _ in "12345"
    ]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return of_rows(against_a_table, *[(x, draw.integers(0, 16, 8)) for x in parts], loss=loss)


def graphs():
    draw, batches = np.random.default_rng(0), []
    for _ in range(5):
        lengths = draw.integers(3, 9, 8).astype("int32")
        nodes = draw.normal(size=(lengths.sum(), 3)).astype("float32")
        batches.append(({"a_nodes": nodes, "lengths": lengths}, draw.normal(size=(8, 1)).astype("float32")))
    return of_rows(pooled, *batches)


def with_a_scalar():
    draw, batches = np.random.default_rng(0), []
    for _ in range(5):
        x = {"zoom": np.float32(0.5), "values": draw.normal(size=(8, 3)).astype("float32")}
        batches.append((x, draw.normal(size=(8, 1)).astype("float32")))
    return of_rows(tempered, *batches)


@pytest.mark.parametrize("build", [queries, graphs, with_a_scalar])
def test_tensors_with_other_rows_than_the_examples_are_no_fault(build):
    model, data = build()
    report = bt.preflight(model, data, checks=["data", "leaks", "loss", "accumulation"], validation=data[:2], minutes=1)
    found = {each.check: each for each in report.findings}
    assert not any("It failed" in each.message for each in report.findings), report
    wrong = {each.check for each in report.of("error")}
    assert wrong <= {"train/validation overlap"}, report
    assert found["the model takes the batch"].message.startswith("8 examples a batch"), report
    apart = {queries: "ok", graphs: "skipped", with_a_scalar: "ok"}[build]
    assert found["cross-example leakage"].verdict == apart, report
    assert found["micro-batches"].verdict == ("ok" if build is with_a_scalar else "skipped"), report
    if build is queries:
        assert "Not replaced: inputs 'table' (16, 3)" in found["cross-example leakage"].message, report


# Padding


def from_source_to_target(source, target, weight=None):
    one, two = (keras.Input((12,), dtype="int32") for _ in range(2))
    memory = layers.Embedding(20, 16)(one)
    x = layers.Embedding(20, 16)(two)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)])
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, memory)])
    model = keras.Model([one, two], layers.Dense(20)(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    parts = ((source, target[:, :-1]), target[:, 1:], *([weight] if weight is not None else []))
    return model, tf.data.Dataset.from_tensor_slices(parts).batch(16)


def test_padding_of_a_source_is_not_that_of_the_targets():
    source, target = padded_tokens(length=12), padded_tokens(length=13)[::-1].copy()
    finding = only(*from_source_to_target(source, tokens(length=13)), "padding")
    assert finding.verdict == "skipped" and "it is unknown whether outputs belong" in finding.message.lower(), finding
    finding = only(*from_source_to_target(source, target, (target[:, 1:] > 0).astype("float32")), "padding")
    assert finding.verdict == "ok" and "inputs '1'" in finding.message, finding
    finding = only(*from_source_to_target(source, target), "padding")
    assert finding.verdict == "error" and "inputs '1'" in finding.message, finding


def test_padding_behind_a_softmax_is_found():
    found = padded_tokens(length=13)
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 8), layers.Dense(20, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    finding = only(model, batched(found[:, :-1], found[:, 1:]), "padding")
    assert finding.verdict == "error" and "% of the loss's gradient" in finding.message, finding


def test_padding_counts_in_each_of_several_outputs():
    found = padded_tokens(length=12)
    inputs = keras.Input((12,), dtype="int32")
    hidden = layers.Embedding(20, 8)(inputs)
    whole = layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(inputs, {"kind": layers.Dense(3)(hidden), "of_all": whole})
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", {"kind": crossentropy, "of_all": crossentropy})
    finding = only(model, batched(found, {"kind": found % 3, "of_all": found[:, 0] % 2}), "padding")
    assert finding.verdict == "error", finding


def test_of_several_targets_the_one_that_is_seen_is_named():
    found = tokens()
    inputs = keras.Input((12,), dtype="int32")
    hidden = layers.Bidirectional(layers.GRU(8, return_sequences=True))(layers.Embedding(20, 8)(inputs))
    model = keras.Model(inputs, {"next": layers.Dense(20)(hidden), "size": layers.Dense(1)(hidden[:, 0])})
    model.compile("adam", {"next": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"})
    finding = only(model, batched(found[:, :-1], {"next": found[:, 1:], "size": found[:, :1] / 20}), "label leakage")
    assert finding.verdict == "error" and "Targets 'next' at t" in finding.message, finding


# Frozen


def frozen_base(*more, weights=None):
    base = keras.Sequential([keras.Input((8, 8, 3)), *more])
    base.trainable = False
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), base, layers.GlobalAveragePooling2D(), layers.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("float32"), np.arange(32) % 3)


def convolution():
    return layers.Conv2D(32, 3, use_bias=False)


def test_frozen_convolutions_without_a_bias_are_seen_by_their_statistics_and_by_their_values():
    finding = only(*frozen_base(convolution(), layers.BatchNormalization()), "frozen layers")
    assert finding.verdict == "error" and "still at their initial values" in finding.message, finding
    finding = only(*frozen_base(convolution()), "frozen layers")
    assert finding.verdict == "warning" and "distributed as initialized" in finding.message, finding
    model, data = frozen_base(convolution())
    kernel = model.layers[0].layers[0].kernel
    kernel.assign(np.random.default_rng(0).laplace(scale=0.1, size=kernel.shape))
    assert only(model, data, "frozen layers").verdict == "ok"
    finding = only(*frozen_base(layers.Conv2D(4, 1, use_bias=False)), "frozen layers")
    assert finding.verdict == "skipped" and "do not show whether they were ever" in finding.message, finding


def test_mobilenet_frozen_at_random_is_found():
    base = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, include_top=False, weights=None, pooling="avg")
    base.trainable = False
    model = keras.Sequential([keras.Input((32, 32, 3)), base, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    finding = only(model, batched(np.zeros((8, 32, 32, 3), "float32"), np.arange(8) % 3, size=4), "frozen layers")
    assert finding.verdict == "error", finding


# Unchanged state


class Counts(layers.Layer):
    """Has variables that Keras does not track."""

    def build(self, shape):
        self.calls = {"all": tf.Variable(0.0, trainable=False)}

    def call(self, x):
        self.calls["all"].assign_add(1.0)
        return x * (1 + 0.01 * self.calls["all"])


def stateful():
    inputs = keras.Input((5, 3), batch_size=16)
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(4, stateful=True)(inputs)))
    model.compile("adam", "mse")
    draw = np.random.default_rng(0)
    return model, batched(draw.normal(size=(64, 5, 3)).astype("float32"), draw.normal(size=(64, 1)).astype("float32"))


def counting():
    return dense(Counts(), layers.Dense(1), loss="mse"), batched(*numbers())


STEPS_SEEN = tf.Variable(0.0)


def by_a_variable_of_the_module():
    class Net(keras.Sequential):
        def train_step(self, data):
            STEPS_SEEN.assign_add(1.0)
            return super().train_step(data)

    model = Net([keras.Input((8,)), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, batched(*numbers())


@pytest.mark.parametrize("build", [stateful, counting, by_a_variable_of_the_module])
def test_state_in_none_of_keras_lists_is_put_back(build):
    def examine(model, data):
        before = float(STEPS_SEEN)
        assert not bt.preflight(model, data, checks=QUICK, minutes=0.5).failed
        assert float(STEPS_SEEN) == before

    weights, history = weights_after(lambda model, data: None, build)
    others, other_history = weights_after(examine, build)
    assert history == other_history
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_stateful_model_is_the_same_in_evaluation_once_its_state_is_put_back():
    finding = only(*stateful(), "evaluation")
    assert finding.verdict == "ok" and "rnn_state" in finding.message, finding


def test_variables_that_only_a_call_makes_are_named():
    class Late(layers.Layer):
        def call(self, x):
            if tf.executing_eagerly() and not hasattr(self, "kept"):
                self.kept = [tf.Variable(0.0, name="made_late")]
            return x

    report = bt.preflight(
        dense(Late(), layers.Dense(1), loss="mse"), batched(*numbers()), checks=["cross-example leakage"]
    )
    (finding,) = report.of("warning")
    assert finding.check == "left as it was" and "made_late" in finding.message, report


# Time


def test_a_slow_check_takes_no_time_from_other_groups(monkeypatch):
    begun = []

    def slow(training):
        begun.append(time.monotonic())
        while True:
            training.check_deadline()
            time.sleep(0.05)

    def quick(training):
        training.check_deadline()
        return {"verdict": "ok", "message": "Done."}

    monkeypatch.setattr(room, "GROUPS", {"data": {"slow": slow}, "leaks": {"quick": quick}, "loss": {"last": quick}})
    report = bt.preflight(*HEALTHY["regression"](), minutes=0.1)
    assert [each.verdict for each in report.findings] == ["skipped", "ok", "ok"], report
    assert "he time ran out (minutes=0.1): give more minutes" in report.findings[0].message, report
    assert len(begun) == 2 and begun[1] - begun[0] < 5 and report.seconds > 5.9, "again, with what others left"


class Contrasts(keras.losses.Loss):
    def __call__(self, labels, features, sample_weight=None):
        features = tf.math.l2_normalize(features, 1)
        scores = tf.matmul(features, features, transpose_b=True) / 0.1
        same = tf.cast(labels[:, None] == labels[None], "float32")
        return tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(same / tf.reduce_sum(same, 1, keepdims=True), scores)
        )


def test_of_a_loss_that_compares_examples_no_constant_is_the_measure():
    model, data = dense(layers.Dense(16), loss=Contrasts()), batched(*table())
    report = bt.preflight(model, data, checks=["start", "overfit one batch"])
    assert {each.verdict for each in report.findings} == {"ok"} and "no reference" in str(report), report
    model, data = dense(layers.Dense(3), loss=keras.losses.SparseCategoricalCrossentropy(True)), batched(*table())
    assert "best constant predictor scores" in only(model, data, "start").message


# Files


@keras.saving.register_keras_serializable("unsaved")
class Unsaved(layers.Layer):
    def call(self, x):
        return x

    def get_config(self):
        raise NotImplementedError("this layer has no settings to write")


class UnsavedToo(Unsaved):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def save_own_variables(self, store):
        raise RuntimeError("nor any weights")


@pytest.mark.parametrize(("kind", "verdict"), [(Unsaved, "warning"), (UnsavedToo, "error")])
def test_a_model_that_cannot_be_saved_is_a_finding(kind, verdict):
    finding = only(dense(kind(), layers.Dense(1), loss="mse"), batched(*numbers()), "saved and loaded")
    assert finding.verdict == verdict and "no settings to write" in finding.message, finding


def test_weights_in_several_files_that_are_loaded_wrongly_are_found(monkeypatch):
    load = keras.Model.load_weights

    def mixed_up(self, path, **settings):
        load(self, path, **settings)
        self.weights[0].assign(2 * self.weights[0])

    monkeypatch.setattr(keras.Model, "load_weights", mixed_up)
    finding = only(*HEALTHY["classes"](), "saved and loaded")
    assert finding.verdict == "error" and "several files" in finding.message and "1 of 4 weights" in finding.message, (
        finding
    )


def test_activity_regularizers_are_means_over_examples():
    model = dense(layers.Dense(8, activity_regularizer="l2"), layers.Dense(1), loss="mse")
    assert only(model, batched(*numbers()), "micro-batches").verdict == "ok"


def test_a_step_that_fails_is_said_where_its_targets_cannot_be_examined():
    class Raising(keras.losses.Loss):
        def call(self, y_true, y_pred):
            raise RuntimeError("no such loss")

    x, _ = numbers(64)
    inputs = keras.Input((8,))
    model = keras.Model(inputs, {"pair": [layers.Dense(1)(inputs), layers.Dense(1)(inputs)]})
    model.compile("adam", {"pair": [Raising(), Raising()]})
    report = bt.preflight(model, batched(x, {"pair": (x[:, :1], x[:, 1:2])}), checks=["data"])
    (failing,) = report.of("error")
    assert failing.check == "the model takes the batch" and "no such loss" in failing.message


def test_targets_whose_order_was_skipped_are_named_with_the_others():
    x, classes = table(64)
    inputs = keras.Input((8,))
    model = keras.Model(inputs, {name: layers.Dense(3, "softmax")(inputs) for name in ("many", "one")})
    model.compile("adam", "sparse_categorical_crossentropy")
    finding = only(model, batched(x, {"many": classes, "one": np.zeros_like(classes)}), "order of classes")
    assert finding.verdict == "ok" and "Skipped: targets 'one'" in finding.message


def test_frozen_weights_that_their_initializer_cannot_draw_are_not_called_trained():
    class Scale(layers.Layer):
        def __init__(self):
            super().__init__(trainable=False)
            self.kernel_initializer = keras.initializers.Orthogonal(seed=1)  # only for matrices

        def build(self, shape):
            self.scale = self.add_weight(shape=(8000,), initializer="random_normal")

        def call(self, x):
            return x * self.scale[:8]

    model = keras.Sequential([keras.Input((8,)), Scale(), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    assert only(model, batched(*table()), "frozen layers").verdict == "skipped"


def compared_with(validation, training=None, check="validation data"):
    x, y = table(128) if training is None else training
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy", width=x.shape[1])
    given = batched(*validation) if isinstance(validation, tuple) else validation
    return only(model, batched(x, y), check, validation=given)


def test_a_column_of_another_scale_is_seen_though_the_whole_is_alike():
    x, y = table(128)
    other = x.copy()
    other[:, 5] *= 1e-3
    found = compared_with((other, y))
    assert found.verdict == "warning" and "Column 5 of the inputs" in found.message
    assert compared_with((x[::-1].copy(), y[::-1].copy())).verdict == "ok"


def test_training_data_that_go_on_changing_are_not_called_another_scale():
    x = (np.arange(960)[:, None] / 100 + np.random.default_rng(0).normal(size=(960, 8))).astype("float32")
    y = np.arange(960, dtype="int32") % 3
    found = compared_with((x[720:] + 20, y[720:]), (x, y))
    assert found.verdict == "warning" and "keep changing" in found.message


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_examples_of_validation_are_found_in_another_dtype_order_and_batch(dtype):
    x, y = table(128)
    x = np.round(4 * x) / 4
    again = tf.data.Dataset.from_tensor_slices((x[::-1].astype(dtype), y[::-1])).shuffle(64, seed=1).batch(7)
    assert compared_with(again, (x, y), "train/validation overlap").verdict == "error"


def test_a_one_hot_copy_of_the_classes_among_the_features_is_seen():
    x, y = table(128)
    copied = np.concatenate([x, np.eye(3, dtype="float32")[y] * 5 - 1], 1)
    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy", width=11)
    found = only(model, batched(copied, y), "target leakage")
    assert found.verdict == "warning" and "one-hot copy" in found.message
    both = keras.Input((8,)), keras.Input((3,))
    model = keras.Model(both, layers.Dense(3, "softmax")(layers.Concatenate()(both)))
    model.compile("adam", "sparse_categorical_crossentropy")
    found = only(model, batched((x, np.eye(3, dtype="float32")[y]), y), "target leakage")
    assert found.verdict == "warning" and "one-hot copy" in found.message


def of_sequences(causal, widths=(1,), outputs=1, loss="mse"):
    """Return a model with one input [16, width] per width."""
    inputs = [keras.Input((16, width)) for width in widths]
    x = layers.Concatenate()(inputs) if len(inputs) > 1 else inputs[0]
    x = layers.Conv1D(8, 3, padding="causal" if causal else "same")(x)
    model = keras.Model(inputs, layers.Dense(outputs, "softmax" if outputs > 1 else None)(x))
    model.compile("adam", loss)
    return model


def walks(columns=1, length=18):
    return np.cumsum(np.random.default_rng(0).normal(size=(64, length, columns)), 1).astype("float32")


COPIES = {
    "a scaled copy": lambda x: (x[:, :16], 3 * x[:, 1:17] - 2, {}),
    "a column": lambda x: (x[:, :16], x[:, 1:17, 1:2], {}),
    "a scaled column": lambda x: (x[:, :16], 0.1 * x[:, 1:17, 1:2] + 4, {}),
    "a second input": lambda x: ((x[:, :16, :1], x[:, 1:17, 1:2]), x[:, 2:18, 1:2], {}),
}


@pytest.mark.parametrize("name", COPIES)
def test_an_answer_that_is_seen_is_found_as_a_copy_too(name):
    x, y, _ = COPIES[name](walks(1 if name == "a scaled copy" else 3))
    widths = [each.shape[-1] for each in (x if isinstance(x, tuple) else (x,))]
    assert only(of_sequences(False, widths), batched(x, y), "label leakage").verdict == "error"
    assert only(of_sequences(True, widths), batched(x, y), "label leakage").verdict == "ok"


def test_a_line_through_the_input_is_no_copy_that_is_wrong():
    x = walks()[:, :16]
    found = only(of_sequences(True), batched(x, 2 * x + 1), "label leakage")
    assert found.verdict == "warning" and "up to a factor and a constant" in found.message


def test_an_answer_in_one_hot_targets_is_seen():
    rows = tokens(64, 17, 20)
    y = np.eye(20, dtype="float32")[rows[:, 1:]]
    for causal, verdict in ((False, "error"), (True, "ok")):
        model = language_model(16, causal=causal, loss=keras.losses.CategoricalCrossentropy(from_logits=True))
        assert only(model, batched(rows[:, :-1], y), "label leakage").verdict == verdict
        hot = np.eye(20, dtype="float32")[rows[:, :-1]]
        model = of_sequences(causal, (20,), 20, "sparse_categorical_crossentropy")
        assert only(model, batched(hot, rows[:, 1:]), "label leakage").verdict == verdict


def test_the_targets_as_a_second_input_are_looked_at():
    x = walks(2)[:, :16]
    found = only(of_sequences(False, (1, 1)), batched((x[..., :1], x[..., 1:]), x[..., 1:]), "label leakage")
    assert found.verdict == "warning" and "next to other inputs" in found.message
    found = only(of_sequences(False, (1,)), batched(x[..., :1], x[..., :1]), "label leakage")
    assert found.verdict == "ok" and "autoencoder" in found.message


class Listing(keras.Model):
    def __init__(self, *args, keeps=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.losses_of_steps = deque(maxlen=5) if keeps == "the last" else []

    def train_step(self, data):
        logs = super().train_step(data)
        self.losses_of_steps.append(logs["loss"])
        return logs


def listing(**how):
    inputs = keras.Input((8,))
    model = Listing(inputs, layers.Dense(3, "softmax")(inputs), **how)
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


OVER_PASSES = "memory over passes"


def test_a_list_that_keeps_a_tensor_of_each_step_is_named():
    found = only(listing(), batched(*table()), OVER_PASSES)
    assert found.verdict == "warning" and re.search(
        r"'losses_of_steps' grows by 1 elements per step \(EagerTensor\)", found.message
    )
    assert only(listing(keeps="the last"), batched(*table()), OVER_PASSES).verdict == "ok"


def test_what_a_function_of_the_dataset_keeps_is_named():
    kept_here = []

    def keep(x):
        kept_here.append(x)
        return x

    def mapped(x, y):
        return tf.ensure_shape(tf.numpy_function(keep, [x], tf.float32), x.shape), y

    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    found = only(model, batched(*table()).map(mapped), OVER_PASSES)
    assert found.verdict == "warning" and "(ndarray)" in found.message


def test_memory_that_no_list_keeps_is_seen():
    kept = [None]

    def keep(x):
        kept[0] = (kept[0], np.ones(2**21, "uint8"))
        return x

    def mapped(x, y):
        return tf.ensure_shape(tf.numpy_function(keep, [x], tf.float32), x.shape), y

    model = dense(layers.Dense(3, "softmax"), loss="sparse_categorical_crossentropy")
    found = only(model, batched(*table()).map(mapped), OVER_PASSES)
    assert found.verdict == "warning" and "MiB and" in found.message


@pytest.mark.parametrize("name", ["cached_and_repeated", "sequences_of_any_length", "eagerly", "dropout"])
def test_healthy_trainings_do_not_grow(name):
    model, data, *_ = HEALTHY[name]()
    assert only(model, data, OVER_PASSES).verdict == "ok"
