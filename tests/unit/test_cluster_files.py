"""notebooks/scripts: train.sbatch, jobset.yaml and train_on_ray.py. test_slurm.py and tests/engines run two of them.

jobset.yaml is validated against Kubernetes' schemas, and against our own schema of a JobSet.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jsonschema
import kubernetes_validate
import pytest
import yaml

from bigtrain_nb.launch.cluster_spec import cluster_spec
from bigtrain_nb.train.preemption import Preemption

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "scripts"
FILES = ["train.sbatch", "jobset.yaml", "train_on_ray.py"]
JOBSET = yaml.safe_load(Path(__file__).with_name("jobset_schema.yaml").read_text())
OLDEST = "1.29"


def test_they_are_short_and_say_where_they_are_edited():
    texts = [(SCRIPTS / name).read_text() for name in FILES]
    assert sum(text.count("\n") for text in texts) <= 220
    assert all("EDIT HERE" in text for text in texts)


def test_bash_can_read_the_file_for_slurm_which_signals_before_the_end_and_comes_back():
    text = (SCRIPTS / "train.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True).stderr == ""
    said_to_sbatch = text.partition("set -eo")[0]  # sbatch reads no options after the first command
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", said_to_sbatch, re.MULTILINE))
    assert options["signal"] == "TERM@120" and options["open-mode"] == "append" and "requeue" in options
    assert options["ntasks"] == options["nodes"] == "2" and options["ntasks-per-node"] == "1"


@pytest.fixture(scope="module")
def jobset():
    """The NetworkPolicy, the JobSet, and its workers' Job."""
    policy, found = yaml.safe_load_all((SCRIPTS / "jobset.yaml").read_text())
    (workers,) = found["spec"]["replicatedJobs"]
    return SimpleNamespace(policy=policy, whole=found, job=workers["template"]["spec"])


def task(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def test_the_schemas_are_met(jobset):
    jsonschema.validate(jobset.whole, JOBSET)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}, "spec": jobset.job}
    for found in (jobset.policy, job):
        for version in (OLDEST, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found, version, strict=True)


def test_each_pod_finds_its_place_and_the_host_names_that_jobset_gives(jobset):
    name, spec = jobset.whole["metadata"]["name"], jobset.whole["spec"]
    assert spec["network"]["subdomain"] == name and spec["network"]["publishNotReadyAddresses"] is True
    assert jobset.job["completionMode"] == "Indexed" and jobset.job["completions"] == jobset.job["parallelism"]
    told = {one["name"]: one.get("value") for one in task(jobset.job)["env"]}
    for index in range(jobset.job["completions"]):
        mine = cluster_spec({"TF_CONFIG": told["TF_CONFIG"].replace("$(TASK_INDEX)", str(index))})
        assert mine.addresses == [f"{name}-worker-0-{i}.{name}:2222" for i in range(2)] and mine.rank == index


def test_all_start_again_together_and_what_was_saved_costs_no_restart(jobset):
    policy = jobset.whole["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0 and policy["restartStrategy"] == "BlockingRecreate"
    actions = {rule["onJobFailureReasons"][0]: rule["action"] for rule in policy["rules"]}
    assert actions == {"DeadlineExceeded": "FailJobSet", "PodFailurePolicy": "RestartJobSetAndIgnoreMaxRestarts"}
    disrupted, saved = jobset.job["podFailurePolicy"]["rules"]
    assert {disrupted["action"], saved["action"]} == {"FailJob"} and saved["onExitCodes"]["values"] == [75]
    assert saved["onExitCodes"]["containerName"] == task(jobset.job)["name"]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    pod = jobset.job["template"]["spec"]
    assert jobset.job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] == 120 and jobset.job["activeDeadlineSeconds"] > 86400


def test_pods_may_do_as_little_as_they_need(jobset):
    (peers,) = jobset.policy["spec"]["ingress"][0]["from"]
    selector = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "train"}}  # set by JobSet on all its pods
    assert peers["podSelector"] == jobset.policy["spec"]["podSelector"] == selector
    pod, container = jobset.job["template"]["spec"], task(jobset.job)
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/checkpoints", "/tmp", "/dev/shm"}
    threads = next(one for one in container["env"] if one["name"] == "TF_NUM_INTRAOP_THREADS")
    assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "limits.cpu"}}


