"""The checks for a machine with GPUs, on one without: that they run, are counted, limited and explained."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import gpu_first_hour as first_hour  # noqa: E402  (from tools)


@pytest.fixture
def runs(monkeypatch):
    """Call it with Python code, and how many GPUs are needed where there is one: what is printed comes back."""

    def run(code, gpus, capsys, seconds=30):
        check = first_hour.Check(None, gpus, seconds, "do this")
        monkeypatch.setattr(first_hour, "CHECKS", {"one": check})
        monkeypatch.setattr(first_hour, "nvidia_gpus", lambda: ["0"])
        subprocess_run = first_hour.subprocess.run

        def instead(command, **settings):
            assert command[1:] == [first_hour.__file__, "--check", "one"]
            return subprocess_run([sys.executable, "-c", code], **settings)

        monkeypatch.setattr(first_hour.subprocess, "run", instead)
        first_hour.run_in_a_process("one")
        return capsys.readouterr().out

    return run


def test_what_holds_passes_with_what_was_found(runs, capsys):
    said = runs("print('a word'); print('3 of 3')", 1, capsys)
    assert said.startswith("PASS one [") and said.endswith(": 3 of 3\n")


def test_what_does_not_hold_is_a_look_with_what_to_do(runs, capsys):
    said = runs("raise AssertionError('2 of 3')", 1, capsys)
    assert said.startswith("LOOK one [") and "AssertionError: 2 of 3\n     do this\n" in said


def test_what_does_not_end_is_a_look(runs, capsys):
    assert "it has not ended after 1 s\n     do this\n" in runs("import time; time.sleep(60)", 1, capsys, seconds=1)


def test_with_too_few_gpus_it_is_skipped(runs, capsys):
    assert runs("raise RuntimeError", 2, capsys) == "SKIP one: needs 2 GPUs\n"


def test_the_last_words_of_a_kernel_that_died_are_shown(monkeypatch, capsys):
    def instead(command, **settings):
        if "pytest" in command:
            return subprocess.CompletedProcess(command, 1, "The kernel died while it executed this cell\n1 failed", "")
        return subprocess.CompletedProcess(command, 1, f"{Path(command[1]).name} says why")

    monkeypatch.setattr(first_hour, "nvidia_gpus", lambda: ["0"])
    monkeypatch.setattr(first_hour, "NOTEBOOKS", ["12"])
    monkeypatch.setattr(first_hour.subprocess, "run", instead)
    first_hour.run_notebooks()
    shown = "LOOK notebook 12, 1 GPUs: 1 failed\n     Executed again: last_words.py says why\n"
    assert capsys.readouterr().out == shown


def test_without_gpus_it_says_so(monkeypatch):
    monkeypatch.setattr(first_hour, "nvidia_gpus", list)
    monkeypatch.setattr(sys, "argv", ["gpu_first_hour.py"])
    with pytest.raises(SystemExit, match="no NVIDIA GPU is here"):
        first_hour.main()


def test_settings_are_those_of_the_model():
    import inspect

    import bigtrain_nb as bt

    known = set(inspect.signature(bt.Model.of).parameters) | {"policy", "steps_per_execution"}
    for name, settings in first_hour.SETTINGS.items():
        assert set(settings) <= known, name


@pytest.mark.parametrize(("gpu", "holds"), [("NVIDIA H100 80GB HBM3", False), ("Tesla T4", True), ("Other 1", True)])
def test_bandwidth_is_held_against_the_data_sheet_of_that_gpu(gpu, holds, monkeypatch):
    from bigtrain_nb.plan import this_machine

    measured = this_machine.ThisMachine({2**18: 9e12, 2**28: 3e11}, start=1e-5, fuses=True)
    monkeypatch.setattr(this_machine, "this_machine", lambda: measured)
    monkeypatch.setattr(first_hour, "machine", lambda: {"gpus": [f"{gpu}, 81559 MiB"]})
    if holds:
        assert first_hour.bandwidth_beside_the_data_sheet().startswith("300 GB/s, data sheet ")
    else:
        with pytest.raises(AssertionError, match="300 GB/s, data sheet 3350: NVIDIA H100"):
            first_hour.bandwidth_beside_the_data_sheet()


@pytest.mark.parametrize("name", ["an_error_in_one_replica_neither_hangs_nor_poisons"])
def test_a_check_of_two_devices_runs_on_parts_of_a_cpu(name, tmp_path):
    import subprocess

    command = [sys.executable, first_hour.__file__, "--check", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "it goes on"), done.stderr
