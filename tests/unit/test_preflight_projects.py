"""`bt.preflight` on four typical projects: no false alarms, skipped checks are reported, and `fit` afterwards is
bitwise identical."""

import numpy as np
import pytest
from tiers import in_two_tiers
from trainings import HEALTHY

import bigtrain_nb as bt
from bigtrain_nb.advanced.preflight import loss
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
WITHOUT_PROCESSES = ["data", "leaks", "loss", "accumulation", "precision", "stopped and resumed"]


def images():
    """Augmentation in the model, batch statistics, dropout, a shuffled dataset that decodes."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 96)
    pixels = (random.integers(0, 60, (96, 12, 12, 3)) + 60 * labels[:, None, None, None]).astype("uint8")
    encoded = [tf.io.encode_png(image).numpy() for image in pixels]

    def decoded(file, label):
        return tf.ensure_shape(tf.io.decode_png(file, 3), (12, 12, 3)), label

    data = tf.data.Dataset.from_tensor_slices((encoded, labels))
    data = data.shuffle(96).map(decoded, num_parallel_calls=tf.data.AUTOTUNE).batch(16).prefetch(2)
    model = keras.Sequential([keras.Input((12, 12, 3)), layers.RandomFlip("horizontal"), layers.Rescaling(1 / 255)])
    for filters in (8, 16):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    for layer in (layers.GlobalAveragePooling2D(), layers.Dropout(0.2), layers.Dense(3, "softmax")):
        model.add(layer)
    model.compile(keras.optimizers.AdamW(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, data


class Table(keras.utils.PyDataset):
    """Rows of customers, some of whom leave, read by two workers."""

    def __init__(self):
        super().__init__(workers=2)
        random = np.random.default_rng(0)
        self.age = random.integers(18, 90, 128).astype("float32")
        self.country = random.integers(0, 5, 128)
        self.leaves = ((self.age > 50) & (self.country < 3)).astype("float32")

    def __len__(self):
        return 8

    def __getitem__(self, number):
        rows = slice(16 * number, 16 * number + 16)
        weights = 1 + self.leaves[rows]
        return {"age": self.age[rows, None], "country": self.country[rows, None]}, self.leaves[rows, None], weights


def table_with_workers():
    """Named numeric and categorical inputs, weighted rare positives."""
    data = Table()
    age, country = keras.Input((1,), name="age"), keras.Input((1,), name="country", dtype="int32")
    scaled = layers.Normalization()
    scaled.adapt(data.age[:, None])
    one_hot = layers.CategoryEncoding(5, output_mode="one_hot")(country)
    hidden = layers.Dense(16, "relu")(layers.Concatenate()([scaled(age), one_hot]))
    model = keras.Model({"age": age, "country": country}, layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", weighted_metrics=["AUC"])
    return model, data


PROJECTS = {  # {name: (build, skipped checks)}
    "images": (images, {"validation data", "target leakage"}),
    "table with workers": (table_with_workers, {"validation data"}),
    "adversarial": (
        HEALTHY["generative_adversarial"],  # a custom step with two optimizers and private losses
        {"validation data", "cross-example leakage", "outputs and loss", "range of outputs", "start", "dead units"}
        | {"gradients", "micro-batches", "evaluation"},
    ),
    "contrastive": (  # no targets, and random numbers in a loss that compares the examples of a batch
        HEALTHY["contrastive"],
        {"validation data", "outputs and loss", "range of outputs", "micro-batches"},
    ),
}


def weights_after_fit(build, examine):
    keras.utils.set_random_seed(1)
    model, data = build()
    examined = examine(model, data)
    model.fit(data, epochs=2, verbose=0)
    return [weight.numpy() for weight in model.variables], examined


WHOLE = pytest.mark.more("healthy trainings, each examined by all checks: test_preflight.py has small ones")


@pytest.mark.parametrize("name", in_two_tiers(PROJECTS, ["adversarial", "contrastive"], WHOLE))
def test_a_project_is_examined_as_far_as_it_can_be_without_a_false_alarm_and_fit_is_as_before(name, monkeypatch):
    monkeypatch.setattr(loss, "STEPS", 40)  # fewer repetitions
    build, not_examined = PROJECTS[name]
    expected, _ = weights_after_fit(build, lambda model, data: None)
    weights, report = weights_after_fit(
        build, lambda model, data: bt.preflight(model, data, checks=WITHOUT_PROCESSES, minutes=10)
    )
    assert not report.failed, report
    found = {finding.check for finding in report.of("skipped")}
    assert found == not_examined, report
    assert all(finding.message and "It failed" not in finding.message for finding in report.findings), report
    for one, other in zip(expected, weights, strict=True):
        np.testing.assert_array_equal(one, other)
