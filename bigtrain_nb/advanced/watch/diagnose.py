"""Find an input pipeline's bottleneck, the possible speedup, and AUTOTUNE's choices.

TensorFlow keeps a model of every live iterator: each stage's processing time and parallelism, on which AUTOTUNE itself
relies. `diagnose` runs the pipeline as it is, samples that model and computes throughputs.
"""

import os
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import psutil

from bigtrain_nb.common.cards import Shown, table
from bigtrain_nb.common.hardware import core_limit, usable_cores
from bigtrain_nb.common.passes import graph_of_dataset
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.time_scale import scaled_seconds
from bigtrain_nb.data.pipeline import Pipeline
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.source import Source

_SAMPLE_SECONDS = 0.1
_WARM_UP = 0.3
"""Share of the time spent on warm-up, which is not measured."""
_NEGLIGIBLE = 0.002
"""Stages with a smaller share of the work are not shown."""

_WORDS = {
    "TensorSlice": "file list",
    "TFRecord": "read TFRecord",
    "TextLine": "read lines",
    "ParallelInterleave": "interleave",
    "MemoryCache": "cache",
    "MemoryCacheImpl": "cache",
    "FileCache": "cache",
}
_MAPS = ("Map", "ParallelMap", "MapAndBatch")


@dataclass(frozen=True)
class Stage:
    """One stage: ``microseconds`` of work per example, in ``calls`` parallel calls.

    ``thread`` is equal for stages that share one; ``in_python``: it calls Python, and its calls run one at a time.
    """

    name: str
    op: str
    calls: int
    microseconds: float
    thread: tuple
    in_python: bool = False

    @property
    def seconds(self) -> float:
        """Seconds per example in this stage, with calls in parallel unless they are in Python."""
        return max(self.microseconds, 1e-6) / 1e6 / (1 if self.in_python else self.calls)

    @property
    def rate(self) -> float:
        """Throughput of this stage alone, in examples/s."""
        return 1 / self.seconds


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    """The result of `diagnose`.

    rate: throughput (examples/s) of the pipeline as it ran, iterating only. stages: from the source to the end.
    ceiling: upper bound in examples/s if all cores did only this work (cores / processor seconds per example). Stages
    that compute in Python use at most one core: their calls run one at a time.
    autotuned: {"stage, parameter": value} that AUTOTUNE chose.
    cores: limit on this process's CPU time, in cores. free_cores: how many of them other programs left idle. note: a
    sentence if a cache was still being filled.
    """

    rate: float
    stages: tuple[Stage, ...]
    ceiling: float
    autotuned: dict
    cores: float
    free_cores: float
    note: str = ""

    @property
    def bottleneck(self) -> Stage:
        """The stage that takes the most time per example in the busiest thread."""
        return max(_slowest_thread(self.stages), key=lambda stage: stage.seconds)

    def words(self) -> list[str]:
        """The finding as a list of plain sentences."""
        slowest = self.bottleneck
        alone = f"alone it reaches {self._alone(slowest):,.0f} examples/s ({slowest.calls} at once)"
        words = [f"{slowest.name} is the bottleneck: {alone}."]
        of_many = [stage.name for stage in self.stages if _reads_many(stage.op)]
        if of_many and sum(stage.microseconds for stage in self.stages) < 0.2e6 / self.rate:
            words.append(f"Most of the time is not shown: TensorFlow does not report short datasets in {of_many[-1]}.")
        in_python = [stage for stage in self.stages if stage.in_python]
        if in_python:
            names = " and ".join(stage.name for stage in in_python)
            words.append(
                f"{names}: Python calls that compute run one at a time, whatever the parallelism. They reach at most"
                f" {max(self.rate, _in_turn(in_python)):,.0f} examples/s in one process; write them as TensorFlow"
                " operations, or read in several processes with the tf.data service. (Calls that wait can overlap.)"
            )
        alone = f"{self.cores:g} cores running only this pipeline would reach {self.ceiling:,.0f} examples/s"
        words.append(f"{alone}, including the work between stages.")
        taken = self.cores - self.free_cores
        if taken > 0.1 * self.cores:
            words.append(f"Other programs keep {taken:.1f} of them busy.")
        speedup = self.ceiling * self.free_cores / self.cores / self.rate
        sharing = max(1.0, slowest.calls / max(self.free_cores, 0.1))  # calls that compute then take so much longer
        if not in_python and slowest.microseconds / 1e6 > 2 * sharing * self.cores / self.ceiling:
            words.append(
                f"{slowest.name} mostly waits: make more of its calls at once (of a map, with as large an"
                " options.threading.private_threadpool_size), or read more files at once."
            )
        elif speedup > 1.25:
            words.append(f"Up to {speedup:.1f}x is possible by doing the same work on more cores.")
        elif in_python and _in_turn(in_python) < 1.25 * self.rate:
            words.append("More cores would not help: the Python calls are the limit.")
        else:
            words.append("They are busy. To go faster, do less work per example: smaller inputs, cheaper steps.")
        for what, value in self.autotuned.items():
            words.append(f"AUTOTUNE chose {what} = {value:g}.")
        return [*words, self.note] if self.note else words

    def _alone(self, stage):
        return max(self.rate, stage.rate) if stage.in_python else stage.rate

    def _card(self):
        rows = []
        threads = list(dict.fromkeys(stage.thread for stage in self.stages))
        for stage in self.stages:
            name = f"{stage.name} (bottleneck)" if stage is self.bottleneck else stage.name
            thread = str(threads.index(stage.thread) + 1)
            rows.append([name, thread, f"{stage.microseconds:.1f}", str(stage.calls), f"{self._alone(stage):,.0f}"])
        head = ["stage", "thread", "µs per example", "at once", "alone, examples/s"]
        return table(f"{self.rate:,.0f} examples/s as it runs", head, rows, "\n".join(self.words()))


