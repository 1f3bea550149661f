"""How often does bt.compare cry wolf, and how often does it miss a true 10 %? Counted on real input pipelines.

False alarms: two identical pipelines are compared; any verdict but "same" is one.
Detection: two identical pipelines make batches of 66 images, but of one only 60 count: it makes 6 in vain. So it does
10 % more work for each image that counts, whatever binds the pipeline, and the true ratio is 1.10 by construction.
"""

import argparse
import sys
from statistics import median

from report import add_arguments, facts, finish, in_words, table
from scipy.stats import binomtest

import bigtrain_nb as bt

BATCH, USEFUL = 66, 60
PIPELINES = {
    "tuned": {"num_parallel_calls": bt.cores(), "vectorize": True, "prefetch": 2},
    "one step after the other": {"rewrites": False},
    "cached in memory": {"cache": "memory", "vectorize": True, "prefetch": 2},
}


def counted(pipeline, examples):
    """Return the pipeline's batches as labels, of which the first ``examples`` of each batch count."""
    return pipeline.dataset().map(lambda images, labels: labels[:examples])


def measure(pipeline, seconds):
    """Return the ratios of two identical pipelines and of one that is truly 10 % faster than the other."""
    alike = {"a": lambda: counted(pipeline, BATCH), "b": lambda: counted(pipeline, BATCH)}
    different = {"a": lambda: counted(pipeline, BATCH), "b": lambda: counted(pipeline, USEFUL)}
    return [bt.compare(pair, seconds=seconds).ratio("a", "b") for pair in (alike, different)]


def share(count, total):
    """Return "3 of 40 (2 to 20 %)" with the exact (Clopper-Pearson) 95 % interval."""
    interval = binomtest(count, total).proportion_ci()
    return f"{count} of {total} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def row(name, pairs):
    """Return the counts of one kind of pipeline from its pairs of ratios (alike, different)."""
    alike, different = zip(*pairs, strict=True)
    alarms = sum(ratio.verdict != "same" for ratio in alike)
    seen = sum(ratio.verdict == "faster" for ratio in different)
    widths = [f"{median(100 * (r.high / r.low - 1) / 2 for r in ratios):.1f} %" for ratios in (alike, different)]
    measured = f"{median(ratio.median for ratio in different):.3f}"
    return [name, share(alarms, len(pairs)), share(seen, len(pairs)), measured, " and ".join(widths)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="of both comparisons per pipeline (default: 20)")
    parser.add_argument("--seconds", type=float, default=20, help="for each comparison (default: 20)")
    add_arguments(parser)
    arguments = parser.parse_args()
    data = bt.photo_crops()
    pipelines = {name: bt.Pipeline(data=data, batch=BATCH, **s) for name, s in PIPELINES.items()}
    pairs = {name: [] for name in pipelines}
    for repeat in range(arguments.repeats):
        for name, pipeline in pipelines.items():
            pairs[name].append(measure(pipeline, arguments.seconds))
            alike, different = pairs[name][-1]
            print(f"{repeat + 1}/{arguments.repeats} {name}: alike {alike}; different {different}", file=sys.stderr)
    rows = [row(name, found) for name, found in pairs.items()]
    rows.append(row("all", [pair for found in pairs.values() for pair in found]))
    head = ("pipeline", "false alarms", "true 10 % seen", "its measured ratio", "half widths of the intervals")
    about = facts()
    text = f"{in_words(about)} {arguments.seconds:.0f} s a comparison.\n\n{table(head, rows)}"
    ratios = {name: [[ratio.to_dict() for ratio in pair] for pair in found] for name, found in pairs.items()}
    finish(arguments, "honesty", text, {"facts": about, "head": head, "rows": rows, "ratios": ratios})


if __name__ == "__main__":
    main()
