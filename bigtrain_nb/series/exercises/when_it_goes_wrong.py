"""Exercises of notebook 11, "When it goes wrong"."""

import math
import threading

import numpy as np

from bigtrain_nb.series.traces import FAULTS, trace
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

TIMEOUT = 5
"""Seconds that a worker waits for another in the exercise `together`."""


def fault(spans):
    names = [name for _, _, _, name in spans]
    busy = dict.fromkeys(names, 0.0)
    for start, end, _, name in spans:
        busy[name] += end - start
    total = max(end for _, end, _, _ in spans)
    if busy.get("trace the function", 0) > total / 3:
        return "retracing"
    if busy.get("wait for a batch", 0) > total / 3:
        return "input"
    if busy.get("wait in all-reduce", 0) > total / 3:
        return "another worker"
    if names.count("operation") > 100:
        return "op storm"
    return "compute"


@exercise(
    fault,
    takes="a list of spans (start, end, thread, name), in ms",
    returns='"input", "op storm", "retracing", "another worker" or "compute"',
    minutes=15,
    difficulty=3,
)
def _check_fault(answer):
    """For each name, add up the durations of its spans, and compare them with the full trace. In three of the faults,
    one name takes most of the time. In the other two, operations do: how many are there, and how long is each?"""
    for seed in range(6):
        for name in FAULTS:
            expect(answer(trace(name, seed)), name, f"a trace of the fault {name!r} (seed {seed})")
    larger = [(4 * start, 4 * end, thread, name) for start, end, thread, name in trace("compute", 0)]
    expect(answer(larger), "compute", "a trace of a model that takes four times as long, without a fault")


@_check_fault.refuses("a trace of the fault 'op storm' (seed 0): expected 'op storm', got 'compute'")
def _never_counts(spans):
    found = fault(spans)
    return "compute" if found == "op storm" else found


@_check_fault.refuses("expected 'op storm', got 'another worker'")
def _the_longest_span(spans):
    longest = max(spans, key=lambda span: span[1] - span[0])
    names = {"wait for a batch": "input", "wait in all-reduce": "another worker", "trace the function": "retracing"}
    return names.get(longest[3], "op storm")


def interval(save, between):
    choices = np.geomspace(save / 100, 10 * between, 20_000)
    per_second = between * np.expm1((choices + save) / between) / choices
    return float(choices[np.argmin(per_second)])


def time_per_second(seconds, save, between):
    """Return the duration of one second of training, saved every ``seconds``, with random failures (Daly)."""
    return between * math.expm1((seconds + save) / between) / seconds


@exercise(
    interval,
    takes="seconds that saving takes; mean seconds between failures",
    returns="seconds",
    minutes=15,
    difficulty=3,
)
def _check_interval(answer):
    """Daly's formula gives the mean time of t seconds of training with a checkpoint of c seconds; R does not change the
    best t. Divide it by t to get the time per second of training. Try many values of t, and take the best. You do not
    need Young's formula, which holds only if saving takes far less time than passes between two failures."""
    for save, between in ((60, 86_400), (600, 3600), (1800, 3600), (60, 90), (90, 60)):
        what = f"saving takes {save} s, with {between} s between failures"
        seconds = answer(save, between)
        if not isinstance(seconds, int | float | np.number) or not 0 < seconds < math.inf:
            raise Wrong(f"{what}: expected a number of seconds above 0, got {seconds!r}")
        least = interval(save, between)
        lost = time_per_second(seconds, save, between) / time_per_second(least, save, between) - 1
        if lost > 0.005:
            raise Wrong(f"{what}: expected about {least:.0f} s, got {seconds:.0f}, which takes {lost:.1%} longer")


@_check_interval.refuses("saving takes 600 s, with 3600 s between failures: expected about 1699 s, got 2078")
def _young(save, between):
    return math.sqrt(2 * save * between)


@_check_interval.refuses("expected about 3179 s, got 86400")
def _once_between_failures(save, between):
    return between


@_check_interval.refuses("expected about 3179 s, got 300")
def _every_five_minutes(save, between):
    return 300


class WaitsForEver(BaseException):
    """A worker waits for another that will not come. Not an `Exception`, unlike the answer's own errors."""


def together(batches, all_reduce, step):
    while True:
        batch = next(batches, None)
        if all_reduce(0 if batch is None else 1) == 0:
            return
        step(batch)


