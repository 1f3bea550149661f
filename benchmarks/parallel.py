"""Activation checkpointing, sharded state and weights: memory and time, compared with plans and PyTorch."""

import argparse
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median

import parallel_steps as steps
from parallel_steps import (
    BATCH,
    BOTH,
    CHUNKED,
    DEEP,
    FEW_TEXTS,
    FULLY,
    JOBS,
    LARGE,
    LONG,
    NETWORKS,
    PAIRS,
    RECOMPUTED,
    SHARDED,
    SMALL,
    STEPS,
    WHOLE,
    peers,
)
from report import add_arguments, facts, finish, in_words, paired_ratio, say, table
from training_workers import chiefs_answer

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import interval, number

MEMORY = Path(__file__).with_name("parallel_memory.py")
JOB = Path(__file__).with_name("parallel_steps.py")
MIB, MINUTES = 2**20, 15
PAIRED = 4
"""Factor on the rounds of two methods whose ratio is a target."""
ONE, REPLICAS, WORKERS = "1 replica", "2 replicas", "2 workers"
SHEET = (
    "where",
    "network",
    "way",
    "ms a step",
    "time of whole",
    "between steps, MiB",
    "peak, MiB",
    "of whole",
    "sent, MiB",
)
PROCESS = ("way", "built, MiB", "imported", "graph", "tensors", "rest", "peak, MiB")
PLANNED = "planned peak, MiB"
TORCH = ("where", "network", "ours", "theirs", "our time of theirs", "peak", "between steps")


def same_network():
    """Stop unless PyTorch's GPT has the same loss as ours with the same weights."""
    for name, settings in NETWORKS.items():
        model = steps.new_gpt(name)
        tokens, targets = steps.noise(settings.get("length", 128), 4)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(targets, model(tokens))
        theirs = peers.loss_of(model.get_weights(), tokens.numpy(), targets.numpy(), **settings)
        if not math.isclose(float(loss), theirs, rel_tol=1e-5):
            raise RuntimeError(f"{name}: a loss of {float(loss)}, and {theirs} in PyTorch: not the same network")


def one_replica(rounds, with_peers=True):
    alone = tf.distribute.get_strategy()
    ours = {way: partial(steps.start, DEEP, way, alone) for way in (WHOLE, RECOMPUTED)}
    theirs = peers.starts(peers.ALONE, NETWORKS[DEEP], BATCH, STEPS) if peers and with_peers else {}
    return steps.in_turn(ours, theirs, rounds)


def computed_again(rounds):
    """Return a section for each network with the savings and cost of recomputation on one replica."""
    alone = tf.distribute.get_strategy()
    sections = [(ONE, DEEP, one_replica(rounds), {})]
    for network in LONG:
        ways = (WHOLE, RECOMPUTED, CHUNKED, BOTH)
        ours = {way: partial(steps.start, network, way, alone, FEW_TEXTS) for way in ways}
        theirs = peers.starts(peers.ALONE, NETWORKS[network], FEW_TEXTS, STEPS) if peers else {}
        sections.append((ONE, network, steps.in_turn(ours, theirs, rounds), {}))
    return sections


def pairs(rounds):
    """Return the results of two methods alone: recomputation on one replica, sharded state on two workers."""
    found = {RECOMPUTED: one_replica(rounds, with_peers=False)}
    for job, (network, _) in PAIRS.items():
        found[network] = two_workers(job, rounds)["ways"]
    return found


def two_replicas(rounds):
    strategy = bt.mirrored(2)
    ours = {way: partial(steps.start, DEEP, way, strategy) for way in JOBS["deep"][1]}
    return steps.in_turn(ours, {}, rounds)


def two_workers(job, rounds):
    say(f"two workers: {job}")
    return chiefs_answer(JOB, 2, [job, rounds], {}, seconds=60 * MINUTES)


def planned(network, ways, **settings):
    """Return {way: plan} for the unmodified model and the recomputed one, if they are among ``ways``."""
    plans = {}
    for way in ways:
        if way in (WHOLE, RECOMPUTED):
            say(f"plan of {network}, {way} {settings}")
            build = partial(steps.new_gpt, network, way)
            plans[way] = bt.plan_step(build, BATCH, optimizer="adamw", **settings)
    return plans


def rows_of(where, network, found, plans):
    """Return rows of the sheet; the plan of one replica counts twice in a process with two."""
    replicas = 2 if where == REPLICAS else 1
    rows = []
    for way, one in found.items():
        ratios = ["", ""]
        if WHOLE in found and way != WHOLE:
            ratios = [interval(time_ratio(found, way, WHOLE)), times(found, way, WHOLE, "peak")]
        plan = plans.get(way)
        predicted = mib(replicas * tensors(plan)) if plan else ""
        milliseconds = number(1000 * median(one["seconds"]))
        sent = mib(median(one["sent"])) if where == WORKERS else ""
        measured = [milliseconds, ratios[0], mib(one["stays"]), mib(one["peak"]), ratios[1], sent]
        rows.append([where, network, way, *measured, predicted])
    return rows


def time_ratio(found, way, other):
    """Return the ratio of the seconds of two methods, from paired rounds."""
    return paired_ratio(way, other, found[way]["seconds"], found[other]["seconds"])


def times(found, way, other, what):
    return f"{found[way][what] / found[other][what]:.2f}x"


def mib(size):
    return number(size / MIB)


def tensors(plan):
    """Return the planned peak without Grappler's constants, which need a static batch size."""
    return plan.peak - plan.memory.parts.get("constants", 0)


