"""``pytest --tf32``: products on the CPU are rounded as those of a GPU are, so that tolerances show what they are for.

A GPU with tensor cores rounds the factors of float32 products to ten bits, unless told otherwise. A tolerance that was
chosen for float32 fails there, and under this option on any machine. Notebooks and workers round too.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).with_name("tf32")


def pytest_addoption(parser):
    parser.addoption(
        "--tf32", action="store_true", help="round the factors of float32 products to ten bits, as GPUs do"
    )


def pytest_configure(config):
    if not config.getoption("--tf32"):
        return
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for kernels and workers
    if hasattr(config, "workerinput"):
        return  # a process of pytest-xdist has started with it
    sys.path.insert(0, str(FOLDER))
    import rounded_products

    rounded_products.install()
