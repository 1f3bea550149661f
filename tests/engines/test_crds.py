"""jobset.yaml of the notebooks, validated against JobSet's own definitions (CRDs). Needs a network.

They are from the oldest release that the file names, and from a recent one. BIGTRAIN_CRDS sets another source with the
same paths, for example file:///a/folder. An API server refuses or drops fields unknown to a CRD; here they are errors.
The CRDs' CEL rules are not evaluated: RULES_READ lists those that we have checked by reading.
"""

import functools
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import pytest
import yaml

CRDS = os.environ.get("BIGTRAIN_CRDS", "https://raw.githubusercontent.com")
SECONDS = 60
JOBSET = "kubernetes-sigs/jobset/{}/config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"
RULES_READ = {
    "StartupPolicy and DependsOn APIs are mutually exclusive",  # it has neither
    "DependsOn can't be set for the first ReplicatedJob",
    "metadata.name must match RFC 1035 DNS label format",
    "metadata.name must be no more than 63 characters",
}
NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
METADATA = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "labels": NAMES, "annotations": NAMES},
}
ROOT = Path(__file__).parents[2]
FILE = ROOT / "notebooks" / "scripts" / "jobset.yaml"


@functools.cache
def definitions(path):
    """Return the schemas of a CRD by their apiVersion."""
    with urllib.request.urlopen(f"{CRDS}/{path}", timeout=SECONDS) as answer:
        spec = yaml.load(answer, yaml.CSafeLoader)["spec"]
    return {f"{spec['group']}/{one['name']}": one["schema"]["openAPIV3Schema"] for one in spec["versions"]}


@pytest.fixture(scope="module", autouse=True)
def network():
    """Skip all tests without a network. A missing file is a failure."""
    try:
        definitions(JOBSET.format("v0.12.0"))
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        pytest.skip(f"needs a network: {CRDS} cannot be read ({error})")


def without_unknown_fields(schema):
    """Return the schema with unknown fields refused, as by an API server."""
    schema = dict(schema)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            schema[part] = without_unknown_fields(schema[part])
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        known = schema.get("properties", {})
        schema["properties"] = {name: without_unknown_fields(part) for name, part in known.items()}
        schema["additionalProperties"] = schema.get("x-kubernetes-preserve-unknown-fields", False)
    return schema


def twice(_, keys, items, __):
    """Refuse list items with equal keys."""
    found = [json.dumps([item.get(key) for key in keys]) for item in items]
    if len(set(found)) < len(found):
        yield jsonschema.ValidationError(f"{keys} must differ in {found}")


def not_read(_, rules, __, ___):
    """Refuse CEL rules that we have not read, except rules on updates."""
    for rule in rules:
        if "oldSelf" not in rule["rule"] and rule["message"] not in RULES_READ:
            yield jsonschema.ValidationError(f"read whether this holds, and add it to RULES_READ: {rule}")


def too_large(_, form, number, __):
    if form == "int32" and abs(number) >= 2**31:
        yield jsonschema.ValidationError(f"{number} is no int32")


Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {"x-kubernetes-list-map-keys": twice, "x-kubernetes-validations": not_read, "format": too_large},
)


def refusals(found, path):
    """Return the error messages of an API server with this CRD for an object."""
    schema = without_unknown_fields(definitions(path)[found["apiVersion"]])
    schema["properties"] |= {"metadata": METADATA}  # the API server's own
    return [f"{error.json_path}: {error.message}" for error in Validator(schema).iter_errors(found)]


def job_set():
    """Return the file's JobSet."""
    (found,) = (one for one in yaml.safe_load_all(FILE.read_text(encoding="utf-8")) if one["kind"] == "JobSet")
    return found


@pytest.mark.parametrize("release", ["v0.8.0", "v0.12.0"])
def test_jobset_takes_the_file(release):
    assert refusals(job_set(), JOBSET.format(release)) == []


def test_a_field_that_no_crd_has_is_refused():
    found = job_set()
    found["spec"]["failurePolicy"]["maxRestart"] = 3
    container = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["env"].append(container["env"][0])
    a_field, a_pair = refusals(found, JOBSET.format("v0.12.0"))
    assert "$.spec.failurePolicy" in a_field and "'maxRestart' was unexpected" in a_field
    assert '["TASK_INDEX"]' in a_pair and "['name'] must differ" in a_pair
