"""What one of two workers trains: ``python talking_worker.py FOLDER``. Each writes what it found."""

import json
import sys
import time
from pathlib import Path

import numpy as np
from worker import batched, net, weights

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

BATCH, EVERY, STEPS = 16, 3, 7  # of each batch, which worker.py makes, a worker has half


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def examples():
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 6)).astype("float32")
    return x, np.sin(x.sum(-1, keepdims=True))


class NobodyWaits(keras.callbacks.Callback):
    """The second worker begins when the first has taken all steps but one before a meeting."""

    def __init__(self, rank, sign):
        super().__init__()
        self.rank = rank
        self.sign = sign

    def on_train_batch_begin(self, batch, logs=None):
        patience = time.monotonic() + 60
        while self.rank == 1 and not self.sign.exists():
            if time.monotonic() > patience:
                raise TimeoutError("the first worker does not get through its steps alone")
            time.sleep(0.01)

    def on_train_batch_end(self, batch, logs=None):
        if self.rank == 0 and batch == EVERY - 2:
            self.sign.touch()


def apart(strategy, rank, folder):
    """Return the weights and losses of steps apart."""
    model = net(strategy, "float32", sgd, sync_every=EVERY)
    alone = NobodyWaits(rank, folder / "sign")
    data = batched(*examples()).repeat()
    history = model.fit(data, steps_per_epoch=STEPS, epochs=2, verbose=0, shuffle=False, callbacks=alone).history
    return {"weights": weights(model), "loss": history["loss"]}


def both(strategy, rank, folder):
    """Return the scales and weights of steps apart in float16, slices and a bfloat16 meeting; worker 1 meets an inf."""
    x, y = examples()
    x[2 * BATCH - 1] = np.inf
    scales = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: scales.append(model.loss_scale))
    settings = {"sync_every": EVERY, "reduce_dtype": "bfloat16", "micro_batches": 2}
    model = net(strategy, "mixed_float16", sgd, **settings)
    model.fit(batched(x, y), verbose=0, shuffle=False, callbacks=[record])
    return {"weights": weights(model), "scales": scales}


def short(strategy, rank, folder):
    """Return the weights after a training whose gradients travel in either type."""
    found = {}
    for dtype in ("float32", "bfloat16"):
        model = net(strategy, "float32", sgd, reduce_dtype=dtype)
        model.fit(batched(*examples()), verbose=0, shuffle=False)
        found[dtype] = weights(model)
    return found


if __name__ == "__main__":
    strategy = bt.strategy()
    rank, folder = strategy.cluster_resolver.task_id, Path(sys.argv[1])
    done = {job.__name__: job(strategy, rank, folder) for job in (apart, both, short)}
    (folder / f"{rank}.json").write_text(json.dumps(done), encoding="utf-8")
