"""Exercise of notebook 00, "Measure first": a stopwatch with five faults."""

import math

from bigtrain_nb.series.drifting import Clock, batches
from bigtrain_nb.workbook.exercises import Wrong, exercise


def stopwatch(source, now, write_log):
    source = iter(source)
    next(source).numpy()
    began = now()
    count = 0
    while now() - began < 10:
        batch = next(source)
        batch.numpy()
        count += len(batch)
    took = now() - began
    write_log()
    return count / took


SOURCES = {
    "0.1 s for 32 examples": ({}, 320, "writing the log must not count as the source's time"),
    "a first batch that takes 5 s, then 0.1 s for 32 examples": (
        {"first": 5.0},
        320,
        "the clock must start after the start-up",
    ),
    "0.1 s for a batch, which has 32, 32, 32 or 8 examples": (
        {"sizes": (32, 32, 32, 8)},
        260,
        "count examples, not batches",
    ),
    "3 s for 2 examples": (
        {"first": 3.0, "each": 3.0, "sizes": (2,)},
        2 / 3,
        "divide by the elapsed time: the last batch began before 10 s and ended after that",
    ),
    "0.1 s for 32 examples, returned before the work is done": (
        {"waits": False},
        320,
        "wait for the result before you read the clock",
    ),
    "0.1 s for 32 examples, and 16 batches are prefetched": (
        {"buffer": 16},
        320,
        "while the log was written, batches were prefetched that then cost nothing",
    ),
}


@exercise(
    stopwatch,
    takes="an endless iterable of batches that have `len` and `numpy()`; now() -> seconds; write_log()",
    returns="examples/s; it calls write_log once",
    minutes=12,
    difficulty=3,
)
def _check_stopwatch(answer):
    """Follow the clock line by line. Which of these are in the measured time or in the count, but not in both: the
    first batch, the log, the end of the last batch? And is every counted batch produced and finished in that time?"""
    for what, (cost, expected, why) in SOURCES.items():
        clock = Clock()
        got = answer(batches(clock, **cost), clock, clock.write_log)
        if not isinstance(got, int | float):
            raise Wrong(f"{what}: expected a number of examples/s, got {got!r:.50}")
        if not math.isclose(got, expected, rel_tol=0.03):
            raise Wrong(f"{what}: expected about {expected:.3g} examples/s, got {got:.3g}: {why}")
    if not clock.logs:
        raise Wrong("the log: expected a call of write_log(), got none")


@_check_stopwatch.refuses("the clock must start after the start-up")
def _times_the_start(source, now, write_log):
    began = now()
    count = 0
    while now() - began < 10:
        batch = next(source)
        batch.numpy()
        count += len(batch)
    return count / (now() - began)


@_check_stopwatch.refuses("count examples, not batches")
def _takes_all_batches_for_equal(source, now, write_log):
    next(source).numpy()
    began = now()
    count = 0
    while now() - began < 10:
        next(source).numpy()
        count += 32
    return count / (now() - began)


@_check_stopwatch.refuses("divide by the elapsed time")
def _divides_by_the_plan(source, now, write_log):
    next(source).numpy()
    began = now()
    count = 0
    while now() - began < 10:
        batch = next(source)
        batch.numpy()
        count += len(batch)
    return count / 10


@_check_stopwatch.refuses("wait for the result before you read the clock")
def _does_not_wait(source, now, write_log):
    next(source)
    began = now()
    count = 0
    while now() - began < 10:
        count += len(next(source))
    return count / (now() - began)


@_check_stopwatch.refuses("expected a call of write_log(), got none")
def _writes_no_log(source, now, write_log):
    return stopwatch(source, now, lambda: None)


def _with_the_log(source, now, write_log, log_is_timed):
    next(source).numpy()
    if not log_is_timed:
        write_log()
    began = now()
    if log_is_timed:
        write_log()
    count = 0
    while now() - began < 10:
        batch = next(source)
        batch.numpy()
        count += len(batch)
    return count / (now() - began)


@_check_stopwatch.refuses("batches were prefetched that then cost nothing")
def _reads_a_full_buffer(source, now, write_log):
    return _with_the_log(source, now, write_log, log_is_timed=False)


@_check_stopwatch.refuses("writing the log must not count as the source's time")
def _times_the_log(source, now, write_log):
    return _with_the_log(source, now, write_log, log_is_timed=True)
