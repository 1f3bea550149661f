"""The pipeline schedules of notebook 09 match their sources: bubble, micro-batches held, virtual stages."""

import pytest

from bigtrain_nb.series.pipelines import passes_of


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 2), (4, 8)])
def test_the_clock_shows_the_bubble_and_what_is_held(schedule, stages, micro_batches):
    passes = passes_of(schedule, stages, micro_batches)
    end = max(each.end for each in passes)
    idle = 1 - 3 * micro_batches / end
    assert idle == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    held, most = 0, 0
    for each in passes:
        if each.stage == 0:
            held += 1 if each.kind == "forward" else -1
            most = max(most, held)
    assert most == (micro_batches if schedule == "gpipe" else min(stages, micro_batches))


@pytest.mark.parametrize(("stages", "micro_batches", "runs"), [(4, 8, 2), (4, 8, 4), (2, 4, 2), (3, 12, 3)])
def test_runs_of_layers_divide_the_bubble_and_hold_more(stages, micro_batches, runs):
    passes = passes_of("1f1b", stages, micro_batches, runs=runs)
    assert len(passes) == 2 * stages * runs * micro_batches
    others = stages - 1
    assert passes[-1].end == max(each.end for each in passes) == pytest.approx(3 * (micro_batches + others / runs))
    held = most = 0
    ended = {}
    for each in passes:
        place = each.run * stages + each.stage
        before = place - 1 if each.kind == "forward" else place + 1
        assert ended.get((before, each.kind, each.micro_batch), 0) <= each.start
        ended[place, each.kind, each.micro_batch] = each.end
        if each.stage == 0:
            held += (1 if each.kind == "forward" else -1) / runs
            most = max(most, held)
    assert most == pytest.approx(stages * (1 + others / (stages * runs)))  # Korthikanti et al. 2022, section 4.2.3


def test_on_a_clock_of_its_own_times_a_pass_waits_for_a_slow_neighbour():
    passes = passes_of("gpipe", 2, 1, seconds=lambda each: 5.0 if each.stage == 1 else 1.0)
    assert [(each.stage, each.start, each.end) for each in passes] == [(0, 0, 1), (1, 1, 6), (1, 6, 11), (0, 11, 12)]
