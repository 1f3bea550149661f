"""Train the model of on_servers.py synchronously on several workers, until stopped: each step waits for all workers.

The chief prints a line of JSON after each round.
"""

import time

from on_servers import BATCH, RATE, WIDTH, new_net, tell

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

EVERY = 10


def main():
    strategy = bt.strategy()
    with strategy.scope():
        model = bt.Model.of(new_net())
        model.compile(keras.optimizers.SGD(RATE), "mse")
    rows = tf.random.stateless_normal([BATCH, WIDTH], seed=(1, 2))
    steps = 0
    while True:
        began = time.monotonic()
        for _ in range(EVERY):
            loss = model.train_on_batch(rows, rows[:, :1])
        steps += EVERY
        if strategy.extended.should_checkpoint:
            tell(steps=steps, loss=float(loss), seconds=time.monotonic() - began)


if __name__ == "__main__":
    main()
