"""How often does bt.compare err, and how often does it tell a true difference? Simulated, and counted on real sources.

Two alike take turns for four seconds, built anew each time, again and again. Of one such piece the first two looks of a
comparison are known (after 2 and 4 s), of four in a row all four (up to 16 s), as going on builds new instances too.
The same rounds with their logarithms moved to 1.25x, 1.5x or 3x stand for a true difference.

noise: the scatter of one visit; luck: how much instances differ beyond what the noise of their rounds explains.
false: two alike that were called faster or slower. told: the share of true differences that were called faster.
"""

import argparse
import math
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
from report import add_arguments, facts, finish, in_words, say, table
from scipy.stats import binomtest

import bigtrain_nb as bt
from bigtrain_nb.common.progress import Progress
from bigtrain_nb.measure.intervals import LUCK, ratio_interval
from bigtrain_nb.measure.results import Ratio
from bigtrain_nb.measure.rounds import INTERIM_CHECKS, LEAST_ROUNDS, Rounds

BATCH = 66
SECONDS = 4.0
TOGETHER = max(INTERIM_CHECKS)
"""Pieces that make up the longest comparison."""
TRUTHS = (1.25, 1.5, 3)
SIMULATED = {0.07: 40, 0.16: 8, 0.35: 4}
"""{noise of a visit: rounds in four seconds}: a step, a pipeline, one with buffers that fill slowly."""


