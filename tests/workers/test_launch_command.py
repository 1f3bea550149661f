"""``python -m bigtrain_nb.launch run`` from a shell: output, exit codes, interrupts."""

import signal
import subprocess
import sys

import pytest
from launching import SCRIPTS, SECONDS
from leftovers import listens

COMMAND = [sys.executable, "-m", "bigtrain_nb.launch", "run"]


def shell(*words, **settings):
    """Run a command line to completion."""
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=SECONDS, **settings)


def begun(*words):
    """Start a command line whose two workers wait; return it once they listen, with their addresses."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # in case the tests run under nohup
    )
    addresses = set()
    while len(addresses) < 2:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        if "ready at" in line:
            addresses.add(line.split()[-1])
    assert all(map(listens, addresses))
    return process, addresses


def test_the_exit_code_is_that_of_the_first_failure(tmp_path, watch):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\n'\"index\": 1' in os.environ['TF_CONFIG'] and sys.exit(3)\ntime.sleep(600)"
    )
    done = shell(script)
    assert done.returncode == 3 and done.stderr == ""
    assert "worker 1 failed" in done.stdout
    watch.nothing_left()


def test_restarts_and_the_timeout(tmp_path, watch):
    mended = tmp_path / "train.py"
    mended.write_text("import os, sys; sys.exit(int(os.environ['BIGTRAIN_RESTART'] == '0'))")
    assert shell("--restarts", 1, mended).returncode == 0
    ended = shell("--timeout", 0.5, SCRIPTS / "waits.py")
    assert ended.returncode == 124 and "timeout" in ended.stdout
    watch.nothing_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, -1)])
def test_signals_end_the_job(number, code, watch):
    process, addresses = begun(SCRIPTS / "waits.py", "--", "grandchild")
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code and err == ""
    watch.nothing_left(addresses)


def test_two_interrupts(watch):
    process, addresses = begun(SCRIPTS / "waits.py", "--", "stubborn")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)  # the workers ignore the first signal
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    process.communicate()
    watch.nothing_left(addresses)


def test_a_reader_that_goes_away(watch):
    code = f"{sys.executable} -m bigtrain_nb.launch run {SCRIPTS / 'talks.py'} | head -n 2"
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert len(done.stdout.splitlines()) == 2 and "Traceback" not in done.stderr
    watch.nothing_left()


def test_a_mistake_is_told_in_a_line(tmp_path, watch):
    done = shell("gone.py", cwd=tmp_path)
    assert done.returncode == 2 and "there is no script 'gone.py'" in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout
    watch.nothing_left()
