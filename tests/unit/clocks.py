"""A simulated clock that advances only when a batch is taken, and sources that use it."""

import numpy as np


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


class Source:
    """Batches of the given sizes; each takes ``cost(number of batches so far)`` seconds of the clock."""

    def __init__(self, clock, cost, sizes=None):
        self.clock, self.sizes, self.batches, self.examples = clock, sizes, 0, 0
        self.cost = cost if callable(cost) else lambda _: cost

    def __iter__(self):
        if self.sizes is None:
            while True:
                yield self.take(32)
        for size in self.sizes:
            yield self.take(size)

    def __len__(self):
        if self.sizes is None:
            raise TypeError("it never ends")
        return len(self.sizes)

    def take(self, size):
        self.clock.spend(self.cost(self.batches))
        self.batches += 1
        self.examples += size
        return np.empty([size, 2])


def pair(clock, a, b):
    return {"a": lambda: Source(clock, a), "b": lambda: Source(clock, b)}
