"""Throughput of a single source: warm-up, then timed rounds. See `rounds` for interleaving several."""

from collections.abc import Callable
from typing import Any

from bigtrain_nb.common.checks import of_kind
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.common.words import ROUNDS_FOR_AN_INTERVAL, number
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.results import Result
from bigtrain_nb.measure.source import Source

ROUNDS, SHORTEST = 40, 0.1
"""Number of rounds, unless they would be shorter than `SHORTEST` seconds."""


def throughput(source: Any, *, seconds: float = 3.0, name: str = "source", progress: Callable | None = None) -> Result:
    """Measure the throughput of ``source``, in examples per second; return a `Result`.

    ``source`` is an iterable of batches (a `tf.data.Dataset`, a list, a PyTorch loader), iterated repeatedly if it is
    finite; a step function, called repeatedly; or an object with `.dataset()`, such as a `Pipeline`. Examples are
    counted by the leading dimension of a batch's first component, so a short last batch counts correctly; a component
    that is a scalar shows that the source is not batched. A step function may return the number of examples it
    processed, as an int, but then must always; otherwise each call counts as one step.

    ``seconds`` is the measuring time, multiplied by BIGTRAIN_NB_TIME_SCALE if that environment variable is set. The
    warm-up before it lasts until the first pass, which may fill a cache, has ended (at most ``seconds``), and until the
    rate is steady. If that pass has not ended, the result's ``note`` says so. Batches are never interrupted, so a slow
    source may take longer, up to 6 rounds of one batch. ``progress(fraction, words)`` is called between batches, at
    most ten times a second; an exception from it ends the measurement. By default, notebooks and terminals show a bar.

    Raises ValueError for a source that yields nothing, for batches without examples or a leading dimension, for a step
    function that returns an int only sometimes and for seconds that are not positive and finite; TypeError for a source
    that is neither iterable nor callable, and for a function that returns a dataset.

    Example::

        batches = tf.data.Dataset.range(10_000).batch(100)
        print(bt.throughput(batches, seconds=0.5))
    """
    of_kind("name", name, str, "a string")
    seconds = scaled_seconds(seconds)
    with Progress(progress) as reporter:
        made = Source(source, name, reporter)
        reporter.say(0.0, "warming up")
        made.warm_up(longest=seconds)
        note = made.note
        slot = max(seconds / ROUNDS, SHORTEST)
        rates, examples, spent = [], 0, 0.0
        while len(rates) < ROUNDS_FOR_AN_INTERVAL or spent < seconds - slot / 2:
            rate = f": {number(rates[-1])} {made.unit}" if rates else ""
            reporter.say(spent / seconds, f"measuring for {seconds:g} s{rate}")
            count, _, took = made.run_passes(slot)
            rates.append(count / took)
            examples += count
            spent += took
    return Result(name, tuple(rates), made.unit, made.first_seconds, examples, spent, note)
