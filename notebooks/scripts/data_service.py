"""Run one process of a tf.data service: process 0 is the dispatcher, the others are workers, which run the pipeline.

``bt.run_workers("scripts/data_service.py", 3)`` starts a dispatcher and two workers on this machine. To start a process
yourself, or to replace a lost worker: ``python3 scripts/data_service.py ADDRESSES NUMBER``. ADDRESSES is the HOST:PORT
of each process, separated by commas, and NUMBER the index of this one, from 0.
"""

import json
import os
import sys
import time

import tensorflow as tf

from bigtrain_nb.common.addresses import answers

WAIT_SECONDS = 60  # for the dispatcher


def wait_for(dispatcher):
    """Wait until the dispatcher answers. After `WAIT_SECONDS`, end this process with a message."""
    began = time.monotonic()
    while not answers(dispatcher):
        if time.monotonic() - began > WAIT_SECONDS:
            sys.exit(
                f"no answer within {WAIT_SECONDS} s from process 0 at {dispatcher}: read its log, and start it again"
            )
        time.sleep(0.1)


def main():
    if len(sys.argv) == 3:
        addresses, number = sys.argv[1].split(","), int(sys.argv[2])
    else:
        told = json.loads(os.environ["TF_CONFIG"])
        addresses, number = told["cluster"]["worker"], told["task"]["index"]
    service = tf.data.experimental.service
    port = int(addresses[number].rpartition(":")[2])
    if number == 0:
        server = service.DispatchServer(service.DispatcherConfig(port=port, worker_addresses=addresses[1:]))
    else:
        wait_for(addresses[0])  # otherwise the worker would retry only after many seconds
        config = service.WorkerConfig(
            dispatcher_address=addresses[0], worker_address=addresses[number], port=port, heartbeat_interval_ms=1000
        )
        server = service.WorkerServer(config)
    print("serving", flush=True)
    server.join()  # until the job is stopped


if __name__ == "__main__":
    main()
