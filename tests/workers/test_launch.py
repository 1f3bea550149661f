"""Workers on this machine: what they find, what they print, and how it reaches the notebook."""

import io
import json
import os
import sys
import threading
import time
from contextlib import redirect_stdout
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import psutil
import pytest
from launching import SCRIPTS, SECONDS, ended, run, start
from leftovers import eventually

import bigtrain_nb as bt


def told(job):
    return [json.loads(job.logs(index)) for index in range(len(job.codes))]


def test_each_line_is_shown_with_its_workers_name(capsys):
    job = run("print('first of', index); print('second of', index, file=sys.stderr)", workers=3, show=True)
    assert job.codes == [0, 0, 0] and job.failed is None and job.restarted == 0
    assert [job.logs(index) for index in range(3)] == [f"first of {n}\nsecond of {n}\n" for n in range(3)]
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == sorted(f"worker {n} | {word} of {n}" for n in range(3) for word in ("first", "second"))
    assert job.wait() == [0, 0, 0] and not capsys.readouterr().out


def test_lines_are_shown_while_the_workers_run(tmp_path):
    seen = io.StringIO()

    def answer():
        eventually(lambda: all(f"worker {index} | begun" in seen.getvalue() for index in range(2)))
        (tmp_path / "go").touch()

    job = start("print('begun')\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)", arguments=[tmp_path / "go"])
    thread = threading.Thread(target=answer)
    thread.start()
    with redirect_stdout(seen):
        assert job.wait(SECONDS) == [0, 0]
    thread.join()


def test_a_line_arrives_soon():
    job = start("for _ in range(20):\n    print(time.time()); time.sleep(0.05)", workers=1)
    delays = []
    for number in range(1, 20):
        line = eventually(lambda number=number: job.logs(0).splitlines()[number - 1 : number])
        delays.append(time.time() - float(line[0]))
    assert min(delays) < 0.5
    job.stop()


def test_a_script_finds_its_arguments_its_folder_and_what_is_added(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADDED", "no")
    settings = {"arguments": ["--epochs", 3, "two words", ""], "env": {"ADDED": 1.5}}
    first, second, third = told(ended(bt.run_workers(SCRIPTS / "tells.py", 3, **settings)))
    configs = [json.loads(found.pop("TF_CONFIG")) for found in (first, second, third)]
    assert first == second == third
    assert first["arguments"] == ["--epochs", "3", "two words", ""] and first["ADDED"] == "1.5"
    assert first["folder"] == str(tmp_path) and first["beside"] == str(SCRIPTS) and first["BIGTRAIN_RESTART"] == "0"
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(3)]
    (cluster,) = {json.dumps(config["cluster"]) for config in configs}
    addresses = json.loads(cluster)["worker"]
    assert len(set(addresses)) == 3 and all(address.startswith("127.0.0.1:") for address in addresses)
    assert list(json.loads(cluster)) == ["worker"]


