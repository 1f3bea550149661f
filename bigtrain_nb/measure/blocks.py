"""Is a difference real? Sources take turns in blocks, with fresh instances in each.

A machine drifts, and an instance has luck: with its memory, its threads, its place among the others. So a block builds
a new instance of each source, warms them up, and visits them there and back, as in A B B A, so that a drift hurts all
alike. The order is random in one block and the reverse of it in the next. What a block says of two sources is one
number: the logarithm of the ratio of their rates, each the mean of both visits. Blocks are independent of each other as
far as the machine lets them be, and `intervals` has what follows from that.

The lengths come from simulations: so long a slot beside so long a warm-up gives the narrowest intervals.
"""

import math
import random
import weakref
from collections.abc import Callable, Mapping
from functools import partial

from bigtrain_nb.common.checks import of_kind, takes
from bigtrain_nb.common.hardware import core_limit, lost_seconds
from bigtrain_nb.measure import instance
from bigtrain_nb.measure.instance import SHORTEST_SLOT, SHORTEST_WARM_UP, Budget, Instance, let_rest
from bigtrain_nb.measure.notes import notes_of
from bigtrain_nb.measure.results import PASS_GOES_ON, Comparison, Result

DRAIN = 0.25
"""Of a slot: before it, batches are taken that do not count, as they waited ready in buffers."""
LONGEST_REST = 1.0
LONGEST_WHOLE = 0.1
"""Seconds. Where the passes of all sources are shorter, slots end with a pass: in each is the same work."""
BUILT = 0.001
"""Seconds. What a factory returns faster is taken to have been there before."""
FASTER = 1.25
"""So many times as fast after its first pass as in it is a source with a cache, or one whose passes are very short."""
PROBE_VISITS = 3
"""The first of them may fall into the moments after a first pass, which are slow."""
FEW_BLOCKS = 5
PROBED = 0.3
"""Of the time: so much may be spent, for all together, on seeing whether first passes end."""


def compare(
    factories: Mapping[str, Callable], *, seconds: float = 10.0, progress: Callable | None = None
) -> Comparison:
    """Measure several sources that take turns, each time with fresh instances; return a `Comparison`.

    ``factories`` is a dictionary from a name to a function without arguments that returns a fresh source (an iterable
    of batches or a step function, as for `throughput`). ``seconds`` is the whole budget for all of them together, in
    which at least one block is measured; which differences a budget shows is counted by benchmarks/honesty.py.
    ``progress`` is as for `throughput`.

    What is compared is one thing: the mean, over fresh instances and moments of this run, of the logarithm of the ratio
    of steady rates, that is after a warm-up. In each block every source is built anew, warmed up, and visited twice,
    there and back, so that drift cancels. (A step is called once before, unmeasured: a seed that another's factory has
    set makes TensorFlow load every function anew.) Before each visit it waits until nothing works in the background, as
    the buffers are full: twice as long as the visit, or one second, at most. Where the passes of all sources take less
    than a tenth of a second, whole passes are measured, start included; but a `tf.data.Dataset` reads on by its own
    `repeat()`, so passes of it are not seen. Three blocks or more are needed for an interval, or two that already give
    a verdict; where building takes long, the answer says how many seconds more blocks need.
    Measure a dataset with a cache without `repeat()`: only when its first pass has ended is the cache surely full.

    Raises ValueError for fewer than two factories and for sources that are counted in different units, TypeError for
    what is no dictionary and for a factory that is no function, and whatever `throughput` raises, with the source's
    name.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.ratio("long", "short"))
    """
    check_factories(factories)
    return _go_on(Blocks(factories), seconds, progress)


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
        of_kind("the name of a source", name, str, "a text")
        if not callable(factory) or not takes(factory):
            raise TypeError(
                f"the factory of {name!r} must be a function that returns a fresh source, not {factory!r:.99}: it is"
                " called without arguments"
            )


def _go_on(blocks, seconds, progress=None):
    """Measure so many seconds more, at least one block, and return the `Comparison` of all at one look more."""
    budget = Budget(seconds, progress)
    blocks.add(budget)
    while budget.left() >= blocks.next_seconds:
        blocks.add(budget)
    blocks.looks += 1
    results = {entrant.name: entrant.result() for entrant in blocks.entrants}
    block_seconds = blocks.lasting_seconds / blocks.done
    return Comparison(results, blocks.looks, block_seconds, notes_of(blocks), partial(_go_on, blocks))


