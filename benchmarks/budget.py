"""Peak memory, planned and measured, in processes of one or two replicas."""

import argparse
import sys
from statistics import median

from budget_steps import Case, peak_of
from report import add_arguments, facts, finish, in_words, table

import bigtrain_nb as bt
from bigtrain_nb.advanced.plan.plans import PROCESS
from bigtrain_nb.common.words import amount

CASES = [
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
    Case("dense, fully sharded", 256, devices=2),
    Case("GPT, 256 wide, fully sharded", 32, devices=2),
    Case("GPT, 256 wide, fully sharded", 128, micro_batches=4, devices=2),
    Case("GPT-2 of KerasHub, fully sharded", 32, devices=2),
]
HEAD = ["network", "batch", "K", "policy", "replicas", "predicted", "measured", "ratio", "verdict"]


def predicted_and_measured(case, repeats):
    """Return bytes: the plan's peak with the runtime, and the median measured peak of fresh processes.

    For several replicas in one process, the prediction is the sum over the replicas plus one process.
    """
    plan = bt.plan_step(case.build, case.batch, **case.settings, devices=case.devices, prefetched=0)
    folded = 0 if case.sized else plan.memory.parts.get("constants", 0)
    predicted = case.devices * (plan.peak - folded + plan.runtime - PROCESS) + PROCESS
    return predicted, 2**20 * median(peak_of(case) for _ in range(repeats))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2, help="fresh processes for each case (default: 2)")
    add_arguments(parser)
    arguments = parser.parse_args()
    bt.devices(2)
    about, rows = facts(), []
    for case in CASES:
        predicted, measured = predicted_and_measured(case, arguments.repeats)
        ratio = predicted / measured
        verdict = "met" if 0.85 <= ratio <= 1.15 else "missed"
        rows.append([*case.row, amount(predicted, "bytes"), amount(measured, "bytes"), f"{ratio:.2f}", verdict])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    met = sum(row[-1] == "met" for row in rows)
    text = f"{in_words(about)} {met} of {len(rows)} within 15 %.\n\n{table(HEAD, rows)}"
    finish(arguments, "budget-memory", text, {"facts": about, "head": HEAD, "rows": rows})


if __name__ == "__main__":
    main()
