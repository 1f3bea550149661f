"""The files for Kubernetes, held against its own schemas."""

import json

import kubernetes_validate
import pytest
import yaml

from bigtrain_nb.launch.__main__ import main
from bigtrain_nb.launch.cluster_spec import place

OLDEST = "1.29"
IMAGE = "registry.example.com:5000/lab/train:1.4"
DIGEST = "registry.example.com/train@sha256:" + "0a" * 32


def objects(capsys, kind, *words, image=IMAGE):
    assert main(["script", kind, "train.py", "--image", image, *words]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def service_and_job(capsys, *words, **settings):
    return objects(capsys, "kubernetes", *words, **settings)


def container_of(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


def check(found):
    for version in (OLDEST, kubernetes_validate.latest_version()):
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("image", [IMAGE, DIGEST, "train:2.21.0-gpu"])
@pytest.mark.parametrize("words", [[], ["--gpus=1"], ["--gpus=4", "--workers=12", "--", "--rate", "0.1"]])
def test_the_schema_of_kubernetes_is_met(capsys, words, image):
    service, job = service_and_job(capsys, *words, image=image)
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    check(service)
    check(job)
    assert container_of(job)["image"] == image


def test_the_check_would_see_a_mistake(capsys):
    _, job = service_and_job(capsys)
    job["spec"]["podFailurePolicies"] = job["spec"].pop("podFailurePolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolicies"):
        check(job)


def test_every_setting_lands_in_the_job(capsys):
    settings = "--workers 3 --cpus 8 --memory 32Gi --gpus 2 --name night --claim shared --mount /data --grace 300"
    service, job = service_and_job(capsys, *settings.split(), "--restarts=2", "--python=python3.12", "--", "/data/a b")
    pod, container = job["spec"]["template"]["spec"], container_of(job)
    assert service["metadata"]["name"] == job["metadata"]["name"] == pod["subdomain"] == "night"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 3 and job["spec"]["backoffLimit"] == 6
    assert container["command"] == ["python3.12", "train.py"] and container["args"] == ["/data/a b"]
    assert container["resources"]["limits"] == {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": 2}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert pod["terminationGracePeriodSeconds"] == 300 and pod["restartPolicy"] == "Never"
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/dev/shm"}


def test_without_gpus_none_are_asked_for(capsys):
    for kind in ("kubernetes", "tfjob"):
        assert "nvidia" not in json.dumps(objects(capsys, kind)) and "shm" not in json.dumps(objects(capsys, kind))


def test_each_pod_finds_its_place_and_the_names_of_the_others(capsys):
    service, job = service_and_job(capsys, "--workers=3", "--name=night")
    index, config = container_of(job)["env"][:2]
    assert job["spec"]["completionMode"] == "Indexed"
    assert "batch.kubernetes.io/job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
    for number in range(3):
        mine = place({"TF_CONFIG": config["value"].replace(f"$({index['name']})", str(number))})
        assert mine.addresses == [f"night-{i}.night:2222" for i in range(3)] and mine.rank == number
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True


def test_saving_and_disruptions_do_not_count_as_failures(capsys):
    _, job = service_and_job(capsys)
    disruption, saved = job["spec"]["podFailurePolicy"]["rules"]
    assert disruption["action"] == saved["action"] == "Ignore"
    assert disruption["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert saved["onExitCodes"] == {"containerName": container_of(job)["name"], "operator": "In", "values": [75]}


def test_arguments_are_not_taken_for_variables(capsys):
    _, job = service_and_job(capsys, "--", "$(HOME)", "$5", "plain")
    assert container_of(job)["args"] == ["$$(HOME)", "$$5", "plain"]


def test_no_privileges_no_token_no_secret(capsys):
    for found in (service_and_job(capsys)[1], as_job(objects(capsys, "tfjob")[0])):
        pod, container = found["spec"]["template"]["spec"], container_of(found)
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert "secret" not in json.dumps(found).lower()


def as_job(tfjob):
    """A Job around the pod of a TFJob, for which there is no schema here."""
    template = tfjob["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    spec = {"template": template | {"spec": template["spec"] | {"restartPolicy": "OnFailure"}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": tfjob["metadata"], "spec": spec}


def test_a_tfjob_leaves_tf_config_to_its_operator(capsys):
    (found,) = objects(capsys, "tfjob", "--workers=3", "--gpus=1", "--restarts=2", "--name=night", "--", "/checkpoints")
    check(as_job(found))
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"]) == ("kubeflow.org/v1", "TFJob", "night")
    worker = found["spec"]["tfReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 3 and worker["restartPolicy"] == "OnFailure"
    assert found["spec"]["runPolicy"]["backoffLimit"] == 7 and found["spec"]["successPolicy"] == "AllWorkers"
    container = container_of(as_job(found))
    assert container["name"] == "tensorflow" and container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
    assert "TF_CONFIG" not in [variable["name"] for variable in container["env"]]
    assert "restartPolicy" not in worker["template"]["spec"]
