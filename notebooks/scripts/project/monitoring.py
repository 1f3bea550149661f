"""What the chief logs during training, in the run's folder."""

import json
from pathlib import Path

from bigtrain_nb.common.quiet import keras


class PrintSteps(keras.callbacks.Callback):
    """Prints a line of JSON every few steps, with the mean loss of the epoch so far."""

    def __init__(self, every):
        super().__init__()
        self.every = every

    def on_train_batch_end(self, batch, logs=None):
        step = int(self.model.optimizer.iterations.numpy())
        if step % self.every == 0:
            print(json.dumps({"step": step, "loss": float(logs["loss"])}), flush=True)


def callbacks(is_chief, folder, print_every, tensorboard):
    if not is_chief:
        return []
    Path(folder).mkdir(parents=True, exist_ok=True)
    chosen = [PrintSteps(print_every), keras.callbacks.CSVLogger(Path(folder, "log.csv"))]
    if tensorboard:
        chosen.append(keras.callbacks.TensorBoard(Path(folder, "tensorboard")))
    return chosen
