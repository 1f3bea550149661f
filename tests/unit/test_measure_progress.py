"""Progress while measuring, and what happens when it is interrupted."""

import numpy as np
import pytest
from clocks import Source, pair

from bigtrain_nb.measure.benchmark import compare, throughput


def alone(clock, progress):
    throughput(Source(clock, 0.007, [32] * 9), seconds=5, progress=progress)


def in_turns(clock, progress):
    compare(pair(clock, 0.007, 0.009), seconds=5, progress=progress)


@pytest.mark.parametrize("run", [alone, in_turns])
def test_progress_is_told_at_most_ten_times_a_second_and_grows(clock, run):
    moments, fractions = [], []

    def note(fraction):
        moments.append(clock.now)
        fractions.append(fraction)

    run(clock, note)
    assert 30 <= len(moments) <= 10 * clock.now
    assert min(np.diff(moments)) >= 0.1 - 1e-9
    assert fractions == sorted(fractions) and 0 < fractions[0] < 0.1 and 0.9 < fractions[-1] <= 1


@pytest.mark.parametrize("run", [alone, in_turns])
def test_an_exception_in_progress_ends_the_measurement_at_once(clock, run):
    def stop(fraction):
        if fraction > 0.5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(clock, stop)
    assert clock.now < 3
