"""Workers on this machine: what launching costs, how fast they train, and how fast they add up their gradients."""

import argparse
import io
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from report import add_arguments, facts, finish, in_words, paired_ratio, say, table, verdict
from training_workers import BATCH, chiefs_answer
from workers_job import NETWORKS, SIZES

import bigtrain_nb as bt
from bigtrain_nb.common.words import interval, number

JOB = Path(__file__).with_name("workers_job.py")
WAYS = [("one process", 1), ("bt.Model", 1), ("tf-keras", 1), ("bt.Model", 2), ("tf-keras", 2)]
STARTS = {"nothing": "pass", "TensorFlow": "import tensorflow"}
COUNTS = (1, 2, 4)
LAUNCH, LINE, FAILURE, SHARE, AS_FAST = 1.0, 0.5, 10.0, 0.5, 0.98
"""The targets: seconds to launch, for a line and for the end after a failure; share of the socket; rate."""
LARGE = 2**24
REDUCE_HEAD = ("message", "ms", "MiB/s", "socket, MiB/s", "share of the socket", "core ms, its and the socket's")
LINES = "import time\nfor _ in range(100):\n    print(time.time()); time.sleep(0.02)\n"
FAILS = f"""
import json, os, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    time.sleep(0.5)
    raise ValueError(time.time())
{LINES.replace("100", "10**6")}
"""


@dataclass
class Found:
    """What was measured: rows of the tables, and every round for ``--json``."""

    targets: list = field(default_factory=list)
    training: list = field(default_factory=list)
    reduces: list = field(default_factory=list)
    starts: list = field(default_factory=list)
    rounds: dict = field(default_factory=dict)

    def at_most(self, name, values, limit):
        """Add a target for the median of some seconds."""
        measured = f"{number(median(values))} s, worst {number(max(values))}"
        self.targets.append([name, f"at most {limit} s", measured, "met" if median(values) <= limit else "missed"])

    def at_least(self, name, ratio, limit):
        """Add a target for a ratio, which is met or missed when the whole interval says so."""
        self.targets.append([name, f"at least {limit}x", interval(ratio), verdict(ratio, limit)])


def launching(found, repeats):
    """Compare `bt.run_workers` with processes started by hand, from the start to the end of the last process."""
    for name, code in STARTS.items():
        for count in COUNTS:
            say(f"start of {count} with {name}")
            seconds = [[timed(start, code, count) for start in (by_hand, by_job)] for _ in range(repeats)]
            found.rounds[f"start of {count} with {name}"] = seconds
            more = [job - hand for hand, job in seconds]
            hand, job = (median(column) for column in zip(*seconds, strict=True))
            spread = f"{1000 * min(more):+.0f} to {1000 * max(more):+.0f}"
            found.starts.append([name, count, number(hand), number(job), f"{1000 * median(more):+.0f} ({spread})"])
            found.at_most(f"launch of {count} that import {name}, over bare processes", more, LAUNCH)


def by_hand(code, count):
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(count)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"a process of {code!r} failed")


def by_job(code, count):
    job = bt.run_workers(code, count)
    if any(job.wait(show=False)):
        raise RuntimeError(f"{job!r}\n{job.logs(0)}")


def timed(work, *arguments):
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


