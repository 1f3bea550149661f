"""tf.data service: an input pipeline that runs in processes, or on machines, of its own."""

import os
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Self

from bigtrain_nb.common.addresses import answers, host_and_port
from bigtrain_nb.common.checks import positive, whole_number
from bigtrain_nb.common.files import write_text
from bigtrain_nb.launch import silence
from bigtrain_nb.launch.cluster_spec import Place, cluster_spec
from bigtrain_nb.launch.jobs import MOST_PROCESSES, Job, task

START_SECONDS = 120.0
RESTARTS = 1000  # a training of days may lose many workers, of which none is a failure of the others
HEARTBEAT_MILLISECONDS = 1000  # of workers: so soon a dispatcher that was started again knows them
DISPATCHER_SECONDS = 30.0


def run_data_service(workers: int = 2, silent_after: float = silence.SILENT_SECONDS) -> "DataService":
    """Start a tf.data service on this machine: a dispatcher and so many workers, as processes. Return `DataService`.

    Each process that is lost is started again, on its port. A dataset waits for that, some seconds, and goes on. A
    process that does not answer for ``silent_after`` seconds (60), because it was stopped, is named, killed, and
    started again.

    Raises ValueError for bad settings, OSError with the system's reason for a process that cannot be started,
    RuntimeError if the service is not ready within two minutes.

    Example::

        data = bt.photo_crops(count=16, test_count=8, size=48)
        with bt.run_data_service(workers=1) as service:
            pipeline = bt.Pipeline(data=data, batch=4, service=service.address)
            for images, labels in pipeline.dataset():
                print(images.shape, labels.numpy())
    """
    count = whole_number("workers", workers, 1, MOST_PROCESSES)
    silent_after = positive("silent_after", silent_after, "seconds")
    scratch = tempfile.mkdtemp(prefix="bigtrain_nb-data-service-")
    dispatcher = task("chief", 0, name="dispatcher", alone=True)
    tasks = [dispatcher] + [task("worker", index, alone=True) for index in range(count)]
    order = {
        "tasks": tasks,
        "command": [sys.executable, "-m", "bigtrain_nb.launch", "data-service", "--folder", scratch],
        "source": "",
        "timeout": None,
        "restarts": RESTARTS,
        "patience": 0.0,
        "scratch": scratch,
    }
    return DataService(order, silent_after)


class DataService(Job):
    """A tf.data service that runs until the end of its `with` block, or until `stop`. Made by `run_data_service`.

    ``address`` is what `Pipeline` takes; ``names`` are "dispatcher", "worker 0", ...; ``pids``, ``kill`` and ``logs``
    are those of a `Job`.
    """

    def __init__(self, order, silent_after):
        self._over = threading.Event()
        weakref.finalize(self, self._over.set)
        super().__init__(order)
        try:
            self._wait_until_registered(order["scratch"])
        except BaseException:  # an interrupt too
            self.stop()
            raise
        silence.watch(self.addresses, silent_after, _end_a_silent_one(weakref.ref(self), silent_after), self._over)

    def _wait_until_registered(self, scratch):
        until = time.monotonic() + START_SECONDS
        while not all(_registered(scratch, rank).exists() for rank in range(len(self.names))):
            if time.monotonic() > until or self.exit_code is not None:
                raise RuntimeError(f"the data service did not start; the dispatcher has said: {self.logs(0)}")
            time.sleep(0.05)

    @property
    def address(self) -> str:
        return f"grpc://{self.addresses[0]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self) -> list[int | None]:
        """End all processes, by SIGTERM and if need be by SIGKILL 5 s later; return their exit codes."""
        self._over.set()
        return super().stop()


def _end_a_silent_one(reference, silent_after):
    """Return what to do with one that is silent. ``reference`` is a weak one: a service that is dropped can end."""

    def end(index):
        service = reference()
        if service and service.codes[index] is None:
            process = f"{service.names[index]} (pid {service.pids[index]})"
            print(f"{process} of the data service has not answered for {silent_after:g} s; it is killed", flush=True)
            service.kill(index)

    return end


def serve(folder):
    """Be one process of a service, until it is ended: the first task of the cluster is the dispatcher.

    ``folder``, private to the service, keeps what the dispatcher must know after a restart, and has a file
    "registered-<rank>" for each process that the others can use, with the address of the service.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf  # without Keras: a lost worker is back sooner

    addresses, rank = _all_addresses(folder)
    service = tf.data.experimental.service
    _, port = host_and_port(addresses[rank])
    if rank == 0:
        config = service.DispatcherConfig(
            port=port,
            work_dir=os.path.join(folder, "dispatcher"),
            fault_tolerant_mode=True,
            worker_addresses=addresses[1:],
        )
        server = service.DispatchServer(config)
        names = [f"worker {index} ({address}) of the data service" for index, address in enumerate(addresses[1:])]
        silence.say(names, addresses[1:])
    else:
        config = service.WorkerConfig(
            dispatcher_address=addresses[0],
            worker_address=addresses[rank],
            port=port,
            heartbeat_interval_ms=HEARTBEAT_MILLISECONDS,
        )
        _wait_for(addresses[0])
        server = service.WorkerServer(config)  # has its first answer from the dispatcher then
    _registered(folder, rank).write_text(f"grpc://{addresses[0]}")
    server.join()


def _all_addresses(folder):
    """Return the addresses of all processes of the service, and which of them this one is.

    One that is started again must have its port again: where no TF_CONFIG has it, it stands in the folder.
    """
    found = cluster_spec()
    if found is None:
        raise ValueError(
            "a process of a data service finds its place in TF_CONFIG, or in a rank, a count and the first process'"
            " address, as bt.strategy() does: it has neither"
        )
    if isinstance(found, Place):
        kept = Path(folder, f"tf-config-{found.rank}")
        if not kept.exists():
            from bigtrain_nb.launch.rendezvous import Patience, locate  # loads Keras, which a restart need not

            write_text(kept, locate(found, Patience(START_SECONDS)).tf_config)
        found = cluster_spec({"TF_CONFIG": kept.read_text()})
    return found.addresses, found.rank


def _wait_for(dispatcher):
    """Wait a while: a worker that does not find the dispatcher at once tries again after many seconds only."""
    until = time.monotonic() + DISPATCHER_SECONDS
    while not answers(dispatcher) and time.monotonic() < until:
        time.sleep(0.1)


def _registered(folder, rank):
    return Path(folder, f"registered-{rank}")
