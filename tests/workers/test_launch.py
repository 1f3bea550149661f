"""Workers on this machine: their environment, their output, and how it reaches the notebook."""

import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import psutil
import pytest
from bs4 import BeautifulSoup
from launching import SCRIPTS, ended, run, start
from leftovers import eventually

import bigtrain_nb as bt


def test_each_line_is_shown_with_its_workers_name(capsys):
    job = run("print('first of', index); print('second of', index, file=sys.stderr)", workers=3, show=True)
    assert job.codes == [0, 0, 0] and job.failed is None and job.restarted == 0 and job.exit_code == 0
    assert [job.logs(index) for index in range(3)] == [f"first of {n}\nsecond of {n}\n" for n in range(3)]
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == sorted(f"worker {n} | {word} of {n}" for n in range(3) for word in ("first", "second"))
    assert job.wait() == [0, 0, 0] and not capsys.readouterr().out
    for worker in (3, -1, "worker 3"):
        with pytest.raises(ValueError, match="^worker="):
            job.logs(worker)


def test_a_script_finds_its_place_its_gpu_its_arguments_and_what_is_added(tmp_path, monkeypatch):
    """unit/test_shares_of_gpus.py has more ways to divide GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADDED", "no")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    before = dict(os.environ)
    settings = {"arguments": ["--epochs", 3, "two words", ""], "env": {"ADDED": 1.5}}
    settings |= {"timeout": np.int64(60), "grace_period": np.float32(1)}
    jobs = [bt.run_workers(SCRIPTS / "tells.py", 3, **settings) for _ in range(2)]
    ports = set()
    for job in jobs:
        ended(job)
        for index in range(3):
            found = json.loads(job.logs(index))
            config = json.loads(found["TF_CONFIG"])
            assert config["task"] == {"type": "worker", "index": index}
            assert found["arguments"] == ["--epochs", "3", "two words", ""] and found["ADDED"] == "1.5"
            assert found["folder"] == str(tmp_path) and found["beside"] == str(SCRIPTS)
            assert found["BIGTRAIN_RESTART"] == "0" and found["CUDA_VISIBLE_DEVICES"] == str(index)
            ports.update(config["cluster"]["worker"])
    assert len(ports) == 6 and all(address.startswith("127.0.0.1:") for address in ports)
    assert dict(os.environ) == before


def test_code_runs_as_the_main_module_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("beside.py").write_text("said = 'from beside'")
    code = """
    import __main__, inspect, sys
    import beside

    def twice(x):
        return 2 * x

    if __name__ == "__main__":
        print(beside.said, __main__.twice(3), sys.argv[1:])
        print(inspect.getsource(twice), end="")
    # as in train.py"""
    job = run(code, workers=1, arguments=["a"])
    assert job.logs(0) == "from beside 6 ['a']\ndef twice(x):\n    return 2 * x\n"


def test_a_traceback_has_the_lines_of_the_code_and_no_others():
    shows = "import atexit, sys; atexit.register(lambda: print(f'at exit: {sys.last_value!r}'))"
    job = ended(bt.run_workers(f"{shows}\n\ndef fails():\n    raise KeyError('gone')\n\nfails()\n", 1))
    *lines, last = job.logs(0).splitlines()
    assert job.codes == [1]
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "KeyError: 'gone'"
    places = [line.split(", ", 1)[1] for line in lines if line.strip().startswith("File")]
    assert places == ["line 6, in <module>", "line 4, in fails"] and "    raise KeyError('gone')" in lines
    assert last == "at exit: KeyError('gone')"  # atexit handlers can see the failure


def test_much_output_is_shown_whole_and_in_order_and_its_first_and_last_lines_are_kept():
    seen = io.StringIO()
    with redirect_stdout(seen):
        job = run("for n in range(50_000):\n    sys.stdout.write(f'{n} of {index}\\n')", show=True)
    for index in range(2):
        expected = [f"{n} of {index}" for n in range(50_000)]
        kept = [*expected[:10_000], "... 30,000 lines left out ...", *expected[-10_000:]]
        assert job.logs(index).splitlines() == kept
        shown = [line for line in seen.getvalue().splitlines() if line.startswith(f"worker {index}")]
        assert shown == [f"worker {index} | {line}" for line in expected]


def test_of_what_nobody_waits_for_as_much_is_shown_later(capsys):
    job = start("print(index)\nfor n in range(20_001): print(n)", workers=1)
    eventually(lambda: job.exit_code is not None)
    job.wait()
    lines = [*range(9999), "... 2 lines left out ...", *range(10_001, 20_001)]
    assert job.logs(0).splitlines() == ["0", *map(str, lines)]
    shown = capsys.readouterr().out.splitlines()
    assert shown == [line if "left out" in str(line) else f"worker 0 | {line}" for line in [0, *lines]]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.write(1, b'caf\\xe9\\n'); os.write(2, 'caf\\u00e9\\n'.encode())", "caf�\ncafé\n"),
        ("print('é' * 700_000 + '.')", "é" * 700_000 + ".\n"),
        ("import subprocess; subprocess.Popen(['sleep', '600']); sys.stdout.write('no end')", "no end\n"),
    ],
    ids=["undecodable", "a long line", "a child that lives on"],
)
def test_whatever_is_written_is_kept(code, expected, capsys, watch):
    job = run(code, workers=1, show=True)
    assert job.codes == [0] and job.logs(0) == expected
    assert capsys.readouterr().out == "".join(f"worker 0 | {line}\n" for line in expected.split("\n")[:-1])
    watch.nothing_left()


def words_in(job):
    page = BeautifulSoup(job._repr_html_(), "html.parser")
    rows = [[cell.get_text() for cell in row.select("th, td")] for row in page.select("tbody tr")]
    return page.caption.get_text(), rows


def test_what_is_known_of_a_job_while_it_runs_and_afterwards():
    job = start("print('<b>bold & brave')\ntime.sleep(600)")
    eventually(lambda: all(job.logs(index) for index in range(2)))
    assert job.codes == [None, None] and job.failed is None and job.exit_code is None
    assert len(set(job.pids)) == 2 and all(psutil.Process(pid).is_running() for pid in job.pids)
    rows = [[f"worker {index}", str(job.pids[index]), "runs", "<b>bold & brave"] for index in range(2)]
    assert words_in(job) == ("2 workers running", rows)
    ports = ", ".join(address.removeprefix("127.0.0.1:") for address in job.addresses)
    warning = f"Anyone who can connect to this machine can use the TensorFlow ports ({ports}) without a password"
    assert warning in repr(job) and warning in job._repr_html_()
    assert job.stop() == [-15, -15] == job.stop() == job.wait() == job.codes
    caption, rows = words_in(job)
    assert "2 workers were stopped after" in caption and rows[1][2] == "killed by SIGTERM"
    assert "worker 1" in repr(job) and "ports" not in repr(job) and "<" not in repr(job).replace("<b>", "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 257}, "workers=257 must be an integer of at least 1 and at most 256"),
        ({"arguments": ["x" * 200_000]}, "worker 0 could not be started: Argument list too long"),
        ({"arguments": ["x\0"]}, "worker 0 could not be started: embedded null byte"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings, message, watch):
    with pytest.raises((ValueError, OSError)) as caught:
        bt.run_workers(**{"script_or_code": "pass", **settings})
    assert message in str(caught.value)
    assert not watch.processes()
