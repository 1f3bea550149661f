"""``python -m bigtrain_nb.launch script``: where each setting lands, what is refused, and what SLURM's file does."""

import os
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


def test_bash_can_read_it_and_python_gets_the_very_arguments(capsys):
    text = written(capsys, "slurm", "my train.py", "--", *ODD)
    assert subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr == ""
    command = text.partition('in_task "$@"\' in_task ')[2].partition(" || code=$?")[0]
    assert shlex.split(command) == ["python3", "my train.py", *ODD]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slurm", "train.py", "--memory=32"], "argument --memory: '32' must be a whole number and M, G or T"),
        (["slurm", "train.py", IMAGE], "unrecognized arguments: --image="),
        (["kubernetes", "train.py"], "the following arguments are required: --image"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["script", *words])
    assert ended.value.code == 2 and message in capsys.readouterr().err


STAND_INS = {
    "srun": '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n',
    "scontrol": '#!/bin/bash\necho "$@" >>requeued\n',
    "python3": '#!/bin/bash\necho "${TF_CONFIG-none} $BIGTRAIN_RESTART"\nexit $2\n',
}


def run_with_stand_ins(capsys, folder, code, restarts):
    """Run SLURM's file; return how it ended and what was put into the queue."""
    for name, text in STAND_INS.items():
        folder.joinpath(name).write_text(text)
        folder.joinpath(name).chmod(0o755)
    text = written(capsys, "slurm", "train.py", "--restarts=2", "--", str(code))
    found = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "TF_CONFIG": "of the shell"}
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_CPUS_PER_TASK": "1"}
    slurm["SLURM_RESTART_COUNT"] = str(restarts)
    done = subprocess.run(["bash"], input=text, env=found | slurm, cwd=folder, capture_output=True, text=True)
    assert not list(folder.glob("*.failed"))
    asked = folder.joinpath("requeued")
    return done, asked.read_text() if asked.exists() else ""


@pytest.mark.parametrize(("code", "restarts", "again"), [(3, 0, False), (75, 1, True), (75, 2, False)])
def test_slurm_starts_again_what_has_saved(capsys, tmp_path, code, restarts, again):
    done, requeued = run_with_stand_ins(capsys, tmp_path, code, restarts)
    assert done.returncode == code and done.stdout == f"none {restarts}\n"
    assert requeued == ("requeue 7\n" if again else "")
    assert done.stderr == ("The tasks have saved: back into the queue.\n" if again else "")
