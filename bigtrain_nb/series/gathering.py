"""Simulate the timeline of a fully sharded training step, for notebook 08: pure arithmetic."""

from collections import deque
from dataclasses import dataclass

LINK, DEVICE = "link", "device"


@dataclass(frozen=True)
class Span:
    """One activity of the ``lane`` "link" or "device" for one layer, from ``start`` to ``end``."""

    lane: str
    kind: str  # "gather", "scatter", "forward" or "backward"
    layer: int
    start: float
    end: float


def fully_sharded_step(layers, gather, forward, backward, scatter, ahead):
    """Return the spans of one device and its link in one step over ``layers`` equal layers.

    The device computes all layers forward, then all backward. Before each computation the link gathers the layer; after
    a backward pass it reduce-scatters the layer's gradients. The link does one operation at a time: the one that is
    ready first; if two are waiting, the gather. ``ahead``: how many layers may be prefetched, or be in flight, beyond
    the one being computed. With 0, a gather starts when the previous layer is done. The other arguments are seconds.
    """
    order = [("forward", layer) for layer in range(layers)]
    order += [("backward", layer) for layer in reversed(range(layers))]
    seconds = {"forward": forward, "backward": backward}
    spans = []
    waiting = deque()  # (time, layer) of gradients not sent yet
    done = []  # when each computation ends
    link_is_free = 0.0

    def send_gradients():
        nonlocal link_is_free
        ready, layer = waiting.popleft()
        start = max(link_is_free, ready)
        link_is_free = start + scatter
        spans.append(Span(LINK, "scatter", layer, start, link_is_free))

    for number, (kind, layer) in enumerate(order):
        room_from = done[number - 1 - ahead] if number > ahead else 0.0
        while waiting and max(waiting[0][0], link_is_free) < max(room_from, link_is_free):
            send_gradients()
        start = max(link_is_free, room_from)
        link_is_free = start + gather
        spans.append(Span(LINK, "gather", layer, start, link_is_free))

        start = max(link_is_free, done[-1] if done else 0.0)
        done.append(start + seconds[kind])
        spans.append(Span(DEVICE, kind, layer, start, done[-1]))
        if kind == "backward":
            waiting.append((done[-1], layer))
    while waiting:
        send_gradients()
    return spans


def end_of(spans):
    """Return when the last span ends."""
    return max(span.end for span in spans)
