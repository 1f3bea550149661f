"""The notebooks' train_photos.py with a pause of BIGTRAIN_PAUSE seconds after each step, to give Ray time."""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "notebooks" / "scripts"))

import train_photos  # noqa: E402

import bigtrain_nb as bt  # noqa: E402

EPOCHS, EVERY = 20, 10


class TellSlowly(train_photos.TellSteps):
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        time.sleep(float(os.environ["BIGTRAIN_PAUSE"]))


train_photos.TellSteps = TellSlowly
bt.tf.config.experimental.enable_op_determinism()
train_photos.train(bt.strategy(), sys.argv[1], EPOCHS, every=EVERY)
