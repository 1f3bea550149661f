"""Which stage of an input pipeline binds, how much is left to gain, and what AUTOTUNE chose.

TensorFlow keeps a model of every live iterator: each stage's processing time and the parallelism in use, the numbers
that AUTOTUNE itself works from. `diagnose` runs the pipeline as it is, samples that model and turns it into rates.
"""

import html
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import psutil

from bigtrain_nb.common.hardware import cores
from bigtrain_nb.common.quiet import tf
from bigtrain_nb.data.pipeline import Pipeline
from bigtrain_nb.measure.benchmark import Budget, Meter

_SAMPLE_SECONDS = 0.1
_WARM_UP = 0.3
_NEGLIGIBLE = 0.002

_WORDS = {"TensorSlice": "file list", "TFRecord": "read TFRecord", "TextLine": "read lines", "FlatMap": "flat_map"}
_WORDS |= {"MemoryCacheImpl": "cache", "MemoryCache": "cache", "FileCache": "cache", "ParallelInterleave": "interleave"}
_MAPS = ("Map", "ParallelMap", "MapAndBatch")


@dataclass(frozen=True)
class Stage:
    """One stage: ``microseconds`` of work per example, ``calls`` at once; ``thread`` tells who shares a thread."""

    name: str
    op: str
    calls: int
    microseconds: float
    thread: tuple

    @property
    def rate(self):
        """Examples/s that this stage alone would allow."""
        return 1e6 * self.calls / max(self.microseconds, 1e-6)


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    rate: examples/s of the pipeline as it ran, nothing but iterating. stages: from the source to the end.
    ceiling: examples/s if all cores did nothing but this work (cores / processor seconds per example).
    autotuned: {"stage, parameter": value} that AUTOTUNE chose. others: cores that other programs kept busy meanwhile.
    """

    rate: float
    stages: tuple
    ceiling: float
    autotuned: dict
    others: float

    @property
    def binding(self):
        """The stage that takes the most time per example in the thread that has the most to do."""
        return max(self._slowest_thread(self.stages), key=lambda stage: 1 / stage.rate)

    @property
    def next_best(self):
        """Examples/s that the rest would allow if the binding stage cost nothing (the cores allow `ceiling`)."""
        rest = [stage for stage in self.stages if stage is not self.binding]
        return 1 / sum(1 / stage.rate for stage in self._slowest_thread(rest)) if rest else float("inf")

    @property
    def speedup_left(self):
        """How many times faster it could be on these cores without doing less work; at least 1."""
        return max(1.0, self.ceiling / self.rate)

    @staticmethod
    def _slowest_thread(stages):
        threads = defaultdict(list)
        for stage in stages:
            threads[stage.thread].append(stage)
        return max(threads.values(), key=lambda group: sum(1 / stage.rate for stage in group))

    def __str__(self):
        lines = [f"{self.rate:,.0f} examples/s as it runs"]
        lines += [
            f"  {'>' if stage is self.binding else ' '} {stage.name:<22} {stage.microseconds:8.1f} us/example"
            f"  x{stage.calls:<3} {stage.rate:>12,.0f} examples/s alone"
            for stage in self.stages
        ]
        return "\n".join([*lines, *self.words()])

    __repr__ = __str__

    def words(self):
        """The finding as plain sentences."""
        binding = self.binding
        partners = [s.name for s in self.stages if s.thread == binding.thread and s is not binding]
        shared = f" and shares its thread with {', '.join(partners)}" if partners and binding.calls == 1 else ""
        yield f"{binding.name} binds: alone it allows {binding.rate:,.0f} examples/s ({binding.calls} at once){shared}."
        yield f"Were it free, the next stage would allow {self.next_best:,.0f} examples/s."
        yield (
            f"{cores()} cores that did nothing else would allow {self.ceiling:,.0f} examples/s: "
            + (
                f"up to {self.speedup_left:.1f}x is left in doing the same work on more cores."
                if self.speedup_left > 1.25
                else "they are busy. To go faster, do less work per example: cache, smaller images, cheaper steps."
            )
        )
        if self.others > 0.3:
            yield f"Other programs used about {self.others:.1f} cores meanwhile: measure again when they rest."
        for what, value in self.autotuned.items():
            yield f"AUTOTUNE chose {what} = {value:g}."

    def _repr_html_(self):
        heads = ("stage", "µs per example", "at once", "alone, examples/s")
        rows = "".join(
            f"<tr><td>{html.escape(s.name)}{' <b>binds</b>' if s is self.binding else ''}</td>"
            f"<td>{s.microseconds:.1f}</td><td>{s.calls}</td><td>{s.rate:,.0f}</td></tr>"
            for s in self.stages
        )
        head = "".join(f"<th>{h}</th>" for h in heads)
        words = "".join(f"<li>{html.escape(w)}</li>" for w in self.words())
        return f"<p>{self.rate:,.0f} examples/s as it runs</p><table><tr>{head}</tr>{rows}</table><ul>{words}</ul>"


def diagnose(pipeline, *, seconds=3.0):
    """Run a `Pipeline` or a `tf.data.Dataset` for ``seconds`` and return a `Diagnosis`.

    The pipeline runs as it is, with the rewrites that its options allow; a finite one starts again. A stage's time is
    what it spent itself, without waiting for its inputs, summed over its parallel calls.

    Raises TypeError for anything else, and ValueError for a dataset that yields nothing or unbatched elements.
    """
    known = isinstance(pipeline, Pipeline)
    dataset = pipeline.dataset() if known else pipeline
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"diagnose takes a Pipeline or a tf.data.Dataset, not {type(pipeline).__name__}")
    watch = _Watch(_with_model(dataset))
    watch.run(seconds)
    stages, chosen = watch.found(known)
    return Diagnosis(watch.examples / watch.seconds, stages, watch.ceiling(), chosen, watch.others())


def _with_model(dataset):
    """The dataset with TensorFlow's model switched on; where the reader has switched AUTOTUNE off, so are rewrites."""
    if dataset.options().autotune.enabled is not False:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = True
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


