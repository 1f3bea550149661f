"""Training with bt.Model, stock Keras and hand-written loops: speed and memory, on one device and two."""

import argparse
import tempfile
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import training_workers
from report import add_arguments, compare_in, facts, finish, in_words, paired_ratio, say, table, verdict
from training_steps import AHEAD, BYTES, updates, write_examples

import bigtrain_nb as bt
from bigtrain_nb.common.words import interval, number

BATCH = {"conv net": 128, "GPT": 32}
MEMORY_BATCH = {"conv net": 512, "GPT": 128}
"""Large enough that activations, not the process, dominate the memory."""
MICRO_BATCHES = (4, 16)
RIVALS = {
    "Keras": "Keras' accumulation",
    "Keras, one call": "Keras' accumulation with K steps per execution",
    "by hand": "a loop by hand",
}
AS_FAST, TWICE, MEMORY = 0.98, 2.0, 1.0
"""The targets: a rate at least 0.98 or 2 times the other's; memory at most the other's."""


@dataclass
class Found:
    """The results: rows of the three tables, and every round for ``--json``."""

    targets: list = field(default_factory=list)
    figures: list = field(default_factory=list)
    workers: list = field(default_factory=list)
    rounds: dict = field(default_factory=dict)

    def compare(self, name, ways, seconds):
        say(f"{name}: {len(ways)} ways, {seconds:.0f} s")
        comparison = compare_in(seconds, ways)
        self.rounds[name] = comparison.to_dict()
        return comparison

    def faster(self, name, ratio, target):
        """Add a target for a ratio of rates, met or missed only if its entire interval agrees."""
        self.targets.append([name, f"rate at least {target}x", interval(ratio), verdict(ratio, target)])

    def smaller(self, name, ours, theirs):
        ratio = ours / theirs
        met = "met" if ratio <= MEMORY else "missed"
        self.targets.append([name, f"memory at most {MEMORY}x", f"{ratio:.2f}x", met])


def same_step(found, folder, seconds, repeats):
    """Compare a step without micro-batches with stock Keras."""
    for network, batch in BATCH.items():
        for clip in (None, 1.0):
            name = f"{network}, clipped" if clip else network
            memory = {} if clip else {way: peak(folder, network, way, 1, repeats) for way in ("bt.Model", "Keras")}
            step = partial(updates, folder, network, batch=batch, clip=clip)
            ways = {way: partial(step, way) for way in ("bt.Model", "Keras")}
            comparison = found.compare(f"{name}: K = 1 against stock Keras", ways, seconds)
            found.faster(f"{name}: K = 1 against stock Keras", comparison.ratio(*ways), AS_FAST)
            for way, result in comparison.results.items():
                found.figures.append([name, 1, way, number(result.median), written(memory.get(way))])


def accumulation(found, folder, seconds, repeats):
    """Compare micro-batches with Keras' accumulation and a loop by hand."""
    for network, batch in BATCH.items():
        cases = [(way, k) for k in MICRO_BATCHES for way in ("bt.Model", *RIVALS)]
        memory = {(way, k): peak(folder, network, way, k, repeats) for way, k in cases if way != "Keras, one call"}
        step = partial(updates, folder, network, batch=batch)
        ways = {named(way, k): partial(step, way, micro_batches=k) for way, k in cases}
        comparison = found.compare(f"{network}: accumulation", ways, 4 * seconds)
        for way, k in cases:
            rate = number(comparison.results[named(way, k)].median)
            found.figures.append([network, k, RIVALS.get(way, way), rate, written(memory.get((way, k)))])
        for k in MICRO_BATCHES:
            for way, words in RIVALS.items():
                ratio = comparison.ratio(named("bt.Model", k), named(way, k))
                found.faster(f"{network}: K = {k} against {words}", ratio, AS_FAST)
            ours, theirs = memory["bt.Model", k], memory["Keras", k]
            found.smaller(f"{network}: K = {k} against {RIVALS['Keras']}", ours, theirs)


