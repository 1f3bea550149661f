"""Kubernetes objects for workers that train together, as dictionaries."""

import json

NAME = "app.kubernetes.io/name"
PORT = 2222
KEPT_SECONDS = 24 * 3600
USER = 1000
SAVED = 75
MEMORY_FOR_GPUS = "1Gi"
"""Shared memory through which the GPUs of a worker talk (NCCL); the container's own 64 MiB are not enough."""


def indexed_job(chosen):
    """Return a headless Service and an indexed Job: plain Kubernetes, no operator.

    The Service gives worker i the host name NAME-i.NAME, before it is ready too, since it is ready only with the
    others. A worker that failed is replaced under the same name, and comes together with the others, which fail with
    it: so ``restarts`` of all are ``restarts * workers`` of single ones. Those that saved on SIGTERM (code 75), and
    those that Kubernetes itself ended, do not count.
    """
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": chosen.name, "labels": _labels(chosen)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(chosen),
            "ports": [{"name": "workers", "port": PORT}],
        },
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": chosen.name, "labels": _labels(chosen)},
        "spec": {
            "completionMode": "Indexed",
            "completions": chosen.workers,
            "parallelism": chosen.workers,
            "backoffLimit": chosen.restarts * chosen.workers,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "Ignore",
                        "onExitCodes": {"containerName": "worker", "operator": "In", "values": [SAVED]},
                    },
                ]
            },
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": _pod(chosen, "worker", "workers", _place(chosen), subdomain=chosen.name, restartPolicy="Never"),
        },
    }
    return [service, job]


def tfjob(chosen):
    """Return a TFJob for Kubeflow's training operator, version 1, which sets TF_CONFIG and makes the services.

    The operator starts a failed or evicted worker again under the same name, whatever its exit code, until the
    restarts of all workers have reached ``backoffLimit``; code 75 counts.
    """
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": chosen.name, "labels": _labels(chosen)},
        "spec": {
            "runPolicy": {
                "backoffLimit": chosen.restarts * chosen.workers + 1,
                "cleanPodPolicy": "Running",
                "ttlSecondsAfterFinished": KEPT_SECONDS,
            },
            "successPolicy": "AllWorkers",
            "tfReplicaSpecs": {
                "Worker": {
                    "replicas": chosen.workers,
                    "restartPolicy": "OnFailure",
                    "template": _pod(chosen, "tensorflow", "tfjob-port", []),
                }
            },
        },
    }
    return [job]


def _labels(chosen):
    return {NAME: chosen.name, "app.kubernetes.io/component": "training"}


def _place(chosen):
    """Return the variables that tell a worker its place; Kubernetes puts the index of the pod into the second."""
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    workers = [f"{chosen.name}-{number}.{chosen.name}:{PORT}" for number in range(chosen.workers)]
    config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": "$(TASK_INDEX)"}})
    return [
        {"name": "TASK_INDEX", "valueFrom": index},
        {"name": "TF_CONFIG", "value": config.replace('"$(TASK_INDEX)"', "$(TASK_INDEX)")},
    ]


def _pod(chosen, container, port, place, **more):
    spec = {
        **more,
        "terminationGracePeriodSeconds": chosen.grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(chosen, container, port, place)],
        "volumes": [{"name": name, **source} for name, _, source in _volumes(chosen)],
    }
    return {"metadata": {"labels": _labels(chosen)}, "spec": spec}


def _container(chosen, name, port, place):
    return {
        "name": name,
        "image": chosen.image,
        "command": [_literal(chosen.python), _literal(chosen.script)],
        "args": [_literal(argument) for argument in chosen.arguments],
        "env": [*place, {"name": "PYTHONUNBUFFERED", "value": "1"}, {"name": "HOME", "value": "/tmp"}],
        "ports": [{"name": port, "containerPort": PORT}],
        "resources": {"requests": _resources(chosen), "limits": _resources(chosen)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path, _ in _volumes(chosen)],
    }


def _literal(argument):
    """Return an argument in which Kubernetes will expand nothing: it would take $(NAME) for a variable."""
    return argument.replace("$", "$$")


def _resources(chosen):
    gpus = {"nvidia.com/gpu": chosen.gpus} if chosen.gpus else {}
    return {"cpu": chosen.cpus, "memory": chosen.memory, **gpus}


def _volumes(chosen):
    """Return the name, mount path and source of each volume."""
    volumes = [("checkpoints", chosen.mount, {"persistentVolumeClaim": {"claimName": chosen.claim}})]
    if chosen.gpus > 1:
        volumes.append(("shared-memory", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": MEMORY_FOR_GPUS}}))
    return volumes
