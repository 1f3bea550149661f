"""The longest files begin first: where several processes share the tests, none is left alone with one at the end."""

LONGEST = ("tests/workers/", "notebooks/")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