class Entrant:
    """One source among others: how to build it, and what was measured of it.

    ``blocks`` has a list for each block: the rate at each visit. ``cost`` is how many seconds the last instance took to
    be built and warmed up. It leaves out ``first_time_only``, the seconds that no later instance will take. There are
    two kinds of them. The first instance may have waited in vain for the end of a first pass: it did not come, or
    nothing was faster after it. And a step function that was there before the comparison is traced and compiled by its
    first call.

    Whether a first pass is worth its time, as it fills a cache, is told by the first visits. A moment right after it
    would not tell: TensorFlow is then busy with the next iterator. Where it is worth it, each later instance is read
    for as many examples, its ``pass_examples``, and then on by the same iterator: a new one takes some tenths of a
    second.
    """

    def __init__(self, name, factory):
        self.name = name
        self.factory = factory
        self.unit = None
        self.is_step = self.is_first_pass_over = False
        self.cost = self.first_time_only = 0.0
        self.first_seconds = None
        self.pass_seconds = self.pass_examples = math.inf
        self.is_pass_awaited = True
        self.first_pass_rate = None
        """Of the first instance; None again once it is judged whether that pass was worth its time."""
        self.is_one_instance = False
        self.blocks = []
        self.examples = 0
        self.seconds = 0.0
        self._last_source = None
        self._waited = 0.0

    def build(self, budget, longest):
        """Return a new instance that is warm, after ``longest`` seconds or twice what the last one took at most."""
        began = instance.now()
        source = self.factory()
        was_there = instance.now() - began < BUILT
        self._see_whether_it_is_new(source)
        is_first = self.first_seconds is None
        made = Instance(source, self.name, budget, reads_on=not is_first)
        is_pass_awaited = self.is_pass_awaited and not (made.is_step or made.is_endless)
        longest = max(SHORTEST_WARM_UP, longest, 2 * self.cost)
        built = instance.now()
        made.warm_up(longest, is_pass_awaited, self.pass_examples)
        warmed_up = instance.now()
        self.cost = warmed_up - began
        self.first_time_only = 0.0
        self._waited = max(0.0, warmed_up - built - SHORTEST_WARM_UP) if is_pass_awaited else 0.0
        if is_first:
            self.first_seconds = made.first_seconds
            self.unit = made.unit
            self.is_step = made.is_step
            self.is_first_pass_over = made.is_step or made.passes > 0
            self.pass_examples = made.pass_examples
            self.first_pass_rate = made.first_pass_rate
            if made.is_step and was_there:
                self._will_not_take_again(made.first_seconds)
            if not made.passes:
                self._wait_no_more()
        self._note_pass(made)
        return made

    def measure(self, made, seconds, whole):
        """Return how many examples an instance gave in how many seconds, at least the given ones."""
        if whole:
            made.end_pass()
        examples, took = made.pull_for(seconds, whole)
        self._note_pass(made)
        return examples, took

    def judge_first_pass(self, visits):
        """Let later instances wait for the end of their first pass only if a visit was faster than the first pass."""
        if self.first_pass_rate is None:
            return
        if max(examples / took for examples, took in visits) <= FASTER * self.first_pass_rate:
            self._wait_no_more()
        self.first_pass_rate = None

    def keep(self, visits):
        """Take what the visits of a whole block measured: for each, how many examples came in how many seconds."""
        self.blocks.append([examples / took for examples, took in visits])
        self.examples += sum(examples for examples, _ in visits)
        self.seconds += sum(took for _, took in visits)

    @property
    def rounds(self):
        """The rate in each block: the geometric mean of its visits."""
        return tuple(math.exp(sum(map(math.log, rates)) / len(rates)) for rates in self.blocks)

    def result(self):
        note = "" if self.is_first_pass_over else PASS_GOES_ON
        return Result(self.name, self.rounds, self.unit, self.first_seconds, self.examples, self.seconds, note)

    def _wait_no_more(self):
        self.is_pass_awaited = False
        self._will_not_take_again(self._waited)

    def _will_not_take_again(self, seconds):
        self.first_time_only += seconds
        self.cost -= seconds

    def _note_pass(self, made):
        if made.passes:
            self.pass_seconds = made.pass_seconds

    def _see_whether_it_is_new(self, source):
        self.is_one_instance = self._last_source is not None and self._last_source() is source
        try:
            self._last_source = weakref.ref(source)
        except TypeError:  # a list, for example
            self._last_source = lambda: source