def _in_turn(stages):
    """Return the throughput (examples/s) of stages that run one at a time."""
    return 1e6 / max(sum(stage.microseconds for stage in stages), 1e-9)


def _slowest_thread(stages):
    threads = defaultdict(list)
    for stage in stages:
        threads[stage.thread].append(stage)
    return max(threads.values(), key=lambda group: sum(stage.seconds for stage in group))


def diagnose(pipeline: Pipeline | tf.data.Dataset, *, seconds: float = 3.0) -> Diagnosis:
    """Run a `Pipeline` or a `tf.data.Dataset` for ``seconds``, 30 % of them warm-up, and return a `Diagnosis`.

    If it has a cache, the warm-up lasts up to ``seconds`` longer, to the end of the first pass.
    The pipeline runs unchanged, with the rewrites that its options allow; a finite one is restarted. A stage's time is
    its own processing time, without waiting for inputs, summed over its parallel calls.

    Stages of one kind are numbered from the source to the end, including those too cheap to be shown: "map 2" is the
    second `map` of the pipeline as it runs.

    Raises TypeError for anything else, ValueError for a dataset that yields nothing or unbatched elements, for one
    without autotuning, and for seconds that are not positive and finite.

    Example::

        squares = tf.data.Dataset.range(1000).map(lambda n: n * n).batch(10)
        found = bt.diagnose(squares, seconds=0.5)
        print(found.bottleneck.name, found.rate, found.ceiling)
    """
    seconds = scaled_seconds(seconds)
    ours = pipeline if isinstance(pipeline, Pipeline) else None
    dataset = ours.dataset() if ours else pipeline
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"diagnose takes a Pipeline or a tf.data.Dataset, not {type(pipeline).__name__}")
    if dataset.options().autotune.enabled is False:
        raise ValueError("diagnose needs the times that autotuning takes: leave out options.autotune.enabled = False")
    reader = Source(dataset, "the dataset", Progress(None))
    reader.is_dataset = False  # `repeat` and `prefetch` would add stages
    times = _StageTimes()
    _pull(reader, times, seconds * _WARM_UP)
    until = time.perf_counter() + seconds
    has_cache = any("Cache" in place.op for place in times.places.values())
    while (fills := has_cache and reader.note) and time.perf_counter() < until:
        _pull(reader, times, 0.0)
    times.nanoseconds.clear()

    _busy_cores()
    began, processor = time.perf_counter(), time.process_time()
    examples = _pull(reader, times, seconds * (1 - _WARM_UP))
    took, processor = time.perf_counter() - began, time.process_time() - processor

    busy_elsewhere = max(0.0, _busy_cores() - processor / took)

    cores = core_limit()
    free = min(cores, max(0.0, len(usable_cores()) - busy_elsewhere))
    seconds_of_core = max(processor, 1e-9) / examples
    stages, autotuned = times.stages(examples, ours, _python_by_kind(dataset))
    threads = dataset.options().threading.private_threadpool_size or int(os.environ.get("TF_NUM_INTEROP_THREADS") or 0)
    threads = threads or len(usable_cores())
    stages = [replace(one, calls=min(one.calls, threads)) if one.op in _MAPS else one for one in stages]
    of_maps = sum(stage.microseconds for stage in stages if stage.op in _MAPS and not stage.in_python) / 1e6
    in_python = [_computes_in_python(stage, max(0.0, seconds_of_core - of_maps), free) for stage in stages]
    stages = tuple(replace(stage, in_python=computes) for stage, computes in zip(stages, in_python, strict=True))
    ceiling = cores / seconds_of_core
    in_python = [stage for stage in stages if stage.in_python]
    if in_python:
        ceiling = max(min(ceiling, _in_turn(in_python)), examples / took)
    note = f"This is the first pass, which fills the cache: give more seconds than {seconds:g}." if fills else ""
    return Diagnosis(examples / took, stages, ceiling, autotuned, cores, free, note)


