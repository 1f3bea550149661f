"""Exercises of notebook 12, "Ask a server"."""

import numpy as np

from bigtrain_nb.workbook.exercises import Wrong, exercise, expect


def asynchronous(weights, gradient, seconds, rate, steps):
    workers = range(len(seconds))
    read = [weights] * len(seconds)
    read_at_step = [0] * len(seconds)
    ready = list(seconds)
    staleness = []
    for step in range(steps):
        worker = min(workers, key=ready.__getitem__)
        weights = weights - rate * gradient(worker, read[worker])
        staleness.append(step - read_at_step[worker])
        read[worker] = weights
        read_at_step[worker] = step + 1
        ready[worker] += seconds[worker]
    return weights, staleness


@exercise(
    asynchronous,
    takes="weights [4]; gradient(worker, weights) -> array; seconds of each worker, a list; the rate; steps",
    returns="a tuple (weights [4], list of stalenesses)",
    minutes=25,
    difficulty=4,
)
def _check_asynchronous(answer):
    """For each worker, keep the weights that it has read, the number of updates made before it read them, and the time
    at which it will finish. Then, for each step: which worker finishes first? It computes its gradient with the weights
    that it has read, the server applies it, and the worker reads again. Create a new array for the new weights: `-=`
    would also change those that other workers have read.
    """
    random = np.random.default_rng(3)
    for seconds in ([1.0], [1.0, 1.0], [1.0, 3.0], [2.0, 1.5, 4.25]):
        targets = random.normal(size=(len(seconds), 4))
        asked, read = [], []

        def gradient(worker, weights, targets=targets, asked=asked, read=read):
            asked.append(worker)
            read.append(np.array(weights))
            return weights - targets[worker]

        told = f"workers that take {seconds} s per step"
        answered = answer(np.zeros(4), gradient, seconds, 0.3, 12)
        if not isinstance(answered, tuple) or len(answered) != 2:
            raise Wrong(f"{told}: expected a tuple of the weights and the list of stalenesses, got {answered!r}")
        got, staleness = answered
        order, got_read = list(asked), list(read)
        asked.clear()
        read.clear()
        expected, expected_staleness = asynchronous(np.zeros(4), gradient, seconds, 0.3, 12)
        expect(order, asked, f"{told}: the worker whose gradient is applied in each step")
        for step, worker in enumerate(order):
            expect(got_read[step], read[step], f"{told}: step {step}: the weights that worker {worker} had read")
        expect(list(staleness), expected_staleness, f"{told}: the staleness of each step")
        expect(np.asarray(got), expected, f"{told}: the weights after 12 steps")


@_check_asynchronous.refuses(
    "workers that take [1.0, 1.0] s per step: step 1: the weights that worker 1 had read: expected"
)
def _reads_when_it_is_ready(weights, gradient, seconds, rate, steps):
    current = weights

    def from_the_newest(worker, read):
        nonlocal current
        found = gradient(worker, current)
        current = current - rate * found
        return found

    return asynchronous(weights, from_the_newest, seconds, rate, steps)


@_check_asynchronous.refuses(
    "workers that take [1.0, 3.0] s per step: the worker whose gradient is applied in each step"
)
def _takes_turns(weights, gradient, seconds, rate, steps):
    return asynchronous(weights, gradient, [1.0] * len(seconds), rate, steps)


@_check_asynchronous.refuses("workers that take [1.0] s per step: the staleness of each step")
def _counts_its_own_update(weights, gradient, seconds, rate, steps):
    weights, staleness = asynchronous(weights, gradient, seconds, rate, steps)
    return weights, [1 + others for others in staleness]


def table_step(servers, rows, users, gradient, rate):
    each, extra = divmod(rows, len(servers))
    sizes = [each + 1] * extra + [each] * (len(servers) - extra)
    first = np.concatenate([[0], np.cumsum(sizes)])

    wanted, place = np.unique(users, return_inverse=True)
    stands_on = np.searchsorted(first, wanted, side="right") - 1
    parts = []
    for index, server in enumerate(servers):
        own = wanted[stands_on == index] - first[index]
        parts.append(server.fetch(own))
    vectors = np.concatenate(parts)

    of_each_user = gradient(vectors[place])
    totals = np.zeros_like(vectors)
    np.add.at(totals, place, of_each_user)
    for index, server in enumerate(servers):
        mine = stands_on == index
        server.subtract(wanted[mine] - first[index], rate * totals[mine])


