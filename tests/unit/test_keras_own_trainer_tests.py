"""Keras' own tests of its trainer, from its wheel, with `bt.Model` in place of the class that they test."""

import types
from pathlib import Path

import keras
import pytest
from keras.src.trainers import trainer

import bigtrain_nb as bt

pytestmark = pytest.mark.more("Keras' own tests: nine minutes")
SOURCE = Path(trainer.__file__).with_name("trainer_test.py")
SWAPS = {
    "\nimport jax\n": "\n",
    "from keras.src.backend.tensorflow.trainer import (\n        TensorFlowTrainer as Trainer,\n    )\n": "pass\n",
    # Keras' class is a trainer only, so that a layer can be mixed in behind it. Ours is a whole model: the layer's
    # `call` and `build` must come first.
    "(Trainer, layers.Dense)": "(layers.Dense, Trainer)",
    "(Trainer, layers.Layer)": "(Trainer)",
    "layers.Layer.__init__(self": "Trainer.__init__(self",
    "keras.Model)": "Trainer)",
    "keras.src.Functional)": "Trainer)",
    "models.Model(": "Trainer(",
    "keras.Sequential(": "sequential(",
    "models.Sequential(": "sequential(",
    "@pytest.mark.requires_trainable_backend": "@unmarked",
}
LEFT_OUT = {
    "jax": "JAX is not installed",
    "torch": "PyTorch is not installed",
    "grain": "Grain is not installed",
    "fit_sparse": "bt.Model adds up gradients of micro-batches and replicas as dense tensors",
    "loss_scaling_prevents_underflow": "the test sets `layers`, which keras.Model reserves",
}


class Trainer(bt.Model):
    """The tests call the constructors of the layer and of the trainer, one after the other."""

    def __init__(self, *args, **kwargs):
        if "_is_made" not in vars(self):
            object.__setattr__(self, "_is_made", True)
            super().__init__(*args, **kwargs)


def sequential(*args, **kwargs):
    return bt.Model.of(keras.Sequential(*args, **kwargs))


def swapped():
    text = SOURCE.read_text(encoding="utf-8")
    for old, new in SWAPS.items():
        assert old in text, old
        text = text.replace(old, new)
    module = types.ModuleType("trainer_test_of_keras")
    vars(module).update(Trainer=Trainer, sequential=sequential, unmarked=lambda test: test)
    exec(compile(text, str(SOURCE), "exec"), vars(module))
    return module.TestTrainer


class TestTrainer(swapped()):
    def setUp(self):
        super().setUp()
        for words, why in LEFT_OUT.items():
            if words in self.id():
                pytest.skip(why)