def _computes_in_python(stage, seconds_of_core, free):
    """Return whether a stage's calls of Python compute, so that they run one at a time, rather than wait.

    Calls that share one core take, by the clock, what all of them together compute.
    """
    computing = stage.calls * seconds_of_core / min(1.0, max(free, 0.1))
    return stage.in_python and stage.microseconds / 1e6 < 2 * computing


def _python_by_kind(dataset):
    """Return, by kind, whether each stage's function calls Python, from the source to the end: {"Map": [False, True]}.

    Maps that change nothing are left out, as in TensorFlow; maps in datasets that a function returns are included.
    """
    try:
        graph = graph_of_dataset(dataset)
    except (tf.errors.OpError, ValueError):
        return {}
    functions = {function.signature.name: function for function in graph.library.function}
    nodes = {node.name: node for node in graph.node}
    (end,) = [name for node in graph.node if node.op == "_Retval" for name in node.input]
    found = {}
    for path, node in _walk_graph(functions, nodes, end):
        called = [value.func.name for value in node.attr.values() if value.func.name in functions]
        inside = [each.op for name in called for each in functions[name].node_def]
        if path[-1] in _MAPS and set(inside) <= {"Identity", "NoOp"}:
            continue
        found[path] = found.get(path, False) or any(_calls_python(functions, name) for name in called)
    kinds = defaultdict(list)
    for path, in_python in reversed(found.items()):
        kinds[_kind(path[-1])].append(in_python)
    return kinds


def _walk_graph(functions, nodes, name, path=()):
    """Yield the path and node of a dataset and of all its inputs in a graph, in the order of `_walk`."""
    node = nodes.get(name.split(":")[0])
    while node is not None and node.op == "Identity":
        node = nodes.get(node.input[0].split(":")[0])
    if node is None or not _is_dataset(node):
        return
    op = re.sub(r"Dataset(V\d+)?$", "", node.op)
    path = (*path, op)
    yield path, node
    datasets = [each for each in node.input if (given := nodes.get(each.split(":")[0])) and _is_dataset(given)]
    for position, each in enumerate(datasets):
        yield from _walk_graph(functions, nodes, each, path if _reads_many(op) else (*path, position))
    if _reads_many(op) and node.attr["f"].func.name in functions:
        function = functions[node.attr["f"].func.name]
        inside = {each.name: each for each in function.node_def}
        for each in function.ret.values():
            yield from _walk_graph(functions, inside, each, path)


def _is_dataset(node):
    return re.search(r"Dataset(V\d+)?$", node.op) is not None


def _reads_many(op):
    return op.endswith(("Interleave", "FlatMap"))


def _kind(op):
    return re.sub("^Parallel|AndBatch$", "", op)


def _calls_python(functions, name):
    """Return whether a function calls Python, directly or indirectly; datasets in it count as other stages."""
    for node in functions[name].node_def:
        if node.op in ("PyFunc", "PyFuncStateless", "EagerPyFunc"):
            return True
        called = [value.func.name for value in node.attr.values() if value.func.name in functions]
        if not _is_dataset(node) and any(_calls_python(functions, each) for each in called):
            return True
    return False


def _busy_cores():
    """Return how many of this process's usable cores were busy, with any work, since the previous call."""
    percent = psutil.cpu_percent(percpu=True)
    return sum(percent[core] for core in usable_cores() if core < len(percent)) / 100


