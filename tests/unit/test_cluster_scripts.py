"""``python -m bigtrain_nb.launch script``: where each setting lands, what is refused, and what SLURM's file does."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from bigtrain_nb.launch.__main__ import main

IMAGE = "--image=registry.example.com/train:1.4"
ODD = ["--note", "it's $HOME; `date` $(date)", "a  b", "", "two\nlines", '"', "--", "-x"]


def written(capsys, kind, *words):
    assert main(["script", kind, *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["script", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def options(text):
    """What sbatch reads: the options before the first command."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text.partition("set -eo")[0], re.MULTILINE))


def test_slurm_says_every_setting_to_sbatch(capsys):
    settings = "--nodes 3 --tasks-per-node 2 --cpus 8 --memory 32G --gpus 1 --time 1-12:00:00 --partition gpu"
    more = "--account lab --name night --logs out/logs --grace 300"
    assert options(written(capsys, "slurm", "train.py", *settings.split(), *more.split())) == {
        "job-name": "night",
        "partition": "gpu",
        "account": "lab",
        "nodes": "3",
        "ntasks": "6",
        "ntasks-per-node": "2",
        "cpus-per-task": "8",
        "gpus-per-task": "1",
        "mem": "32G",
        "time": "1-12:00:00",
        "output": "out/logs/%x-%j.log",
        "open-mode": "append",
        "requeue": "",
        "signal": "TERM@300",
    }


def test_slurm_leaves_to_the_cluster_what_was_not_asked_for(capsys):
    text = written(capsys, "slurm", "my/Train_2.py")
    assert not {"partition", "account", "gpus-per-task"} & set(options(text))
    assert options(text)["job-name"] == "train-2" and "<" not in options(text)["output"]


def test_settings_may_stand_before_and_after_the_script(capsys):
    text = written(capsys, "slurm", "--nodes", "4", "train.py", "--cpus", "2", "--", "--nodes", "9")
    assert options(text)["nodes"] == "4" and options(text)["cpus-per-task"] == "2"
    assert "in_task python3 train.py --nodes 9 ||" in text


