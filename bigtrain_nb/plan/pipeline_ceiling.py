"""What an input pipeline cannot exceed, from the rates of its stages."""

from bigtrain_nb.common.checks import positive, whole_number


def pipeline_ceiling(stages, cores=None):
    """Return the examples/s that an input pipeline cannot exceed.

    ``stages``: {name: examples/s of the stage alone}, or what `bt.diagnose` returns. Stages that work at the same
    time are as fast as the slowest; with ``cores``, all the work must also fit on them: cores / sum(1 / rate), where
    a rate is that of one core. A diagnosis brings its own cores, and knows which stages share a thread.

    Raises ValueError for no stages and for rates that are not positive.
    """
    if hasattr(stages, "stages"):
        return _ceiling_of_diagnosis(stages)
    if not stages:
        raise ValueError("stages: expected at least one {name: examples/s}")
    for name, rate in stages.items():
        positive(f"the rate of {name}", rate, "examples/s")
    ceiling = min(stages.values())
    if cores is not None:
        seconds = sum(1 / rate for rate in stages.values())
        ceiling = min(ceiling, whole_number("cores", cores, 1) / seconds)
    return ceiling


def _ceiling_of_diagnosis(diagnosis):
    seconds = {}
    for stage in diagnosis.stages:
        seconds[stage.thread] = seconds.get(stage.thread, 0.0) + 1 / stage.rate
    return min(diagnosis.ceiling, 1 / max(seconds.values()))
