"""Replicas that say less to each other: the time of it alone and in a step, and what it does to the loss."""

import argparse
from pathlib import Path
from statistics import median

from report import add_arguments, facts, finish, in_words, paired_ratio, say, table
from talking_job import ALONE, IN_STEP, LOSS_WAYS, MIB, SIZES, STEPS, WAYS
from training_workers import BATCH, chiefs_answer

from bigtrain_nb.common.words import interval, number

JOB = Path(__file__).with_name("talking_job.py")
PACKS = {"one": 0, "of 1 MiB": MIB, "of 4 MiB": 4 * MIB}
WORKERS, MINUTES = 2, 30
ALONE_HEAD = ("message", "sent", "ms", "core ms", "of the time in one tensor", "share of the socket's rate")


def answer(*arguments):
    say(" ".join(map(str, arguments)))
    return chiefs_answer(JOB, WORKERS, list(arguments), {}, seconds=60 * MINUTES)


def alone(rounds):
    """Return the rows of all-reduces one after the other, and each round."""
    found = answer("alone", rounds, 0)
    rows = []
    for size, (*ways, socket) in zip(SIZES, found, strict=True):
        socket_seconds, socket_cores = zip(*socket, strict=True)
        first, _ = zip(*ways[0], strict=True)
        for name, times in zip(ALONE, ways, strict=True):
            seconds, cores = zip(*times, strict=True)
            figures = [number(1000 * median(seconds)), number(1000 * median(cores))]
            against = interval(paired_ratio(name, "in one tensor", seconds, first))
            share = interval(paired_ratio(name, "socket", socket_seconds, seconds))
            rows.append([f"{size // MIB} MiB", name, *figures, against if times is not ways[0] else "", share])
        figures = [number(1000 * median(socket_seconds)), number(1000 * median(socket_cores))]
        rows.append([f"{size // MIB} MiB", "the same bytes through a socket", *figures, "", ""])
    return rows, found


def steps(rounds, repeats):
    """Return the rows of training steps; jobs with other packs take turns, in fresh processes."""
    rows = []
    jobs = {packs: [] for packs in PACKS}
    for _ in range(repeats):
        for packs, size in PACKS.items():
            jobs[packs].append(answer("step", rounds, size))
    for place, network in enumerate(STEPS):
        for index, name in enumerate(WAYS):
            for packs, found in jobs.items():
                seconds = [one for job in found for one in job[place][index]]
                plain = [one for job in jobs["one"] for one in job[place][0]]
                ratio = interval(paired_ratio(name, "float32", plain, seconds)) if seconds != plain else ""
                ms = median(seconds)
                rows.append([network, name, packs, number(1000 * ms), number(BATCH / ms), ratio])
    return rows, jobs


def losses(steps):
    """Return the rows of held-out losses, and each seed's."""
    found = answer("loss", steps, 0)
    rows = []
    for name, way in zip(LOSS_WAYS, found, strict=True):
        more = [mine - together for mine, together in zip(way, found[0], strict=True)]
        seeds = [", ".join(f"{one:{form}}" for one in values) for values, form in ((way, ".3f"), (more, "+.3f"))]
        rows.append([name, *seeds])
    return rows, found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of all-reduces (default: 12)")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of each way in a job of steps (default: 4)")
    parser.add_argument("--repeats", type=int, default=3, help="jobs of steps for each size of packs (default: 3)")
    parser.add_argument("--steps", type=int, default=512, help="training steps before the held-out loss (default: 512)")
    parser.add_argument("--only", choices=("time", "loss"), help="measure only one of the two parts")
    add_arguments(parser)
    arguments = parser.parse_args()
    about = facts()
    found = {"facts": about}
    if arguments.only != "loss":
        alone_rows, found["alone"] = alone(arguments.rounds)
        step_rows, found["step"] = steps(arguments.epochs, arguments.repeats)
        head = ("network", "gradients", "packs", "ms a step", "examples/s", "faster than float32 in one pack")
        runs = f"{arguments.rounds} rounds alone, {arguments.repeats} jobs of {arguments.epochs} epochs."
        tables = f"**Alone**\n\n{table(ALONE_HEAD, alone_rows)}\n\n**In a step**\n\n{table(head, step_rows)}"
        finish(arguments, "talking", f"{in_words(about)} {runs}\n\n{tables}", found)
    if arguments.only != "time":
        loss_rows, found["loss"] = losses(arguments.steps)
        head = ("replicas", "held-out loss of each seed", f"more than {IN_STEP}")
        text = f"{in_words(about)} {arguments.steps} steps.\n\n{table(head, loss_rows)}"
        finish(arguments, "local-steps", text, found)


if __name__ == "__main__":
    main()