class _Server:
    """A shard of a table that counts the rows it sends and receives."""

    def __init__(self, table):
        self.table, self.moved, self.calls = table.copy(), 0, 0

    def fetch(self, rows):
        self._count(rows)
        return self.table[rows]

    def subtract(self, rows, values):
        self._count(rows)
        if len(set(np.asarray(rows).tolist())) < len(rows):
            raise Wrong(f"subtract got a row twice in one call: {np.asarray(rows).tolist()}")
        self.table[rows] -= values

    def _count(self, rows):
        if len(rows) and (min(rows) < 0 or max(rows) >= len(self.table)):
            raise Wrong(f"a server with rows 0 to {len(self.table) - 1} was asked for {np.asarray(rows).tolist()}")
        self.moved += len(rows)
        self.calls += 1


@exercise(
    table_step,
    takes=(
        "servers with fetch(rows) and subtract(rows, values); rows of the table; users of the batch [12];"
        " gradient(vectors) -> array; the rate"
    ),
    returns="nothing; the servers' rows are changed",
    minutes=20,
    difficulty=4,
)
def _check_table_step(answer):
    """First compute which rows each server has, and its first row. `np.unique(users, return_inverse=True)` returns each
    user once, and for each entry of the batch the index of its user in that array. A user that occurs twice gets the
    sum of two gradients: `np.add.at` adds both, but `+=` keeps only one.
    """
    random = np.random.default_rng(4)
    for servers, rows in [(2, 10), (3, 11), (4, 10), (4, 9)]:
        table, wish = random.normal(size=(rows, 3)), random.normal(size=3)
        users = random.integers(0, rows, 12)
        users[-1] = users[0]
        expected = table.copy()
        np.add.at(expected, users, -0.1 * (table[users] - wish))

        shards = [_Server(part) for part in np.array_split(table, servers)]
        answer(shards, rows, users, lambda vectors, wish=wish: vectors - wish, 0.1)
        told = f"{rows} rows on {servers} servers"
        for row, got in enumerate(np.concatenate([shard.table for shard in shards])):
            times = np.sum(users == row)
            expect(got, expected[row], f"{told}: row {row}, which occurs {times} times in the batch")
        moved, fewest = sum(shard.moved for shard in shards), 2 * len(set(users.tolist()))
        if moved > fewest:
            raise Wrong(f"{told}: {moved} rows were transferred (fetched and sent back); {fewest} are enough")
        if max(shard.calls for shard in shards) > 2:
            raise Wrong(f"{told}: one server was called {max(shard.calls for shard in shards)} times; 2 are enough")


@_check_table_step.refuses("10 rows on 2 servers: row 0, which occurs 2 times in the batch")
def _forgets_who_comes_twice(servers, rows, users, gradient, rate):
    def once(vectors):
        found = gradient(vectors)
        seen = set()
        for place, user in enumerate(users.tolist()):
            if user in seen:
                found[place] = 0
            seen.add(user)
        return found

    table_step(servers, rows, users, once, rate)


@_check_table_step.refuses("subtract got a row twice in one call: [0, 2, 0, 4, 4, 1]")
def _sends_each_gradient_by_itself(servers, rows, users, gradient, rate):
    each, extra = divmod(rows, len(servers))
    vectors, first = np.zeros([len(users), 3]), 0
    kept = []
    for index, server in enumerate(servers):
        size = each + (index < extra)
        mine = (first <= users) & (users < first + size)
        vectors[mine] = server.fetch(users[mine] - first)
        kept.append((server, mine, first))
        first += size
    found = gradient(vectors)
    for server, mine, begins in kept:
        server.subtract(users[mine] - begins, rate * found[mine])


@_check_table_step.refuses("rows were transferred (fetched and sent back);")
def _fetches_whole_tables(servers, rows, users, gradient, rate):
    for server in servers:
        server.fetch(np.arange(len(server.table)))
    table_step(servers, rows, users, gradient, rate)


@_check_table_step.refuses("a server with rows 0 to 1 was asked for")
def _cuts_evenly(servers, rows, users, gradient, rate):
    each = -(-rows // len(servers))
    for index, server in enumerate(servers):
        mine = users[users // each == index] - index * each
        own, place = np.unique(mine, return_inverse=True)
        vectors = server.fetch(own)
        totals = np.zeros_like(vectors)
        np.add.at(totals, place, gradient(vectors[place]))
        server.subtract(own, rate * totals)