class Clock(io.StringIO):
    """Keeps what is printed, each time with the moment."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def write(self, text):
        self.seen += [(line, time.time()) for line in text.splitlines() if line]
        return len(text)


def shown(code):
    """Return what `wait` prints of two workers, with the moments, and the moment of its end."""
    clock = Clock()
    with redirect_stdout(clock):
        bt.run_workers(code).wait()
    return clock.seen, time.time()


def lines(found, repeats):
    """Measure how late a line is shown, and how late the end is after a failure."""
    say("lines and failures")
    seen, _ = shown(LINES)
    delays = [moment - float(line.split(" | ")[1]) for line, moment in seen]
    found.at_most("a line, from the worker's print to that of `wait`", delays, LINE)
    tracebacks, ends = [], []
    for _ in range(repeats):
        seen, end = shown(FAILS)
        (raised,) = [(line, moment) for line, moment in seen if "ValueError: " in line]
        began = float(raised[0].split("ValueError: ")[1])
        tracebacks.append(raised[1] - began)
        ends.append(end - began)
    found.at_most("a failing worker's traceback, from the error to the print of `wait`", tracebacks, LINE)
    found.at_most("the end of the job after a failure, the others sleeping", ends, FAILURE)
    found.rounds["lines and failures"] = {"lines": delays, "tracebacks": tracebacks, "ends": ends}


def training(found, repeats):
    """Train in turn in all ways, every second round in reverse order; each round in fresh processes."""
    ways = [way for way in WAYS if way[0] != "tf-keras" or find_spec("tf_keras")]
    if len(ways) < len(WAYS):
        say('tf-keras is missing, and its rows with it: pip install -e ".[peers]" adds it.')
    rounds = {way: [] for way in ways}
    for repeat in range(repeats):
        for way, count in reversed(ways) if repeat % 2 else ways:
            say(f"training, round {repeat + 1} of {repeats}: {way}, workers: {count}")
            env = {"TF_USE_LEGACY_KERAS": int(way == "tf-keras")}
            rounds[way, count].append(chiefs_answer(JOB, count, ["train", way], env))
    found.rounds["training"] = [[*way, seconds] for way, seconds in rounds.items()]
    for place, network in enumerate(NETWORKS):
        seconds = {way: [one[place] for one in answers] for way, answers in rounds.items()}
        for (way, count), steps in seconds.items():
            speed = paired_ratio(f"{way}, {count}", "one process", seconds["one process", 1], steps)
            rate = [number(1000 * median(steps)), number(BATCH / median(steps))]
            compared = "" if way == "one process" else interval(speed)
            found.training.append([network, way, "none" if way == "one process" else count, *rate, compared])
        for count in (1, 2) if ("tf-keras", 1) in seconds else ():
            speed = paired_ratio("bt.Model", "tf-keras", seconds["tf-keras", count], seconds["bt.Model", count])
            found.at_least(f"{network}, workers: {count}: the rate of fit against that of tf-keras", speed, AS_FAST)


def reducing(found, rounds):
    """Compare an all-reduce of two workers with a socket that moves the same bytes."""
    say(f"all-reduce and socket, {rounds} rounds")
    answer = chiefs_answer(JOB, 2, ["reduce", rounds], {})
    found.rounds["all-reduce and socket"] = dict(zip(SIZES, answer, strict=True))
    for size, both in zip(SIZES, answer, strict=True):
        (reduces, reduce_cores), (sockets, socket_cores) = (zip(*times, strict=True) for times in both)
        share = paired_ratio("all-reduce", "socket", sockets, reduces)
        rates = [number(size / 2**20 / median(seconds)) for seconds in (reduces, sockets)]
        cores = [number(1000 * median(seconds)) for seconds in (reduce_cores, socket_cores)]
        row = [written(size), number(1000 * median(reduces)), *rates, interval(share), " and ".join(cores)]
        found.reduces.append(row)
        if size >= LARGE:
            found.at_least(f"all-reduce of {written(size)}: share of the socket's rate", share, SHARE)


def written(size):
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=6, help="rounds of starting and of training (default: 6)")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each size of all-reduce (default: 12)")
    add_arguments(parser)
    arguments = parser.parse_args()
    found = Found()
    launching(found, arguments.repeats)
    lines(found, arguments.repeats)
    reducing(found, arguments.rounds)
    training(found, arguments.repeats)
    tables = {
        "Targets": (("what", "target", "measured", "verdict"), found.targets),
        "Start": (("each imports", "workers", "by hand, s", "bt.run_workers, s", "more, ms"), found.starts),
        "All-reduce": (REDUCE_HEAD, found.reduces),
        "Training": (("network", "way", "workers", "ms a step", "examples/s", "of one process"), found.training),
    }
    about = facts(("tf-keras",))
    parts = [f"**{name}**\n\n{table(*one)}" for name, one in tables.items()]
    text = f"{in_words(about)} {arguments.repeats} rounds, {arguments.rounds} of each size of all-reduce."
    fields = {"facts": about, "tables": tables, "rounds": found.rounds}
    finish(arguments, "workers", "\n\n".join([text, *parts]), fields)


if __name__ == "__main__":
    main()
