"""Small jobs without TensorFlow, for the tests of the launcher."""

from pathlib import Path
from textwrap import dedent

from leftovers import eventually

import bigtrain_nb as bt

SCRIPTS = Path(__file__).parent / "scripts"
ON_CPUS = {"CUDA_VISIBLE_DEVICES": "-1"}
SECONDS = 300  # a safety limit: most of these jobs take less than a second
INDEX = "import json, os, signal, sys, time; index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


def start(code, workers=2, **settings):
    return bt.run_workers(INDEX + dedent(code), workers, **{"timeout": SECONDS} | settings)


def run(code, workers=2, show=False, **settings):
    """Run a job to completion; return it."""
    return ended(start(code, workers, **settings), show)


def ended(job, show=False):
    try:
        job.wait(show)
    finally:
        job.stop()
    return job


def waiting(*arguments, workers=2, **settings):
    """Return a job whose workers listen and wait, and their addresses."""
    job = bt.run_workers(SCRIPTS / "waits.py", workers, arguments=arguments, **settings)
    eventually(lambda: all("ready at" in job.logs(index) for index in range(workers)))
    return job, [job.logs(index).split()[-1] for index in range(workers)]
