"""Two workers with different numbers of batches. `python uneven.py SECONDS`, under `bt.run_workers`.

Each prints a line of JSON when it begins and ends a step, by its own clock. SECONDS: after how long an all-reduce
gives up; 0: never.
"""

import faulthandler
import json
import signal
import sys
import time

import bigtrain_nb as bt

BATCHES = [7, 5]
"""Per worker."""
COMPUTES = [0.1, 0.4]
"""Seconds per batch of each worker: the second one is slower."""
CLOCK_AHEAD = [0.0, 37.5]
"""Clock error of each worker, in seconds."""


def main(seconds):
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # prints the current stack at this signal
    strategy = bt.strategy()
    from bigtrain_nb import tf

    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=seconds or None)
    worker = strategy.cluster_resolver.task_id

    def tell(what, step):
        print(json.dumps({"at": time.time() + CLOCK_AHEAD[worker], "what": what, "step": step}), flush=True)

    def one_replica(loss):
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(loss), options=options)

    @tf.function
    def train_step(loss):
        return strategy.run(one_replica, args=(loss,))

    for step in range(BATCHES[worker]):
        tell("begin", step)
        time.sleep(COMPUTES[worker])
        tell("all-reduce", step)
        train_step(tf.constant(1.0 / (1 + step))).numpy()  # waits for the others
        tell("end", step)
    tell("done", step)
    time.sleep(600)  # simulates further work, such as an evaluation


if __name__ == "__main__":
    main(float(sys.argv[1]))
