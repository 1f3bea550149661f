"""Whatever ends the process that launched a job: soon no process, no port that listens, no temporary folder is left."""

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
from leftovers import SECONDS as PROMISED
from leftovers import eventually, listens, runs

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")


def kernel(how, *arguments, **settings):
    """Start a process that launches two workers; return it once they are ready, with their addresses."""
    command = [sys.executable, SCRIPTS / "launches.py", how, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)
    addresses = json.loads(process.stdout.readline())
    assert all(map(listens, addresses))
    return process, addresses


def end(process):
    """Return what a process still says, and its exit code."""
    out, err = process.communicate(timeout=SECONDS)
    return out, err, process.returncode


def alone(code, **settings):
    """Run code in a process of its own, to its end."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, **settings)


@pytest.mark.parametrize("arguments", [[], ["grandchild"], ["stubborn", "grandchild"]], ids=" ".join)
@pytest.mark.parametrize("how", ["waits", "sleeps"])
def test_kill_9_of_the_kernel(how, arguments, watch):
    process, addresses = kernel(how, *arguments)
    process.kill()
    assert end(process)[2] == -9
    watch.nothing_left(addresses)


def test_an_interrupt_of_the_kernel(watch):
    process, addresses = kernel("waits")
    process.send_signal(signal.SIGINT)
    _, err, code = end(process)
    assert code not in (0, None) and err.rstrip().endswith("KeyboardInterrupt")
    watch.nothing_left(addresses)


def test_an_interrupt_of_wait_in_this_process(watch):
    job, addresses = waiting()
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        job.wait(SECONDS, show=False)
    assert job.codes == [-15, -15]
    watch.nothing_left(addresses)


def test_an_interrupt_while_a_cell_waits_reaches_no_worker_first():
    """A terminal's Ctrl-C goes to a whole process group; the workers must not be in the kernel's."""
    job, _ = waiting()
    assert os.getpgid(0) not in {os.getpgid(pid) for pid in job.pids}
    job.stop()


def test_a_kernel_that_is_terminated(watch):
    process, addresses = kernel("sleeps")
    process.terminate()
    end(process)
    watch.nothing_left(addresses)


def test_a_kernel_that_ends_while_its_workers_run(watch):
    process, addresses = kernel("exits")
    out, err, code = end(process)
    assert (out, err, code) == ("", "", 0)
    watch.nothing_left(addresses)


def test_a_kernel_whose_child_keeps_everything_open(watch):
    process, addresses = kernel("forks")
    (child,) = [one for one in psutil.Process(process.pid).children() if str(SCRIPTS / "launches.py") in one.cmdline()]
    process.kill()
    process.wait()
    eventually(lambda: watch.processes() == [child], PROMISED)
    assert not any(map(listens, addresses))
    child.kill()
    end(process)
    watch.nothing_left()


def test_a_job_that_is_stopped_while_a_child_of_the_kernel_keeps_everything_open(watch):
    process, addresses = kernel("stops", stdin=subprocess.PIPE)
    print("stop", file=process.stdin, flush=True)
    eventually(lambda: len(watch.processes()) == 2, SECONDS)  # the kernel and its child
    assert not any(map(listens, addresses))
    for one in watch.processes():
        one.kill()
    end(process)
    watch.nothing_left()


def test_a_child_of_the_kernel_that_ends_leaves_the_job_alone(watch):
    code = """
import bigtrain_nb as bt, os, sys
job = bt.run_workers("import time; time.sleep(2)")
if not os.fork():
    sys.exit()
print(job.wait())
"""
    assert alone(code).stdout == "[0, 0]\n"
    watch.nothing_left()


def test_a_kernel_killed_at_any_moment_of_the_start(watch):
    """The children may find no order, half of one, or a job that has just begun."""
    for _ in range(8):
        process = subprocess.Popen([sys.executable, SCRIPTS / "launches.py", "waits"], stdout=subprocess.DEVNULL)
        eventually(lambda pid=process.pid: psutil.Process(pid).children())  # the supervisor
        time.sleep(random.uniform(0, 0.2))
        process.kill()
        process.wait()
        watch.nothing_left()


@on_linux
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [[], ["stubborn", "grandchild"]], ids=" ".join)
def test_the_end_of_the_process_between(signal_number, arguments, watch):
    job, addresses = waiting(*arguments)
    psutil.Process(psutil.Process(job.pids[0]).ppid()).send_signal(signal_number)
    assert all(code < 0 for code in job.wait(SECONDS, show=False))
    watch.nothing_left(addresses)
    assert job.stop() == job.codes and job.exit_code > 128


def test_a_start_that_fails_half_way_where_the_system_does_not_clear_up(watch):
    environments = [dict(os.environ), {"no=name": ""}]
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    order = {"command": command, "source": None, "environments": environments, "timeout": None, "restarts": 0}
    code = "from bigtrain_nb.launch import supervisor; supervisor.LIBC = None; supervisor.main()"
    done = alone(code, input=json.dumps(order))
    assert done.returncode == 1 and "illegal environment variable name" in done.stderr
    watch.nothing_left()


def test_a_job_that_is_dropped_ends(watch):
    job, addresses = waiting()
    pids = job.pids
    del job
    gc.collect()
    watch.nothing_left(addresses)
    assert not any(map(runs, pids))


def test_a_kernel_that_drops_its_job(watch):
    process, addresses = kernel("drops")
    eventually(lambda: [one.pid for one in watch.processes()] == [process.pid], PROMISED)
    assert not any(map(listens, addresses))
    process.kill()
    end(process)
    watch.nothing_left()


def test_a_job_ends_with_the_thread_that_started_it_only_if_nobody_keeps_it():
    kept = []
    thread = threading.Thread(target=lambda: kept.extend(waiting()))
    thread.start()
    thread.join()
    job, addresses = kept
    time.sleep(0.3)
    assert job.codes == [None, None] and all(map(listens, addresses))
    job.stop()


def test_output_that_nobody_reads_any_more_does_not_hold_up_the_end(watch):
    launch = "import bigtrain_nb as bt, sys, time; job = bt.run_workers(sys.argv[1]); print('on', flush=True)"
    command = [sys.executable, "-c", f"{launch}; time.sleep(60)", SCRIPTS / "talks.py"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)  # its reading thread stands still, the pipe fills
    time.sleep(0.5)
    process.kill()
    end(process)
    watch.nothing_left()
