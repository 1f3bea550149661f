"""train_on_ray.py and the RayJob: where each setting lands, and what happens in a worker. Ray is not needed.

tests/engines runs it on a cluster of Ray. A RayJob's pods are held against the schema of Kubernetes.
"""

import json
import os
import sys
from types import ModuleType, SimpleNamespace

import kubernetes_validate
import pytest
import yaml

from bigtrain_nb.launch.__main__ import main
from bigtrain_nb.train.preemption import Preemption

IMAGE = "registry.example.com/lab/train:1.4"
ODD = ["--note", "it's $HOME; `date`", "", "two\nlines", '"""', "\\", "é", "<name>"]
STORAGE = ["--storage", "/checkpoints/ray"]


def written(capsys, *words):
    assert main(["script", "ray", *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def loaded(capsys, monkeypatch):
    """A function that returns what the program defines, with a Ray that only keeps what it is given."""
    given = SimpleNamespace(trainers=[])

    def keep(**settings):
        return SimpleNamespace(**settings)

    class Trainer:
        def __init__(self, worker, **settings):
            given.trainers.append(SimpleNamespace(worker=worker, **settings))

        def fit(self):
            given.deduplicates = os.environ["RAY_DEDUP_LOGS"]

    train, tensorflow = ModuleType("ray.train"), ModuleType("ray.train.tensorflow")
    train.FailureConfig = train.RunConfig = train.ScalingConfig = keep
    tensorflow.TensorflowTrainer = Trainer
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.setitem(sys.modules, "ray.train.tensorflow", tensorflow)
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")  # put back after the test, as the others
    monkeypatch.setattr(sys, "argv", ["train_on_ray.py"])
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load(*words):
        exec(compile(written(capsys, *words), "train_on_ray.py", "exec"), {"__name__": "__main__"})
        given.trainer = given.trainers[-1]
        return given

    return load


def test_every_setting_lands_in_the_trainer(loaded, monkeypatch):
    monkeypatch.setenv("BIGTRAIN_DATA_SERVICE", "grpc://one:1")
    settings = "--workers=4 --at-least=2 --cpus=3 --gpus=1 --restarts=5".split()
    given = loaded("train.py", *settings, *STORAGE, "--", *ODD)
    trainer = given.trainer
    assert trainer.train_loop_config["script"] == "train.py" and trainer.train_loop_config["arguments"] == ODD
    assert trainer.train_loop_config["environment"]["BIGTRAIN_DATA_SERVICE"] == "grpc://one:1"
    assert trainer.scaling_config.num_workers == (2, 4) and trainer.scaling_config.use_gpu is True
    assert trainer.scaling_config.resources_per_worker == {"CPU": 3, "GPU": 1}
    assert trainer.run_config.failure_config.max_failures == 5 and given.deduplicates == "0"
    assert trainer.run_config.storage_path == "/checkpoints/ray"
    assert loaded("train.py", "--at-least=2", *STORAGE).trainer.scaling_config.num_workers == 2  # not elastic


def test_a_worker_runs_the_script_as_it_is(loaded, tmp_path, monkeypatch):
    """With its arguments and the modules beside it, in Keras 3; a code but 0 is an error of the worker's."""
    (tmp_path / "beside.py").write_text("import os\nfound = [os.environ.get('TF_USE_LEGACY_KERAS'), os.getcwd()]\n")
    (tmp_path / "train.py").write_text(
        "import beside, json, os, sys\n"
        "if __name__ == '__main__':\n"
        "    json.dump([sys.argv, beside.found, os.environ['BIGTRAIN_X']], open('told.json', 'w'))\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    monkeypatch.setenv("BIGTRAIN_X", "")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")  # as Ray sets it
    monkeypatch.chdir(tmp_path)
    worker = loaded("train.py", *STORAGE).trainer.worker
    job = {"script": "train.py", "environment": {"BIGTRAIN_X": "7"}, "folder": str(tmp_path)}
    worker({**job, "arguments": ["0"]})
    argv, found, passed_on = json.loads((tmp_path / "told.json").read_text())
    assert (argv, found, passed_on) == (["train.py", "0"], [None, str(tmp_path)], "7")
    with pytest.raises(RuntimeError, match=r"^train\.py ended with code 3$"):
        worker({**job, "arguments": ["3"]})


def test_a_rayjob_has_the_program_and_pods_of_the_right_size(capsys):
    settings = "--image R --workers=3 --at-least=2 --gpus=1 --memory=32Gi --name=night".replace("R", IMAGE).split()
    policy, job, program = yaml.safe_load_all(written(capsys, "train.py", *settings, *STORAGE, "--", *ODD))
    compile(program["data"]["train_on_ray.py"], "train_on_ray.py", "exec")
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (2, 3)
    assert cluster["authOptions"] == {"mode": "token"} and job["spec"]["shutdownAfterJobFinishes"] is True
    pods = [cluster["headGroupSpec"]["template"], workers["template"]]
    asked_for = [pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0) for pod in pods]
    assert asked_for == [0, 1] and pods[1]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "32Gi"
    (peers,) = policy["spec"]["ingress"][0]["from"]
    assert all(peers["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items() for pod in pods)
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pods[1]["metadata"]["labels"].items()
    for pod in pods:
        assert pod["spec"]["containers"][0]["image"] == IMAGE
        pod |= {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": "one"}}
    for found in (policy, program, *pods):
        kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "the following arguments are required: --storage"),
        (["train.py", *STORAGE, "--at-least=3"], "--at-least=3 must be from 1 to --workers=2"),
        (["train.py", *STORAGE, "--memory=8G"], "--memory is for the pods of --image"),
        (["train.py", *STORAGE, "--image", IMAGE, "--name=A"], "--name=A must have letters from a to z"),
        (["train.py", *STORAGE, "--servers=1"], "unrecognized arguments: --servers=1"),
    ],
)
def test_a_bad_setting_is_named(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["script", "ray", *words])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_in_a_training_of_rays_ray_is_asked_whether_a_node_will_go(monkeypatch):
    train = ModuleType("ray.train")
    infos = iter([None, "node 1"])
    train.get_context = lambda: "a worker's"
    train.get_preemption_info = lambda: next(infos)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    noted = Preemption()
    assert [noted.came(), noted.came()] == [False, True]


def test_where_ray_is_loaded_and_did_not_start_this_it_is_not_asked(monkeypatch):
    def outside():
        raise RuntimeError("Ray Train function utilities not initialized.")

    train = ModuleType("ray.train")
    train.get_context, train.get_preemption_info = outside, outside
    monkeypatch.setitem(sys.modules, "ray.train", train)
    assert Preemption().came() is False
