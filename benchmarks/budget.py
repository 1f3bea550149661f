"""What budgets predict beside what is measured: memory of processes of one replica or several, time, pipelines."""

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import median

from budget_picture import predicted_figure
from budget_steps import Case, peak_of, source, updates
from report import add_arguments, facts, finish, in_words, table
from training_workers import chiefs_answer

import bigtrain_nb as bt
from bigtrain_nb.common.words import amount
from bigtrain_nb.plan.plans import PROCESS
from bigtrain_nb.plots import figure_png

MEMORY_CASES = [
    Case("conv net", 256),
    Case("conv net", 1024),
    Case("conv net", 1024, micro_batches=4),
    Case("conv net, batch norm", 512),
    Case("conv net, 64 wide", 256, micro_batches=4),
    Case("conv net, 64 wide", 256, policy="mixed_bfloat16"),
    Case("GPT", 256),
    Case("GPT", 256, micro_batches=4),
    Case("GPT", 128, policy="mixed_bfloat16"),
    Case("GPT, 384 wide", 16),
    Case("GPT, 384 wide", 16, micro_batches=4),
    Case("GPT, 12 blocks", 32),
    Case("GPT, 12 blocks, recomputed", 32),
    Case("GPT, 12 blocks, recomputed", 128, micro_batches=4),
    Case("GPT, 12 blocks, recomputed", 32, sized=False),
    Case("conv net, recomputed", 256),
    Case("conv net, recomputed", 256, sized=False),
    Case("conv net", 256, sized=False),
    Case("dense", 8192),
    Case("dense", 8192, micro_batches=4),
    Case("dense", 4096, policy="mixed_bfloat16"),
    Case("LSTM", 256),
    Case("1-D convolutions", 256),
    Case("large embedding", 256),
    Case("GRU", 256),
    Case("text branches", 256),
    Case("3-D convolutions", 64),
    Case("separable", 128),
    Case("dense, fully sharded", 256, devices=2),
    Case("GPT, 256 wide, fully sharded", 32, devices=2),
    Case("GPT, 256 wide, fully sharded", 128, micro_batches=4, devices=2),
    Case("GPT-2 of KerasHub, fully sharded", 32, devices=2),
]
TIME_CASES = [
    Case("conv net", 128),
    Case("conv net", 128, micro_batches=4),
    Case("GPT", 32),
    Case("GPT", 32, micro_batches=4),
    Case("GPT", 32, input_seconds=1.5),
    Case("GPT, 12 blocks", 32),
    Case("GPT, 12 blocks, recomputed", 32),
    Case("dense", 64),
    Case("dense", 1024),
    Case("LSTM", 64),
    Case("1-D convolutions", 64),
    Case("GRU", 256),
    Case("text branches", 64),
    Case("3-D convolutions", 32),
    Case("separable", 128),
    Case("conv net", 128, devices=2),
    Case("GPT", 32, devices=2),
    Case("dense", 64, devices=2),
    Case("GPT", 32, workers=2),
    Case("dense", 64, workers=2),
]
"""Replicas come late: after them a step of one takes longer in the same process, which asks for its memory anew."""
ROUNDS = 3
WORKER = Path(__file__).with_name("budget_steps.py")
STEP = ("network", "batch", "K", "policy", "replicas")
NAMED = ("batch", "K", "replicas")
RESULT = ("predicted", "measured", "ratio", "verdict")


def memories(arguments):
    """Yield a case, what its plan predicts together with the runtime's own, and the peak of fresh processes.

    That of several replicas in one process is the sum of what each is predicted to take, with one process.
    """
    for case in MEMORY_CASES:
        plan = bt.plan_step(case.build, case.batch, **case.settings, devices=case.devices, waiting=0)
        measured = median(peak_of(case) for _ in range(arguments.repeats))
        folded = 0 if case.sized else plan.memory.parts.get("folded", 0)
        predicted = case.devices * (plan.peak - folded + plan.runtime - PROCESS) + PROCESS
        yield case.row, predicted, 2**20 * measured, ()


def planned(case, **more):
    return bt.plan_step(case.build, case.batch, **case.settings, on="here", **more)


def in_workers(case, _):
    """Return a plan, with the link that the workers measure, and the seconds of their step."""
    link, taken = chiefs_answer(WORKER, case.workers, [case.network, case.batch], {})
    return planned(case, devices=case.workers, link=link), taken