def step():
    """Return a new step function: a dense net of its own is trained on one batch."""
    tf, keras = bt.tf, bt.tf.keras
    net = keras.Sequential([keras.Input((256,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(8)])
    net.compile("sgd", "mse")
    x, y = tf.random.normal([BATCH, 256]), tf.zeros([BATCH, 8])
    train = tf.function(lambda: net.train_step((x, y)))

    def one():
        train()
        return BATCH

    return one


def short_passes():
    """Return a new dataset whose passes take some milliseconds."""
    numbers = bt.tf.data.Dataset.range(20 * BATCH).batch(BATCH)
    return numbers.map(lambda n: bt.tf.sort(bt.tf.cast(n, bt.tf.float32) * 7 % 13))


def generator():
    """Return a new dataset that a function of Python fills."""

    def batches():
        numbers = np.random.default_rng(0)
        while True:
            yield np.sort(numbers.random((BATCH, 500)), axis=1)

    return bt.tf.data.Dataset.from_generator(batches, output_signature=bt.tf.TensorSpec([BATCH, 500])).repeat()


def pipeline(**settings):
    return bt.Pipeline(data=bt.photo_crops(), batch=BATCH, **settings).dataset()


SOURCES = {
    "training step": step,
    "short passes": short_passes,
    "generator": generator,
    "tuned pipeline": partial(pipeline, num_parallel_calls=bt.cores(), vectorize=True, prefetch=2),
    "cached pipeline": partial(pipeline, cache="memory", vectorize=True, prefetch=2),
}


def measured(build, pieces):
    """Return for each piece the logarithms of the rates of two alike, [rounds, 2]."""
    found = []
    for _ in range(pieces):
        rounds = Rounds({"a": build, "b": build}, SECONDS)
        with Progress(None) as told:
            rounds.build(told)
            while len(rounds.instances) < LEAST_ROUNDS or rounds.seconds < SECONDS:
                rounds.add(told, SECONDS)
        rounds.drop(["a", "b"])
        found.append(np.log([rounds.rates("a"), rounds.rates("b")]).T)
    return found


def simulated(noise, rounds, pieces, dice):
    """Return the same of imitated sources, whose noise has heavy tails and whose instances differ as `LUCK` says."""
    found = []
    for _ in range(pieces):
        luck = dice.normal(0, LUCK, 2)
        found.append(luck + noise * dice.standard_t(4, (rounds, 2)) / math.sqrt(2))
    return found


def verdict(pieces, truth, longest):
    """Return the verdict of the first clear look at these pieces, if one is a comparison of as much as ``longest``."""
    ratios = [math.log(truth) + piece[:, 0] - piece[:, 1] for piece in pieces]
    for times, error in INTERIM_CHECKS.items():
        if times > longest:
            break
        looked_at = ratios[: max(1, int(times))]
        if times < 1:
            looked_at = [ratios[0][: max(LEAST_ROUNDS, int(times * len(ratios[0])))]]
        instances = np.repeat(range(len(looked_at)), [len(piece) for piece in looked_at])
        *ends, _ = ratio_interval(np.concatenate(looked_at), instances, error)
        found = Ratio("a", "b", *map(math.exp, ends)).verdict
        if found != "unclear":
            return found
    return "unclear"


def row(name, pieces):
    """Return the line of the table for one source."""
    scatter = np.concatenate([piece - piece.mean(axis=0) for piece in pieces])
    freedom = len(scatter) - len(pieces)
    noise = (scatter.ravel() @ scatter.ravel() / 2 / freedom) ** 0.5
    apart = np.array([(piece[:, 0] - piece[:, 1]).mean() for piece in pieces])
    of_rounds = np.mean([2 * noise**2 / len(piece) for piece in pieces])
    luck = (max(0.0, apart.var(ddof=1) - of_rounds) / 2) ** 0.5 if len(pieces) > 1 else math.nan
    rounds = f"{np.median([len(piece) for piece in pieces]):.0f}"
    cells = [name, f"{100 * noise:.0f} %", f"{100 * luck:.0f} %", rounds]
    short = [[piece] for piece in pieces]
    long = [pieces[start : start + TOGETHER] for start in range(0, len(pieces) - TOGETHER + 1, TOGETHER)]
    for groups, longest in ((short, 1), (long, TOGETHER)):
        found = [verdict(group, 1.0, longest) for group in groups]
        cells.append(share(sum(each in ("faster", "slower") for each in found), len(found)))
    for truth in TRUTHS:
        told = []
        for groups, longest in ((short, 1), (long, TOGETHER)):
            found = [verdict(group, truth, longest) for group in groups]
            told.append(f"{100 * found.count('faster') / max(1, len(found)):.0f}")
        cells.append(f"{told[0]} ({told[1]}) %")
    return cells


def share(count, total):
    """Return "3 of 40 (2 to 20 %)" with the exact (Clopper-Pearson) 95 % interval."""
    if not total:
        return "none"
    interval = binomtest(count, total).proportion_ci()
    return f"{count} of {total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


@contextmanager
def busy_loop():
    """Another program that wants one core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="pieces of 4 s, for each source (default: 60)")
    parser.add_argument("--only", choices=SOURCES, nargs="*", default=SOURCES, help="sources; none: only simulated")
    parser.add_argument("--busy", action="store_true", help="beside a program that wants one core")
    add_arguments(parser)
    arguments = parser.parse_args()
    of_alike = ("false in 4 s", "false in 16 s")
    head = ("source", "noise", "luck", "rounds", *of_alike, *(f"{truth}x told in 4 s (16 s)" for truth in TRUTHS))
    dice = np.random.default_rng(0)
    rows = []
    for noise, rounds in SIMULATED.items():
        rows.append(row(f"simulated, {100 * noise:.0f} %", simulated(noise, rounds, 4000, dice)))
    all_pieces = {}
    with busy_loop() if arguments.busy else nullcontext():
        for kind in arguments.only:
            all_pieces[kind] = measured(SOURCES[kind], arguments.repeats)
            rows.append(row(kind, all_pieces[kind]))
            say(" | ".join(rows[-1]))
    about = facts()
    beside = " Beside a busy loop." if arguments.busy else ""
    text = (
        f"{in_words(about)} Instances of simulated sources differ by {100 * LUCK:.0f} %.{beside}\n\n{table(head, rows)}"
    )
    found = {kind: [piece.tolist() for piece in pieces] for kind, pieces in all_pieces.items()}
    finish(arguments, "honesty", text, {"facts": about, "found": found})


if __name__ == "__main__":
    main()
