"""The file for Kubernetes, held against its own schemas."""

import kubernetes_validate
import pytest
import yaml

from bigtrain_nb.launch.__main__ import main
from bigtrain_nb.launch.cluster_spec import cluster_spec

OLDEST = "1.29"
IMAGE = "registry.example.com:5000/lab/train:1.4"
SETTINGS = "--workers=3 --cpus=8 --memory=32Gi --gpus=2 --name=night --restarts=2".split()
ODD = ["--note", "it's $(HOME); $5", "a  b", "", "two\nlines", '"', "#x: [y]", "{é}", "<name>", "- a", "null", "1"]


def written(capsys, *words):
    """Return the file's text, its Service, its NetworkPolicy, its Job, and the Job's container."""
    assert main(["script", "kubernetes", "train.py", "--image", IMAGE, *words]) == 0
    text = capsys.readouterr().out
    service, policy, job = yaml.safe_load_all(text)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return text, service, policy, job, container


def check(found):
    for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("words", [[], ["--gpus=1", "--name=on"], ["--name", 47 * "x"], [*SETTINGS, "--", *ODD]])
def test_the_schema_of_kubernetes_is_met(capsys, words):
    _, *documents, container = written(capsys, *words)
    assert [one["kind"] for one in documents] == ["Service", "NetworkPolicy", "Job"]
    for one in documents:
        check(one)
    assert container["image"] == IMAGE


def test_every_setting_and_argument_lands_in_the_job(capsys):
    _, service, _, job, container = written(capsys, *SETTINGS, "--", *ODD)
    pod = job["spec"]["template"]["spec"]
    assert service["metadata"]["name"] == job["metadata"]["name"] == pod["subdomain"] == "night"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3 and job["spec"]["backoffLimit"] == 6
    assert container["command"] == ["python3"]
    assert container["args"] == ["train.py", *(word.replace("$", "$$") for word in ODD)]  # no variables
    assert container["resources"]["limits"] == {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": 2}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert pod["terminationGracePeriodSeconds"] == 120 and pod["restartPolicy"] == "Never"
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/checkpoints", "/dev/shm"}


def test_each_pod_finds_its_place_and_the_names_of_the_others(capsys):
    _, service, _, job, container = written(capsys, "--workers=3", "--name=night")
    index, config = container["env"][:2]
    assert job["spec"]["completionMode"] == "Indexed"
    assert "batch.kubernetes.io/job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
    for number in range(3):
        mine = cluster_spec({"TF_CONFIG": config["value"].replace(f"$({index['name']})", str(number))})
        assert mine.addresses == [f"night-{i}.night:2222" for i in range(3)] and mine.rank == number
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True


def test_the_last_pods_are_parameter_servers_and_a_data_service_has_names_of_its_own(capsys):
    words = ["--servers=2", "--data-workers=3", "--name=night", "--image", IMAGE]
    assert main(["script", "kubernetes", "train.py", *words]) == 0
    _, policy, job, service, data = yaml.safe_load_all(capsys.readouterr().out)
    for found in (policy, job, service, data):
        check(found)
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    values = {one["name"]: one.get("value") for one in env}
    assert job["spec"]["completions"] == 5 and values["BIGTRAIN_DATA_SERVICE"] == "grpc://night-data-0.night-data:2222"
    config = values["TF_CONFIG"].replace("$(TASK_INDEX)", "3")
    mine = cluster_spec({"TF_CONFIG": config, "BIGTRAIN_SERVERS": values["BIGTRAIN_SERVERS"]})
    assert mine.tasks[mine.rank] == {"type": "ps", "index": 0} and mine.addresses[mine.rank] == "night-3.night:2222"
    assert [len(some) for some in mine.cluster.values()] == [1, 2, 2]
    (container,) = data["spec"]["template"]["spec"]["containers"]
    config = container["env"][1]["value"].replace("$(TASK_INDEX)", "0")
    assert cluster_spec({"TF_CONFIG": config}).addresses == [f"night-data-{i}.night-data:2222" for i in range(4)]
    (peers,) = policy["spec"]["ingress"][0]["from"]
    for found in (job, data):  # all pods reach each other, and nobody else reaches them
        for selector in (policy["spec"]["podSelector"], peers["podSelector"]):
            (rule,) = selector["matchExpressions"]
            assert found["spec"]["template"]["metadata"]["labels"][rule["key"]] in rule["values"]
    assert data["spec"]["serviceName"] == service["metadata"]["name"] == "night-data"
