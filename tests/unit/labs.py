"""Shared by the tests of the Lab: fast things to measure, instant measurements, and ways to wait."""

import threading
import time
from dataclasses import replace

import pytest

from bigtrain_nb.measure.results import Comparison, Race, Result

SECONDS = 0.05


def build(batch=32, prefetch=0, cache=False, workers=2):
    """Return a step function that takes about a millisecond per batch."""

    def step():
        time.sleep(0.001)
        return batch

    return step


def quick_throughput(source, *, seconds, name, progress):
    """Replace `throughput`: run one step, and use its count as the rate."""
    count = source()
    progress(0.5, f"round 2 of about 4: {count} examples/s")
    rounds = (0.99 * count, count, 1.01 * count) * 3
    return Result(name, rounds, "examples/s", 0.1, 9 * count, 0.1)


def quick_compare(factories, *, seconds, progress):
    """Replace `compare`."""
    results = {}
    for name, factory in factories.items():
        results[name] = quick_throughput(factory(), seconds=seconds, name=name, progress=progress)

    def extend(more, progress):
        return replace(quick_compare(factories, seconds=seconds + more, progress=progress), error=0.005)

    return Comparison(results, seconds=seconds, extend_with=extend)


def quick_standings(build, settings, seconds, progress):
    """Replace `standings_at_checks`: at the second of two checks, eliminate all but the fastest."""
    results = []
    for name, chosen in settings.items():
        results.append(quick_throughput(build(**chosen), seconds=seconds, name=name, progress=progress))
    results.sort(key=lambda result: -result.median)
    ordered = {result.name: result for result in results}
    yield Race(ordered, settings=settings, eliminated={})
    slower = [result.name for result in results if result.median < results[0].median]
    yield Race(ordered, settings=settings, eliminated=dict.fromkeys(slower, 12))


def shown(lab):
    """Display the Lab as a notebook would, and return its widgets."""
    pytest.importorskip("ipywidgets")
    assert "application/vnd.jupyter.widget-view+json" in lab._repr_mimebundle_()
    return lab._view


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def finish(lab):
    """Wait for the end of its run and its last picture."""
    until(lambda: not lab.running and not background_threads())


def background_threads():
    return [thread for thread in threading.enumerate() if thread.name == "lab-run"]


class Gate:
    """A build whose source blocks in its step until the gate opens."""

    def __init__(self):
        self.opened, self.reached, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self):
        self.calls += 1

        def step():
            self.reached.set()
            self.opened.wait(30)
            return 1

        return step
