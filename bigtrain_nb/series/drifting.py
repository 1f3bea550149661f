"""Simulated machines and sources for the exercises of notebook 00, on a clock that only they advance.

Nothing here waits, so minutes of measuring take a moment, and the true values are known.
"""

import math
import random
from dataclasses import dataclass
from itertools import count

START = 0.1
"""Startup seconds of a run."""


class OverBudget(Exception):
    """A requested run exceeds the budget."""


class Machine:
    """A machine that runs "a" or "b" and returns examples/s; its speed drifts, and every run is noisy.

    `advantage`: the speed of a divided by that of b. `budget`: total seconds of all runs. `slowing`: the share of its
    speed lost per second; if None, drawn from 1 to 3 %. `noise` multiplies the scatter of runs. `turns` records the
    order of the runs.
    """

    def __init__(self, seed, advantage, budget, slowing=None, noise=1.0):
        self.chance = random.Random(seed)
        self.speeds = {"a": 1000.0 * advantage, "b": 1000.0}
        self.budget = budget
        self.noise = noise
        self.now = 0.0
        self.turns = []
        drawn = self.chance.uniform(0.01, 0.03)
        self.slowing = drawn if slowing is None else slowing
        self.swing = self.chance.uniform(0, 2 * math.pi)

    def measure(self, name, seconds):
        """Run "a" or "b" for this many seconds and return its throughput in examples/s."""
        seconds = max(seconds, 0.05)
        took = START + seconds
        if self.now + took > self.budget + 1e-6:
            done = f"{len(self.turns)} runs took {self.now:.1f} s"
            raise OverBudget(f"{done}, and the next one does not fit into {self.budget} s, with {START} s to start it")
        self.now += took
        self.turns.append(name)
        drift = -self.slowing * self.now + 0.1 * math.sin(self.now / 2 + self.swing)
        luck = self.noise * (self.chance.gauss(0, 0.055) + self.chance.gauss(0, 0.04 / math.sqrt(seconds)))
        if self.chance.random() < 0.02:
            luck -= self.chance.expovariate(2)  # another program woke up
        return self.speeds[name] * math.exp(drift + luck)


@dataclass
class Batch:
    """A batch returned before it is computed; `numpy()` waits for it, `len` is its number of examples."""

    size: int
    ready: float
    clock: "Clock"

    def __len__(self):
        return self.size

    def numpy(self):
        self.clock.now = max(self.clock.now, self.ready)


class Clock:
    """A clock that, like real ones, does not start at zero."""

    def __init__(self):
        self.now = 1000.0
        self.logs = 0

    def __call__(self):
        return self.now

    def write_log(self):
        """Write to a log on a slow disk, which takes 2 s; meanwhile the machine can work ahead."""
        self.now += 2.0
        self.logs += 1


def batches(clock, first=0.1, each=0.1, sizes=(32,), buffer=0, waits=True):
    """Yield batches forever; they take `first`, then `each` seconds, and up to `buffer` of them are made ahead.

    If `waits` is False, each batch is returned after 1 ms, before it is ready.
    """
    ready = clock.now
    taken = [clock.now] * buffer
    for number in count():
        free = taken[-buffer] if buffer else clock.now  # when the buffer had space for this one
        ready = max(ready, free) + (each if number else first)
        clock.now = max(clock.now, ready) if waits else clock.now + 0.001
        taken.append(clock.now)
        yield Batch(sizes[number % len(sizes)], ready, clock)
