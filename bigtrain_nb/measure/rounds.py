"""Is a difference real? Sources take turns, and each round gives one ratio.

A machine drifts, so sources are not timed one after the other but in rounds: a *measurement window* of each, in the
order A B, B A, B A, A B, so that a drift hurts all alike. What a round says of two sources is one number, the logarithm
of the ratio of their rates.

An instance has luck: with its memory, its threads, its place among the others. So sources are built anew now and then.
Where that would take much of the time, one instance of each is evidence too, and the interval is as much wider as
instances are known to differ. `intervals` makes one interval of both, `results` one verdict of that.

The time that was asked for is used, and more of it only while the answer is not clear. Less, where the answer is clear
and its interval narrow. Each interim check can give a false verdict: together they have 5 %.
"""

import math
from collections.abc import Callable, Mapping

from bigtrain_nb.common.checks import of_kind, positive, takes
from bigtrain_nb.common.hardware import core_limit, seconds_of_others, usable_cores
from bigtrain_nb.common.progress import Progress
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.common.words import amount, number
from bigtrain_nb.measure import source
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.measure.source import Source

INTERIM_CHECKS = {0.5: 0.005, 1: 0.025, 2: 0.005, 4: 0.005}
"""{times the seconds that were asked for: share of comparisons that this check may get wrong}."""
LATER_CHECKS = 0.01
"""What all checks after `extend` may get wrong together: the first half of it, the next half of the rest, and so on."""
LEAST_ROUNDS = 3
STEP_WINDOW, WINDOW = (0.05, 2), (0.15, 8)
"""Of steps alone, and where there are iterators: at least so many seconds and batches. The load of other programs
changes within a second, so short windows that alternate often tell more; buffers want longer ones."""
AWAITED = 4.0
"""Seconds that the end of a first pass is awaited, or as long as is measured, if that is more. In vain only once."""
BUILD_SHARE = 4
"""New instances are built once the last ones were measured for so many times as long as it took to build them and to
warm them up."""
SHOWN = 4  # rates while it measures; of more sources it says at which it is
BUSY = 0.3
"""Share of the cores. Where others use more, it is said."""


def compare(factories: Mapping[str, Callable], *, seconds: float = 4.0, progress: Callable | None = None) -> Comparison:
    """Measure several sources that take turns; return a `Comparison`.

    ``factories`` is a dictionary from a name to a function without arguments that returns a fresh source (an iterable
    of batches or a step function, as for `throughput`). ``seconds`` are for measuring all of them together, times
    BIGTRAIN_NB_TIME_SCALE where that is in the environment: building and warming up come on top. Interim checks come
    after 1, 2 and 4 times as long; the first at which every source is faster or slower than the first one, or the same,
    is the last. Half of the time is enough where each interval lies within 10 % of its middle then. Three rounds are
    measured at least. ``progress(fraction, words)`` is called between batches,
    at most ten times a second; an exception that it raises ends the measurement. Without it, a notebook and a terminal
    show a bar.

    A source is warmed up to the end of its first pass, as it may fill a cache; a dataset with ``repeat()`` has none, so
    measure one with a cache without it. A measurement window of an iterator begins when this process is at rest and the
    batches that lay ready are taken. Where building and warming up take no more than a fifth of the time, sources are
    built anew again and again; where one of the functions always returns the same object, all count as one instance.

    Raises ValueError for fewer than two factories and for sources that are counted in different units, TypeError for
    what is no dictionary and for a factory that is no function, and whatever `throughput` raises, with the source's
    name.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.ratio("long", "short"))
    """
    check_factories(factories)
    seconds = scaled_seconds(seconds)
    rounds = Rounds(factories, seconds)
    with Progress(progress) as told:
        for (times, error), later in zip(INTERIM_CHECKS.items(), [*INTERIM_CHECKS, math.inf][1:], strict=True):
            rounds.measure(told, until=times * seconds)
            if rounds.seconds >= later * seconds:
                continue  # the rounds were long: this is the next check already
            found = rounds.comparison(error)
            if found.is_clear and (times >= 1 or found.is_tight):
                break
    return found


def check_factories(factories):
    """Raise for what is no dictionary from names to two functions or more."""
    if not isinstance(factories, Mapping):
        raise TypeError(
            "compare takes a dictionary {name: function that returns a fresh source}, with two or more of them, not"
            f" {factories!r:.99}: one source alone is measured by bt.throughput(source)"
        )
    if len(factories) < 2:
        raise ValueError(f"expected at least two sources to compare, not {len(factories)}")
    for name, factory in factories.items():
        of_kind("the name of a source", name, str, "a string")
        if not callable(factory) or not takes(factory):
            raise TypeError(
                f"the factory of {name!r} must be a function that returns a fresh source, not {factory!r:.99}: it is"
                " called without arguments"
            )


def notes_since(since, others):
    """What to know of the machine since a moment, when others had used so many seconds; none where it was quiet."""
    took = max(source.now() - since, 1e-9)
    spare = len(usable_cores()) - core_limit()  # in a container others may have these
    share = ((seconds_of_others() - others) / took - spare) / core_limit()
    if share < BUSY:
        return ()
    return (f"other programs took {100 * min(1.0, share):.0f} % of the cores: close them, or measure again later",)


