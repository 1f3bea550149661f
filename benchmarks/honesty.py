"""How often do bt.compare and bt.race err, and how large is the luck of an instance? Counted on real sources.

luck: several processes with several instances each take turns. How much do instances of one process differ, how much
    processes, beyond the noise of a single visit?
alike: the same source twice. How many intervals miss 1? (Not verdicts: those forgive 2 %.)
different: both sides make batches of 66 examples, of which on one side only 60 count (or 64). It works 10 % (3 %) more
    for each example that counts, whatever binds the source, so the true ratio is 1.10 (1.03) by construction.
steady: the same for what is steady once it is warm, for longer: a step function three times as long, a cached pipeline
    six times, as each of its instances first fills its cache.
advice: where the verdict is "unclear", it says how many seconds more would tell. Is it clear after that? Counted
    hundreds of times, on the noise of one long comparison of a source with itself. Its blocks are moved to the true
    ratio, and pieces of it, from random places, make up the blocks of a comparison that goes on.
races: 24 settings of a pipeline race again and again. The truth is one comparison of all of them, six times as long.

Each result is written to a file as it comes. A run that was stopped goes on there; --again begins anew.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np
from report import add_arguments, facts, finish, in_words, say, table
from scipy.stats import binomtest

import bigtrain_nb as bt
from bigtrain_nb.measure.instance import Budget, Instance, let_rest
from bigtrain_nb.measure.intervals import mean_interval
from bigtrain_nb.measure.race import LOOKS
from bigtrain_nb.measure.results import PRACTICALLY_SAME, Comparison, Result

PARTS = ("luck", "alike", "different", "steady", "advice", "races")
BATCH = 66
USEFUL = {"true 10 %": 60, "true 3 %": 64}
STEADY = {"training step": 3, "cached pipeline": 6}
"""So many times as long as the others."""
TRUE_RATIOS = {"true 0 %": 66, "true 5 %": 63, "true 10 %": 60}
RECORD = 60
"""Times as long as the others: the comparison that is replayed."""
REPLAYS = 400
"""For each true ratio and first look."""
PIECE = 20
"""Blocks that stay together, as one may resemble the next."""
FIRST_LOOKS = (1, 3)
"""Times as long as the others, before the advice is asked for."""
CHOICES = {
    "cycle_length": [1, 2],
    "num_parallel_calls": [1, 2, "AUTOTUNE"],
    "vectorize": [False, True],
    "prefetch": [0, 2],
}
PROCESSES, INSTANCES, VISITS = 4, 3, 8
VISIT_SECONDS = 0.25


def step(counted):
    """Return a new step function: a dense net of its own is trained on one batch."""
    tf, keras = bt.tf, bt.tf.keras
    net = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(8)])
    net.compile("sgd", "mse")
    x, y = tf.random.normal([BATCH, 256]), tf.zeros([BATCH, 8])
    train = tf.function(lambda: net.train_step((x, y)))

    def one():
        for _ in range(8):
            train()
        return 8 * counted

    return one


def short_passes(counted):
    """Return a new dataset whose passes take some milliseconds."""
    numbers = bt.tf.data.Dataset.range(20 * BATCH).batch(BATCH)
    return numbers.map(lambda n: bt.tf.sort(bt.tf.cast(n, bt.tf.float32) * 7 % 13)[:counted])


def pipeline(counted, **settings):
    """Return the batches of a new `Pipeline` as labels, of which the first ``counted`` count."""
    data = bt.photo_crops()
    return bt.Pipeline(data=data, batch=BATCH, **settings).dataset().map(lambda images, labels: labels[:counted])


SOURCES = {
    "training step": step,
    "short passes": short_passes,
    "cached pipeline": partial(pipeline, cache="memory", vectorize=True, prefetch=2),
    "tuned pipeline": partial(pipeline, num_parallel_calls=bt.cores(), vectorize=True, prefetch=2),
    "one stage after the other": partial(pipeline, rewrites=False),
}


class Store:
    """Results, a line of JSON each, written as they come; those that are there already are not measured again."""

    def __init__(self, path, again):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if again or not path.exists():
            path.write_text("")
        self.found = [json.loads(line) for line in path.read_text().splitlines()]

    def of(self, part, kind=None):
        return [each for each in self.found if each["part"] == part and kind in (None, each["kind"])]

    def add(self, part, kind, fields):
        found = {"part": part, "kind": kind, **fields}
        self.found.append(found)
        with self.path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        say(f"{part}, {kind}, {len(self.of(part, kind))}: {json.dumps(fields)[:120]}")


def fields_of(comparison):
    ratio = comparison.ratio("a", "b")
    return {
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": ratio.verdict,
        "blocks": len(comparison.results["a"].rounds),
        "seconds_more": ratio.seconds_more,
        "notes": list(comparison.notes),
    }


def compared(build, counted, seconds):
    return bt.compare({"a": partial(build, BATCH), "b": partial(build, counted)}, seconds=seconds)


def measure_alike(store, repeats, seconds):
    for repeat in range(repeats):
        for kind, build in SOURCES.items():
            if len(store.of("alike", kind)) <= repeat:
                store.add("alike", kind, fields_of(compared(build, BATCH, seconds)))


def measure_different(store, repeats, seconds, kinds):
    for repeat in range(repeats):
        for kind in kinds:
            for truth, counted in USEFUL.items():
                name = f"{kind}: {truth}, {seconds:.0f} s"
                if len(store.of("different", name)) <= repeat:
                    store.add("different", name, fields_of(compared(SOURCES[kind], counted, seconds)))


def measure_advice(store, seconds):
    """Only the record is written to the file: its replays are the same each time."""
    for kind in STEADY:
        recorded = f"{kind}, {RECORD * seconds:.0f} s"
        if not store.of("record", recorded):
            comparison = compared(SOURCES[kind], BATCH, RECORD * seconds)
            logs, block_seconds = comparison.log_ratios("a", "b"), comparison.block_seconds
            store.add(
                "record", recorded, {"block_seconds": block_seconds, "notes": list(comparison.notes), "logs": logs}
            )
        [record] = store.of("record", recorded)
        for truth, counted in TRUE_RATIOS.items():
            enough = enough_seconds(record, math.log(BATCH / counted))
            for times in FIRST_LOOKS:
                name = f"{kind}: {truth}, {times * seconds:.0f} s"
                series = blocks_like(record["logs"], math.log(BATCH / counted), random.Random(name))
                for _ in range(REPLAYS):
                    replayed = replay(series, record["block_seconds"], times * seconds)
                    store.found.append({"part": "replay", "kind": name, "enough": enough, **replayed})


def enough_seconds(record, truth):
    """Return after how many seconds, up to a fifth too many, eight of ten comparisons are clear at their second look.

    They have as many blocks from the start, as if somebody had known how many are needed.
    """
    series = blocks_like(record["logs"], truth, random.Random(0))
    blocks, clear = 3, 0
    while clear < 0.8 * REPLAYS:
        blocks = math.ceil(1.2 * blocks)
        looks = (replayed_look(islice(series, blocks), record["block_seconds"], looks=2) for _ in range(REPLAYS))
        clear = sum(look["verdict"] != "unclear" for look in looks)
    return blocks * record["block_seconds"]


def blocks_like(logs, truth, dice):
    """Yield logarithms of a ratio for ever: pieces of ``logs`` around their mean, moved to ``truth``."""
    middle = mean(logs)
    while True:
        start = dice.randrange(len(logs))
        for each in (logs + logs)[start : start + PIECE]:
            yield each - middle + truth


def replay(series, block_seconds, seconds):
    """Return the fields of a comparison of so many seconds, and of that which followed its advice, or None."""
    logs = list(islice(series, int(seconds / block_seconds)))
    first, then = replayed_look(logs, block_seconds, looks=1), None
    if first["seconds_more"] and first["low"] > 0:  # with no interval, the advice is to build five instances
        logs += islice(series, max(1, int(first["seconds_more"] / block_seconds)))
        then = replayed_look(logs, block_seconds, looks=2)
    return {"first": first, "then": then}


def replayed_look(logs, block_seconds, looks):
    """Return the fields of the comparison that has these logarithms of a ratio."""
    rates = tuple(map(math.exp, logs))
    results = {
        "a": Result("a", rates, "examples/s", 0, 0, 0),
        "b": Result("b", (1.0,) * len(rates), "examples/s", 0, 0, 0),
    }
    return fields_of(Comparison(results, looks, block_seconds))


def measure_races(store, repeats, seconds):
    build = partial(bt.Pipeline, data=bt.photo_crops(), batch=64, rewrites=False)
    if not store.of("races", "truth"):
        found = bt.race(build, seconds=seconds, **CHOICES)
        factories = {name: partial(build, **chosen) for name, chosen in found.settings.items()}
        truth = bt.compare(factories, seconds=6 * seconds)
        middles = {name: result.median for name, result in truth.results.items()}
        store.add("races", "truth", {"best": max(middles, key=middles.get), "rates": middles})
    while len(store.of("races", "race")) < repeats:
        began = time.perf_counter()
        found = bt.race(build, seconds=seconds, **CHOICES)
        rounds = sum(len(result.rounds) for result in found.results.values())
        share = rounds / len(found.results) / LOOKS[-1]
        took = time.perf_counter() - began
        store.add("races", "race", {"still_in": found.still_in, "share": share, "seconds": took})


def measure_luck(store, repeats, seconds):
    """``seconds`` does not matter here: each visit takes a quarter of a second."""
    for repeat in range(max(1, repeats // 20)):
        for kind in SOURCES:
            if len(store.of("luck", kind)) <= repeat:
                store.add("luck", kind, {"logs": rates_of_processes(kind).tolist()})


def rates_of_processes(kind):
    """Return logarithms of rates [visits, processes, instances]: all are alive, and visited in a random order."""
    command = [sys.executable, __file__, "--serve", kind]
    processes = []
    try:
        for _ in range(PROCESSES):
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            processes[-1].stdout.readline()  # it is ready
        logs = np.zeros([VISITS, PROCESSES, INSTANCES])
        places = [(process, number) for process in range(PROCESSES) for number in range(INSTANCES)]
        for visit in range(VISITS):
            for process, number in random.sample(places, len(places)):
                processes[process].stdin.write(f"{number}\n")
                processes[process].stdin.flush()
                logs[visit, process, number] = math.log(float(processes[process].stdout.readline()))
        return logs
    finally:
        for process in processes:
            process.stdin.close()
            process.wait(timeout=30)


def serve(kind):
    """Answer each number on standard input by the rate of that instance."""
    budget = Budget(3600, None)
    instances = [Instance(SOURCES[kind](BATCH), kind, budget) for _ in range(INSTANCES)]
    for instance in instances:
        instance.warm_up(5.0, is_pass_awaited=True)
    let_rest(budget, 1.0)
    print("ready", flush=True)
    for line in sys.stdin:
        instance = instances[int(line)]
        instance.pull_for(VISIT_SECONDS / 4)
        examples, took = instance.pull_for(VISIT_SECONDS)
        print(examples / took, flush=True)
        let_rest(budget, 0.5)


def luck_of(logs):
    """Return the standard deviations of instances, of processes, and of a visit: the parts of a nested design.

    Each visit is first freed of what all had in common, the machine's speed then. What a mean of visits (of instances)
    owes to their noise is taken off its variance (analysis of variance; H. Scheffé, 1959, section 7.3).
    """
    logs = np.asarray(logs) - np.mean(logs, axis=(1, 2), keepdims=True)
    visits, _, instances = logs.shape
    noise = logs.var(axis=0, ddof=1).mean()
    of_instances = logs.mean(axis=0)
    between_instances = max(0.0, of_instances.var(axis=1, ddof=1).mean() - noise / visits)
    of_processes = of_instances.mean(axis=1)
    taken_off = between_instances / instances + noise / visits / instances
    between_processes = max(0.0, of_processes.var(ddof=1) - taken_off)
    return [math.sqrt(part) for part in (between_instances, between_processes, noise)]


def share(found, wanted):
    """Return "3 of 40 (2 to 20 %)" with the exact (Clopper-Pearson) 95 % interval."""
    count, total = sum(map(bool, wanted)), len(found)
    interval = binomtest(count, total).proportion_ci()
    return f"{count} of {total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def verdicts(found):
    words = ("faster", "slower", "same", "unclear")
    return "/".join(str(sum(each["verdict"] == word for each in found)) for word in words)


def half_width(found):
    widths = [(each["high"] / each["low"] - 1) / 2 for each in found if each["low"] > 0]
    return f"{100 * median(widths):.1f} %" if widths else "none"


def luck_table(store):
    head = ("source", "luck of an instance", "luck of a process", f"noise of a visit of {VISIT_SECONDS} s")
    rows = []
    for kind in SOURCES:
        parts = [luck_of(each["logs"]) for each in store.of("luck", kind)]
        if parts:
            rows.append([kind, *(f"{100 * mean(part):.1f} %" for part in zip(*parts, strict=True))])
    return head, rows


def alike_table(store):
    head = ("source, twice", "intervals that miss 1", "faster/slower/same/unclear", "half width", "blocks")
    rows = []
    for kind in (*SOURCES, None):
        found = store.of("alike", kind)
        if found:
            missed = [not each["low"] <= 1 <= each["high"] for each in found]
            blocks = f"{median(each['blocks'] for each in found):.0f}"
            rows.append([kind or "all", share(found, missed), verdicts(found), half_width(found), blocks])
    return head, rows


def different_table(store):
    head = ("source", "seen", "faster/slower/same/unclear", "its measured ratio", "half width", "blocks")
    rows = []
    for kind in sorted({each["kind"] for each in store.of("different")}):
        found = store.of("different", kind)
        seen = share(found, [each["verdict"] == "faster" for each in found])
        ratio = f"{median(each['ratio'] for each in found):.3f}"
        blocks = f"{median(each['blocks'] for each in found):.0f}"
        rows.append([kind, seen, verdicts(found), ratio, half_width(found), blocks])
    return head, rows


def record_table(store):
    head = ("record", "blocks", "a block takes", "its ratio to itself, 95 % interval", "scatter of a block's ratio")
    rows = []
    for record in store.of("record"):
        logs = record["logs"]
        _, low, high = mean_interval(logs)
        interval = f"{math.exp(low):.3f} to {math.exp(high):.3f}"
        rows.append(
            [record["kind"], len(logs), f"{record['block_seconds']:.1f} s", interval, f"{100 * stdev(logs):.0f} %"]
        )
    return head, rows


def advice_table(store):
    head = ("source", "clear at once", "told for how long", "clear after that", "told, median", "8 of 10 need")
    rows = []
    for kind in dict.fromkeys(each["kind"] for each in store.of("replay")):
        found = store.of("replay", kind)
        told = [each for each in found if each["then"]]
        needed = f"{found[0]['enough']:.0f} s"
        at_once = share(found, [each["first"]["verdict"] != "unclear" for each in found])
        if told:
            after = share(told, [each["then"]["verdict"] != "unclear" for each in told])
            seconds = f"{median(each['first']['seconds_more'] for each in told):.0f} s"
            rows.append([kind, at_once, str(len(told)), after, seconds, needed])
        else:
            rows.append([kind, at_once, "0", "", "", needed])
    return head, rows


def race_table(store):
    head = ("settings", "the true best is in the final set", "finalists", f"rounds, of {LOOKS[-1]} for each", "seconds")
    found = store.of("races", "race")
    if not found:
        return head, []
    [truth] = store.of("races", "truth")
    kept = share(found, [truth["best"] in each["still_in"] for each in found])
    finalists = f"{median(len(each['still_in']) for each in found):.0f}"
    shares = f"{100 * median(each['share'] for each in found):.0f} %"
    seconds = f"{median(each['seconds'] for each in found):.0f}"
    return head, [[str(len(truth["rates"])), kept, finalists, shares, seconds]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--repeats", type=int, default=60, help="alike, for each of five sources (default: 60)")
    parser.add_argument("--seconds", type=float, default=10, help="for each comparison (default: 10)")
    parser.add_argument("--races", type=int, default=20, help="of 24 settings (default: 20)")
    parser.add_argument("--file", type=Path, default=Path("build/honesty.jsonl"), help="where results are kept")
    parser.add_argument("--again", action="store_true", help="begin anew, without the results in the file")
    parser.add_argument("--serve", choices=SOURCES, help=argparse.SUPPRESS)
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    store = Store(arguments.file, arguments.again)
    repeats, seconds = arguments.repeats, arguments.seconds
    if "luck" in arguments.only:
        measure_luck(store, repeats, seconds)
    if "alike" in arguments.only:
        measure_alike(store, repeats, seconds)
    if "different" in arguments.only:
        measure_different(store, max(1, repeats // 3), seconds, SOURCES)
    if "steady" in arguments.only:
        for kind, times in STEADY.items():
            measure_different(store, max(1, repeats // 3), times * seconds, [kind])
    if "advice" in arguments.only:
        measure_advice(store, seconds)
    if "races" in arguments.only:
        measure_races(store, arguments.races, 12 * seconds)
    about = facts()
    same = f"{100 * PRACTICALLY_SAME:.0f} %"
    text = f"{in_words(about)} {seconds:.0f} s a comparison, {12 * seconds:.0f} s a race at most; same within {same}."
    for made in (luck_table, alike_table, different_table, record_table, advice_table, race_table):
        head, rows = made(store)
        if rows:
            text += f"\n\n{table(head, rows)}"
    finish(arguments, "honesty", text, {"facts": about, "found": store.found})


if __name__ == "__main__":
    main()
