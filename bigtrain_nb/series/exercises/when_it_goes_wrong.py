"""Exercises of notebook 11, "When it goes wrong"."""

import itertools
import math
import threading

import numpy as np

from bigtrain_nb.workbook.exercises import NotAttempted, Wrong, exercise, expect, is_unfinished

TIMEOUT = 5
"""Seconds that a worker waits for another in the exercise `together`."""


def bad_nodes(nodes, links):
    usual = np.median(list(links.values()))
    slow = {pair for pair, rate in links.items() if rate < usual / 2}
    bad, bad_nics = set(), set()
    for report in nodes:
        node = report["node"]
        peers = [other["gflops"] for other in nodes if other["node"] != node]
        if report["wrong"] > 0 or report["gflops"] < 0.9 * np.median(peers):
            bad.add(node)
        if all(pair in slow for pair in links if node in pair):
            bad_nics.add(node)
    return bad | bad_nics, {pair for pair in slow if bad_nics.isdisjoint(pair)}


def _cluster(first, count, gflops=None, wrong=None, nics=(), slow=(), rates=None):
    """Return the reports of nodes ``first``, ``first + 1``, ..., and their links: healthy, except for these faults."""
    numbers = range(first, first + count)
    nodes = []
    for node in [*numbers[1::2], *numbers[::2]]:
        speed = (gflops or {}).get(node, 100.0 + node % 3)
        nodes.append({"node": node, "gflops": speed, "memory": 20.0, "wrong": (wrong or {}).get(node, 0)})
    links = {}
    for pair in itertools.combinations(numbers, 2):
        is_slow = pair in slow or any(node in nics for node in pair)
        links[pair] = (rates or {}).get(pair, 20.0 if is_slow else 100.0)
    return nodes, links


_CLUSTERS = {
    "4 healthy nodes": (_cluster(0, 4), [], []),
    "node 1 wrong, the NIC of node 2 slow": (_cluster(0, 4, wrong={1: 4}, nics=[2]), [1, 2], []),
    "node 14 wrong in one repetition": (_cluster(12, 8, wrong={14: 1}), [14], []),
    "one slow cable": (_cluster(0, 8, slow=[(2, 5)]), [], [(2, 5)]),
    "two slow cables, both of node 3": (_cluster(0, 4, slow=[(0, 3), (1, 3)]), [], [(0, 3), (1, 3)]),
    "a slow NIC, and a slow cable elsewhere": (_cluster(0, 8, nics=[5], slow=[(0, 1)]), [5], [(0, 1)]),
    "a wrong node with a slow cable": (_cluster(0, 8, wrong={3: 2}, slow=[(3, 6)]), [3], [(3, 6)]),
    "two slow nodes": (_cluster(0, 8, gflops={2: 10.0, 6: 85.0}), [2, 6], []),
    "one node with a faster GPU": (_cluster(0, 8, gflops={4: 300.0}), [], []),
    "a node at 0.9 of the others' median, a link at half of the median": (
        _cluster(0, 6, gflops={0: 90.0, **dict.fromkeys(range(1, 6), 100.0)}, rates={(2, 3): 50.0}),
        [],
        [],
    ),
    "one link as fast as all others together": (_cluster(0, 4, nics=[0], rates={(1, 2): 1000.0}), [0], []),
}


@exercise(
    bad_nodes,
    takes="a list of reports, a dictionary each; {(node, node): MB/s}",
    returns="the set of bad nodes, and the set of bad cables",
    minutes=12,
    difficulty=3,
)
def _check_bad_nodes(answer):
    """Begin with the set of slow links: those below half of the median of all links. A NIC is slow if every link of its
    node is in this set. Which slow links remain when you leave out those of a slow NIC? For the speeds, a median of the
    other nodes ignores a node that is far off; a mean does not."""
    for what, ((nodes, links), bad, cables) in _CLUSTERS.items():
        got = answer([dict(report) for report in nodes], dict(links))
        if is_unfinished(got):
            raise NotAttempted
        if not isinstance(got, tuple) or len(got) != 2 or not all(isinstance(one, set | list | tuple) for one in got):
            raise Wrong(f"{what}: expected a tuple of two sets, got {got!r}")
        for found, expected, which in zip(got, (bad, cables), ("nodes", "cables"), strict=True):
            expect(sorted(set(found)), expected, f"{what}: the bad {which}")


@_check_bad_nodes.refuses("one slow cable: the bad nodes: expected [], got [2, 5]")
def _any_slow_link(nodes, links):
    bad, cables = bad_nodes(nodes, links)
    return bad | {node for pair in cables for node in pair}, cables


@_check_bad_nodes.refuses("two slow cables, both of node 3: the bad nodes: expected [], got [3]")
def _most_links_slow(nodes, links):
    bad, cables = bad_nodes(nodes, links)
    slow = {node for node in range(len(nodes)) if sum(node in pair for pair in cables) > (len(nodes) - 1) / 2}
    return bad | slow, {pair for pair in cables if slow.isdisjoint(pair)}


@_check_bad_nodes.refuses("the NIC of node 2 slow: the bad cables: expected [], got [(0, 2), (1, 2), (2, 3)]")
def _each_slow_link_is_a_cable(nodes, links):
    usual = np.median(list(links.values()))
    return bad_nodes(nodes, links)[0], {pair for pair, rate in links.items() if rate < usual / 2}


@_check_bad_nodes.refuses("a wrong node with a slow cable: the bad cables: expected [(3, 6)], got []")
def _no_cable_of_a_bad_node(nodes, links):
    bad, cables = bad_nodes(nodes, links)
    return bad, {pair for pair in cables if bad.isdisjoint(pair)}


@_check_bad_nodes.refuses("node 14 wrong in one repetition: the bad nodes: expected [14], got []")
def _once_is_an_accident(nodes, links):
    return bad_nodes([report | {"wrong": max(0, report["wrong"] - 1)} for report in nodes], links)


@_check_bad_nodes.refuses("two slow nodes: the bad nodes: expected [2, 6], got [2]")
def _by_the_mean(nodes, links):
    mean = np.mean([report["gflops"] for report in nodes])
    slow = {report["node"] for report in nodes if report["gflops"] < 0.9 * mean}
    healthy, cables = bad_nodes([report | {"gflops": 100.0} for report in nodes], links)
    return healthy | slow, cables


@_check_bad_nodes.refuses("one link as fast as all others together: the bad nodes: expected [0], got []")
def _links_by_the_mean(nodes, links):
    mean = np.mean(list(links.values()))
    return bad_nodes(nodes, {pair: 20.0 if rate < mean / 2 else 100.0 for pair, rate in links.items()})


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
