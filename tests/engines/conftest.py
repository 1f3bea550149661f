"""Run only on request, by `make engines`: a local Ray cluster.

They take minutes, and would often fail on a busy machine.
"""


def pytest_ignore_collect(config):
    asked_for = any("engines" in str(argument) for argument in config.args)
    return None if asked_for else True
