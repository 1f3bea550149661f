"""The runs of a Lab: what was measured with which settings, and how to say it, draw it and write it down.

A run has a ratio only to runs that were measured in interleaved rounds with it; anything else was "measured apart".
"""

import csv
import io
from dataclasses import dataclass, replace

from bigtrain_nb.common import cards
from bigtrain_nb.common.words import amount, interval
from bigtrain_nb.lab.controls import describe, text
from bigtrain_nb.measure.race import Race
from bigtrain_nb.measure.results import Comparison, Ratio, Result
from bigtrain_nb.plots import comparison_figure

SHOWN = 24
ALL = object()
"""In place of the name of a control that is swept: all combinations race."""


@dataclass(repr=False, eq=False)
class Run:
    """One measurement.

    `comparison` holds all that was measured in the same interleaved rounds, the baseline first (in a race the fastest),
    or is None for a run that was measured alone. `ratio` is the rate over that one's, or None for that one itself.
    """

    settings: dict
    result: Result
    comparison: Comparison | None = None

    @property
    def name(self) -> str:
        return self.result.name

    @property
    def ratio(self) -> Ratio | None:
        baseline = self.comparison.names[0] if self.comparison else self.name
        return None if baseline == self.name else self.comparison.ratio(self.name, baseline)

    def __repr__(self):
        against = f"; against {self.ratio.b}: {_ratio_words(self.ratio)}" if self.ratio else ""
        return f"{self.name} ({describe(self.settings)}): {_rate(self)}{against}"


def words(new: list[Run]) -> str:
    """What was measured last, in a sentence."""
    together = new[0].comparison
    return together.answer if isinstance(together, Race) else repr(new[-1])


def standings(race: Race) -> cards.Card:
    """Who is still in, and who has left."""
    rows = []
    for name, result in race.results.items():
        state = f"left after {race.left[name]} rounds" if name in race.left else "still in"
        rows.append([name, describe(race.settings[name]), interval(result), state])
    return cards.table("", ["run", "settings", "median (interval)", "the race"], rows)


def shown(runs: list[Run], baseline: Run) -> list[Run]:
    """The last 24 runs, the baseline always among them."""
    last = runs[-SHOWN:]
    if baseline not in last:
        last[0] = baseline
    return last


def verdict(run: Run, baseline: Run) -> str:
    """In words, with the ratio if the two were measured in interleaved rounds."""
    if run is baseline:
        return "baseline"
    together = _measured_together(run, baseline)
    if together is None:
        return "measured apart"
    return _ratio_words(together.ratio(run.name, baseline.name))


def titles(runs: list[Run]) -> dict[Run, str]:
    """By run its name and the settings that tell it from the others: "run 2: batch=32 prefetch=2"."""
    differing = []
    for name in runs[0].settings:
        values = {text(run.settings[name]) for run in runs}
        if len(values) > 1 or len(runs) == 1:
            differing.append(name)
    return {run: f"{run.name}: {describe({name: run.settings[name] for name in differing})}" for run in runs}


def table(runs: list[Run], baseline: Run | None) -> cards.Card:
    """The runs that `shown` selects, with their settings, rates and verdicts."""
    if not runs:
        return cards.note("Runs", "none so far")
    head = ["run", "settings", "median (interval)", "first batch", f"against {baseline.name}"]
    rows = []
    for run in shown(runs, baseline):
        first = amount(run.result.first_seconds, "s")
        rows.append([run.name, describe(run.settings), _rate(run), first, verdict(run, baseline)])
    return cards.table(f"The last {len(rows)} of {len(runs)} runs", head, rows)


def figure(runs: list[Run], baseline: Run):
    """The runs that `shown` selects as a matplotlib figure, each with the baseline's rate in the same rounds."""
    titled = titles(runs)
    rows = []
    beside = []
    for run in shown(runs, baseline):
        rows.append(replace(run.result, name=titled[run]))
        together = None if run is baseline else _measured_together(run, baseline)
        beside.append(together and together.results[baseline.name].median)
    return comparison_figure(rows, baseline=titled[baseline], beside=beside)


def csv_lines(runs: list[Run]) -> str:
    """All runs as CSV; the columns from `baseline` on are empty for a run without a ratio."""
    measured = ["unit", "median", "low", "high", "first_seconds", "note"]
    ratio = {"baseline": "b", "ratio": "median", "ratio_low": "low", "ratio_high": "high", "verdict": "verdict"}
    file = io.StringIO()
    lines = csv.writer(file)
    for run in runs:
        if run is runs[0]:
            lines.writerow(["run", *run.settings, *measured, *ratio])
        line = [run.name, *map(text, run.settings.values())]
        line += [getattr(run.result, name) for name in measured]
        line += [getattr(run.ratio, name, "") for name in ratio.values()]
        lines.writerow(line)
    return file.getvalue()


def _measured_together(run, other):
    """Return the `Comparison` that holds both runs, or None."""
    for comparison in (run.comparison, other.comparison):
        if comparison and run.name in comparison.results and other.name in comparison.results:
            return comparison
    return None


def _rate(run):
    note = f" ({run.result.note})" if run.result.note else ""
    return f"{interval(run.result)} {run.result.unit}{note}"


def _ratio_words(ratio):
    return str(ratio) if ratio.verdict == "same" else f"{ratio.verdict}, {ratio}"