def _work(answer, counts):
    """Run an answer in threads that communicate; return the batches that each trained on, and each one's error."""
    workers = len(counts)
    barrier = threading.Barrier(workers, timeout=TIMEOUT)
    told = [0] * workers
    trained = [[] for _ in range(workers)]
    problems = [None] * workers

    def run(worker):
        def all_reduce(number):
            told[worker] = number
            try:
                barrier.wait()
                total = sum(told)
                barrier.wait()
            except threading.BrokenBarrierError:
                raise WaitsForEver from None
            return total

        def step(batch):
            trained[worker].append(batch)
            all_reduce(1)

        try:
            answer(iter(range(counts[worker])), all_reduce, step)
        except BaseException as error:
            problems[worker] = error

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * TIMEOUT)
    return trained, problems


@exercise(
    together,
    takes="an iterator of batches; all_reduce(number) -> the sum over workers; step(batch or None)",
    returns="nothing; all workers end together",
    minutes=12,
    difficulty=3,
)
def _check_together(answer):
    """Before each step, all workers must agree on whether there is another one. A worker can send 1 for "I still have a
    batch" and 0 for "I have none": what is the sum when no worker has any left? All must ask equally often."""
    for counts in ((6, 4), (0, 3), (5, 5), (2, 7, 4)):
        what = f"workers with {' and '.join(map(str, counts))} batches"
        trained, problems = _work(answer, counts)
        for problem in problems:
            if problem is not None and not isinstance(problem, WaitsForEver):
                raise problem
        for worker, problem in enumerate(problems):
            if problem is not None:
                raise Wrong(
                    f"{what}: expected all to finish, but worker {worker} waits for the others in an all-reduce"
                )
        for worker, count in enumerate(counts):
            own = [batch for batch in trained[worker] if batch is not None]
            expect(own, list(range(count)), f"{what}: the batches that worker {worker} trained")
            if len(trained[worker]) > max(counts) + 1:
                steps = f"{len(trained[worker])} steps, {len(trained[worker]) - max(counts)} of them without any batch"
                raise Wrong(f"{what}: worker {worker} took part in {steps}")


@_check_together.refuses("worker 0 took part in 9 steps, 3 of them without any batch")
def _goes_on_when_nobody_has_one(batches, all_reduce, step):
    together(batches, all_reduce, step)
    for _ in range(3):
        step(None)


@_check_together.refuses("expected all to finish, but worker 0 waits")
def _each_on_its_own(batches, all_reduce, step):
    for batch in batches:
        step(batch)


@_check_together.refuses("the batches that worker 0 trained: expected [0, 1, 2, 3, 4, 5], got [0, 1, 2, 3]")
def _as_long_as_all_have_one(batches, all_reduce, step):
    held = list(batches)
    number = 0
    while all_reduce(1 if number < len(held) else 0) > 1:
        step(held[number] if number < len(held) else None)
        number += 1


def clock_ahead(worker_0, worker_1):
    differences = []
    for step, time_of_0 in worker_0.items():
        if step in worker_1:
            differences.append(worker_1[step] - time_of_0)
    return float(np.median(differences))


@exercise(
    clock_ahead,
    takes="{step: seconds} of worker 0; {step: seconds} of worker 1",
    returns="seconds",
    minutes=6,
    difficulty=2,
)
def _check_clock_ahead(answer):
    """Both workers leave an all-reduce at nearly the same moment. So how should their times for one step compare? One
    of the lines was written late: which kind of average is robust to an outlier?"""
    for seed, ahead in enumerate((0.0, 37.5, -1200.0)):
        random = np.random.default_rng(seed)
        true = np.cumsum(random.uniform(0.1, 0.3, 30))
        worker_0 = {step: float(true[step] + random.uniform(0, 0.002)) for step in range(30)}
        worker_1 = {step: float(true[step] + random.uniform(0, 0.002) + ahead) for step in range(4, 30)}
        worker_1[7] += 20.0
        got = answer(worker_0, worker_1)
        what = f"the clock of worker 1 is {ahead} s ahead"
        if not isinstance(got, int | float | np.number):
            expect(got, ahead, what)
        elif not abs(got - ahead) <= 0.01:  # catches NaN too
            raise Wrong(f"{what}: expected about {ahead:g}, got {got:.6g}")


@_check_clock_ahead.refuses("the clock of worker 1 is 0.0 s ahead: expected about 0, got 0.76")
def _mean(worker_0, worker_1):
    return float(np.mean([worker_1[step] - worker_0[step] for step in worker_1]))


@_check_clock_ahead.refuses("is 0.0 s ahead: expected about 0, got ")
def _first_lines(worker_0, worker_1):
    return min(worker_1.values()) - min(worker_0.values())


@_check_clock_ahead.refuses("expected about 37.5, got -37.5")
def _the_wrong_way_round(worker_0, worker_1):
    return -clock_ahead(worker_0, worker_1)