def test_a_script_can_be_a_name_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("beside.py").write_text("said = 'from beside'")
    Path("hello there.py").write_text("import beside; print(beside.said)")
    for script in ("hello there.py", PurePosixPath("hello there.py")):
        assert ended(bt.run_workers(script, 1)).logs(0) == "from beside\n"


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
    """
    job = run(code, workers=1, arguments=["a"])
    assert job.logs(0) == "from beside 6 ['a']\ndef twice(x):\n    return 2 * x\n"


def test_a_traceback_has_the_lines_of_the_code_and_no_others():
    job = ended(bt.run_workers("x = 1\n\ndef fails():\n    raise KeyError('gone')\n\nfails()\n", 1))
    lines = job.logs(0).splitlines()
    assert job.codes == [1]
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "KeyError: 'gone'"
    places = [line.strip() for line in lines if line.strip().startswith("File")]
    assert [place.split(", ", 1)[1] for place in places] == ["line 6, in <module>", "line 4, in fails"]
    assert "    raise KeyError('gone')" in lines


def test_what_acts_at_exit_sees_that_an_error_ended_the_code():
    shows = "import atexit\natexit.register(lambda: print(f'at exit: {sys.last_value!r}'))\nraise KeyError('gone')"
    assert "at exit: KeyError('gone')\n" in run(shows, workers=1).logs(0)


def test_a_syntax_error_tells_its_line():
    job = ended(bt.run_workers("x = 1\nif x = 2:\n    pass\n", 1))
    assert job.codes == [1]
    assert "line 2" in job.logs(0) and "SyntaxError" in job.logs(0) and "cell.py" not in job.logs(0)


@pytest.mark.parametrize("show", [True, False])
def test_much_output_arrives_whole_and_in_order(show):
    seen = io.StringIO()
    with redirect_stdout(seen):
        job = run("for n in range(100_000):\n    sys.stdout.write(f'{n} of {index}\\n')", show=show)
    for index in range(2):
        expected = [f"{n} of {index}" for n in range(100_000)]
        assert job.logs(index).splitlines() == expected
        shown = [line for line in seen.getvalue().splitlines() if line.startswith(f"worker {index}")]
        assert shown == ([f"worker {index} | {line}" for line in expected] if show else [])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.stdout.write('one\\nno end')", "one\nno end\n"),
        ("os.write(1, b'caf\\xe9 \\xff\\n'); os.write(2, 'caf\\u00e9\\n'.encode())", "caf� �\ncafé\n"),
        ("print('\\0 and \\x1b[1m')", "\0 and \x1b[1m\n"),
        ("print('é' * 700_000 + '.')", "é" * 700_000 + ".\n"),
        ("print()\nprint('two lines')", "\ntwo lines\n"),
        ("pass", ""),
    ],
    ids=["no newline", "undecodable", "control characters", "a long line", "an empty line", "nothing"],
)
def test_whatever_is_written_is_kept(code, expected, capsys):
    job = run(code, workers=1, show=True)
    assert job.codes == [0] and job.logs(0) == expected
    assert capsys.readouterr().out == "".join(f"worker 0 | {line}\n" for line in expected.split("\n")[:-1])


def test_the_end_of_the_output_is_kept_when_a_child_lives_on():
    child = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    for _ in range(5):
        assert run(f"{child}; sys.stdout.write('no end')", workers=1).logs(0) == "no end\n"


def test_a_worker_that_asks_for_input_gets_none():
    for job in (run("input()", workers=1), ended(bt.run_workers(SCRIPTS / "reads.py", 1))):
        assert job.codes == [1] and "EOFError" in job.logs(0)


def test_a_worker_may_close_its_output_and_go_on():
    assert run("os.close(1); os.close(2); time.sleep(0.3); os._exit(4)", workers=1).codes == [4]


def test_what_is_known_while_they_run():
    job = start("print('ready'); time.sleep(600)")
    eventually(lambda: all("ready" in job.logs(index) for index in range(2)))
    assert job.codes == [None, None] and job.failed is None
    assert len(set(job.pids)) == 2 and all(psutil.Process(pid).is_running() for pid in job.pids)
    with pytest.raises(TimeoutError, match=r"the workers still run after 0\.2 s"):
        job.wait(0.2, show=False)
    assert job.codes == [None, None]
    assert set(job.stop()) == {-15} and job.stop() == job.codes == job.wait()


def test_jobs_side_by_side_do_not_share_ports():
    jobs = [bt.run_workers(SCRIPTS / "tells.py", 4) for _ in range(2)]
    ports = {address for job in jobs for address in json.loads(told(ended(job))[0]["TF_CONFIG"])["cluster"]["worker"]}
    assert len(ports) == 8


class Balance(HTMLParser):
    """Counts open tags."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def test_a_job_shows_itself():
    job = start("print('<b>bold & brave')\ntime.sleep(600)")
    eventually(lambda: all(job.logs(index) for index in range(2)))
    running = Balance(job._repr_html_())
    job.stop()
    ended = Balance(job._repr_html_())
    for page in (running, ended):
        assert not page.open and page.words.count("<b>bold & brave") == 2
        assert all(part in page.words for part in ("worker 0", "worker 1", *map(str, job.pids)))
    assert "runs" in running.words and "SIGTERM" in ended.words
    assert "worker 1" in repr(job) and "<" not in repr(job).replace("<b>", "")


