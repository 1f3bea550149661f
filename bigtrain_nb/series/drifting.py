"""What the exercises of notebook 00 measure: simulated machines and sources, on a clock that only they move.

Nothing here waits, so that minutes of measuring take a moment, and the truth is known.
"""

import math
import random
from dataclasses import dataclass
from itertools import count

START = 0.1
"""Seconds that a run takes before it works."""


class OverBudget(Exception):
    """A run was asked for that does not fit into the budget."""


class Machine:
    """A machine that runs "a" or "b" and says at how many examples/s; it drifts, and every run has some luck.

    `advantage` is how many times faster a is than b, `budget` all the seconds that runs may take together. `slowing` is
    the share of its speed that it loses in a second; if None, it is drawn from 1 to 3 %. `turns` notes what was run.
    """

    def __init__(self, seed, advantage, budget, slowing=None):
        self.chance = random.Random(seed)
        self.speeds = {"a": 1000.0 * advantage, "b": 1000.0}
        self.budget = budget
        self.now = 0.0
        self.turns = []
        drawn = self.chance.uniform(0.01, 0.03)
        self.slowing = drawn if slowing is None else slowing
        self.swing = self.chance.uniform(0, 2 * math.pi)

    def measure(self, name, seconds):
        """Run "a" or "b" for so many seconds and return its rate in examples/s."""
        seconds = max(seconds, 0.05)
        took = START + seconds
        if self.now + took > self.budget + 1e-6:
            done = f"{len(self.turns)} runs took {self.now:.1f} s"
            raise OverBudget(f"{done}, and the next one does not fit into {self.budget} s, with {START} s to start it")
        self.now += took
        self.turns.append(name)
        drift = -self.slowing * self.now + 0.1 * math.sin(self.now / 2 + self.swing)
        luck = self.chance.gauss(0, 0.055) + self.chance.gauss(0, 0.04 / math.sqrt(seconds))
        if self.chance.random() < 0.02:
            luck -= self.chance.expovariate(2)  # another program woke up
        return self.speeds[name] * math.exp(drift + luck)


@dataclass
class Batch:
    """The result of some work, handed out before the work is done; `numpy()` waits for it, `len` is its examples."""

    size: int
    ready: float
    clock: "Clock"

    def __len__(self):
        return self.size

    def numpy(self):
        self.clock.now = max(self.clock.now, self.ready)


class Clock:
    """A clock that shows some time, as clocks do, when the measuring begins."""

    def __init__(self):
        self.now = 1000.0
        self.logs = 0

    def __call__(self):
        return self.now

    def write_log(self):
        """Write to a log on a slow disk: 2 s in which the machine can work ahead."""
        self.now += 2.0
        self.logs += 1


def batches(clock, first=0.1, each=0.1, sizes=(32,), buffer=0, waits=True):
    """Yield batches for ever that take `first`, then `each` seconds; up to `buffer` of them are made ahead.

    Where it does not wait, a batch is handed out after a thousandth of a second, before it is ready.
    """
    ready = clock.now
    taken = [clock.now] * buffer
    for number in count():
        free = taken[-buffer] if buffer else clock.now  # when there was room to begin this one
        ready = max(ready, free) + (each if number else first)
        clock.now = max(clock.now, ready) if waits else clock.now + 0.001
        taken.append(clock.now)
        yield Batch(sizes[number % len(sizes)], ready, clock)
