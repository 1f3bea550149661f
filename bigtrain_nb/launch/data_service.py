"""tf.data service: an input pipeline that runs in processes, or on machines, of its own."""

import os
import sys
import tempfile
import time

from bigtrain_nb.common.addresses import answers
from bigtrain_nb.common.checks import whole_number
from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.launch.jobs import Job, task

START_SECONDS = 120.0
RESTARTS = 1000  # a training of days may lose many workers, of which none is a failure of the others
HEARTBEAT_MILLISECONDS = 1000  # of workers: so soon a dispatcher that was started again knows them


def run_data_service(workers=2):
    """Start a tf.data service on this machine: a dispatcher and so many workers, as processes. Return `DataService`.

    ::

        with bt.run_data_service(workers=2) as service:
            dataset = bt.Pipeline(data=data, batch=64, service=service.address).dataset()

    Each process that is lost is started again, on its port. A dataset waits for that, some seconds, and goes on.
    """
    count = whole_number("workers", workers, 1)
    scratch = tempfile.mkdtemp(prefix="bigtrain_nb-data-service-")
    dispatcher = task("chief", 0, name="dispatcher", alone=True)
    order = {
        "tasks": [dispatcher] + [task("worker", index, alone=True) for index in range(count)],
        "command": [sys.executable, "-m", "bigtrain_nb.launch", "data-service", "--folder", scratch],
        "source": "",
        "timeout": None,
        "restarts": RESTARTS,
        "patience": 0.0,
        "scratch": scratch,
    }
    return DataService(order)


class DataService(Job):
    """A tf.data service that runs until the end of its `with` block, or until `stop`. Made by `run_data_service`.

    ``address`` is what `Pipeline` takes; ``names`` are "dispatcher", "worker 0", ...; ``pids``, ``kill`` and ``logs``
    are those of a `Job`.
    """

    def __init__(self, order):
        super().__init__(order)
        until = time.monotonic() + START_SECONDS
        while not all(map(answers, self.addresses)):
            if time.monotonic() > until or self.exit_code is not None:
                self.stop()
                raise RuntimeError(f"the data service did not start; the dispatcher has said: {self.logs(0)}")
            time.sleep(0.05)

    @property
    def address(self):
        return f"grpc://{self.addresses[0]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def serve(folder, first_port=None):
    """Be one process of a service, until it is ended: the first task of the cluster is the dispatcher.

    ``folder`` keeps what the dispatcher must know after a restart. ``first_port`` is, under SLURM, that of the
    dispatcher.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf  # without Keras: a lost worker is back sooner

    spec = cluster_spec(first_port=first_port)
    service = tf.data.experimental.service
    if spec.rank == 0:
        config = service.DispatcherConfig(
            port=spec.port,
            work_dir=os.path.join(folder, "dispatcher"),
            fault_tolerant_mode=True,
            worker_addresses=spec.addresses[1:],
        )
        server = service.DispatchServer(config)
    else:
        config = service.WorkerConfig(
            dispatcher_address=spec.addresses[0],
            worker_address=spec.addresses[spec.rank],
            port=spec.port,
            heartbeat_interval_ms=HEARTBEAT_MILLISECONDS,
        )
        server = service.WorkerServer(config)
    server.join()
