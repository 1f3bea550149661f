"""The file for Kubernetes: its Jobs and its NetworkPolicy held against Kubernetes' schemas, the JobSet against ours."""

from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from bigtrain_nb.launch.__main__ import main
from bigtrain_nb.launch.cluster_spec import cluster_spec

OLDEST = "1.29"
IMAGE = "registry.example.com:5000/lab/train:1.4"
SETTINGS = "--workers=3 --cpus=8 --memory=32Gi --gpus=2 --name=night --restarts=2".split()
ODD = ["--note", "it's $(HOME); $5", "a  b", "", "two\nlines", '"', "#x: [y]", "{é}", "<name>", "- a", "null", "1"]
ALL_ROLES = "--workers=2 --servers=1 --data-workers=3 --gpus=1 --name=night".split()
JOBSET = yaml.safe_load(Path(__file__).with_name("jobset_schema.yaml").read_text())


def written(capsys, *words):
    """Return the NetworkPolicy, the JobSet, and the Jobs by their roles."""
    assert main(["script", "kubernetes", "train.py", "--image", IMAGE, *words]) == 0
    policy, jobset = yaml.safe_load_all(capsys.readouterr().out)
    return policy, jobset, {one["name"]: one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]}


def task(job):
    (container,) = job["template"]["spec"]["containers"]
    return container


def variables(job):
    return {one["name"]: one.get("value") for one in task(job)["env"]}


def place(job, index):
    """Return what a task of this Job finds in the TF_CONFIG that Kubernetes fills in."""
    return cluster_spec({"TF_CONFIG": variables(job)["TF_CONFIG"].replace("$(TASK_INDEX)", str(index))})


@pytest.mark.parametrize(
    "words", [[], ["--gpus=1", "--name=on"], ["--name", 40 * "x"], [*SETTINGS, "--", *ODD], ALL_ROLES]
)
def test_the_schemas_are_met(capsys, words):
    policy, jobset, jobs = written(capsys, *words)
    jsonschema.validate(jobset, JOBSET)
    whole_jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}, "spec": spec} for spec in jobs.values()
    ]
    for found in (policy, *whole_jobs):
        for version in (OLDEST, kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found, version, strict=True)
    assert all(task(job)["image"] == IMAGE for job in jobs.values())


def test_every_setting_and_argument_lands_in_the_job(capsys):
    _, jobset, jobs = written(capsys, *SETTINGS, "--", *ODD)
    (job,) = jobs.values()
    container = task(job)
    assert jobset["metadata"]["name"] == jobset["spec"]["network"]["subdomain"] == "night"
    assert job["completions"] == job["parallelism"] == 3
    assert container["command"] == ["python3"]
    assert container["args"] == ["train.py", *(word.replace("$", "$$") for word in ODD)]  # no variables
    assert container["resources"]["limits"] == {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": 2}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/checkpoints", "/tmp", "/dev/shm"}


def test_all_start_again_together_and_what_was_saved_costs_no_restart(capsys):
    _, jobset, jobs = written(capsys, "--restarts=2")
    policy = jobset["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 2 and policy["restartStrategy"] == "BlockingRecreate"
    actions = {rule["onJobFailureReasons"][0]: rule["action"] for rule in policy["rules"]}
    assert actions == {"DeadlineExceeded": "FailJobSet", "PodFailurePolicy": "RestartJobSetAndIgnoreMaxRestarts"}
    (job,) = jobs.values()
    disrupted, saved = job["podFailurePolicy"]["rules"]
    assert {disrupted["action"], saved["action"]} == {"FailJob"} and saved["onExitCodes"]["values"] == [75]
    assert saved["onExitCodes"]["containerName"] == task(job)["name"]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 120 and job["activeDeadlineSeconds"] > 86400


def test_each_pod_finds_its_place_and_the_host_names_that_jobset_gives(capsys):
    _, jobset, jobs = written(capsys, "--workers=3", "--name=night")
    (job,) = jobs.values()
    assert job["completionMode"] == "Indexed" and jobset["spec"]["network"]["publishNotReadyAddresses"] is True
    for index in range(3):
        mine = place(job, index)
        assert mine.addresses == [f"night-worker-0-{i}.night:2222" for i in range(3)] and mine.rank == index


def test_only_workers_ask_for_gpus_and_each_role_finds_its_place(capsys):
    _, jobset, jobs = written(capsys, *ALL_ROLES)
    assert {role: job["completions"] for role, job in jobs.items()} == {"data": 4, "chief": 1, "worker": 2, "server": 1}
    gpus = {role: task(job)["resources"]["limits"].get("nvidia.com/gpu", 0) for role, job in jobs.items()}
    assert gpus == {"data": 0, "chief": 0, "worker": 1, "server": 0}
    tasks = [place(jobs["chief"], 0), place(jobs["worker"], 0), place(jobs["worker"], 1), place(jobs["server"], 0)]
    assert [one.rank for one in tasks] == [0, 1, 2, 3] and tasks[3].servers == 1
    assert tasks[0].cluster["ps"] == ["night-server-0-0.night:2222"]
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]


def test_the_data_service_is_ready_first_and_comes_back_in_its_pod(capsys):
    _, jobset, jobs = written(capsys, *ALL_ROLES)
    data, *others = jobset["spec"]["replicatedJobs"]
    assert all(one["dependsOn"] == [{"name": "data", "status": "Ready"}] for one in others)
    service = variables(jobs["worker"])["BIGTRAIN_DATA_SERVICE"]
    assert place(jobs["data"], 3).addresses[0] == service.removeprefix("grpc://") == "night-data-0-0.night:2222"
    pod = jobs["data"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure" and "podFailurePolicy" not in jobs["data"]  # which needs Never
    assert "registered-$TASK_INDEX" in task(jobs["data"])["readinessProbe"]["exec"]["command"][2]


def test_pods_may_do_as_little_as_they_need(capsys):
    policy, _, jobs = written(capsys, *ALL_ROLES)
    (peers,) = policy["spec"]["ingress"][0]["from"]
    selector = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "night"}}  # which JobSet gives all its pods
    assert peers["podSelector"] == policy["spec"]["podSelector"] == selector
    for job in jobs.values():
        pod = job["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True
        assert task(job)["securityContext"]["readOnlyRootFilesystem"] is True
        threads = next(one for one in task(job)["env"] if one["name"] == "TF_NUM_INTRAOP_THREADS")
        assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "limits.cpu"}}
