"""Run a training script with Ray. The script is unchanged; it calls bt.strategy() and bt.Resume.

On a machine of the cluster:  python3 scripts/train_on_ray.py
From another machine:  ray job submit --address http://HEAD:8265 --working-dir . -- python3 scripts/train_on_ray.py

Needs ray[train] 2.60 or later and bigtrain-nb on all nodes, and a folder for checkpoints that all nodes share. After
the loss of a worker or a node, Ray restarts all workers, as many as fit, and bt.Resume continues from its checkpoint:
the global batch does not depend on the number of workers. (It cannot skip batches in a Ray Data pipeline.)
Anyone who can reach a port of the cluster can run code as you: keep it behind a firewall.
"""

import os
import runpy
import sys
import time

os.environ["RAY_DEDUP_LOGS"] = "0"  # read when Ray is imported; otherwise it hides lines that differ only in numbers
from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: E402
from ray.train.tensorflow import TensorflowTrainer  # noqa: E402

# EDIT HERE
SCRIPT = "scripts/train_photos.py"
ARGUMENTS = ["checkpoints"]
WORKERS = (1, 2)  # at least, at most
EACH_WORKER = {"CPU": 4, "GPU": 0}
RESTARTS = 10  # after any error; a lost node may count three times until Ray notices
STORAGE = "ray"  # a folder for Ray's own state, shared by all nodes

SAVED = 75  # the exit code of bt.Resume when Ray is about to take a node away
SECONDS_OF_A_LEAVE = 600


def worker(job):
    """Run the script in a process started by Ray."""
    os.environ.update(job["environment"])
    os.environ.pop("TF_USE_LEGACY_KERAS", None)  # set by Ray: tf.keras would be Keras 2
    if os.path.isdir(job["folder"]):  # on other nodes, Ray copied it to this process's folder
        os.chdir(job["folder"])
    sys.argv = [SCRIPT, *ARGUMENTS]
    sys.path.insert(0, os.path.dirname(os.path.abspath(SCRIPT)))
    try:
        runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit as end:
        if end.code == SAVED:
            time.sleep(SECONDS_OF_A_LEAVE)  # once the node is removed, Ray ends this process and counts no failure
        if end.code:
            raise RuntimeError(f"{SCRIPT} ended with code {end.code}") from None


if __name__ == "__main__":
    passed_on = {name: value for name, value in os.environ.items() if name.startswith("BIGTRAIN_")}
    failures = FailureConfig(max_failures=RESTARTS)
    TensorflowTrainer(
        worker,
        train_loop_config={"environment": passed_on, "folder": os.getcwd()},
        scaling_config=ScalingConfig(
            num_workers=WORKERS if WORKERS[0] < WORKERS[1] else WORKERS[1],
            resources_per_worker=EACH_WORKER,
            use_gpu=EACH_WORKER["GPU"] > 0,
        ),
        run_config=RunConfig(storage_path=os.path.abspath(STORAGE), failure_config=failures),
    ).fit()
