"""The wall time of a step by operation, from a trace of TensorFlow's profiler.

The trace is read with TensorFlow's protocol buffers. Its planes are the host, with a line for each thread, and the
accelerators, with a line for each stream. The events of threads are operations ("gpt_1/dense_1/MatMul:MatMul"), calls
from Python (EagerExecute), waiting for a batch (IteratorGetNextOp) and functions of the input pipeline.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from bigtrain_nb.common.quiet import keras

STEP, INPUT = "bigtrain_nb step", "bigtrain_nb input"
"""Names of the events that `bt.profile` adds to the trace."""
CAPTURED = "InstantiatedCapturedFunction"
"""Prefix of the events in which the input pipeline runs a function."""
DEVICE, HOST, WAITING, CALL = range(4)
"""Ranks of spans: a moment is assigned to the first of these that is running."""

_OPERATION = re.compile(r"([^:]+):_?(?:Mkl)?(?:Native)?([A-Z]\w*)")
"""Names of TensorFlow's operations and their oneDNN replacements: "gpt_1/dense_1/MatMul:_MklMatMul"."""
_AROUND = re.compile(
    r"^((StatefulPartitionedCall|PartitionedCall|while|cond|body|then|else|gradient_tape|replica)?(_\d+)*/)+"
)
_LAYER = re.compile(r"(.+)_\d+")
SCOPES_ARE_NUMBERED = tuple(map(int, keras.__version__.split(".")[:2])) < (3, 16)
"""Before Keras 3.16 each layer call opens two scopes, and TensorFlow numbers the second; later only one."""


class Part(NamedTuple):
    """A category of time: place, layer and kind of operation."""

    place: str
    layer: str
    operation: str


class Span(NamedTuple):
    """An activity of a thread or a stream from ``start`` to ``end``, in picoseconds."""

    start: float
    end: float
    rank: int
    part: Part


WAITS = Part("input", "input", "input")
BETWEEN = Part("between operations", "between operations", "between operations")
PYTHON = Part("Python", "Python", "Python")
IDLE = frozenset(part.operation for part in (WAITS, BETWEEN, PYTHON))
"""Categories that are not operations."""


def read(path):
    """Read the `XSpace` in a file of the profiler."""
    return XSpace.FromString(path.read_bytes())


def divide(space, steps_are_input=False):
    """Return ({`Part`: its share of the wall time of all steps}, operations per step, seconds per step).

    ``space``: an `XSpace`. ``steps_are_input``: nothing is trained, so the pipeline's operations count.
    """
    lines = list(_lines(space))
    own = None
    if not steps_are_input:
        own = set().union(*(_called_from_python(events) for _, events in lines))
    steps = []
    changes = []
    operations = 0
    for place, events in lines:
        steps += [event for event in events if event.name == STEP]
        if place == "CPU":
            spans = _on_a_thread(events, own)
        else:
            spans = [Span(event.start, event.end, DEVICE, _kernel(place, event)) for event in events]
        operations += sum(span.rank in (DEVICE, HOST) for span in spans)
        changes += _changes(spans)
    start = min(step.start for step in steps)
    end = max(step.end for step in steps)
    seconds = (end - start) / 1e12
    return _shares(changes, start, end), operations / len(steps), seconds / len(steps)


class _Event(NamedTuple):
    start: float
    end: float
    name: str
    stats: dict


def _lines(space):
    """Yield the events of each thread of the host, with "CPU", and of each stream of an accelerator, with its name."""
    for plane in space.planes:
        for line in plane.lines:
            if plane.name == "/host:CPU":
                yield "CPU", _events(plane, line)
            elif plane.name.startswith("/device:") and line.name.startswith(("Stream", "XLA Ops")):
                yield plane.name.removeprefix("/device:"), _events(plane, line)


def _events(plane, line):
    """Return the events of a line, outer ones first."""
    events = []
    for event in line.events:
        start = 1000 * line.timestamp_ns + event.offset_ps
        name = plane.event_metadata[event.metadata_id].name
        events.append(_Event(start, start + event.duration_ps, name, _stats(plane, event)))
    return sorted(events, key=lambda event: (event.start, -event.end))


