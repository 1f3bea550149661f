"""Formulas of a few symbols, with their units and sources: optimizer slots, all-reduce, pipeline, time of a step."""

from collections.abc import Mapping

from bigtrain_nb.common.checks import not_negative, positive, whole_number
from bigtrain_nb.plan.breakdown import Account, Line, amount

SLOTS = {"sgd": 0, "momentum": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2}
"""Tensors that an optimizer keeps for each weight, of the weight's own shape, with the settings Keras starts with.

Adam: Kingma & Ba 2015; AdamW: Loshchilov & Hutter 2019; Lion: Chen et al. 2023; "momentum" is SGD(momentum=0.9).
"""


def all_reduce_seconds(size, devices, bandwidth, latency=0.0):
    """Return the seconds of a ring all-reduce: 2(n-1)/n * S/B + 2(n-1) * latency; 0 for one device.

    ``size`` S: bytes on each device; ``devices`` n; ``bandwidth`` B: bytes/s that a device sends in one direction;
    ``latency``: seconds a message. Each device sends n-1 parts of S/n to add up and n-1 to hand round, which no
    algorithm does with less (Patarasuk & Yuan 2009). Raises ValueError for a size or latency below 0 and
    a bandwidth that is not above it.
    """
    devices = whole_number("devices", devices, 1)
    size, latency = not_negative("size", size, "bytes"), not_negative("latency", latency, "seconds")
    bandwidth = positive("bandwidth", bandwidth, "bytes/s")
    if devices == 1:
        return 0.0
    return 2 * (devices - 1) / devices * size / bandwidth + 2 * (devices - 1) * latency


def pipeline_ceiling(stages, cores=None):
    """Return the examples/s that an input pipeline cannot exceed.

    ``stages``: {name: examples/s of the stage alone}, or what `bt.diagnose` returns. Stages that work at the same
    time are as fast as the slowest; with ``cores``, all the work must also fit on them: cores / sum(1 / rate), where
    a rate is that of one core. A diagnosis brings its own cores, and knows which stages share a thread.

    Raises ValueError for no stages and for rates that are not positive, TypeError for stages that are neither.
    """
    if not isinstance(stages, Mapping):
        if not hasattr(stages, "stages"):
            raise TypeError(f"stages={stages!r} must be {{name: examples/s}} or what bt.diagnose returns")
        threads = {}
        for stage in stages.stages:
            threads[stage.thread] = threads.get(stage.thread, 0.0) + 1 / stage.rate
        return min(stages.ceiling, 1 / max(threads.values()))
    if not stages:
        raise ValueError("stages: expected at least one {name: examples/s}")
    for name, rate in stages.items():
        positive(f"the rate of {name}", rate, "examples/s")
    slowest = min(stages.values())
    if cores is None:
        return slowest
    return min(slowest, whole_number("cores", cores, 1) / sum(1 / rate for rate in stages.values()))


def step_time(computing, communication=0.0, waiting_for_input=0.0, how=("", "", "")):
    """Return an `Account` of a step's seconds: max(computing + communication, input).

    Input overlaps with the step where the pipeline prefetches. Communication does not overlap with computing:
    `bt.Model` reduces once, after the last gradient. ``waiting_for_input``: the seconds that a batch takes to make.
    """
    values = (computing, communication, waiting_for_input)
    names = ("computing", "communication", "input")
    for name, value in zip(names, values, strict=True):
        not_negative(name, value, "seconds")
    busy = computing + communication
    how_long = f"max({amount(busy, 's')} computing + communication, {amount(waiting_for_input, 's')} input beside it)"
    lines = tuple(Line(*line) for line in zip(names, values, how, strict=True))
    return Account("Time of a training step", "s", lines, max(busy, waiting_for_input), how_long)