class Blocks:
    """Blocks of all sources that are still ``running``; more of them can be added at any time.

    ``there_and_back``: all instances of a block are alive at once, and each is visited twice. Otherwise one is alive at
    a time and visited once, as where settings are many; then `probe` comes first.

    ``done`` counts the blocks, which took ``seconds``, of which ``lasting_seconds`` come again in blocks like them; the
    next one takes about ``next_seconds``. ``looks`` counts
    how often somebody has looked at what they say. ``lost_share`` is the share of the cores' time that somebody wanted
    and did not get.
    """

    def __init__(self, factories, there_and_back=True):
        self.entrants = [Entrant(name, factory) for name, factory in factories.items()]
        self.running = list(self.entrants)
        self.there_and_back = there_and_back
        self.done = self.looks = 0
        self._order = []
        self._random = random.Random(0)
        self.seconds = self.lasting_seconds = 0.0
        self._lost = 0.0
        self._seconds_of_one = 0.0

    @property
    def next_seconds(self):
        return self._seconds_of_one * len(self.running)

    @property
    def lost_share(self):
        return self._lost / self.seconds / core_limit() if self.seconds else 0.0

    def probe(self, budget: Budget):
        """Build and warm up each source once: this tells how long it takes, and whether its first pass is worth it."""
        for entrant in self.running:
            made = self._build(entrant, budget)
            if entrant.first_pass_rate is not None:
                visits = [entrant.measure(made, SHORTEST_SLOT, whole=False) for _ in range(PROBE_VISITS)]
                entrant.judge_first_pass(visits)
            made.let_go()
            del made  # before the next one is built
        self._refuse_two_units()

    def add(self, budget: Budget):
        """Measure one more block of all that are running."""
        began, lost = instance.now(), lost_seconds()
        visits = self._there_and_back(budget) if self.there_and_back else self._one_way(budget)
        for entrant, measured in visits.items():
            entrant.keep(measured)
            entrant.judge_first_pass(measured)
        took = instance.now() - began
        self.done += 1
        self.seconds += took
        lasting = took - sum(entrant.first_time_only for entrant in self.running)
        self.lasting_seconds += lasting
        self._seconds_of_one = lasting / len(self.running)
        self._lost += lost_seconds() - lost

    def _there_and_back(self, budget):
        order = self._next_order()
        made = {entrant: self._build(entrant, budget) for entrant in order}
        self._refuse_two_units()
        for entrant in order:
            if entrant.is_step:
                made[entrant].pull()  # another's factory may have set a seed: TensorFlow then loads every function anew
        slots = self._slots(budget)
        is_whole = self._is_whole()
        visits = {entrant: [] for entrant in order}
        for entrant in [*order, *reversed(order)]:
            let_rest(budget, min(LONGEST_REST, 2 * slots[entrant]))
            if not entrant.is_step:
                made[entrant].pull_for(slots[entrant] * DRAIN)
            visits[entrant].append(entrant.measure(made[entrant], slots[entrant], is_whole))
        for instance_of_block in made.values():
            instance_of_block.let_go()
        return visits

    def _one_way(self, budget):
        slots = self._slots(budget)
        is_whole = self._is_whole()
        visits = {}
        for entrant in self._next_order():
            made = self._build(entrant, budget)
            visits[entrant] = [entrant.measure(made, slots[entrant], is_whole)]
            made.let_go()
            del made  # before the next one is built
            let_rest(budget, slots[entrant])
        return visits

    def _next_order(self):
        """A random order, and the next time its reverse."""
        if self.done % 2:
            return [entrant for entrant in reversed(self._order) if entrant in self.running]
        self._order = self._random.sample(self.running, len(self.running))
        return self._order

    def _build(self, entrant, budget):
        return entrant.build(budget, longest=PROBED * budget.seconds / len(self.running))

    def _slots(self, budget):
        """How many seconds each source is measured at a visit: as short as may be where few blocks fit."""
        slots = {entrant: max(SHORTEST_SLOT, 0.5 * math.sqrt(entrant.cost)) for entrant in self.running}
        visits = 2 * (1 + DRAIN) if self.there_and_back else 1
        block = sum(entrant.cost + visits * slots[entrant] for entrant in self.running)
        if self.done + budget.left() / block < FEW_BLOCKS:
            return dict.fromkeys(self.running, SHORTEST_SLOT)
        return slots

    def _is_whole(self):
        return all(entrant.is_step or entrant.pass_seconds <= LONGEST_WHOLE for entrant in self.running)

    def _refuse_two_units(self):
        if len({entrant.unit for entrant in self.entrants}) > 1:
            raise ValueError(
                "cannot compare steps/s with examples/s: let each step function return how many examples it processed"
            )
