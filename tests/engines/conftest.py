"""Run only on request, by `make engines`: a local Ray cluster, and a firewall between two hosts.

They take minutes, and would often fail on a busy machine.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "workers"))

from test_namespaces import hosts  # noqa: E402, F401


def pytest_ignore_collect(config):
    asked_for = any("engines" in str(argument) for argument in config.args)
    return None if asked_for else True
