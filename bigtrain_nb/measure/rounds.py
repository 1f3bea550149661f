"""Is a difference real? Sources are interleaved, and each round gives one ratio.

A machine's speed drifts, so sources are not timed one after the other but in rounds: a *measurement window* of each, in
the order A B, B A, B A, A B, so that drift affects all equally. A round yields one value for two sources, the logarithm
of the ratio of their rates.

Instances of one source differ in speed, through memory layout, threads and build order. So sources are rebuilt now and
then. Where rebuilding would take too long, one instance of each has to do, and the interval is widened by the known
variance between instances. `intervals` combines both variances in one interval, `results` derives the verdict.

The measurement takes the requested time, longer only while the verdict is unclear, and less if it is clear and the
interval narrow. Each interim check can give a false verdict: their total error is 5 %.
"""

import gc
import math
from collections.abc import Callable, Mapping

from bigtrain_nb.common.checks import of_kind, positive, takes
from bigtrain_nb.common.hardware import core_limit, seconds_of_others, usable_cores
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.common.words import amount, number
from bigtrain_nb.measure import source
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.measure.source import Source

INTERIM_CHECKS = {0.5: 0.005, 1: 0.025, 2: 0.005, 4: 0.005}
"""{multiple of the requested seconds: share of comparisons that this check may get wrong}."""
LATER_CHECKS = 0.01
"""Total error of all checks after `extend`: half of it for the first, half of the rest for the next, and so on."""
LEAST_ROUNDS = 3
STEP_WINDOW, WINDOW = (0.05, 2), (0.15, 8)
"""Least seconds and batches of a window, for steps only and with iterators. The load of other programs changes within
a second, so short windows that alternate often are more informative; buffers need longer ones."""
PASS_TIMEOUT_SECONDS = 4.0
"""Seconds to wait for the end of a first pass, or a source's measuring time if longer. No wait after a timeout."""
BUILD_SHARE = 4
"""New instances are built once the last ones were measured for this multiple of their building and warm-up time."""
SHOWN = 4  # rates in the progress message; with more sources it adds the current one's position
BUSY = 0.3
"""Share of the cores above which the use by other programs is noted."""


def compare(factories: Mapping[str, Callable], *, seconds: float = 4.0, progress: Callable | None = None) -> Comparison:
    """Measure several sources, interleaved; return a `Comparison`.

    ``factories`` is a dictionary from a name to a function without arguments that returns a fresh source (an iterable
    of batches or a step function, as for `throughput`). ``seconds`` is the measuring time for all of them together,
    multiplied by BIGTRAIN_NB_TIME_SCALE if that environment variable is set; building and warm-up are extra. Interim
    checks follow after 1, 2 and 4 times ``seconds``; measuring stops at the first check where every source has a clear
    verdict against the first one: faster, slower or the same. It stops after half of ``seconds`` if every interval is
    then also within 10 % of its middle. At least three rounds are measured. ``progress(fraction, words)`` is called
    between batches, at most ten times per second; an exception from it ends the measurement. Without it, notebooks and
    terminals show a bar.

    The warm-up lasts to the end of a source's first pass, which may fill a cache, but at most 4 s, or the source's
    share of ``seconds`` if that is longer; a dataset with ``repeat()`` has no end, so measure a cached dataset without
    it. A measurement window of an iterator begins when this process is idle and buffered batches are consumed. If
    building and warm-up take no more than a fifth of the time, sources are rebuilt repeatedly; if one of the functions
    always returns the same object, all count as one instance. The `Comparison` keeps the last instances, such as
    models, so that it can be extended: delete it to free their memory.

    Raises ValueError for fewer than two factories and for sources with different units, TypeError if ``factories`` is
    not a dictionary or a factory is not a function, and everything that `throughput` raises, with the source's name.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.ratio("long", "short"))
    """
    check_factories(factories)
    seconds = scaled_seconds(seconds)
    rounds = Rounds(factories, seconds)
    with Progress(progress) as reporter:
        for (times, error), later in zip(INTERIM_CHECKS.items(), [*INTERIM_CHECKS, math.inf][1:], strict=True):
            rounds.measure(reporter, until=times * seconds)
            if rounds.seconds >= later * seconds:
                continue  # the rounds were long: the next check is due already
            found = rounds.comparison(error)
            if found.is_clear and (times >= 1 or found.is_tight):
                break
    return found


