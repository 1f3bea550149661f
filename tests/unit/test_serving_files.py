"""The files for the real server, held against the schemas of Kubernetes and against each other."""

from pathlib import Path

import kubernetes_validate
import yaml

SERVING = Path(__file__).parents[2] / "notebooks" / "scripts" / "serving"


def test_the_schema_of_kubernetes_is_met_and_ports_and_labels_fit():
    deployment, service = yaml.safe_load_all((SERVING / "serving.yaml").read_text())
    for found in (deployment, service):
        for version in ("1.29", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(found, version, strict=True)
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert named == {"grpc": 8500, "rest": 8501}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(named)
    assert container["readinessProbe"]["httpGet"]["port"] in named


def test_both_files_pin_the_same_image():
    deployment, _ = yaml.safe_load_all((SERVING / "serving.yaml").read_text())
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert f"FROM {image}\n" in (SERVING / "Dockerfile").read_text()
    assert image.rpartition(":")[2].replace(".", "").isdigit()