def memory_of_inputs(found, folder, repeats):
    """Measure the conv net's memory with batches of a quarter of the bytes, and with prefetched batches."""
    batch = MEMORY_BATCH["conv net"]
    cases = [(BYTES, k) for k in MICRO_BATCHES] + [(AHEAD, MICRO_BATCHES[-1])]
    for network, k in cases:
        ours = peak(folder, network, "bt.Model", k, repeats, batch)
        theirs = peak(folder, network, "Keras", k, repeats, batch)
        found.figures.append([network, k, "bt.Model", "", written(ours)])
        found.figures.append([network, k, RIVALS["Keras"], "", written(theirs)])
        if network == BYTES:
            found.smaller(f"{network}: K = {k} against {RIVALS['Keras']}", ours, theirs)


def peak(folder, network, way, micro_batches, repeats, batch=None):
    """Return the median over fresh processes of the peak memory of three updates, in MiB."""
    say(f"memory of {network}, {way}, K = {micro_batches}")
    arguments = {"folder": folder, "network": network, "way": way, "micro_batches": micro_batches}
    batch = batch or MEMORY_BATCH[network]
    return median(bt.peak_memory(three_updates, batch=batch, **arguments) for _ in range(repeats))


def three_updates(**settings):
    from training_steps import updates

    update = updates(**settings)
    for _ in range(3):
        update()


def workers(found, repeats):
    """Run pairs of workers, interleaved, every second round in reverse order."""
    jobs = list(training_workers.JOBS)
    rounds = {job: [] for job in jobs}
    for repeat in range(repeats):
        for job in reversed(jobs) if repeat % 2 else jobs:
            say(f"two workers, round {repeat + 1} of {repeats}: {job}")
            rounds[job].append(training_workers.rates(job))
    split = training_workers.MICRO_BATCHES
    ours, by_hand = ([one["wide", split] for one in rounds[job]] for job in ("bt.Model", "by hand"))
    ratio = paired_ratio("bt.Model", "by hand", ours, by_hand)
    found.faster(f"two workers, wide: K = {split} against an all-reduce per micro-batch", ratio, TWICE)
    for job, rates in rounds.items():
        found.rounds[f"two workers, {job}"] = [list(one.values()) for one in rates]
        for network, k in training_workers.JOBS[job]:
            found.workers.append([network, k, job, number(median(one[network, k] for one in rates))])


def named(way, micro_batches):
    return f"{way}, K = {micro_batches}"


def written(mib):
    return "" if mib is None else number(mib)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for a comparison of two on one device (default: 60)")
    parser.add_argument("--repeats", type=int, default=6, help="rounds of workers; half for memory (default: 6)")
    add_arguments(parser)
    arguments = parser.parse_args()
    bt.tf.get_logger().setLevel("ERROR")  # it mistakes one function per contender for retracing
    found, memory_runs = Found(), max(1, arguments.repeats // 2)
    with tempfile.TemporaryDirectory() as folder:
        write_examples(folder)
        same_step(found, folder, arguments.seconds, memory_runs)
        accumulation(found, folder, arguments.seconds, memory_runs)
        memory_of_inputs(found, folder, memory_runs)
    workers(found, arguments.repeats)
    tables = {
        "Targets": (("bt.Model", "target", "measured", "verdict"), found.targets),
        "One device": (("network", "K", "way", "examples/s", "peak MiB"), found.figures),
        "Two workers": (("network", "K", "way", "examples/s"), found.workers),
    }
    about = facts()
    parts = [f"**{name}**\n\n{table(*one)}" for name, one in tables.items() if one[1]]
    text = f"{in_words(about)} {arguments.seconds:.0f} s for two ways, {arguments.repeats} rounds of workers."
    fields = {"facts": about, "tables": tables, "rounds": found.rounds}
    finish(arguments, "training", "\n\n".join([text, *parts]), fields)


if __name__ == "__main__":
    main()
