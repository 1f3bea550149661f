"""Train a classifier of photographs: the same script for one device, several, or one of several workers.

FOLDER holds the checkpoints, and all workers must share it. A restarted training continues from the last checkpoint.
"""

import argparse
import json

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

PHOTOS, BATCH = 768, 32  # the global batch of all workers


def new_model(strategy, micro_batches=1):
    """Return the same compiled model in every call and in every worker."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = bt.conv_net(image_size=32, blocks=1, micro_batches=micro_batches)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
        model.optimizer.build(model.trainable_variables)
    return model


def batches(epoch):
    """Return the photographs in global batches, in an order that depends only on the epoch's number."""
    data = bt.photo_crops(count=PHOTOS, test_count=64, size=64)
    photos = bt.Pipeline(data=data, image_size=32, batch=BATCH).dataset().unbatch()
    dataset = photos.shuffle(PHOTOS, seed=epoch, reshuffle_each_iteration=False).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    length = tf.data.experimental.assert_cardinality(PHOTOS // BATCH)  # without a known length, Keras warns at the end
    return dataset.apply(length).with_options(options)


def test_photos():
    """Return 64 test photographs and their classes."""
    data = bt.photo_crops(count=PHOTOS, test_count=64, size=64)
    return next(iter(bt.Pipeline(data=data, split="test", image_size=32, batch=64).dataset()))


class TellSteps(keras.callbacks.Callback):
    """The chief prints every step's loss."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.distribute_strategy.extended.should_checkpoint:
            told = {"step": int(self.model.optimizer.iterations.numpy()), "loss": float(logs["loss"])}
            print(json.dumps(told), flush=True)
        self.model.reset_metrics()  # Keras' own loss is a mean over the epoch so far


def train(strategy, folder, epochs, micro_batches=1, every=5):
    """Train up to this number of epochs, including those already trained; return the model."""
    model = new_model(strategy, micro_batches)
    resume = bt.Resume(folder, model, every=every)
    how = {"initial_epoch": resume.epoch, "epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(resume.data(batches), callbacks=[TellSteps(), resume], **how)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--every", type=int, default=5, help="steps from one checkpoint to the next")
    chosen = parser.parse_args()
    tf.config.experimental.enable_op_determinism()  # reproducible sums on GPUs too,
    tf.config.experimental.enable_tensor_float_32_execution(False)  # and matmuls in full float32
    train(bt.strategy(), **vars(chosen))