def test_bash_can_read_it_and_python_gets_the_very_arguments(capsys):
    text = written(capsys, "slurm", "my train.py", "--setup", "module load 'a b'", "--setup", "true", "--", *ODD)
    assert subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr == ""
    command = text.partition("in_task \"$@\"' in_task ")[2].partition(" || code=$?")[0]
    assert shlex.split(command) == ["python3", "my train.py", *ODD]


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("slurm", ["--nodes=0"], "argument --nodes: '0' must be a whole number of at least 1"),
        ("slurm", ["--tasks-per-node=two"], "argument --tasks-per-node: 'two' must be a whole number"),
        ("slurm", ["--gpus=1.5"], "argument --gpus: '1.5' must be a whole number of at least 0"),
        ("slurm", ["--memory=32"], "argument --memory: '32' must be a whole number and K, M, G or T, like 32G"),
        ("slurm", ["--time=90"], "argument --time: '90' must be hours:minutes:seconds, or days-hours:minutes:seconds"),
        ("slurm", ["--account=a\n#SBATCH --mail-user=me"], "argument --account: "),
        ("slurm", ["--logs=my logs"], "argument --logs: 'my logs' must be a folder without spaces"),
        ("slurm", ["--image=a:1"], "unrecognized arguments: --image=a:1"),
        ("kubernetes", [], "the following arguments are required: --image"),
        ("kubernetes", ["--image=train:latest"], "by a tag other than 'latest' or by a digest"),
        ("kubernetes", ["--image=host:5000/train"], "argument --image: 'host:5000/train' must be an image by a tag"),
        ("kubernetes", ["--image=train@sha256:12"], "argument --image: "),
        ("kubernetes", [IMAGE, "--memory=32"], "argument --memory: '32' must be a whole number and M, G, T, Mi"),
        ("kubernetes", [IMAGE, "--name=Night"], "argument --name: 'Night' must be a letter, then at most 49"),
        ("kubernetes", [IMAGE, "--name=night-"], "argument --name: 'night-' must be"),
        ("kubernetes", [IMAGE, f"--name={'n' * 51}"], "argument --name: "),
        ("kubernetes", [IMAGE, "--mount=checkpoints"], "argument --mount: 'checkpoints' must be an absolute path"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(capsys, kind, words, message):
    assert message in refused(capsys, kind, "train.py", *words)


def test_what_is_missing_is_named(capsys):
    assert "required: TRAIN.py" in refused(capsys, "slurm", "--nodes", "2")
    assert "'train' must be a Python script" in refused(capsys, "slurm", "train")
    assert "slurm | kubernetes" in refused(capsys)


@pytest.mark.parametrize(
    ("kind", "words", "start"), [("slurm", [], "sbatch"), ("kubernetes", [IMAGE], "kubectl apply -f")]
)
def test_a_file_is_written_whole_and_the_next_command_is_told(capsys, tmp_path, monkeypatch, kind, words, start):
    monkeypatch.chdir(tmp_path)
    text = written(capsys, kind, "train.py", *words)
    said = written(capsys, kind, "train.py", *words, "--output", "my file")
    assert said == f"my file is written; start it with: {start} 'my file'\n"
    assert (tmp_path / "my file").read_text(encoding="utf-8") == text
    assert sorted(path.name for path in tmp_path.iterdir()) == (["logs", "my file"] if kind == "slurm" else ["my file"])


def test_a_file_that_cannot_be_written_is_named(capsys, tmp_path):
    assert main(["script", "slurm", "train.py", "--output", str(tmp_path / "no" / "file")]) == 2
    said = capsys.readouterr().err
    assert "No such file or directory" in said and "/no/" in said


SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""
NOTE = "#!/bin/bash\necho \"$@\" >>requeued\n"
TRAIN = """
import os, sys
print(*(os.environ.get(name) for name in ("TF_CONFIG", "BIGTRAIN_RESTART", "ADDED")))
sys.exit(int(sys.argv[1]))
"""


def run_in_stubs(capsys, folder, code, restarts=0):
    """Run SLURM's file with stand-ins for srun and scontrol; return how it ended and what was put into the queue."""
    folder.joinpath("logs").mkdir()
    for name, text in {"srun": SRUN, "scontrol": NOTE, "train.py": TRAIN}.items():
        folder.joinpath(name).write_text(text)
        folder.joinpath(name).chmod(0o755)
    setup = ["--setup", 'export ADDED="${NOT_SET}added"']
    text = written(capsys, "slurm", "train.py", "--restarts=2", f"--python={sys.executable}", *setup, "--", str(code))
    slurm = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1", "SLURM_RESTART_COUNT": str(restarts)}
    own = {"PATH": f"{folder}:{os.environ['PATH']}", "TF_CONFIG": "of the shell", **slurm}
    done = subprocess.run(["bash"], input=text, env=os.environ | own, cwd=folder, capture_output=True, text=True)
    assert list(folder.joinpath("logs").iterdir()) == []
    asked = folder.joinpath("requeued")
    return done, asked.read_text() if asked.exists() else ""


@pytest.mark.parametrize(
    ("code", "restarts", "again"), [(0, 0, False), (3, 0, False), (75, 1, True), (75, 2, False)]
)
def test_slurm_starts_again_what_has_saved(capsys, tmp_path, code, restarts, again):
    done, requeued = run_in_stubs(capsys, tmp_path, code, restarts)
    assert done.returncode == code and done.stdout == f"None {restarts} added\n"
    assert requeued == ("requeue 7\n" if again else "")
    assert done.stderr == ("The tasks have saved: back into the queue.\n" if again else "")


def test_slurm_gives_up_after_so_many_restarts(capsys, tmp_path):
    done, requeued = run_in_stubs(capsys, tmp_path, 0, restarts=3)
    assert done.returncode == 1 and done.stdout == requeued == "" and "at most 2 were asked for" in done.stderr
