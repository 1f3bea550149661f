"""Shared code of the benchmarks: tables, machine facts, and rewriting a section of README.md."""

import datetime
import json
import math
import sys
from importlib import metadata
from pathlib import Path

import bigtrain_nb as bt
from bigtrain_nb.common.files import write_text
from bigtrain_nb.measure.intervals import mean_interval
from bigtrain_nb.measure.results import Ratio
from bigtrain_nb.measure.rounds import INTERIM_CHECKS

README = Path(__file__).with_name("README.md")


def table(head, rows):
    """Return a Markdown table, padded to be readable in a terminal."""
    rows = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def facts(packages=()):
    """Return the machine, the versions of the installed ``packages`` and the date."""
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**bt.machine(), **versions, "date": datetime.date.today().isoformat()}


def in_words(facts):
    """Return ``facts`` as one sentence."""
    named = ("processor", "cores", "memory_gib", "system", "date", "gpus")
    versions = ", ".join(f"{name} {version}" for name, version in facts.items() if name not in named)
    processors = ", ".join([*facts.get("gpus", []), facts["processor"]])
    return (
        f"Measured on {facts['date']}: {processors}, {facts['cores']} cores, {facts['memory_gib']} GiB,"
        f" {facts['system']}; {versions}."
    )


def paired_ratio(name, other, values, others):
    """Return the ratio of ``values`` to ``others``, from paired rounds."""
    logs = [math.log(a / b) for a, b in zip(values, others, strict=True)]
    return Ratio(name, other, *map(math.exp, mean_interval(logs)))


def compare_in(seconds, factories):
    """Return the comparison of sources in ``seconds``, or less if all verdicts are clear."""
    return bt.compare(factories, seconds=seconds / max(INTERIM_CHECKS))


def say(words):
    print(words, file=sys.stderr, flush=True)


def verdict(ratio, least):
    """Return whether a ratio is at least ``least``: "met" or "missed" if its entire interval agrees, else "open"."""
    return "met" if ratio.low >= least else "missed" if ratio.high < least else "open"


def finish(arguments, name, text, fields):
    """Print ``text``; write ``fields`` to ``--json FILE``, and ``text`` to its section of README.md if ``--readme``."""
    print(f"\n{text}")
    if arguments.json:
        write_text(arguments.json, json.dumps(fields, indent=1) + "\n")
    if arguments.readme:
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = README.read_text(encoding="utf-8").split(begin)
        write_text(README, f"{before}{begin}{text}\n{end}{rest.split(end)[1]}")


def add_arguments(parser):
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures as JSON")
    parser.add_argument("--readme", action="store_true", help="also rewrite the results in benchmarks/README.md")
