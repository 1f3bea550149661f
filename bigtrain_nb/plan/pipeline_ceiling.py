"""What an input pipeline cannot exceed, from the rates of its stages."""

from collections import Counter
from typing import Any


def pipeline_ceiling(diagnosis: Any) -> float:
    """Return the examples/s that a pipeline cannot exceed, from what `bt.diagnose` found of it.

    Stages that work at the same time are as fast as the slowest, those that share a thread take their turns, and all
    the work must fit on the cores. Raises TypeError for anything else.

    Example::

        squares = tf.data.Dataset.range(1000).map(lambda n: n * n).batch(10)
        print(bt.pipeline_ceiling(bt.diagnose(squares, seconds=0.5)))
    """
    if not hasattr(diagnosis, "stages"):
        raise TypeError(f"pipeline_ceiling takes what bt.diagnose(pipeline) returns, not {diagnosis!r:.99}")
    seconds = Counter()
    for stage in diagnosis.stages:
        seconds[stage.thread] += 1 / stage.rate
    return min(diagnosis.ceiling, 1 / max(seconds.values()))
