"""How fast is it, and is the difference real? Measures anything that yields batches; imports no TensorFlow.

A single timing lies: the first batches pay for start-up, the machine drifts, a neighbour steals a core. So a source is
warmed up, then measured in rounds, and reported as the median round with a 95 % interval (see `intervals`). Sources
that are to be compared take turns in blocks (see `blocks`), and the verdict rests on what the blocks agree on.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bigtrain_nb.common.checks import of_kind, takes
from bigtrain_nb.measure.blocks import SHORTEST_SLOT, Blocks
from bigtrain_nb.measure.instance import Budget, Instance
from bigtrain_nb.measure.notes import notes_of
from bigtrain_nb.measure.results import LEAST_ROUNDS, PASS_GOES_ON, Comparison, Result

WARM_UP = 0.4
ROUNDS = 40


def throughput(source: Any, *, seconds: float = 3.0, name: str = "source", progress: Callable | None = None) -> Result:
    """Measure how many examples a second ``source`` gives; return a `Result`.

    ``source`` is an iterable of batches (a `tf.data.Dataset`, a list, a PyTorch loader), iterated again and again if
    it is finite, or a step function, called again and again, or an object with `.dataset()`, such as a `Pipeline`.
    Examples are counted by the leading dimension of a batch's first component, so a short last batch counts for what
    it holds; the first component must not be a scalar. A step function that returns an int says how many examples
    it processed, and must do so every time; otherwise each call counts as one step.

    If its first pass has not ended after the warm-up, the result's ``note`` says so: a cache is full only then.

    ``seconds`` is the whole time, warm-up included; a batch is never cut, so a slow source may take longer, up to
    6 rounds of one batch. ``progress(fraction)`` is called between batches, at most ten times a second; an exception
    that it raises ends the measurement.

    Raises ValueError for a source that yields nothing, for batches without examples or a leading dimension, for a step
    function that returns an int only sometimes and for seconds that are not positive and finite; TypeError for a
    source that is neither iterable nor callable.

    Example::

        batches = tf.data.Dataset.range(10_000).batch(100)
        print(bt.throughput(batches, seconds=0.5))
    """
    of_kind("name", name, str, "a text")
    budget = Budget(seconds, progress)
    measured = Instance(source, name, budget)
    measured.warm_up(seconds * WARM_UP, is_pass_awaited=True)
    is_sure = measured.is_step or measured.passes > 0
    slot = max(budget.left() / ROUNDS, SHORTEST_SLOT)
    is_whole = measured.pass_seconds <= budget.left() / LEAST_ROUNDS
    if is_whole:
        measured.end_pass()
    rounds = []
    while len(rounds) < LEAST_ROUNDS or budget.left() > slot / 2:
        rounds.append(measured.pull_for(slot, is_whole))
    counts, times = zip(*rounds, strict=True)
    rates = tuple(count / took for count, took in rounds)
    note = "" if is_sure else PASS_GOES_ON
    return Result(name, rates, measured.unit, measured.first_seconds, sum(counts), sum(times), note)


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
    there and back, so that drift cancels. Before each visit it waits until nothing works in the background, as the
    buffers are full: twice as long as the visit, or one second, at most. Where the passes of all sources take less than
    a tenth of a second, whole passes are measured, start included; but a `tf.data.Dataset` reads on by its own
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
    block_seconds = blocks.seconds / blocks.done
    return Comparison(results, blocks.looks, block_seconds, notes_of(blocks), partial(_go_on, blocks))
