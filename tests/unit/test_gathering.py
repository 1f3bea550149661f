"""The simulated timeline of notebook 08: a link and a device in a fully sharded step."""

import pytest

from bigtrain_nb.series.exercises.share_it_out_layers import prefetch
from bigtrain_nb.series.gathering import DEVICE, LINK, end_of, fully_sharded_step


def lane(spans, name):
    return sorted((span for span in spans if span.lane == name), key=lambda span: span.start)


def seconds(spans):
    return sum(span.end - span.start for span in spans)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("times", [(1, 2, 6, 2), (5, 1, 3, 7), (2, 2, 2, 2)])
def test_each_lane_does_one_thing_at_a_time_and_all_is_done(times, ahead):
    gather, forward, backward, scatter = times
    spans = fully_sharded_step(4, gather, forward, backward, scatter, ahead)
    for name in (LINK, DEVICE):
        inside = lane(spans, name)
        assert all(one.end <= other.start for one, other in zip(inside, inside[1:], strict=False))
    assert seconds(lane(spans, LINK)) == 8 * gather + 4 * scatter
    assert seconds(lane(spans, DEVICE)) == 4 * (forward + backward)
    computed = [(span.kind, span.layer) for span in lane(spans, DEVICE)]
    assert computed == [("forward", n) for n in range(4)] + [("backward", n) for n in (3, 2, 1, 0)]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_no_more_layers_are_whole_than_asked_for(ahead):
    spans = fully_sharded_step(6, 2, 3, 9, 2, ahead)
    gatherings = [span for span in lane(spans, LINK) if span.kind == "gather"]
    ends = [span.end for span in lane(spans, DEVICE)]
    for number, gathering in enumerate(gatherings):
        whole = sum(one.start <= gathering.start < end for one, end in zip(gatherings, ends, strict=True))
        assert whole <= ahead + 1, number


def test_none_ahead_waits_for_each_gathering_and_one_ahead_hides_all_but_the_first():
    assert end_of(lane(fully_sharded_step(4, 2, 3, 9, 0.5, ahead=0), DEVICE)) == 4 * (2 + 3) + 4 * (2 + 9)
    assert end_of(lane(fully_sharded_step(4, 2, 3, 9, 0.5, ahead=1), DEVICE)) == 2 + 4 * (3 + 9)


def test_a_link_that_is_too_slow_decides_alone():
    spans = fully_sharded_step(4, 10, 1, 3, 10, ahead=2)
    assert end_of(spans) == pytest.approx(seconds(lane(spans, LINK)), abs=4)


@pytest.mark.parametrize("room", [1, 2, 3])
def test_the_forward_half_is_what_readers_build(room):
    spans = fully_sharded_step(5, 2, 3, 9, 2, ahead=room - 1)
    starts = [span.start for span in lane(spans, LINK) if span.kind == "gather"][:5]
    assert starts == prefetch([2] * 5, [3] * 5, room)