class _Watch:
    """Iterates a dataset and adds up, place by place in the pipeline, what TensorFlow's model says of it."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.examples, self.seconds, self.processor, self.busy = 0, 0.0, 0.0, 0.0
        self.before = {}
        self.nanoseconds = defaultdict(int)
        self.places = {}

    def run(self, seconds):
        """Iterate for ``seconds`` and until a batch counted; the first part warms up and does not count."""
        began = sampled = time.perf_counter()
        counting = False
        meter = Meter(self.dataset, "the dataset", Budget(seconds, None))
        while True:
            examples, now = meter.pull(), time.perf_counter()
            iterator = meter.iterator or meter.spent[-1]  # held, since tearing it down takes time that must not count
            starts = not counting and now - began > seconds * _WARM_UP
            if starts or not examples or now - sampled > _SAMPLE_SECONDS:
                self._sample(iterator, counting)
                sampled = now
            if not examples:
                self.before = {}  # the next pass has a new iterator, which starts from nothing
            if counting:
                self.examples += examples
            if starts:
                counting, counted_from, processor, busy = True, now, time.process_time(), _busy_seconds()
            if self.examples and now - began > seconds:
                break
        self._sample(iterator, counting)
        self.seconds = time.perf_counter() - counted_from
        self.processor = time.process_time() - processor
        self.busy = _busy_seconds() - busy

    def _sample(self, iterator, counting):
        """Add what each place spent since the sample before."""
        model = tf.data.experimental.get_model_proto(iterator)
        before, self.before, seen = self.before, {}, {}
        for place in _walk(model.nodes, model.output):
            seen[place.path] = place
            spent = model.nodes[place.node].processing_time
            self.before[place.node] = spent
            if counting:
                self.nanoseconds[place.path] += spent - before.get(place.node, 0)
        if len(seen) >= len(self.places):
            self.places = seen

    def ceiling(self):
        """Examples/s if every core did this work and nothing else."""
        return cores() * self.examples / max(self.processor, 1e-9)

    def others(self):
        """Cores that other programs kept busy, on average."""
        return max(0.0, (self.busy - self.processor) / self.seconds)

    def found(self, known):
        """Return the stages from the source to the end, and what AUTOTUNE chose for them."""
        least = _NEGLIGIBLE * sum(self.nanoseconds.values())
        places = [p for p in self.places.values() if p.op != "Root"]
        named = zip(_words([p.op for p in places], known), places, strict=True)
        shown = [(word, p) for word, p in named if self.nanoseconds[p.path] >= least or p.tuned]
        stages, chosen = [], {}
        for name, (_, place) in zip(_numbered([word for word, _ in shown]), shown, strict=True):
            microseconds = self.nanoseconds[place.path] / 1000 / self.examples
            stages.append(Stage(name, place.op, place.calls, microseconds, place.thread))
            chosen |= {f"{name}, {parameter}": value for parameter, value in place.tuned.items()}
        return tuple(reversed(stages)), chosen


@dataclass(frozen=True)
class _Place:
    """A node of the model, known by its path from the end; files that are read side by side share one path."""

    path: tuple
    node: int
    op: str
    calls: int
    thread: tuple
    tuned: dict


def _walk(nodes, number, path=(), outer_calls=1, thread=()):
    """Yield a `_Place` for a node and for all before it, from the end to the source.

    A node that works in parallel does so in a pool of its own; it, and a prefetch, takes its inputs in another thread.
    What stands inside an interleave runs as many times at once as the interleave has calls.
    """
    node = nodes[number]
    op = re.sub(r"V\d+$", "", node.name)
    path = (*path, op)
    values = {p.name: p.state_value or p.value for p in node.parameters}
    own_calls = max(1, int(values.get("parallelism", 1)))
    tuned = {p.name: values[p.name] for p in node.parameters if p.tunable}
    is_parallel, inside = "parallelism" in values, op.endswith("Interleave")
    yield _Place(path, number, op, outer_calls * own_calls, (*path, "pool") if is_parallel else thread, tuned)
    if is_parallel or op == "Prefetch":
        thread = (*path, "inputs")
    for position, child in enumerate(node.inputs):
        branch = () if inside or op == "FlatMap" or len(node.inputs) == 1 else (f"input {position}",)
        yield from _walk(nodes, child, path + branch, outer_calls * (own_calls if inside else 1), thread)


def _busy_seconds():
    """Processor seconds that all programs together have used since the start of the machine."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)


def _words(ops, known):
    """Words for the ops, given from the end to the source; the maps of a `Pipeline` are known by their place.

    Its first map parses, unless a filled cache has taken that one's place; an empty ``finish`` is optimized away.
    """
    words = [_WORDS.get(op, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", op).lower()) for op in ops]
    maps = [i for i, op in enumerate(ops) if op in _MAPS]
    for i in maps:
        parses = i == maps[-1] and "cache" not in words[i:]
        words[i] = ("parse" if parses else "finish") if known else "map"
    return [word + (" + batch" if op == "MapAndBatch" else "") for word, op in zip(words, ops, strict=True)]


def _numbered(words):
    """Number the words that occur more than once, counted from the source, which is the last."""
    counts, left = Counter(words), Counter(words)
    for i, word in enumerate(words):
        if counts[word] > 1:
            words[i] = f"{word} {left[word]}"
            left[word] -= 1
    return words
