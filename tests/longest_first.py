"""Run the longest files first, alternating between worker tests and notebooks.

With several test processes, none is left with a long file at the end; and notebooks, which keep the processor busy,
run in parallel with tests that mostly wait.
"""

LONGEST = ("tests/workers/", "notebooks/")


def pytest_collection_modifyitems(items):
    turn = {}
    for kind in LONGEST:
        files = {file_of(item) for item in items if file_of(item).startswith(kind)}
        for number, file in enumerate(sorted(files, reverse=True)):  # later files take longer
            turn[file] = number
    items.sort(key=lambda item: turn.get(file_of(item), len(turn)))


def file_of(item):
    return item.nodeid.partition("::")[0]
