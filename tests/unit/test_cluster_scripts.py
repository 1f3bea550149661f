"""``python -m bigtrain_nb.launch script``: where each setting lands, and what is refused; test_slurm.py runs it."""

import re
import shlex
import subprocess

import pytest

from bigtrain_nb.launch.__main__ import main

IMAGE = "--image=registry.example.com/train:1.4"
ODD = ["--note", "it's $HOME; `date` $(date)", "a  b", "", "two\nlines", '"', "--", "-x"]


def written(capsys, kind, *words):
    assert main(["script", kind, *words]) == 0
    return capsys.readouterr().out


def options(text):
    """What sbatch reads: the options before the first command."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text.partition("set -eo")[0], re.MULTILINE))


def test_slurm_says_every_setting_to_sbatch(capsys):
    settings = "--nodes 3 --tasks-per-node 2 --cpus 8 --memory 32G --gpus 1 --time 1-12:00:00 --name night"
    assert options(written(capsys, "slurm", "train.py", *settings.split())) == {
        "job-name": "night",
        "nodes": "3",
        "ntasks": "6",
        "ntasks-per-node": "2",
        "cpus-per-task": "8",
        "gpus-per-task": "1",
        "mem": "32G",
        "time": "1-12:00:00",
        "output": "%x-%j.log",
        "open-mode": "append",
        "requeue": "",
        "signal": "TERM@120",
    }
    assert options(written(capsys, "slurm", "train.py", "--memory=32Gi"))["mem"] == "32G"  # sbatch refuses 32Gi


def test_bash_can_read_it_and_python_gets_the_very_arguments(capsys):
    text = written(capsys, "slurm", "my train.py", "--data-workers=20", "--", *ODD)
    assert subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr == ""
    command = text.partition('in_task "${container[@]}" ')[2].partition(" || code=$?")[0]
    assert shlex.split(command) == ["python3", "my train.py", *ODD]


def test_a_line_for_gpus_stands_ready_where_none_are_asked_for(capsys):
    line = "# For GPUs, one for each task: #SBATCH --gpus-per-task=1\n"
    assert line in written(capsys, "slurm", "train.py")
    assert line not in written(capsys, "slurm", "train.py", "--gpus=2")


def test_gpus_that_servers_get_and_do_not_use_are_said(capsys):
    line = "# The chief and the servers get GPUs too, and use none"
    servers = ["--servers=1", "--nodes=3"]
    assert line in written(capsys, "slurm", "train.py", "--gpus=1", *servers)
    assert line not in written(capsys, "slurm", "train.py", "--gpus=1") + written(capsys, "slurm", "train.py", *servers)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["slurm", "train.py", "--time=00:02:00"],
            "argument --time: '00:02:00' is too short: give at least 10 minutes",
        ),
        (["slurm", "train.py", "--time=0-00:09:59"], "'0-00:09:59' is too short"),
        (["slurm", "train.py", "--time=90"], "'90' must be hours:minutes:seconds, like 04:00:00, or like 1-12:00:00"),
        (["slurm", "train.py", "--memory=32"], "argument --memory: '32' must be a whole number and M, G or T"),
        (["slurm", "train.py", "--memory=0G"], "argument --memory: '0G' must be a whole number and M, G or T"),
        (["slurm", "train.py", "--nodes=0"], "argument --nodes: '0' must be a whole number of at least 1"),
        (["slurm", "train.py", "--servers=1"], "--servers=1 needs at least 3 tasks, a chief and a worker beside"),
        (["kubernetes", "train.py", IMAGE, "--workers=0"], "--workers: '0' must be a whole number of at least 1"),
        (["kubernetes", "train.py", IMAGE, "--gpus=-1"], "--gpus: '-1' must be a whole number of at least 0"),
        (["ray", "train.py", "--storage=/x", "--restarts=-1"], "--restarts: '-1' must be a whole number of at least 0"),
        (["kubernetes", "3-train.py", IMAGE], "--name=3-train must have letters from a to z"),
        (["kubernetes", "train.py", IMAGE, "--name=UPPER_case"], "--name=UPPER_case must have letters from a to z"),
        (["kubernetes", "train.py", IMAGE, "--name=-x"], "begin with a letter"),
        (["kubernetes", "train.py", IMAGE, "--name=x-"], "end with a letter or a digit"),
        (["kubernetes", "train.py", IMAGE, "--name=a.b"], "digits and - only"),
        (["kubernetes", "train.py", IMAGE, f"--name={41 * 'x'}"], "at most 40 long"),
        (["slurm", "train.py", IMAGE], "unrecognized arguments: --image="),
        (["kubernetes", "train.py"], "the following arguments are required: --image"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["script", *words])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_data_service_needs_a_folder_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["data-service"])
    assert "the following arguments are required: --folder" in capsys.readouterr().err


def test_a_process_of_a_data_service_must_find_its_place(tmp_path, capsys, monkeypatch):
    for name in ("TF_CONFIG", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        main(["data-service", "--folder", str(tmp_path)])
    assert "a process of a data service finds its place in TF_CONFIG, or in a rank" in capsys.readouterr().err