def here(case):
    """Return a function of seconds that returns a plan and the seconds of a step in this process."""
    made = bt.throughput(source(case), seconds=2) if case.input_seconds else None
    waiting = case.batch / made.median if made else 0.0
    step = updates(case)

    def measure(seconds):
        plan = planned(case, devices=case.devices, input_seconds=waiting)
        return plan, case.batch / bt.throughput(step, seconds=seconds).median

    return measure


def times(arguments):
    """Yield a case, the seconds of which its plan says that no step is faster, those of a step, and what binds."""
    for case in TIME_CASES:
        measure = partial(in_workers, case) if case.workers > 1 else here(case)
        rounds = [measure(arguments.seconds / ROUNDS) for _ in range(ROUNDS)]  # a machine's speed drifts
        plans, taken = zip(*rounds, strict=True)
        bound = " or ".join(sorted({plan.binding for plan in plans}))
        yield case.row, median(plan.seconds for plan in plans), median(taken), (bound,)


def pipelines(arguments):
    """Yield a pipeline, the examples/s that the stages of its slowest form allow, and what it reaches."""
    data, fast = bt.photo_crops(), {"num_parallel_calls": bt.cores(), "prefetch": 2}
    ways = {"one step after the other": {}, "a call on each core, prefetch": fast}
    rounds = {name: [] for name in ways}
    for _ in range(ROUNDS):
        slow = bt.diagnose(bt.Pipeline(data=data, rewrites=False), seconds=arguments.seconds)
        for name, ceiling in zip(ways, (bt.pipeline_ceiling(slow), slow.ceiling), strict=True):
            made = bt.Pipeline(data=data, rewrites=False, **ways[name]).dataset()
            rounds[name].append((ceiling, bt.throughput(made, seconds=arguments.seconds).median))
    for name, found in rounds.items():
        predicted, measured = map(median, zip(*found, strict=True))
        yield [name], predicted, measured, ()


PARTS = {
    "memory": (memories, STEP, (), (0.85, 1.15), "bytes"),
    "time": (times, STEP, ("bound by",), (1 / 3, 1.05), "s"),
    "pipeline": (pipelines, ("pipeline",), (), (0.75, 1.25), "examples/s"),
}
"""{part: (what measures it, columns before and after what binds, least and largest ratio that are met, unit)}.

The time is a bound: never more than what is measured, but for noise."""


def name_of(head, row):
    """Return what a picture calls a row: its network, and what is not 1 of `NAMED`."""
    rest = zip(head, row, strict=True)
    return ", ".join([row[0], *(f"{what} {cell}" for what, cell in rest if what in NAMED and cell != "1")])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="to time the steps of a case (default: 10)")
    parser.add_argument("--repeats", type=int, default=2, help="fresh processes for the memory of a case (default: 2)")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    add_arguments(parser)
    arguments = parser.parse_args()
    bt.devices(2)
    bt.tf.get_logger().setLevel("ERROR")  # it takes one function per case for retracing
    about, done = facts(), {}
    for part in [arguments.only] if arguments.only else PARTS:
        measure, head, more, band, unit = PARTS[part]
        rows, pairs = [], []
        for row, predicted, measured, cells in measure(arguments):
            verdict = "met" if band[0] <= predicted / measured <= band[1] else "missed"
            shown = [amount(predicted, unit), amount(measured, unit), f"{predicted / measured:.2f}", verdict]
            rows.append([*row, *cells, *shown])
            pairs.append((name_of(head, row), measured, predicted))
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
        done[part] = {"head": [*head, *more, *RESULT], "rows": rows, "pairs": pairs}
        met = sum(row[-1] == "met" for row in rows)
        text = f"{in_words(about)} {met} of {len(rows)} between {band[0]:.2f} and {band[1]:.2f}."
        picture = f"![Predicted beside measured: {met} of {len(rows)} within the band](budget-{part}.png)"
        text = "\n\n".join([text, table(done[part]["head"], rows), picture])
        finish(arguments, f"budget-{part}", text, {"facts": about, "parts": done})
        if arguments.readme:
            drawing = figure_png(predicted_figure(pairs, band, unit))
            Path(__file__).with_name(f"budget-{part}.png").write_bytes(drawing)


if __name__ == "__main__":
    main()
