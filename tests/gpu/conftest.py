"""Tests that need a GPU: `make gpu`, or pytest -m gpu."""

import pytest

from bigtrain_nb.common.quiet import tf


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu/" in item.nodeid:
            item.add_marker("gpu")


@pytest.fixture(autouse=True)
def a_gpu():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no GPU")
    tf.config.experimental.enable_tensor_float_32_execution(False)
