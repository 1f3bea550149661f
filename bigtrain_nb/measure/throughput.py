"""How fast is it? One source, alone: it is warmed up, and then timed in rounds. See `rounds` for several in turns."""

from collections.abc import Callable
from typing import Any

from bigtrain_nb.common.checks import of_kind
from bigtrain_nb.common.progress import Progress
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.common.words import number
from bigtrain_nb.measure.results import Result
from bigtrain_nb.measure.source import Source

ROUNDS, SHORTEST = 40, 0.1
"""The time is cut into so many, unless they get shorter than so many seconds."""
ROUNDS_FOR_AN_INTERVAL = 6
"""With fewer, the whole range of the rounds holds their true median in less than 95 % of all cases."""


def throughput(source: Any, *, seconds: float = 3.0, name: str = "source", progress: Callable | None = None) -> Result:
    """Measure how many examples a second ``source`` gives; return a `Result`.

    ``source`` is an iterable of batches (a `tf.data.Dataset`, a list, a PyTorch loader), iterated again and again if
    it is finite, or a step function, called again and again, or an object with `.dataset()`, such as a `Pipeline`.
    Examples are counted by the leading dimension of a batch's first component, so a short last batch counts for what
    it holds; the first component must not be a scalar. A step function that returns an int says how many examples
    it processed, and must do so every time; otherwise each call counts as one step.

    ``seconds`` are for measuring, times BIGTRAIN_NB_TIME_SCALE where that is in the environment. Before them it is
    warmed up: to the end of a first pass, which may fill a cache, for as long again at most, and until its rate is
    steady. If that pass has not ended, the result's ``note`` says so. A batch is never cut, so a slow source may take
    longer, up to 6 rounds of one batch. ``progress(fraction, words)`` is called between batches, at most ten times a
    second; an exception that it raises ends the measurement. Without it, a notebook and a terminal show a bar.

    Raises ValueError for a source that yields nothing, for batches without examples or a leading dimension, for a step
    function that returns an int only sometimes and for seconds that are not positive and finite; TypeError for a
    source that is neither iterable nor callable, and for a function that returns a dataset and does no step.

    Example::

        batches = tf.data.Dataset.range(10_000).batch(100)
        print(bt.throughput(batches, seconds=0.5))
    """
    of_kind("name", name, str, "a string")
    seconds = scaled_seconds(seconds)
    with Progress(progress) as told:
        made = Source(source, name, told)
        told.say(0.0, "warming up")
        made.warm_up(longest=seconds)
        note = made.note
        slot = max(seconds / ROUNDS, SHORTEST)
        rates, examples, spent = [], 0, 0.0
        while len(rates) < ROUNDS_FOR_AN_INTERVAL or spent < seconds - slot / 2:
            rate = f": {number(rates[-1])} {made.unit}" if rates else ""
            told.say(spent / seconds, f"measuring for {seconds:g} s{rate}")
            count, _, took = made.run(slot)
            rates.append(count / took)
            examples += count
            spent += took
    return Result(name, tuple(rates), made.unit, made.first_seconds, examples, spent, note)