@pytest.fixture
def on_ray(monkeypatch):
    """A function that runs an edited train_on_ray.py with a fake Ray that only records its arguments."""
    given = SimpleNamespace()

    def keep(**settings):
        return SimpleNamespace(**settings)

    class Trainer:
        def __init__(self, worker, **settings):
            given.trainer = SimpleNamespace(worker=worker, **settings)

        def fit(self):
            given.deduplicates = os.environ["RAY_DEDUP_LOGS"]

    train, tensorflow = ModuleType("ray.train"), ModuleType("ray.train.tensorflow")
    train.FailureConfig = train.RunConfig = train.ScalingConfig = keep
    tensorflow.TensorflowTrainer = Trainer
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.setitem(sys.modules, "ray.train.tensorflow", tensorflow)
    monkeypatch.setenv("RAY_DEDUP_LOGS", "1")  # restored after the test
    monkeypatch.setattr(sys, "argv", ["train_on_ray.py"])
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(**edited):
        text = (SCRIPTS / "train_on_ray.py").read_text()
        for name, value in edited.items():
            text, found = re.subn(f"^{name} = [^#\n]*", f"{name} = {value!r}  ", text, flags=re.MULTILINE)
            assert found == 1
        exec(compile(text, "train_on_ray.py", "exec"), {"__name__": "__main__"})
        return given

    return run


def test_what_is_edited_lands_in_rays_trainer(on_ray):
    given = on_ray(WORKERS=(2, 4), EACH_WORKER={"CPU": 3, "GPU": 1}, RESTARTS=5, STORAGE="/checkpoints/ray")
    assert given.trainer.scaling_config.num_workers == (2, 4) and given.trainer.scaling_config.use_gpu is True
    assert given.trainer.scaling_config.resources_per_worker == {"CPU": 3, "GPU": 1}
    assert given.trainer.run_config.failure_config.max_failures == 5 and given.deduplicates == "0"
    assert given.trainer.run_config.storage_path == "/checkpoints/ray"
    assert on_ray(WORKERS=(2, 2)).trainer.scaling_config.num_workers == 2  # not elastic


def test_a_worker_of_ray_runs_the_script_as_it_is(on_ray, tmp_path, monkeypatch):
    """With its arguments and neighboring modules, in Keras 3; a nonzero exit code is a worker error."""
    (tmp_path / "beside.py").write_text("import os\nfound = [os.environ.get('TF_USE_LEGACY_KERAS'), os.getcwd()]\n")
    (tmp_path / "train.py").write_text(
        "import beside, json, os, sys\n"
        "if __name__ == '__main__':\n"
        "    json.dump([sys.argv, beside.found, os.environ['BIGTRAIN_X']], open('told.json', 'w'))\n"
        "    sys.exit(int(sys.argv[1]))\n"
    )
    monkeypatch.setenv("BIGTRAIN_X", "7")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")  # as Ray sets it
    monkeypatch.chdir(tmp_path)
    trainer = on_ray(SCRIPT="train.py", ARGUMENTS=["0"]).trainer
    monkeypatch.setenv("BIGTRAIN_X", "")
    trainer.worker(trainer.train_loop_config)
    argv, found, passed_on = json.loads((tmp_path / "told.json").read_text())
    assert (argv, found, passed_on) == (["train.py", "0"], [None, str(tmp_path)], "7")
    failing = on_ray(SCRIPT="train.py", ARGUMENTS=["3"]).trainer
    with pytest.raises(RuntimeError, match=r"^train\.py ended with code 3$"):
        failing.worker(failing.train_loop_config)


def test_in_a_training_of_rays_ray_is_asked_whether_a_node_will_go_and_elsewhere_not(monkeypatch):
    def outside():
        raise RuntimeError("Ray Train function utilities not initialized.")

    train = ModuleType("ray.train")
    infos = iter([None, "node 1"])
    train.get_context, train.get_preemption_info = lambda: "a worker's", lambda: next(infos)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    noted = Preemption()
    assert [noted.was_requested(), noted.was_requested()] == [False, True]
    train.get_context = train.get_preemption_info = outside  # Ray is loaded, and did not start this process
    assert Preemption().was_requested() is False
