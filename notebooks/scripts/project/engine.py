"""The training: on one device, several, or as one of several workers; a restart continues from the last checkpoint."""

from pathlib import Path

from data import training_data, validation_data
from model import new_model
from monitoring import callbacks

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras


def train(strategy, folder, seed, data, model, training, monitoring):
    """Train with the sections of settings.yaml; the chief saves the model."""
    is_chief = strategy.extended.should_checkpoint
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(training["policy"])
    with strategy.scope():
        net = new_model(**model)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile(keras.optimizers.SGD(training["learning_rate"], momentum=0.9), loss, metrics=["accuracy"])
        net.optimizer.build(net.trainable_variables)

    resume = bt.Resume(Path(folder, "checkpoints"), net, every=training["checkpoint_every"])
    net.fit(
        resume.data(lambda epoch: training_data(epoch, **data)),
        validation_data=validation_data(**data),
        initial_epoch=resume.epoch,
        epochs=training["epochs"],
        callbacks=[*callbacks(is_chief, folder, **monitoring), resume],
        shuffle=False,
        verbose=0,
    )
    if is_chief:
        net.save(Path(folder, "model.keras"))
