"""How often does bt.compare err, and how often does it detect a true difference? On simulated and real sources.

Two identical sources are interleaved for four seconds, each time with new instances. One piece gives the
first two interim checks of a comparison (after 2 and 4 s), four in a row give all four (up to 16 s), because a longer
comparison builds new instances too. The same rounds with shifted logarithms simulate a difference of 1.25x, 1.5x or 3x.

noise: the scatter of one window; in brackets, the part visible within it. luck: how much instances differ beyond
the noise of their rounds. false: identical pairs that were called faster or slower. told: the fraction of true
differences that were called faster. interval: distance from its center to its upper end after 4 s, in the median case
and, in brackets, in nine of ten.
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
from bigtrain_nb.measure.intervals import INSTANCE_SCATTER, expected_scatter, ratio_interval
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.results import TIGHT, Ratio
from bigtrain_nb.measure.rounds import INTERIM_CHECKS, LEAST_ROUNDS, Rounds

BATCH = 66
SECONDS = 4.0
TOGETHER = max(INTERIM_CHECKS)
"""Pieces in the longest comparison."""
TRUTHS = (1.25, 1.5, 3)
SIMULATED = {0.07: 40, 0.16: 8, 0.35: 4}
"""{noise of a window: rounds in four seconds}: a step, a pipeline, a pipeline with slowly filling buffers."""
SEEN = 0.25
"""Fraction of a simulated window's variance visible in its halves; 0.2 to 0.6 in real ones on a busy machine."""


def step():
    """Return a new step function that trains its own dense network on one batch."""
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
    """Return a new dataset from a Python generator."""

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
    """Return for each piece the log rates of two identical sources and the noise of these windows, [2, rounds, 2]."""
    found = []
    for _ in range(pieces):
        rounds = Rounds({"a": build, "b": build}, SECONDS)
        with Progress(None) as told:
            rounds.build(told)
            while len(rounds.instances) < LEAST_ROUNDS or rounds.seconds < SECONDS:
                rounds.add(told, SECONDS)
        rounds.drop(["a", "b"])
        noises = [[noise for _, _, noise in rounds.windows[name]] for name in "ab"]
        found.append(np.array([np.log([rounds.rates(name) for name in "ab"]).T, np.transpose(noises)]))
    return found


def simulated(noise, rounds, pieces, dice):
    """Return the same for simulated sources with heavy-tailed noise and instances that differ by `INSTANCE_SCATTER`."""
    found = []
    for _ in range(pieces):
        luck = dice.normal(0, INSTANCE_SCATTER, 2)
        between = noise * math.sqrt((1 - SEEN) / 2) * dice.standard_t(4, (rounds, 2))
        halves = noise * math.sqrt(SEEN) * dice.standard_t(4, (2, rounds, 2))
        seen = abs(halves[0] - halves[1]) / 2
        found.append(np.array([luck + between + halves.mean(axis=0), seen]))
    return found


def ratio_of(pieces, truth, error):
    """Return the `Ratio` of these pieces as `bt.compare` would report it."""
    ratios = np.concatenate([math.log(truth) + logs[:, 0] - logs[:, 1] for logs, _ in pieces])
    noises = np.sqrt((np.concatenate([noises for _, noises in pieces]) ** 2).mean(axis=0))
    instances = np.repeat(range(len(pieces)), [piece.shape[1] for piece in pieces])
    *ends, _ = ratio_interval(ratios, instances, error, expected_scatter(*noises))
    return Ratio("a", "b", *map(math.exp, ends))


def answer(pieces, truth, longest):
    """Return the final `Ratio` of a comparison of at most ``longest``."""
    for times, error in INTERIM_CHECKS.items():
        if times > longest:
            break
        checked = pieces[: max(1, int(times))]
        if times < 1:
            checked = [pieces[0][:, : max(LEAST_ROUNDS, int(times * pieces[0].shape[1]))]]
        found = ratio_of(checked, truth, error)
        if found.verdict != "unclear" and (times >= 1 or found.high < TIGHT * found.median):
            break
    return found


def row(name, pieces):
    """Return the table row of one source."""
    logs = [piece[0] for piece in pieces]
    scatter = np.concatenate([each - each.mean(axis=0) for each in logs])
    freedom = len(scatter) - len(pieces)
    noise = (scatter.ravel() @ scatter.ravel() / 2 / freedom) ** 0.5
    seen = np.mean(np.concatenate([piece[1].ravel() for piece in pieces]) ** 2) ** 0.5
    apart = np.array([(each[:, 0] - each[:, 1]).mean() for each in logs])
    of_rounds = np.mean([2 * noise**2 / len(each) for each in logs])
    luck = (max(0.0, apart.var(ddof=1) - of_rounds) / 2) ** 0.5 if len(pieces) > 1 else math.nan
    rounds = f"{np.median([len(each) for each in logs]):.0f}"
    cells = [name, f"{100 * noise:.0f} ({100 * seen:.0f}) %", f"{100 * luck:.0f} %", rounds]
    short = [[piece] for piece in pieces]
    long = [pieces[start : start + TOGETHER] for start in range(0, len(pieces) - TOGETHER + 1, TOGETHER)]
    for groups, longest in ((short, 1), (long, TOGETHER)):
        found = [answer(group, 1.0, longest).verdict for group in groups]
        cells.append(share(sum(each in ("faster", "slower") for each in found), len(found)))
    for truth in TRUTHS:
        told = []
        for groups, longest in ((short, 1), (long, TOGETHER)):
            found = [answer(group, truth, longest).verdict for group in groups]
            told.append(f"{100 * found.count('faster') / max(1, len(found)):.0f}")
        cells.append(f"{told[0]} ({told[1]}) %")
    found = [answer(group, max(TRUTHS), 1) for group in short]
    half, nine = np.quantile([ratio.high / ratio.median - 1 for ratio in found], [0.5, 0.9])
    return [*cells, f"±{100 * half:.0f} ({100 * nine:.0f}) %"]


def share(count, total):
    """Return "3 of 40 (2 to 20 %)" with the exact (Clopper-Pearson) 95 % interval."""
    if not total:
        return "none"
    interval = binomtest(count, total).proportion_ci()
    return f"{count} of {total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


@contextmanager
def busy_loop():
    """Another program that keeps one core busy."""
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
    of_different = (f"{truth}x told in 4 s (16 s)" for truth in TRUTHS)
    head = ("source", "noise", "luck", "rounds", *of_alike, *of_different, "interval")
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
        f"{in_words(about)} Instances of simulated sources differ by {100 * INSTANCE_SCATTER:.0f} %, and the"
        f" halves of a window show {100 * SEEN:.0f} % of its variance.{beside}\n\n{table(head, rows)}"
    )
    found = {kind: [piece.tolist() for piece in pieces] for kind, pieces in all_pieces.items()}
    finish(arguments, "honesty", text, {"facts": about, "found": found})


if __name__ == "__main__":
    main()
