"""How often do bt.compare and bt.race err? Counted on real input pipelines.

False alarms: two identical pipelines are compared; any verdict but "same" is one.
Detection: two identical pipelines make batches of 66 images, but of one only 60 count: it makes 6 in vain. So it does
10 % more work for each image that counts, whatever binds the pipeline, and the true ratio is 1.10 by construction.
Races: 24 settings of a pipeline race again and again. The truth is one comparison of all of them, five times as long.
"""

import argparse
import sys
import time
from dataclasses import asdict
from functools import partial
from statistics import median

from report import add_arguments, facts, finish, in_words, table
from scipy.stats import binomtest

import bigtrain_nb as bt
from bigtrain_nb.measure.race import LOOKS, ROUNDS
from bigtrain_nb.measure.results import PRACTICALLY_SAME

BATCH, USEFUL = 66, 60
PIPELINES = {
    "tuned": {"num_parallel_calls": bt.cores(), "vectorize": True, "prefetch": 2},
    "one step after the other": {"rewrites": False},
    "cached in memory": {"cache": "memory", "vectorize": True, "prefetch": 2},
}
CHOICES = {
    "cycle_length": [1, 2],
    "num_parallel_calls": [1, 2, "AUTOTUNE"],
    "vectorize": [False, True],
    "prefetch": [0, 2],
}


def counted(pipeline, examples):
    """Return the pipeline's batches as labels, of which the first ``examples`` of each batch count."""
    return pipeline.dataset().map(lambda images, labels: labels[:examples])


def measure(pipeline, seconds):
    """Measure two identical pipelines, and one that is truly 10 % faster than the other.

    Return for each of both the ratio and the number of rounds that it rests on.
    """
    alike = {"a": lambda: counted(pipeline, BATCH), "b": lambda: counted(pipeline, BATCH)}
    different = {"a": lambda: counted(pipeline, BATCH), "b": lambda: counted(pipeline, USEFUL)}
    found = []
    for pair in (alike, different):
        comparison = bt.compare(pair, seconds=seconds)
        found.append((comparison.ratio("a", "b"), len(comparison.results["a"].rounds)))
    return found


def half_width(ratio):
    return (ratio.high / ratio.low - 1) / 2


def rounds_needed(ratio, rounds):
    """Return after how many rounds the half width would be 2 %: it falls with the square root of their number."""
    return rounds * (half_width(ratio) / PRACTICALLY_SAME) ** 2


def share(count, total):
    """Return "3 of 40 (2 to 20 %)" with the exact (Clopper-Pearson) 95 % interval."""
    interval = binomtest(count, total).proportion_ci()
    return f"{count} of {total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def row(name, pairs):
    """Return the counts of one kind of pipeline from its pairs (alike, different), each of a ratio and its rounds."""
    alike = [ratio for (ratio, _), _ in pairs]
    different = [ratio for _, (ratio, _) in pairs]
    alarms = sum(ratio.verdict != "same" for ratio in alike)
    seen = sum(ratio.verdict == "faster" for ratio in different)
    widths = [f"{median(100 * half_width(ratio) for ratio in ratios):.1f} %" for ratios in (alike, different)]
    measured = f"{median(ratio.median for ratio in different):.3f}"
    needed = median(rounds_needed(ratio, rounds) for pair in pairs for ratio, rounds in pair)
    counts = [share(alarms, len(pairs)), share(seen, len(pairs))]
    return [name, *counts, measured, " and ".join(widths), f"{needed:.0f}"]


def races(data, repeats, seconds):
    """Return the row of the races, and for each whether it kept the true best, its finalists, rounds and seconds."""
    build = partial(bt.Pipeline, data=data, batch=64, rewrites=False)
    kept = []
    finalists = []
    shares = []
    took = []
    truth = None
    for repeat in range(repeats):
        began = time.perf_counter()
        found = bt.race(build, seconds=seconds, **CHOICES)
        took.append(time.perf_counter() - began)
        if truth is None:
            factories = {name: partial(build, **chosen) for name, chosen in found.settings.items()}
            truth = bt.compare(factories, seconds=5 * seconds)
            best = max(truth.names, key=lambda name: truth.results[name].median)
        kept.append(best in found.still_in)
        finalists.append(len(found.best))
        rounds = [len(result.rounds) for result in found.results.values()]
        shares.append(sum(rounds) / len(rounds) / (LOOKS * ROUNDS))
        print(f"{repeat + 1}/{repeats} races: {found.answer} The best: {best}.", file=sys.stderr)
    row = [str(len(found.results)), share(sum(kept), repeats), f"{median(finalists):.0f}"]
    row += [f"{100 * median(shares):.0f} %", f"{median(took):.0f}"]
    return row, {"kept": kept, "finalists": finalists, "shares": shares, "seconds": took, "truth": truth.to_dict()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="of both comparisons per pipeline (default: 20)")
    parser.add_argument("--seconds", type=float, default=20, help="for each comparison (default: 20)")
    parser.add_argument("--races", type=int, default=20, help="of 24 settings (default: 20)")
    add_arguments(parser)
    arguments = parser.parse_args()
    data = bt.photo_crops()
    pipelines = {name: bt.Pipeline(data=data, batch=BATCH, **s) for name, s in PIPELINES.items()}
    pairs = {name: [] for name in pipelines}
    for repeat in range(arguments.repeats):
        for name, pipeline in pipelines.items():
            pairs[name].append(measure(pipeline, arguments.seconds))
            (alike, rounds), (different, _) = pairs[name][-1]
            news = f"alike {alike}; different {different}; {rounds} rounds"
            print(f"{repeat + 1}/{arguments.repeats} {name}: {news}", file=sys.stderr)
    rows = [row(name, found) for name, found in pairs.items()]
    rows.append(row("all", [pair for found in pairs.values() for pair in found]))
    head = ("pipeline", "false alarms", "true 10 % seen", "its measured ratio", "half widths of the intervals")
    head += ("rounds that 2 % need",)
    about = facts()
    race_head = ("settings", "the true best is in the final set", "finalists", "rounds, of 42 for each", "seconds")
    race_seconds = 6 * arguments.seconds
    race_row, raced = races(data, arguments.races, race_seconds)
    text = f"{in_words(about)} {arguments.seconds:.0f} s a comparison, {race_seconds:.0f} s a race at most."
    text += f"\n\n{table(head, rows)}\n\n{table(race_head, [race_row])}"
    ratios = {name: [[asdict(ratio) for ratio, _ in pair] for pair in found] for name, found in pairs.items()}
    facts_found = {"facts": about, "head": head, "rows": rows, "ratios": ratios, "races": raced}
    finish(arguments, "honesty", text, facts_found)


if __name__ == "__main__":
    main()
