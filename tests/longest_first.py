"""How `pytest -n` shares the tests out: the longest files begin first, and a file's tests stay in one process.

Only the solved notebooks, which are one file, may each have a process of their own: together they would outlast all.
"""
import pytest

LONGEST = ("tests/notebooks/test_solved.py", "tests/workers/", "notebooks/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file == LONGEST[0] else file

    config.option.loadscopereorder = False
    return Scheduler(config, log)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