class Rounds:
    """Rounds of windows to all sources that are still ``running``; more of them can be added at any time.

    ``windows``: {name: the examples, seconds and noise of its window in each round}; ``instances``: for each round, how
    often all had been built before it, each of them anew. ``seconds``: how long all rounds took; building and warming
    up do not count.
    """

    def __init__(self, factories, seconds):
        self.factories = factories
        self.running = list(factories)
        self.asked = seconds
        self.least = LEAST_ROUNDS
        self.windows = {name: [] for name in factories}
        self.firsts = {}
        """{name: its unit, how many seconds its first batch took and a note, as its first instance said}."""
        self.instances = []
        self.seconds = self.last_seconds = 0.0
        self.extensions = 0
        self._sources = {}
        self._built = 0
        self._build_seconds = self._seconds_of_these = 0.0
        self.watch()

    def watch(self):
        """From now on, note what other programs take."""
        self._since, self._others = source.now(), seconds_of_others()

    def measure(self, told, until):
        """Measure rounds until they took so many seconds in all, at least three."""
        for each in self._sources.values():
            each.progress = told
        while len(self.instances) < self.least or self.seconds < until:
            if not self._sources or self._seconds_of_these > BUILD_SHARE * self._build_seconds:
                self.build(told)
            self.add(told, until)

    def add(self, told, until):
        """Measure one round."""
        done = len(self.instances)
        shortest = self._shortest()
        windows = {}
        began = source.now()
        in_turn = self.running if done % 4 in (0, 3) else self.running[::-1]
        for place, name in enumerate(in_turn, 1):
            told.say(self.seconds / until, self._words(shortest, until, place))
            windows[name] = self._sources[name].measure_window(*shortest)
        for name, window in windows.items():
            self.windows[name].append(window)
        self.instances.append(self._built)
        took = self.last_seconds = source.now() - began
        self.seconds += took
        self._seconds_of_these += took

    def comparison(self, error):
        """What is known now, as a `Comparison` whose intervals miss the truth in a share ``error`` of all cases."""
        results = {name: self.result(name) for name in self.factories}
        instances = tuple(self.instances)
        return Comparison(results, error, instances, self.seconds, self.notes(), self.extend)

    def extend(self, seconds, progress=None):
        """Measure so many seconds more, as they are; return the `Comparison` of all rounds so far."""
        positive("seconds", seconds, "seconds")
        self.watch()
        with Progress(progress) as told:
            self.measure(told, self.seconds + seconds)
        self.extensions += 1
        return self.comparison(LATER_CHECKS / 2**self.extensions)

    def result(self, name):
        unit, first_seconds, note = self.firsts[name]
        examples, seconds, noises = zip(*self.windows[name], strict=True)
        noise = math.hypot(*noises) / math.sqrt(len(noises))
        return Result(name, self.rates(name), unit, first_seconds, sum(examples), sum(seconds), note, noise=noise)

    def rates(self, name):
        return tuple(examples / seconds for examples, seconds, _ in self.windows[name])

    def notes(self):
        """What to know of the machine since this was made or went on, in a sentence; none where it was quiet."""
        return notes_since(self._since, self._others)

    def drop(self, names):
        """Measure these no more."""
        for name in names:
            self.running.remove(name)
            self._sources.pop(name).let_go()

    def build(self, told):
        """Build all that run anew, and warm them up; what a function returns a second time stays as it is."""
        began = source.now()
        sources, self._sources = self._sources, {}  # none, if a factory raises
        new = []
        for name in self.running:
            told.say(0.0, f"building {name}")
            given = self.factories[name]()
            if name in sources and sources[name].given is given:
                continue
            if name in sources:
                sources.pop(name).let_go()
            sources[name] = Source(given, name, told)
            new.append(name)
        for name in new:
            told.say(0.0, f"warming up {name}")
            is_in_vain = name in self.firsts and self.firsts[name][2]
            sources[name].warm_up(0.0 if is_in_vain else max(AWAITED, self.asked))
            self.firsts.setdefault(name, (sources[name].unit, sources[name].first_seconds, sources[name].note))
        if len({unit for unit, _, _ in self.firsts.values()}) > 1:
            raise ValueError(
                "cannot compare steps/s with examples/s: let each step function return how many examples it processed"
            )
        for each in sources.values() if new else ():
            if each.is_step:
                each.pull()  # what sets a seed empties TensorFlow's cache of functions: the next call is slow
        self._built += new == self.running  # what some sources share with the round before is not another instance
        self._sources = sources
        self._build_seconds = source.now() - began
        self._seconds_of_these = 0.0

    def _shortest(self):
        """How many seconds and batches a window has at least: the same for all, or a slow one would get more time."""
        running = [self._sources[name] for name in self.running]
        seconds, batches = STEP_WINDOW if all(each.is_step for each in running) else WINDOW
        return max([seconds, *(batches * each.batch_seconds for each in running)]), batches

    def _words(self, shortest, until, place):
        """What happens and what is expected: "round 3 of about 8: a 17,500, b 1,880 examples/s"."""
        done = len(self.instances)
        one = self.seconds / done if done else shortest[0] * len(self.running)
        expected = max(self.least, done + math.ceil(max(0.0, until - self.seconds) / one), done + 1)
        where = f", {place} of {len(self.running)}" if len(self.running) > SHOWN else ""
        if done:
            rates = ", ".join(f"{name} {number(self.rates(name)[-1])}" for name in self.running[:SHOWN])
            words = f": {rates} {self.firsts[self.running[0]][0]}"
        else:
            words = f", about {amount(max(until, expected * one), 's')}"
        return f"round {done + 1} of about {expected}{where}{words}"