def check_factories(factories):
    """Raise unless this is a dictionary from names to functions, with two or more of them."""
    if not isinstance(factories, Mapping):
        raise TypeError(
            "compare takes a dict of two or more sources, {name: function that returns a fresh source}, not"
            f" {factories!r:.99}: measure a single source with bt.throughput(source)"
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


def share_of_others(since, others):
    """Return the share of the cores taken by other programs since a time, at which they had used ``others`` seconds."""
    took = max(source.now() - since, 1e-9)
    spare = len(usable_cores()) - core_limit()  # in a container, others may use these
    return ((seconds_of_others() - others) / took - spare) / core_limit()


def notes_on(share):
    if share < BUSY:
        return ()
    return (f"other programs took {100 * min(1.0, share):.0f} % of the cores: close them, or measure again later",)


class Rounds:
    """Rounds of measurement windows of all sources still ``running``; rounds can be added at any time.

    ``windows``: {name: the examples, seconds and noise of its window in each round}; ``instances``: for each round, how
    often all sources had been built anew before it. ``seconds``: duration of all rounds, without building and warm-up.
    """

    def __init__(self, factories, seconds):
        self.factories = factories
        self.running = list(factories)
        self.asked = seconds
        self.least = LEAST_ROUNDS
        self.windows = {name: [] for name in factories}
        self.firsts = {}
        """{name: unit, seconds to the first batch and note, of the first instance}."""
        self.instances = []
        self.seconds = self.last_seconds = 0.0
        self.extensions = 0
        self._sources = {}
        self._built = 0
        self._build_seconds = self._seconds_of_these = self._share = 0.0
        self.watch()

    def watch(self):
        """Start recording the load of other programs."""
        self._earlier_share = self._share
        self._since, self._others = source.now(), seconds_of_others()

    def measure(self, reporter, until):
        """Measure rounds until they took ``until`` seconds in total, and at least `least` rounds."""
        for name in self._sources:  # a variable for the source would keep it alive after `build`
            self._sources[name].progress = reporter
        while len(self.instances) < self.least or self.seconds < until:
            if not self._sources or self._seconds_of_these > BUILD_SHARE * self._build_seconds:
                self.build(reporter)
            self.add(reporter, until)

    def add(self, reporter, until):
        shortest = self._shortest()
        windows = {}
        began = source.now()
        in_turn = self.running if len(self.instances) % 4 in (0, 3) else self.running[::-1]
        for place, name in enumerate(in_turn, 1):
            reporter.say(self.seconds / until, self._words(shortest, until, place))
            windows[name] = self._sources[name].measure_window(*shortest)
        for name, window in windows.items():
            self.windows[name].append(window)
        self.instances.append(self._built)
        took = self.last_seconds = source.now() - began
        self.seconds += took
        self._seconds_of_these += took

    def comparison(self, error):
        """Return the `Comparison` so far, whose intervals miss the true ratio in a share ``error`` of cases."""
        results = {name: self.result(name) for name in self.factories}
        return Comparison(results, error, tuple(self.instances), self.seconds, self.notes(), self.extend)

    def extend(self, seconds, progress=None):
        """Measure for ``seconds`` more, unscaled; return the `Comparison` of all rounds so far."""
        positive("seconds", seconds, "seconds")
        self.watch()
        with Progress(progress) as reporter:
            self.measure(reporter, self.seconds + seconds)
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
        """Return notes on the highest load of other programs, before the last `watch` or since; empty if it was low."""
        self._share = max(self._earlier_share, share_of_others(self._since, self._others))
        return notes_on(self._share)

    def drop(self, names):
        for name in names:
            self.running.remove(name)
            self._sources.pop(name).release()

    def build(self, reporter):
        """Rebuild all running sources and warm them up, except those whose function returned the same object again."""
        began = source.now()
        sources, self._sources = self._sources, {}  # none, if a factory raises
        new = []
        for name in self.running:
            reporter.say(0.0, f"building {name}")
            given = self.factories[name]()
            if name in sources and sources[name].given is given:
                continue
            if name in sources:
                sources.pop(name).release()
            sources[name] = Source(given, name, reporter)
            new.append(name)
        if new:
            gc.collect()  # replaced models refer to themselves, and would stay in memory
        for name in new:
            reporter.say(0.0, f"warming up {name}")
            is_in_vain = name in self.firsts and self.firsts[name][2]
            sources[name].warm_up(0.0 if is_in_vain else max(PASS_TIMEOUT_SECONDS, self.asked / len(self.factories)))
            self.firsts.setdefault(name, (sources[name].unit, sources[name].first_seconds, sources[name].note))
        if len({unit for unit, _, _ in self.firsts.values()}) > 1:
            raise ValueError(
                "cannot compare steps/s with examples/s: let each step function return how many examples it processed"
            )
        for each in sources.values() if new else ():
            if each.is_step:
                each.pull()  # setting a seed clears TensorFlow's function cache, so the next call is slow
        self._built += new == self.running  # a new instance only if no source was reused
        self._sources = sources
        self._build_seconds = source.now() - began
        self._seconds_of_these = 0.0

    def _shortest(self):
        """Return the least seconds and batches of a window: equal for all, or a slow source would get more time."""
        running = [self._sources[name] for name in self.running]
        seconds, batches = STEP_WINDOW if all(each.is_step for each in running) else WINDOW
        return max([seconds, *(batches * each.batch_seconds for each in running)]), batches

    def _words(self, shortest, until, place):
        """Return the progress message: "round 3 of about 8: a 17,500, b 1,880 examples/s"."""
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