def fresh_processes(ways, plans):
    """Return rows of the peak memory of entire processes."""
    rows = []
    for way in ways:
        say(f"a fresh process: {way}")
        peak = number(bt.peak_memory(steps.an_epoch, way=way))
        plan = plans.get(way)
        rows.append([way, peak, mib(tensors(plan) + plan.runtime) if plan else ""])
    return rows


def processes_of_replicas():
    """Return rows with the memory breakdown of processes of two replicas, MiB."""
    rows = []
    for way in (WHOLE, RECOMPUTED, SHARDED, FULLY):
        say(f"a fresh process of two replicas: {way}")
        large, small = [memory_of(way, network) for network in (LARGE, SMALL)]
        graph = small["peak"] - small["imported"]
        parts = [large["imported"], graph, large["tensors"]]
        rows.append([way, *map(mib, [large["built"], *parts, large["peak"] - sum(parts), large["peak"]])])
    return rows


def memory_of(way, network):
    command = [sys.executable, MEMORY, way, network]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60 * MINUTES)
    return json.loads(done.stdout.splitlines()[-1])


def at_most(name, value, limit):
    return [name, f"at most {limit}x", f"{value:.2f}x", "met" if value <= limit else "missed"]


def no_slower(name, ratio, limit):
    """Return a target for a ratio of times, met or missed only if its entire interval agrees."""
    verdict = "met" if ratio.high <= limit else "missed" if ratio.low > limit else "open"
    return [name, f"at most {limit}x", interval(ratio), verdict]


def targets(alone):
    """Return a row for each target from the results of `pairs`, in bytes and seconds."""
    one = alone[RECOMPUTED]
    less = one[RECOMPUTED]["peak"] / one[WHOLE]["peak"]
    rows = [
        at_most(f"{RECOMPUTED}: peak", less, 0.6),
        no_slower(f"{RECOMPUTED}: time", time_ratio(one, RECOMPUTED, WHOLE), 1.35),
    ]
    for network, _ in PAIRS.values():
        name, found = f"{SHARDED}, 2 workers, {network}", alone[network]
        rows.append(at_most(f"{name}: slots", found[SHARDED]["slots"] / found[WHOLE]["slots"], 0.55))
        rows.append(no_slower(f"{name}: time", time_ratio(found, SHARDED, WHOLE), 1.0))
    return rows


def beside_torch(sections):
    """Return rows that compare our methods with PyTorch's counterparts, where both were measured."""
    rows = []
    for where, network, found, _ in sections:
        for theirs, way in peers.LIKE_OURS.items():
            if theirs in found:
                ratio = interval(time_ratio(found, way, theirs))
                memory = [times(found, way, theirs, what) for what in ("peak", "stays")]
                rows.append([where, network, way, theirs, ratio, *memory])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help=f"of {STEPS} steps of each way (default: 6)")
    parser.add_argument("--only", choices=("again", "all"), help="measure only one of the two parts")
    add_arguments(parser)
    arguments = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # everything here is measured on CPUs
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"  # the default allocator counts only on CPUs with oneDNN
    bt.devices(2)
    tf.get_logger().setLevel("ERROR")  # it mistakes one function per method for retracing
    if peers:
        same_network()

    if arguments.only != "all":
        what_is_computed_again(arguments)
    if arguments.only != "again":
        what_does_not_fit(arguments)


def what_is_computed_again(arguments):
    sections = computed_again(PAIRED * arguments.rounds)
    rows = [row for section in sections for row in rows_of(*section)]
    about = facts(("torch",))
    text = f"{in_words(about)} {PAIRED * arguments.rounds} rounds of {STEPS} steps."
    found = {network: ways for _, network, ways, _ in sections}
    sheet = [row[: len(SHEET)] for row in rows]
    finish(arguments, "again", f"{text}\n\n{table(SHEET, sheet)}", {"facts": about, "rounds": found})


def what_does_not_fit(arguments):
    rounds = arguments.rounds
    alone = pairs(PAIRED * rounds)
    one = one_replica(rounds)
    replicas = two_replicas(rounds)
    workers = {job: two_workers(job, rounds) for job in JOBS}

    plans = planned(DEEP, one)
    sections = [(ONE, DEEP, one, plans), (REPLICAS, DEEP, replicas, planned(DEEP, replicas, devices=2))]
    for job, (network, ways) in JOBS.items():
        in_workers = planned(network, ways, devices=2, link=workers[job]["link"])
        sections.append((WORKERS, network, workers[job]["ways"], in_workers))

    sheet = [row for section in sections for row in rows_of(*section)]
    reached = targets(alone)
    tables = {
        "Targets": (("what", "target", "measured", "verdict"), reached),
        "All on one sheet": ((*SHEET, PLANNED), sheet),
        f"Whole processes of two replicas, {LARGE}": (PROCESS, processes_of_replicas()),
        "Whole processes": (("way", "peak, MiB", "planned, MiB"), fresh_processes(one, plans)),
    }
    if peers:
        tables["Beside PyTorch"] = (TORCH, beside_torch(sections))
    about = facts(("torch",))
    parts = [f"**{name}**\n\n{table(*contents)}" for name, contents in tables.items()]
    if not peers:
        parts.append("**Beside PyTorch**: not measured, for PyTorch is not installed.")
    text = f"{in_words(about)} {rounds} rounds of {STEPS} steps, {BATCH} examples a step."
    found = {"pairs": alone, "one": one, "replicas": replicas, "workers": workers}
    finish(arguments, "parallel", "\n\n".join([text, *parts]), {"facts": about, "tables": tables, "rounds": found})


if __name__ == "__main__":
    main()
