"""A job of the Lab: settings that are measured together. One job has the machine at a time.

A job has the settings by the number of their run, the baseline's first if there is one.
"""

import threading
from functools import partial

from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.lab.runs import Run, run_name
from bigtrain_nb.measure import benchmark

_machine = threading.Lock()


class Stopped(Exception):
    """Ends a job that was stopped."""


def measure(job: dict, build, seconds: float, say, progress) -> list[Run]:
    """Measure for `seconds` each, alone or in interleaved rounds, once no other job measures; return all as runs.

    The other may be one that was stopped while its source blocks: a measurement beside it would mislead.
    """
    while not _machine.acquire(timeout=0.05):
        say("Waiting for an earlier run to let go of the machine.")
    try:
        names = ", ".join(run_name(number) for number in job)
        say(f"Measuring {names}, about {seconds * len(job):.0f} s.")
        results, comparison = _results(job, build, seconds, progress)
    finally:
        _machine.release()
    return [Run(number, settings, results[run_name(number)], comparison) for number, settings in job.items()]


def _results(job, build, seconds, progress):
    """Return each run's `Result` by its name, and the `Comparison` if there are several."""
    sources = {}
    for number, settings in job.items():
        sources[run_name(number)] = partial(_source, build, settings)
    if len(sources) > 1:
        comparison = benchmark.compare(sources, seconds=seconds * len(sources), progress=progress)
        return comparison.results, comparison
    [(name, source)] = sources.items()
    result = benchmark.throughput(source(), seconds=seconds, name=name, progress=progress)
    return {name: result}, None


def _source(build, settings):
    """Return what `build` makes of the settings; a note on its error names them."""
    try:
        source = build(**settings)
        if callable(getattr(source, "dataset", None)):
            source = source.dataset()
        return source
    except Exception as error:
        error.add_note(f"raised by {text(build)} with {describe(settings)}")
        raise
