"""tools/setup.py: what it decides, what it says, and that it heals; offline, on a project that needs nothing."""
import ast
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setup

SETUP = Path(setup.__file__)
ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # what an old Python makes of C

# A build backend of the project's own, so that pip needs no network.
BACKEND = '''
import os, zipfile

def build_editable(wheels, config_settings=None, metadata_directory=None):
    if os.path.exists("broken"):
        raise SystemExit("the disk is full")
    with zipfile.ZipFile(os.path.join(wheels, "bigtrain_nb-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("bigtrain_nb/__init__.py", "")
        info = "bigtrain_nb-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: bigtrain-nb\\nVersion: 1\\n"
                       "Provides-Extra: test\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "bigtrain_nb/__init__.py,,\\n" + "".join(info + f + ",,\\n" for f in
                       ("METADATA", "WHEEL", "RECORD")))
    return "bigtrain_nb-1-py3-none-any.whl"
'''


@pytest.fixture
def folder(tmp_path):
    """A project with nothing to install but itself."""
    root = tmp_path / "project"
    (root / "tools").mkdir(parents=True)
    shutil.copy(SETUP, root / "tools")
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    (root / "constraints.txt").write_text("")
    return root


@pytest.fixture
def ready(folder):
    """The same with a .venv (without pip, so quickly made) that counts as finished."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    for package in ("bigtrain_nb", "tensorflow"):
        (packages(folder) / package).mkdir()
        (packages(folder) / package / "core.py").write_text("")
    setup.Project(str(folder)).write_stamp()
    return folder


def packages(folder):
    return next((folder / ".venv" / "lib").glob("python3*/site-packages"))


def state(folder):
    return setup.Project(str(folder)).state()


def call(folder, *chosen, **options):
    command = [sys.executable, folder / "tools" / "setup.py", *chosen]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def fake_pip(folder, code):
    """In .venv, which has no pip, one that runs `code` instead."""
    (packages(folder) / "pip").mkdir()
    (packages(folder) / "pip" / "__main__.py").write_text(code)


def fake_python(path, *lines, code=0):
    """A program that answers the probe as some Python would, and keeps what it was last called with in PATH.call."""
    answers = "".join(f"echo '{line}'\n" for line in lines)
    path.write_text(f'#!/bin/sh\necho "$*" > "$0.call"\n{answers}exit {code}\n')
    path.chmod(0o755)
    return str(path)


def test_a_finished_set_up_is_ready_and_the_call_changes_nothing(ready):
    assert state(ready) == "ready"
    before = (ready / ".venv" / "setup-done.json").stat().st_mtime_ns
    (packages(ready) / "added_by_the_reader").mkdir()
    done = call(ready)
    assert (done.returncode, done.stdout) == (0, "")
    assert (ready / ".venv" / "setup-done.json").stat().st_mtime_ns == before


def test_no_environment_is_absent(folder):
    assert state(folder) == "absent"


def cut_stamp(root):
    (root / ".venv" / "setup-done.json").write_text('{"root":')


def no_python(root):
    (root / ".venv" / "bin" / "python").unlink()


def dead_python(root):
    no_python(root)
    fake_python(root / ".venv" / "bin" / "python", code=1)


def other_python(root):
    no_python(root)
    fake_python(root / ".venv" / "bin" / "python", "3.99", packages(root))


def test_a_gpu_brings_cudas_libraries(ready, monkeypatch):
    project = setup.Project(str(ready))
    monkeypatch.setattr(setup, "GPU_SIGNS", ("/nowhere",))
    project.write_stamp()
    assert (project.extras(), project.state()) == (["book", "test"], "ready")
    monkeypatch.setattr(setup, "GPU_SIGNS", ("/nowhere", str(ready)))
    assert (project.extras(), project.state()) == (["book", "test", "gpu"], "changed")


def test_a_node_without_a_gpu_leaves_what_a_node_with_one_has_made(ready, monkeypatch):
    project = setup.Project(str(ready))
    monkeypatch.setattr(setup, "GPU_SIGNS", (str(ready),))
    project.write_stamp()
    monkeypatch.setattr(setup, "GPU_SIGNS", ())
    assert project.state() == "ready"


@pytest.mark.parametrize("damage, expected", [
    (lambda root: (root / ".venv" / "setup-done.json").unlink(), "interrupted"),
    (cut_stamp, "interrupted"),
    (lambda root: (root / ".venv" / "setup-done.json").write_text("[]"), "interrupted"),
    (lambda root: shutil.rmtree(packages(root) / "tensorflow"), "damaged"),
    (lambda root: (packages(root) / "tensorflow" / "core.py").unlink(), "damaged"),
    (no_python, "damaged"),
    (dead_python, "damaged"),
    (other_python, "damaged"),
    (lambda root: (root / "constraints.txt").write_text("numpy==2.0\n"), "changed"),
    (lambda root: (root / "pyproject.toml").write_text(""), "changed"),
])
def test_every_damage_is_seen(ready, damage, expected):
    damage(ready)
    assert state(ready) == expected


@pytest.mark.parametrize("package, expected", [("pip", "ready"), ("setuptools", "ready"), ("tensorflow", "damaged")])
def test_pip_and_its_like_may_be_upgraded_but_no_other_package(ready, package, expected):
    here = packages(ready)
    (here / package).mkdir(exist_ok=True)
    (here / package / "old.py").touch()
    (here / f"{package}-1.dist-info").mkdir()
    (here / f"{package}-1.dist-info" / "METADATA").touch()
    setup.Project(str(ready)).write_stamp()
    (here / package / "old.py").unlink()
    (here / f"{package}-1.dist-info").rename(here / f"{package}-2.dist-info")
    assert state(ready) == expected
    shutil.rmtree(here / package)
    assert state(ready) == "damaged"


def test_a_moved_or_copied_project_is_seen(ready, tmp_path):
    shutil.copytree(ready, tmp_path / "copy", symlinks=True)
    assert state(tmp_path / "copy") == "moved"
    assert state(ready) == "ready"


def test_set_up_from_nothing_then_after_an_interruption(folder):
    first = call(folder)
    assert first.returncode == 0, first.stderr
    assert "Making .venv" in first.stdout and "Set-up done." in first.stdout
    assert state(folder) == "ready"
    (folder / ".venv" / "setup-done.json").unlink()
    (folder / ".venv" / "left_over").touch()
    again = call(folder)
    assert "An earlier set-up did not finish" in again.stdout
    assert state(folder) == "ready" and not (folder / ".venv" / "left_over").exists()
    (folder / "constraints.txt").write_text("# newer\n")
    assert "The requirements have changed" in call(folder).stdout
    assert state(folder) == "ready"


def test_an_activated_environment_is_not_made_from_itself(ready, tmp_path, monkeypatch, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    fake_python(outside / "python3", "3.12")
    own = ready / ".venv" / "bin"
    monkeypatch.setenv("PATH", f"{own}:{outside}:/bin")
    setup.Project(str(ready)).make([str(own / "python3"), "python3"])
    assert capsys.readouterr().out == "Making .venv with python3.\n"
    assert (outside / "python3.call").read_text() == f"-m venv {ready / '.venv'}\n"


def test_a_chosen_python_of_another_version_makes_it_afresh(ready, tmp_path):
    ours = f"3.{sys.version_info.minor}"
    kept = call(ready, fake_python(tmp_path / "same", ours))
    assert (kept.returncode, kept.stdout) == (0, "")
    other = fake_python(tmp_path / "other one", "3.11" if ours != "3.11" else "3.12")
    made = call(ready, other)
    assert made.stdout.splitlines()[:2] == [setup.WHY["another"], f"Making .venv with {other}."]
    assert (tmp_path / "other one.call").read_text() == f"-m venv {ready / '.venv'}\n"


def test_a_chosen_python_that_does_not_fit_is_named_and_not_replaced(ready, tmp_path):
    old = fake_python(tmp_path / "old", "3.8")
    refused = call(ready, old)
    assert refused.returncode == 1 and f"but {old} is 3.8:" in refused.stderr
    assert state(ready) == "ready"


def test_a_failing_installation_says_so_and_is_not_taken_for_finished(folder):
    (folder / "broken").touch()
    failed = call(folder)
    assert failed.returncode == 1
    assert "the disk is full" in failed.stderr and "Installing failed" in failed.stderr
    assert "Traceback (most recent call last):\n  File \"" + str(folder / "tools") not in failed.stderr
    assert state(folder) == "interrupted"


def test_a_failing_update_leaves_what_there_was_for_another_try(ready):
    fake_pip(ready, "raise SystemExit('no network')")
    (ready / "constraints.txt").write_text("# newer\n")
    for _ in range(2):
        failed = call(ready)
        assert "The requirements have changed" in failed.stdout and "Making .venv" not in failed.stdout
        assert failed.returncode == 1 and "no network" in failed.stderr
    (ready / "constraints.txt").write_text("")
    assert state(ready) == "ready"


def test_packages_that_pip_has_put_elsewhere_are_not_taken_for_installed(ready):
    shutil.rmtree(packages(ready) / "bigtrain_nb")
    (ready / ".venv" / "setup-done.json").unlink()
    fake_pip(ready, "")
    with pytest.raises(setup.SetupError, match="PIP_TARGET"):
        setup.Project(str(ready)).install()
    assert state(ready) == "interrupted"


def test_what_pip_says_need_not_be_ascii_where_the_locale_is(ready):
    fake_pip(ready, "import sys; sys.stdout.buffer.write('caf\u00e9\\n'.encode()); sys.exit('no network')")
    (ready / "constraints.txt").write_text("# newer\n")
    failed = call(ready, env=ASCII, encoding="utf-8")
    assert "caf\u00e9\n" in failed.stderr and "Installing failed" in failed.stderr
    assert "caf\u00e9\n" in (ready / ".venv" / "setup.log").read_text("utf-8")


def test_nor_need_the_name_of_the_folder(ready, tmp_path):
    shutil.copytree(ready, tmp_path / "caf\u00e9", symlinks=True)
    code = "import setup, sys; project = setup.Project(sys.argv[1]); project.write_stamp(); print(project.state())"
    command = [sys.executable, "-c", code, tmp_path / "caf\u00e9"]
    assert subprocess.check_output(command, cwd=SETUP.parent, env=ASCII, text=True) == "ready\n"


def test_two_set_ups_at_once_wait_for_each_other(folder):
    command = [sys.executable, folder / "tools" / "setup.py"]
    with open(folder / ".setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [process.stdout.readline()[:25] for process in both] == ["Another set-up is at work"] * 2
        assert state(folder) == "absent"
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("Making .venv" in text for text in said) == 1
    assert state(folder) == "ready"


def test_what_is_ready_needs_no_lock_and_without_one_the_rest_is_a_sentence(ready):
    (ready / ".setup.lock").mkdir()
    done = call(ready)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (ready / "constraints.txt").write_text("# newer\n")
    refused = call(ready)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Set-up cannot go on: ") and refused.stderr.count("\n") == 1
    assert ".setup.lock" in refused.stderr


def test_a_disk_without_locks_is_no_hindrance_and_a_lock_that_is_held_is_awaited(monkeypatch, capsys):
    calls = []

    def flock(lock, how):
        calls.append(how)
        if how & fcntl.LOCK_NB:
            raise OSError(reasons[-1], "no")

    monkeypatch.setattr(fcntl, "flock", flock)
    reasons = [errno.ENOLCK, errno.ENOTSUP, errno.EAGAIN, errno.EACCES]
    while reasons:
        calls.clear()
        setup.wait_for(None)
        assert len(calls) == 1 + (reasons.pop() in (errno.EAGAIN, errno.EACCES))
    assert capsys.readouterr().out == "Another set-up is at work here; waiting for it.\n" * 2


def test_what_is_missing_is_said_in_one_sentence(tmp_path):
    old = fake_python(tmp_path / "old", "3.8")
    new = fake_python(tmp_path / "new", "3.14")
    bare = fake_python(tmp_path / "bare", "3.12", code=1)
    shim = fake_python(tmp_path / "shim", code=127)
    good = fake_python(tmp_path / "good", "3.13")
    missing = str(tmp_path / "missing")

    def refusal(*candidates):
        with pytest.raises(setup.SetupError) as error:
            setup.find_python(candidates)
        return str(error.value)

    assert refusal(old, new, shim, missing) == (
        f"Python 3.11 to 3.13 is needed, but {old} is 3.8 and {new} is 3.14: install one, "
        "or name it with make PYTHON=/path/to/python.")
    assert "needed, but none was found" in refusal(missing, shim)
    assert refusal(old, bare) == (
        f"{bare} is Python 3.12 but lacks its venv module: install it (on Debian and Ubuntu: "
        "apt install python3.12-venv) and call again.")
    assert setup.find_python([old, bare, shim, missing, good]) == (good, "3.13")


def test_an_old_python_gets_as_far_as_the_sentence():
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Match, ast.AsyncFunctionDef, ast.Nonlocal)
    tree = ast.parse(SETUP.read_text())
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, newer)]
    found += [node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
              and (node.returns or any(arg.annotation for arg in node.args.args))]
    assert found == []


def test_the_stamp_knows_two_levels_and_no_caches(ready):
    (packages(ready) / "tensorflow" / "__pycache__").mkdir()
    setup.Project(str(ready)).write_stamp()
    installed = json.loads((ready / ".venv" / "setup-done.json").read_text())["installed"]
    assert installed == ["bigtrain_nb", "bigtrain_nb/core.py", "tensorflow", "tensorflow/core.py"]