def _stats(plane, event):
    """Return the statistics of an event by name; long strings are in the plane's table."""
    stats = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        stats[plane.stat_metadata[stat.metadata_id].name] = value
    return stats


def _called_from_python(events):
    """Return the ids of the functions that a thread runs in calls from Python: those of the steps."""
    ids = set()
    until = -math.inf
    for event in events:
        if event.name == "EagerExecute":
            until = event.end
        elif event.name == "FunctionRun" and event.start < until:
            ids.add(event.stats["id"])
    return ids


def _on_a_thread(events, own):
    """Return the spans of a thread, outer ones first, for the functions with ``own`` ids; None: for all.

    The others are the pipeline's. Many of them may already be running when the trace begins.
    """
    spans = []
    until = -math.inf
    call = {}
    for event in events:
        if event.start < until:
            continue
        rank = HOST
        part = _operation("CPU", event.name, event.stats)
        waits = event.name == INPUT or "IteratorGetNext" in event.stats.get("eager_op", event.name)
        if waits:
            rank = WAITING
            part = WAITS
        elif event.name == "EagerExecute":
            rank = CALL
            part = BETWEEN
            call = event.stats
        elif event.name == "EagerKernelExecute" and call.get("is_func") == 0:
            part = Part("CPU", "the rest", call["eager_op"])
        if part:
            spans.append(Span(event.start, event.end, rank, part))
        if own is not None and (waits or _is_of_the_pipeline(event, own)):
            until = event.end
    return spans


def _is_of_the_pipeline(event, own):
    runs = event.name.startswith("ExecutorState::Process")
    return event.name.startswith(CAPTURED) or runs and event.stats.get("id") not in own


def _kernel(place, event):
    """Return the `Part` of an event on an accelerator."""
    name = event.stats.get("tf_op", event.name)
    return _operation(place, name, event.stats) or Part(place, "the rest", event.name)


def _operation(place, name, stats):
    """Return the `Part` of an operation of TensorFlow or XLA; None for other events."""
    if "hlo_op" in stats:
        kind, _, number = stats["hlo_op"].rpartition(".")
        return Part(place, "XLA", kind if number.isdigit() else stats["hlo_op"])
    operation = _OPERATION.fullmatch(name)
    if operation is None:
        return None
    return Part(place, _layer_of(operation[1]), operation[2])


def _layer_of(path):
    """Return the layer in a path, the first below the model: "gpt_1/dense_1_1/Gelu/Erfc" -> "dense_1"."""
    scopes = _AROUND.sub("", path).split("/")[:-1]
    if not scopes:
        return "the rest"
    if not SCOPES_ARE_NUMBERED:  # model/layer/..., or a single scope: an optimizer or a function
        return scopes[:2][-1]
    found = scopes[0]
    for scope in scopes[:2]:
        numbered = _LAYER.fullmatch(scope)
        if not numbered:
            break
        found = numbered[1]
    return found


def _changes(spans):
    """Return (time, 1 or -1, span) when a span of a line becomes innermost or stops being so."""
    changes = []
    around = []
    for span in spans:
        while around and around[-1].end <= span.start:
            around.pop()
        if around:
            outer = around[-1]
            changes += [(span.start, -1, outer), (min(span.end, outer.end), 1, outer)]
        changes += [(span.start, 1, span), (span.end, -1, span)]
        around.append(span)
    return changes


def _shares(changes, start, end):
    """Return {`Part`: its share of the time from start to end}.

    Time is divided equally among the running spans of the first rank that has any; the rest is Python's.
    """
    running = [Counter(), Counter(), Counter(), Counter(), Counter({PYTHON: 1})]
    given = Counter()
    before = start
    for moment, change, span in [*sorted(changes, key=lambda change: change[0]), (end, 0, None)]:
        moment = min(max(moment, start), end)
        if moment > before:
            first = next(filter(None, running))
            for part, count in first.items():
                given[part] += (moment - before) * count / first.total()
        before = moment
        if span:
            parts = running[span.rank]
            parts[span.part] += change
            if not parts[span.part]:
                del parts[span.part]
    return {part: time / (end - start) for part, time in given.most_common() if time}
