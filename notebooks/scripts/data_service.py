"""Be one process of a tf.data service: the first of those that ``bt.run_workers`` starts hands out, the others decode.

One that was lost comes back by ``data_service.py ADDRESSES NUMBER``.
"""

import json
import os
import sys
import time

import tensorflow as tf

from bigtrain_nb.common.addresses import answers


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
        while not answers(addresses[0]):  # else it would try again after many seconds only
            time.sleep(0.1)
        config = service.WorkerConfig(
            dispatcher_address=addresses[0], worker_address=addresses[number], port=port, heartbeat_interval_ms=1000
        )
        server = service.WorkerServer(config)
    print("serves", flush=True)
    server.join()  # until the job is stopped


if __name__ == "__main__":
    main()
