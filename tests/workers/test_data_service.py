"""A tf.data service in real processes: which elements arrive, and what a lost process costs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter

import psutil
import pytest
from leftovers import eventually, listens, runs

import bigtrain_nb as bt
from bigtrain_nb.launch import data_service
from bigtrain_nb.launch.supervisor import free_ports

kills = pytest.mark.more("starts and kills services: notebook 12 does so too")
COUNT = 2000


@pytest.fixture(scope="module")
def service():
    with bt.run_data_service(workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    paths = [folder / f"{index}.tfrecord" for index in range(10)]
    for index, path in enumerate(paths):
        with bt.tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(index, COUNT, 10):
                writer.write(str(number).encode())
    return paths


def parse(record):
    return bt.tf.strings.to_number(record, bt.tf.int64)


def doubled(numbers):
    return 2 * numbers


def arrived(dataset, kill=None):
    """How often each number comes; after 20 batches ``kill`` is called."""
    seen = Counter()
    for index, batch in enumerate(dataset):
        seen.update((batch.numpy() // 2).tolist())
        if kill and index == 20:
            kill()
    return seen


@pytest.mark.parametrize(("sharding", "times"), [("dynamic", 1), ("data", 1), ("file", 1), ("off", 2)])
def test_the_sharding_says_how_often_each_example_comes(sharding, times, service, files):
    pipeline = bt.Pipeline(data=files, parse=parse, finish=doubled, batch=7, service=service.address, sharding=sharding)
    assert arrived(pipeline.dataset()) == Counter(dict.fromkeys(range(COUNT), times))


@kills
@pytest.mark.parametrize(("sharding", "least", "most"), [("dynamic", COUNT * 4 // 5, 5), ("data", COUNT, 3)])
def test_three_passes_hold_each_example(sharding, least, most, service, files):
    settings = {"service": service.address, "sharding": sharding, "repeat": True}
    dataset = bt.Pipeline(data=files, parse=parse, finish=doubled, batch=7, **settings).dataset()
    seen = arrived(dataset.unbatch().take(3 * COUNT).batch(100))
    assert len(seen) >= least and max(seen.values()) <= most  # "dynamic": a worker may be late with one of ten files


@kills
@pytest.mark.parametrize("sharding", ["dynamic", "off"])
def test_a_lost_worker_is_started_again_and_what_it_had_is_lost_or_repeated(sharding, service, files):
    before = service.restarted
    settings = {"service": service.address, "sharding": sharding}
    dataset = bt.Pipeline(data=files, parse=parse, finish=doubled, batch=2, **settings).dataset()
    seen = arrived(dataset, kill=lambda: service.kill("worker 0"))
    eventually(lambda: service.restarted == before + 1)
    if sharding == "dynamic":
        assert max(seen.values()) == 1 and COUNT / 2 < len(seen) <= COUNT
    else:
        assert len(seen) == COUNT and 2 <= max(seen.values()) <= 3


@kills
def test_a_lost_dispatcher_is_started_again_and_two_readers_of_one_job_share_its_examples(service, files):
    settings = {"service": service.address, "job_name": "shared"}
    pipeline = bt.Pipeline(data=files, parse=parse, finish=doubled, batch=2, **settings)
    other = iter(pipeline.dataset())
    first = next(other)
    seen = arrived(pipeline.dataset(), kill=lambda: service.kill("dispatcher"))
    seen += arrived([first, *other])
    assert seen == Counter(range(COUNT))


@kills
def test_a_worker_whose_port_answers_is_not_ready_before_it_has_registered(tmp_path, watch):
    """Else a job of the sharding "data" could begin, and end, without a share: nobody would read it."""
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # in place of a dispatcher
        addresses = [f"127.0.0.1:{mute.getsockname()[1]}", f"127.0.0.1:{port}"]
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 1}}
        environment = os.environ | {"TF_CONFIG": json.dumps(config)}
        command = [sys.executable, "-m", "bigtrain_nb.launch", "data-service", "--folder", tmp_path]
        worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: listens(addresses[1]))
            assert not list(tmp_path.iterdir())
        finally:
            worker.kill()
            worker.wait()


@kills
def test_a_process_that_stands_still_is_named_killed_and_started_again(files, capfd):
    with bt.run_data_service(workers=2, silent_after=8) as made:
        pids = list(made.pids)
        for index, name in [(1, "worker 0"), (0, "dispatcher")]:
            os.kill(pids[index], signal.SIGSTOP)
            eventually(lambda index=index: made.pids[index] != pids[index])
            said = f"{name} (pid {pids[index]}) of the data service has not answered for 8 s; it is killed"
            assert said in capfd.readouterr().out
        assert made.pids[2] == pids[2] and made.restarted == 2
        pipeline = bt.Pipeline(data=files, parse=parse, finish=doubled, batch=7, service=made.address)
        eventually(lambda: listens(made.addresses[0]))
        assert arrived(pipeline.dataset()) == Counter(range(COUNT))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"workers": 2**70}, "at most 256"), ({"silent_after": 0}, "silent_after=0 must be a positive, finite number")],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        bt.run_data_service(**settings)


@kills
def test_nothing_is_left(watch):
    with bt.run_data_service(workers=1) as made:
        pids, addresses = made.pids, made.addresses
        ready = sorted(path.name for path in watch.folder.glob("*/registered-*"))
        assert ready == ["registered-0", "registered-1"]
        assert made.names == ["dispatcher", "worker 0"] and made.address == f"grpc://{addresses[0]}"
    eventually(lambda: not any(map(runs, pids)))
    watch.nothing_left(addresses)
    gone = bt.Pipeline(data=[os.devnull], parse=parse, service=made.address)
    with pytest.raises(RuntimeError, match="does not answer"):
        gone.dataset()


@kills
def test_an_interrupt_while_it_starts_leaves_no_process(monkeypatch):
    there = set(psutil.Process().children(recursive=True))
    begun = set()

    def interrupt(*_):
        begun.update(set(psutil.Process().children(recursive=True)) - there)
        raise KeyboardInterrupt

    monkeypatch.setattr(data_service, "_registered", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bt.run_data_service(workers=1)
    assert len(begun) >= 3
    eventually(lambda: not any(process.is_running() for process in begun))
