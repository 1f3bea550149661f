"""``pytest --tf32``: round float32 matmuls on the CPU as a GPU does, to find tolerances that are too tight.

By default, a GPU with tensor cores rounds the factors of float32 products to ten bits. A tolerance chosen for float32
fails there, and with this option on any machine. Notebooks and workers round too.
"""

import os
import sys
from pathlib import Path

import pytest

OPTION = "--tf32"
FOLDER = Path(__file__).with_name("tf32")


def pytest_addoption(parser):
    parser.addoption(OPTION, action="store_true", help="round the factors of float32 products to ten bits, as GPUs do")
    if OPTION in sys.argv:  # not later: a folder's conftest.py loads TensorFlow before options are parsed
        round_here_and_in_what_is_started()


def pytest_configure(config):
    if config.getoption(OPTION) and "rounded_products" not in sys.modules:
        raise pytest.UsageError(f"{OPTION} must stand in the command line: TensorFlow may be loaded already")


def round_here_and_in_what_is_started():
    paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path.insert(0, str(FOLDER))
    import rounded_products

    rounded_products.install()