def test_launching_adds_little_to_starting_the_processes():
    def seconds(work):
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def by_hand():
        import subprocess

        for process in [subprocess.Popen([sys.executable, "-c", "pass"]) for _ in range(2)]:
            process.wait()

    assert min(seconds(lambda: run("pass")) - seconds(by_hand) for _ in range(3)) < 1


def test_descriptors_and_threads_do_not_pile_up():
    run("pass")
    before = psutil.Process().num_fds(), threading.active_count()
    for _ in range(3):
        run("print('a line')")
    eventually(lambda: psutil.Process().num_fds() <= before[0] and threading.active_count() <= before[1])
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers=0 must be a whole number of at least 1"),
        ({"workers": "two"}, "workers='two' must be a whole number"),
        ({"workers": 1.5}, "workers=1.5 must be a whole number"),
        ({"timeout": -1}, "timeout=-1 must be a positive, finite number of seconds"),
        ({"timeout": "1 h"}, "timeout='1 h' must be a positive"),
        ({"restarts": -1}, "restarts=-1 must be a whole number of at least 0"),
        ({"patience": -0.5}, "patience=-0.5 must be a finite number of seconds, 0 or more"),
        ({"devices_per_worker": 0}, "devices_per_worker=0 must be a whole number of at least 1"),
        ({"devices_per_worker": "all"}, "devices_per_worker='all' must be"),
        ({"arguments": "--epochs 3"}, "arguments='--epochs 3' must be a list"),
        ({"arguments": 5}, "arguments=5 must be a list"),
        ({"arguments": ["a", "b\0c"]}, "arguments=['a', 'b\\x00c'] must have no NUL character"),
        ({"env": {"A": "b\0c"}}, "env={'A': 'b\\x00c'} must have no NUL character"),
        ({"env": ["ADDED"]}, "env=['ADDED'] must be a dictionary"),
        ({"env": {"A=B": "1"}}, "env={'A=B': '1'} must be a dictionary; a variable's name has"),
        ({"env": {"": "1"}}, "env={'': '1'} must be a dictionary; a variable's name has"),
        ({"script_or_code": 3}, "script_or_code=3 must be a path or Python code"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(settings, message, watch):
    with pytest.raises(ValueError) as caught:
        bt.run_workers(**{"script_or_code": "pass", **settings})
    assert message in str(caught.value)
    assert not watch.processes()


@pytest.mark.parametrize("script", ["gone.py", Path("gone.py"), Path("gone"), PurePosixPath("gone.py"), SCRIPTS])
def test_a_missing_script_is_told_at_once(script, watch):
    with pytest.raises(FileNotFoundError, match="there is no script"):
        bt.run_workers(script)
    assert not watch.processes()


def test_code_that_ends_like_a_scripts_name_is_code():
    assert run("print('ran')\n# as in train.py", workers=1).logs(0) == "ran\n"


@pytest.mark.parametrize("worker", [2, -1, "0"])
def test_a_worker_that_is_not_there_is_refused(worker):
    job = run("pass")
    for ask in (job.logs, job.kill):
        with pytest.raises(ValueError, match=f"worker={worker!r} must be a whole number of at least 0 and at most 1"):
            ask(worker)


def test_the_environment_of_this_process_stays():
    before = dict(os.environ)
    run("os.environ['HOME'] = '/nowhere'", env={"ADDED": "yes"})
    assert dict(os.environ) == before
