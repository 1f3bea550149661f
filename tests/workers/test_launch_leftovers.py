"""However the process that launched a job ends, no process, listening port or temporary file remains for long."""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from launching import SCRIPTS, SECONDS, waiting
from leftovers import eventually, listens

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")


def kernel(how, *arguments, **settings):
    """Start a process that launches two workers; once they are ready, return it and their addresses."""
    command = [sys.executable, SCRIPTS / "launches.py", how, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)
    return process, json.loads(process.stdout.readline())


def end(process):
    """Return a process's remaining output, and its exit code."""
    out, err = process.communicate(timeout=SECONDS)
    return out, err, process.returncode


def test_kill_9_of_the_kernel(watch):
    process, addresses = kernel("waits", "stubborn", "grandchild")
    assert all(map(listens, addresses))
    process.kill()
    assert end(process)[2] == -9
    watch.nothing_left(addresses)


def test_an_interrupt_of_wait_in_this_process(watch):
    job, addresses = waiting()
    assert os.getpgid(0) not in map(os.getpgid, job.pids)  # a terminal's Ctrl-C reaches the process group
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        job.wait(show=False)
    assert job.codes == [-15, -15]
    watch.nothing_left(addresses)


@pytest.mark.parametrize("how", ["forks", "stops"])
def test_a_kernel_whose_child_keeps_everything_open(how, watch):
    process, addresses = kernel(how, stdin=subprocess.PIPE)
    (child,) = [one for one in psutil.Process(process.pid).children() if str(SCRIPTS / "launches.py") in one.cmdline()]
    if how == "forks":
        process.kill()
        process.wait()
        eventually(lambda: watch.processes() == [child])
    else:
        print("stop", file=process.stdin, flush=True)
        eventually(lambda: len(watch.processes()) == 2)  # the kernel and its child
    assert not any(map(listens, addresses))
    child.kill()
    process.kill()
    end(process)
    watch.nothing_left()


def test_a_kernel_killed_at_any_moment_of_the_start(watch):
    """The children may find no order on standard input, half of one, or a job that has just begun."""
    for _ in range(5):
        process = subprocess.Popen([sys.executable, SCRIPTS / "launches.py", "waits"], stdout=subprocess.DEVNULL)
        eventually(lambda pid=process.pid: psutil.Process(pid).children())  # the supervisor
        time.sleep(random.uniform(0, 0.2))
        process.kill()
        process.wait()
    watch.nothing_left()


@on_linux
@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_the_end_of_the_process_between(how, watch):
    job, addresses = waiting("grandchild")
    supervisor = psutil.Process(job.pids[0]).parent()
    getattr(supervisor, how)()
    assert all(code < 0 for code in job.wait(show=False))
    watch.nothing_left(addresses)
    assert job.stop() == job.codes and job.exit_code > 128


def test_a_job_ends_when_nobody_keeps_it_not_with_the_thread_that_started_it(watch):
    kept = []
    thread = threading.Thread(target=lambda: kept.extend(waiting()))
    thread.start()
    thread.join()
    time.sleep(0.3)
    addresses = kept[1]
    assert kept[0].codes == [None, None] and all(map(listens, addresses))
    kept.clear()
    gc.collect()
    watch.nothing_left(addresses)


def test_output_that_nobody_reads_any_more_does_not_hold_up_the_end(watch):
    launch = "import bigtrain_nb as bt, sys, time; job = bt.run_workers(sys.argv[1]); print('on', flush=True)"
    command = [sys.executable, "-c", f"{launch}; time.sleep(60)", SCRIPTS / "talks.py"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)  # its reading thread stops, and the pipe fills up
    time.sleep(0.5)
    process.kill()
    end(process)
    watch.nothing_left()
