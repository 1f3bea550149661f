"""The longest files begin first, worker tests and notebooks in turns.

Where several processes share the tests, none is left alone with a long file at the end; and a notebook, which keeps the
processor busy, runs beside tests that mostly wait.
"""

LONGEST = ("tests/workers/", "notebooks/")


def pytest_collection_modifyitems(items):
    turn = {}
    for kind in LONGEST:
        files = {file_of(item) for item in items if file_of(item).startswith(kind)}
        for number, file in enumerate(sorted(files, reverse=True)):  # the later ones are longer
            turn[file] = number
    items.sort(key=lambda item: turn.get(file_of(item), len(turn)))


def file_of(item):
    return item.nodeid.partition("::")[0]