def _pull(reader, times, seconds):
    """Iterate for ``seconds`` and at least one batch; return the number of examples."""
    began = sampled = now = time.perf_counter()
    examples = 0
    while not examples or now - began < seconds:
        count = reader.pull()
        examples += count
        now = time.perf_counter()
        if not count:
            times.sample(reader.ended[-1])
            times.before = {}  # the next pass has a new iterator, with times from 0
        elif now - sampled > _SAMPLE_SECONDS:
            times.sample(reader.iterator)
            sampled = now
    if reader.iterator is not None:
        times.sample(reader.iterator)
    return examples


class _StageTimes:
    """Processing time at each place of a pipeline in TensorFlow's model, summed over samples."""

    def __init__(self):
        self.before = {}
        """node -> its processing time in the previous sample."""
        self.nanoseconds = Counter()
        self.places = {}

    def sample(self, iterator):
        """Add each place's processing time since the previous sample."""
        model = tf.data.experimental.get_model_proto(iterator)
        places, spent = {}, {}
        for place in _walk(model.nodes, model.output):
            places[place.path] = place
            spent[place.node] = model.nodes[place.node].processing_time
            self.nanoseconds[place.path] += spent[place.node] - self.before.get(place.node, 0)
        self.before = spent
        if len(places) >= len(self.places):
            self.places = places

    def stages(self, examples, ours, python_by_kind):
        """Return the stages from the source to the end, and AUTOTUNE's choices for them.

        TensorFlow may have rewritten them. If a kind's count differs from that of `_python_by_kind`, all its stages are
        assumed to call Python if one does, so that the upper bound is not too high.
        """
        counts = Counter(_kind(place.op) for place in self.places.values())
        in_turn = {
            kind: iter(flags if len(flags) == counts[kind] else [any(flags)] * counts[kind])
            for kind, flags in python_by_kind.items()
        }
        least = _NEGLIGIBLE * self.nanoseconds.total()
        stages, autotuned = [], {}
        used = Counter()
        maps = ["parse", "finish"] if ours else ["map"]
        if ours and ours.caches_files:
            maps = ["read", *maps]
        for place in reversed(self.places.values()):
            name = _name(place.op)
            in_python = next(in_turn.get(_kind(place.op), iter(())), False)
            if place.op in _MAPS:
                name = name.replace("map", maps[0])
                maps = maps[1:] or maps
            if name == "cache" and ours:  # once filled, it replaces the stages before it
                maps = ["parse", "finish"] if ours.augment else ["finish"]
            used[name] += 1
            if used[name] > 1:
                name = f"{name} {used[name]}"
            nanoseconds = self.nanoseconds[place.path]
            if place.op == "Root" or (nanoseconds < least and not place.tuned):
                continue
            stages.append(Stage(name, place.op, place.calls, nanoseconds / 1000 / examples, place.thread, in_python))
            for parameter, value in place.tuned.items():
                autotuned[f"{name}, {parameter}"] = value
        return tuple(stages), autotuned


@dataclass(frozen=True)
class _Place:
    """A node of the model, identified by its path from the end; files that are read in parallel share one path."""

    path: tuple
    node: int
    op: str
    calls: int
    thread: tuple
    tuned: dict


def _walk(nodes, number, path=(), outer_calls=1, thread=()):
    """Yield a `_Place` for a node and for all its inputs, from the end to the source.

    A parallel node has its own thread pool; it and a prefetch read their inputs in another thread. Nodes inside an
    interleave run as many times in parallel as the interleave has calls.
    """
    node = nodes[number]
    op = re.sub(r"V\d+$", "", node.name)
    path = (*path, op)
    values = {each.name: each.state_value or each.value for each in node.parameters}
    tuned = {each.name: values[each.name] for each in node.parameters if each.tunable}
    calls = max(1, int(values.get("parallelism", 1)))
    own_thread = thread
    if "parallelism" in values:
        own_thread = (*path, "pool")
    yield _Place(path, number, op, outer_calls * calls, own_thread, tuned)

    if "parallelism" in values or op == "Prefetch":
        thread = (*path, "inputs")
    if _reads_many(op):
        outer_calls *= calls
    for position, child in enumerate(node.inputs):
        branch = path if _reads_many(op) else (*path, position)
        yield from _walk(nodes, child, branch, outer_calls, thread)


def _name(op):
    if op in _MAPS:
        return "map + batch" if op == "MapAndBatch" else "map"
    return _WORDS.get(op, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", op).lower())
